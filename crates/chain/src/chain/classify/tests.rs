use super::*;
use crate::buffer::BufferPool;
use crate::chain::InputPolicy;
use tailwater_api::PacketAction;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::vlan::VlanTag;
use tailwater_net::{FlowKey, Nanos, protocol};

fn chain() -> Chain {
    let input = InputPolicy {
        malformed: PacketAction::Drop,
        non_ip: PacketAction::Pass,
    };
    Chain::new(Vec::new(), None, input)
}

fn frame(v6: bool, protocol: u8, tags: usize) -> Vec<u8> {
    let key = match v6 {
        false => FlowKey::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), protocol, 9, 10),
        true => FlowKey::v6([0x20; 16].into(), [0x21; 16].into(), protocol, 9, 10),
    };
    let builder = (0..tags).fold(FrameBuilder::new(&key), |builder, _| builder.vlan(VlanTag::customer(1)));
    builder.frame_length(90).to_vec().unwrap()
}

/// Frames of every kind: plain, common, of the general path, malformed, and not IP.
fn mixture() -> Vec<Vec<u8>> {
    let protocols = [
        protocol::TCP,
        protocol::UDP,
        protocol::ICMP,
        protocol::ICMPV6,
        protocol::SCTP,
    ];
    let kinds = protocols
        .into_iter()
        .flat_map(|protocol| (0..6).map(move |kind| (protocol, kind)));
    let mut frames: Vec<_> = kinds
        .map(|(protocol, kind)| frame(kind & 1 != 0, protocol, kind >> 1))
        .collect();
    let mut malformed = frame(false, protocol::TCP, 0);
    malformed[46] = 0x40;
    let mut arp = frame(false, protocol::UDP, 0);
    arp[12..14].copy_from_slice(&[8, 6]);
    let mut fragment = frame(false, protocol::UDP, 0);
    fragment[20] = 0x20;
    // Without the padding of Ethernet's shortest frame, as in captures of a sender.
    let short = frame(false, protocol::TCP, 0)[..54].to_vec();
    let mut unpadded = short.clone();
    unpadded[16..18].copy_from_slice(&40_u16.to_be_bytes());
    frames.extend([malformed, arp, fragment, short, unpadded]);
    frames
}

/// Classifies frames as one batch. Returns how often each set of headers and verdict occurs: packets that bypass the
/// chain or leave it are behind the others.
fn classify(chain: &mut Chain, frames: &[Vec<u8>]) -> Vec<String> {
    let mut pool = BufferPool::new(MAX_BATCH as u32, 256).unwrap();
    let mut batch = Batch::new(&pool, MAX_BATCH);
    for frame in frames {
        assert!(batch.push(&mut pool, frame, Nanos::ZERO, 0));
    }
    chain.classify(&mut batch);
    batch.rejoin_bypass();
    let packets = batch
        .iter()
        .map(|packet| format!("{:?} {:?}", packet.headers, packet.verdict));
    packets.collect()
}

/// In batches of a few packets, and in full ones, with every kind at many positions.
#[test]
fn a_mixture_is_classified_as_plain_packets_are() {
    let frames: Vec<_> = mixture().into_iter().cycle().take(2 * MAX_BATCH).collect();
    for packets in [1, 4, MAX_BATCH] {
        let [mut plain, mut chain] = [chain(), chain()];
        for frames in frames.chunks(packets) {
            plain.mixture = -MEMORY;
            chain.mixture = MEMORY;
            assert_eq!(classify(&mut chain, frames), classify(&mut plain, frames));
        }
        assert_eq!(chain.malformed, plain.malformed);
        assert_eq!(chain.non_ip, plain.non_ip);
        assert!(plain.non_ip > 0);
    }
}

/// Both ways count the same packets as not plain.
#[test]
fn a_mixture_has_as_many_packets_that_are_not_plain() {
    let mut chain = chain();
    for frame in mixture() {
        let others = [0, 1].map(|mixture| {
            chain.mixture = mixture;
            classify(&mut chain, std::slice::from_ref(&frame));
            chain.mixture - mixture
        });
        assert_eq!(others[0], others[1], "{frame:02x?}");
    }
}

/// A few other packets among plain ones change nothing; a mixture lasts until plain packets have come for a while.
#[test]
fn recent_packets_decide_how_the_next_are_classified() {
    let (plain, other) = (frame(false, protocol::TCP, 0), frame(true, protocol::UDP, 0));
    let rows = |others: usize| [vec![other.clone(); others], vec![plain.clone(); 32 - others]].concat();
    let mut chain = chain();
    for _ in 0..100 {
        classify(&mut chain, &rows(3));
        assert!(chain.mixture <= 0);
    }
    classify(&mut chain, &rows(32));
    assert!(chain.mixture <= 0, "one batch may be an exception");
    classify(&mut chain, &rows(32));
    assert!(chain.mixture > 0);
    for _ in 0..100 {
        classify(&mut chain, &rows(8));
        assert!(chain.mixture > 0);
    }
    for batch in 0..9 {
        assert_eq!(chain.mixture > 0, batch < 8, "after {batch} batches of plain packets");
        classify(&mut chain, &rows(0));
    }
}
