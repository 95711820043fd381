//! `Firewall`: connections whose two directions are processed by different instances.

use super::INSTANCES;
use super::rig::{CLIENT, Rig, SECOND, SERVER, sums};
use proptest::prelude::*;
use std::sync::Arc;
use tailwater_functions::firewall::{self, Action, Firewall, FirewallTable, Options};
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos, protocol};

/// The server side may respond to connections, but not open any.
fn rig(instances: usize) -> Rig {
    let mut rules = firewall::language::parse("allow source 10.0.0.0/8", &[]).unwrap();
    rules.truncate(1);
    let rules = (&[][..], &rules[..], Action::Deny);
    let table = FirewallTable::new(rules, Options::default(), 4096, 1).unwrap();
    let table = Arc::new(table);
    Rig::new((0..instances).map(|_| Firewall::new(Arc::clone(&table))))
}

/// Segment of the client's connection by step: SYN, its response, data, end, and invalid ones.
fn segment(port: u16, step: u8, answer: bool) -> Vec<u8> {
    let key = FlowKey::v4(CLIENT, SERVER, protocol::TCP, 1000 + port, 80);
    let (flags, sequence) = match step {
        0 => (TcpFlags::SYN, 99),
        1 => (TcpFlags::FIN, 100),
        2 => (TcpFlags::RST, 100),
        3 => (TcpFlags(0), 1 << 30),
        _ => (TcpFlags(0), 100),
    };
    let acknowledges = if step == 0 && !answer {
        TcpFlags(0)
    } else {
        TcpFlags::ACK
    };
    let fields = TcpFields {
        sequence,
        acknowledgment: if acknowledges.0 == 0 { 0 } else { 100 },
        flags: TcpFlags(flags.0 | acknowledges.0),
        window: 8000,
        ..TcpFields::default()
    };
    let key = if answer { key.reversed() } else { key };
    FrameBuilder::new(&key).tcp(fields).to_vec().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn firewalls_judge_the_same(
        packets in prop::collection::vec(
            (0..4_u16, 0..6_u8, any::<bool>(), 0..20_u64, 0..INSTANCES),
            1..200,
        ),
    ) {
        let (mut several, mut one) = (rig(INSTANCES), rig(1));
        let mut now = SECOND;
        for (port, step, answer, pause, turn) in packets {
            now += Nanos::from_secs(pause);
            let frame = [segment(port, step, answer)];
            several.turn_to(turn);
            for rig in [&mut several, &mut one] {
                rig.expire(now);
                // Refused flows are checked against the rules again. That is counted, equally in both.
                if pause % 5 == 0 {
                    rig.show_again();
                }
            }
            let sent = several.run(&frame, now);
            prop_assert_eq!(sent, one.run(&frame, now));
        }
        prop_assert_eq!(sums(&several), sums(&one));
        prop_assert_eq!(several.flows(), one.flows());
    }
}

/// A connection moves to the next instance with each segment, from its first to its last.
#[test]
fn a_connection_goes_round() {
    let mut rig = rig(INSTANCES);
    let steps = [(0, false), (0, true), (4, false), (4, true), (1, false), (1, true)];
    for (i, (step, answer)) in steps.into_iter().enumerate() {
        rig.turn_to(i % INSTANCES);
        let frame = [segment(1, step, answer)];
        assert_eq!(rig.run(&frame, SECOND), frame, "segment {i}");
    }
    rig.turn_to(1);
    assert_eq!(rig.run(&[segment(2, 0, true)], SECOND).len(), 0);
}
