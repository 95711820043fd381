//! `WanOptimizer`: each instance has its own stream, requests reach the instance they refer to, and all instances share
//! the restored data.

use super::INSTANCES;
use super::rig::{Rig, SECOND};
use proptest::prelude::*;
use std::sync::Arc;
use tailwater_functions::wan_optimizer::{Fingerprints, Options, Sampling, WanOptimizer, WanTable};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::{FlowKey, protocol};

fn table(ends: [[u8; 4]; 2], destinations: &[&str]) -> Arc<WanTable> {
    let [local, remote] = ends.map(Into::into);
    let options = Options {
        local,
        remote,
        port: 5000,
        streams: INSTANCES as u8,
        cache: 1 << 18,
        minimum: 0,
        fingerprints: Fingerprints {
            sampling: Sampling::SampleByte,
            period: 32,
        },
        mtu: 1600,
        ttl: 64,
    };
    let destinations = destinations.iter().map(|prefix| prefix.parse().unwrap());
    Arc::new(WanTable::new(options, destinations.collect()).unwrap())
}

fn rig(table: &Arc<WanTable>) -> Rig {
    Rig::new((0..INSTANCES).map(|_| WanOptimizer::new(Arc::clone(table))))
}

/// Packet of a file: one of a few that all flows have in common.
fn packet(flow: u16, file: u8) -> Vec<u8> {
    let payload: Vec<u8> = (0..900u32)
        .map(|i| (i.wrapping_mul(2_654_435_761).rotate_left(u32::from(file)) >> 24) as u8 ^ file)
        .collect();
    let (client, server) = ([10, 1, 0, 5].into(), [10, 2, 0, 9].into());
    let key = FlowKey::v4(client, server, protocol::UDP, flow, 80);
    FrameBuilder::new(&key).payload(&payload).to_vec().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// The output equals the input, whichever instances encode a packet, restore it, or receive a request. Only packets
    /// that refer to lost ones are lost.
    #[test]
    fn packets_are_restored_whoever_processes_them(
        packets in prop::collection::vec((0u16..8, 0u8..6, 0..INSTANCES, 0..INSTANCES, 0u8..8), 1..200),
    ) {
        let ends = [[192, 0, 2, 1], [192, 0, 2, 2]];
        let (near, far) = (table(ends, &["10.2.0.0/16"]), table([ends[1], ends[0]], &[]));
        let (mut near, mut far) = (rig(&near), rig(&far));
        let mut lost = 0;
        for (flow, file, coder, decoder, fate) in packets {
            let frame = packet(flow, file);
            near.turn_to(coder);
            let sent = near.run(std::slice::from_ref(&frame), SECOND);
            prop_assert_eq!(sent.len(), 1);
            if fate == 0 {
                lost += 1;
                continue;
            }
            far.turn_to(decoder);
            let left = far.run(&sent, SECOND);
            prop_assert_eq!(left.len(), 1);
            if left[0] == frame {
                continue;
            }
            // The packet refers to a lost one. Its request may reach another instance.
            prop_assert!(lost > 0);
            near.turn_to((coder + decoder) % INSTANCES);
            prop_assert!(near.run(&left, SECOND).is_empty());
            near.turn_to(coder);
            let again = near.run(std::slice::from_ref(&frame), SECOND);
            prop_assert_eq!(far.run(&again, SECOND), [frame]);
        }
        prop_assert_eq!(near.count("request"), far.count("missing"));
        prop_assert!(lost > 0 || far.count("missing") == 0);
    }
}
