//! `DnsGuard`: all instances share one table of counts, so any of them may process any packet.

use super::INSTANCES;
use super::rig::{CLIENT, Rig, SECOND, SERVER, sums};
use proptest::prelude::*;
use std::sync::Arc;
use tailwater_functions::dns_guard::{
    Amplification, DnsGuard, DnsGuardTable, Fragments, GuardRules, Limits, Mode, Sizes,
};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::{FlowKey, Nanos, protocol};

fn rig(instances: usize, mode: Mode) -> Rig {
    let rules = GuardRules {
        ports: vec![53],
        servers: Vec::new(),
        clients: Vec::new(),
        exempt: Vec::new(),
        limits: Limits {
            responses: Some(3),
            queries: Some(20),
            ..Limits::default()
        },
        amplification: Some(Amplification { ratio: 3, burst: 600 }),
        window: Nanos::from_secs(3),
        prefixes: [24, 56],
        slip: 2,
        leak: 5,
        mode,
        query_timeout: SECOND,
        fragments: Fragments::Follow,
    };
    let sizes = Sizes {
        accounts: 1024,
        queries: 1024,
    };
    let table = Arc::new(DnsGuardTable::new(rules, sizes, 1));
    Rig::new((0..instances).map(|_| DnsGuard::new(Arc::clone(&table))))
}

/// Query for one of two names, or its response.
fn frame(port: u16, name: u8, answers: bool) -> Vec<u8> {
    let key = FlowKey::v4(CLIENT, SERVER, protocol::UDP, port, 53);
    let (key, flags, count) = match answers {
        true => (key.reversed(), 0x84, 1),
        false => (key, 1, 0),
    };
    let mut message = vec![
        0,
        name,
        flags,
        0,
        0,
        1,
        0,
        count,
        0,
        0,
        0,
        0,
        1,
        b'a' + name,
        0,
        0,
        1,
        0,
        1,
    ];
    if answers {
        message.extend(b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x01");
    }
    FrameBuilder::new(&key).payload(&message).to_vec().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn guards_decide_the_same(
        packets in prop::collection::vec((0_u16..3, 0_u8..2, any::<bool>(), 0_u64..200, 0..INSTANCES), 1..300),
        strict in any::<bool>(),
    ) {
        let mode = if strict { Mode::Strict } else { Mode::Limit };
        let (mut one, mut relay) = (rig(1, mode), rig(INSTANCES, mode));
        let mut now = SECOND;
        for (port, name, answers, pause, turn) in packets {
            now += Nanos::from_millis(pause);
            relay.turn_to(turn);
            relay.show_again();
            let frames = [frame(4000 + port, name, answers)];
            prop_assert_eq!(relay.run(&frames, now), one.run(&frames, now));
        }
        prop_assert_eq!(sums(&relay), sums(&one));
    }
}
