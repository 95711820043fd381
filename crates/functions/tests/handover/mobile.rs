//! `Upf`: all instances share sessions, and per-flow state moves with the flow.

use super::INSTANCES;
use super::rig::{Rig, SECOND, sums};
use proptest::prelude::*;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::spec::ChainSpec;
use tailwater_functions::upf::{Owner, Session, Upf, UpfTable};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::parse::parse;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos, protocol};

/// Three users with rates; packets to them are decided by flow.
fn table() -> Arc<UpfTable> {
    let text = "
apiVersion: tailwater.dev/v1alpha1
kind: Chain
metadata: {name: test}
spec:
  functions:
    - upf:
        addresses: [192.0.2.1]
        cache: flow
        profiles:
          all:
            qfi: 9
            sessionRates: {up: 100kbps, down: 200kbps, burst: 3000}
            rules: [{flows: permit out udp from any 53 to assigned, qfi: 5, rates: {down: 50kbps, burst: 1500}}]
        sessions:
          - 1 ue 10.60.0.1 teid 1 peer 192.0.2.10 peerTeid 101 profile all
          - 2 ue 10.60.0.2 teid 2 peer 192.0.2.10 peerTeid 102 profile all
          - 3 ue 10.60.0.3 teid 3 peer 192.0.2.11 peerTeid 103 profile all
  slo: {latency: 200us}
";
    let spec = ChainSpec::parse(text, "test", Path::new(".")).unwrap();
    let builder = ChainBuilder::new(&spec, &RssHasher::default(), 1).unwrap();
    builder.table::<UpfTable>("upf").unwrap()
}

/// Packet to a user, or from the user's tunnel.
fn frame(user: u8, up: bool, port: u16, length: usize) -> Vec<u8> {
    let (server, address) = ([198, 51, 100, 1].into(), [10, 60, 0, user].into());
    let down = FlowKey::v4(server, address, protocol::UDP, port, 4000);
    let key = if up { down.reversed() } else { down };
    let payload = vec![user; length];
    let plain = FrameBuilder::new(&key).payload(&payload).to_vec().unwrap();
    if !up {
        return plain;
    }
    let inner = parse(&plain).unwrap().datagram(&plain).to_vec();
    let mut payload = vec![0x30, 255, 0, 0, 0, 0, 0, user];
    payload[2..4].copy_from_slice(&(inner.len() as u16).to_be_bytes());
    payload.extend(inner);
    let (station, own): (Ipv4Addr, Ipv4Addr) = ([192, 0, 2, 10].into(), [192, 0, 2, 1].into());
    let key = FlowKey::v4(station, own, protocol::UDP, 2152, 2152);
    FrameBuilder::new(&key).payload(&payload).to_vec().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// The same packets leave within the same rates, with the same counts, on any instances, while a session changes.
    #[test]
    fn users_packets_are_treated_the_same(
        packets in prop::collection::vec(
            (1u8..5, any::<bool>(), any::<bool>(), 0usize..1000, 0u64..40, 0..INSTANCES), 1..120,
        ),
    ) {
        let (alone, shared) = (table(), table());
        let mut one = Rig::new([Upf::new(Arc::clone(&alone))]);
        let mut relay = Rig::new((0..INSTANCES).map(|_| Upf::new(Arc::clone(&shared))));
        // Each instance numbers outer packets on its own.
        let numbered = |mut sent: Vec<Vec<u8>>| {
            for frame in &mut sent {
                frame[18..20].fill(0);
                frame[24..26].fill(0);
            }
            sent
        };
        let (mut now, mut passed) = (SECOND, 0);
        for (user, up, dns, length, pause, turn) in packets {
            now += Nanos::from_millis(pause);
            relay.turn_to(turn);
            if pause % 7 == 0 {
                relay.show_again();
            }
            if pause % 11 == 0 {
                for table in [&alone, &shared] {
                    let (session, _) = table.session(2).unwrap();
                    let tunnel = session.tunnel.map(|mut tunnel| {
                        tunnel.teid += 1;
                        tunnel
                    });
                    table.set(&Session { tunnel, ..session }, Owner::Api).unwrap();
                }
            }
            let frames = [frame(user, up, if dns { 53 } else { 80 }, length)];
            let sent = numbered(one.run(&frames, now));
            passed += sent.len();
            prop_assert_eq!(numbered(relay.run(&frames, now)), sent);
        }
        prop_assert_eq!(sums(&relay), sums(&one));
        for id in 1..4 {
            prop_assert_eq!(alone.session(id).unwrap().1, shared.session(id).unwrap().1);
        }
        let used: u64 = (1..4).map(|id| alone.session(id).unwrap().1.packets.iter().sum::<u64>()).sum();
        prop_assert!(used <= passed as u64);
    }
}
