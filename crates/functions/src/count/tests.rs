use super::*;
use crate::acl::{Action, Rule};
use crate::tunnel::VlanMatch;
use proptest::prelude::*;
use std::sync::Arc;
use tailwater_chain::rig::{ChainRig, INPUT};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::vlan::VlanTag;
use tailwater_net::{FlowKey, Nanos, protocol};

/// A counter's rule as numbers: prefix bits and value of the source's last byte, low and high destination port,
/// protocol, and VLAN tag.
type Asked = (u8, u8, (u16, u16), Option<u8>, Option<Option<u16>>);

fn counter(at: usize, (bits, value, ports, protocol, vlan): Asked) -> Counter {
    let length = 24 + bits;
    let address = u32::from_be_bytes([10, 0, 0, value]) & (u32::MAX << (32 - u32::from(length)));
    Counter {
        name: format!("counter-{at}"),
        rule: Rule {
            source: Some(
                format!("{}/{length}", std::net::Ipv4Addr::from(address))
                    .parse()
                    .unwrap(),
            ),
            destination: None,
            source_ports: 0..=u16::MAX,
            destination_ports: ports.0..=ports.1,
            protocol,
            action: Action::Allow,
        },
        vlan: vlan.map(|vlan| vlan.map_or(VlanMatch::Untagged, VlanMatch::Id)),
    }
}

/// A packet: the source's last byte, its destination port, `true` for TCP, and its VLAN tag.
type Sent = (u8, u16, bool, Option<u16>);

fn frame((source, port, tcp, vlan): Sent) -> Vec<u8> {
    let protocol = if tcp { protocol::TCP } else { protocol::UDP };
    let ends = ([10, 0, 0, source].into(), [192, 0, 2, 1].into());
    let key = FlowKey::v4(ends.0, ends.1, protocol, 1000, port);
    let mut builder = FrameBuilder::new(&key);
    if let Some(id) = vlan {
        builder = builder.vlan(VlanTag {
            ethertype: 0x8100,
            priority: 0,
            drop_eligible: false,
            id,
        });
    }
    builder.payload(&vec![0; usize::from(source)]).to_vec().unwrap()
}

/// Returns `true` if a packet matches a counter, computed from numbers alone.
fn asks((bits, value, ports, protocol, vlan): Asked, (source, port, tcp, tag): Sent) -> bool {
    let same = (source ^ value).checked_shr(8 - u32::from(bits)).unwrap_or(0) == 0;
    same && (ports.0..=ports.1).contains(&port)
        && protocol.is_none_or(|protocol| protocol == if tcp { 6 } else { 17 })
        && vlan.is_none_or(|vlan| vlan == tag)
}

fn asked() -> impl Strategy<Value = Asked> {
    let ports = (50u16..60, 50u16..60).prop_map(|(a, b)| (a.min(b), a.max(b)));
    let protocol = prop::option::of(prop::sample::select(vec![6u8, 17]));
    let vlan = prop::option::of(prop::option::of(1u16..4));
    (0u8..=8, any::<u8>(), ports, protocol, vlan)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Each packet is counted by every counter that it matches, including when counters are replaced during the run.
    /// Packets of a flow may have different tags.
    #[test]
    fn packets_are_counted_by_every_rule_that_they_match(
        before in prop::collection::vec(asked(), 1..64),
        seed in any::<u64>(),
        packets in prop::collection::vec((any::<u8>(), 50u16..60, any::<bool>(), prop::option::of(1u16..4)), 1..150),
    ) {
        // Other counters under the same names: the earlier ones in another order.
        let mut after = before.clone();
        after.rotate_left(seed as usize % before.len());
        let counters = |asked: &[Asked]| {
            Counters::new(asked.iter().enumerate().map(|(at, asked)| counter(at, *asked)).collect())
        };
        let table = Arc::new(CountTable::new(counters(&before)));
        let mut rig = ChainRig::new(vec![Box::new(Count::new(Arc::clone(&table)))], INPUT);
        let mut expected = vec![(0, 0); before.len()];
        let mut in_force = &before;
        for (at, packet) in packets.iter().enumerate() {
            if at == packets.len() / 2 {
                prop_assert!(table.has_names_of(&counters(&after)));
                table.live().replace(counters(&after));
                in_force = &after;
            }
            let frame = frame(*packet);
            for (asked, sums) in in_force.iter().zip(&mut expected) {
                if asks(*asked, *packet) {
                    *sums = (sums.0 + 1, sums.1 + frame.len() as u64);
                }
            }
            prop_assert_eq!(rig.run(std::slice::from_ref(&frame), Nanos::from_secs(1)), [frame]);
        }
        for (at, (packets, bytes)) in expected.into_iter().enumerate() {
            prop_assert_eq!(rig.count(&format!("count/counter-{at}")), packets);
            prop_assert_eq!(rig.count(&format!("count/counter-{at}-bytes")), bytes);
        }
    }
}

#[test]
fn counters_of_other_names_do_not_replace_these() {
    let one = counter(1, (0, 0, (0, 1), None, None));
    let other = counter(2, (0, 0, (0, 1), None, None));
    let table = CountTable::new(Counters::new(vec![one.clone(), other.clone()]));
    assert!(table.has_names_of(&Counters::new(vec![one.clone(), other.clone()])));
    assert!(!table.has_names_of(&Counters::new(vec![other, one.clone()])));
    assert!(!table.has_names_of(&Counters::new(vec![one])));
}
