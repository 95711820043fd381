//! Tests of the function in a chain.

use super::*;
use messages::{Says, Spoken, says};
use std::net::Ipv4Addr;
use std::sync::Arc;
use tailwater_chain::rig::{ChainRig, INPUT};
use tailwater_net::Nanos;
use tailwater_net::checksum::{Checksum, verify_network, verify_transport};
use tailwater_net::parse::parse;

mod bounds;
mod fragments;
mod limits;
mod messages;
mod oracle;

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 53);
const SIZES: Sizes = Sizes {
    accounts: 4096,
    queries: 4096,
};

fn rules() -> GuardRules {
    GuardRules {
        ports: vec![53],
        servers: Vec::new(),
        clients: Vec::new(),
        exempt: Vec::new(),
        limits: Limits::default(),
        amplification: None,
        window: Nanos::from_secs(15),
        prefixes: [24, 56],
        slip: 2,
        leak: 0,
        mode: Mode::Limit,
        query_timeout: Nanos::from_secs(5),
        fragments: Fragments::Follow,
    }
}

fn guard(rules: GuardRules) -> ChainRig {
    let table = Arc::new(DnsGuardTable::new(rules, SIZES, 7));
    ChainRig::new(vec![Box::new(DnsGuard::new(table))], INPUT)
}

fn count(rig: &ChainRig, name: &str) -> u64 {
    rig.count(&format!("dnsguard/{name}"))
}

#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Pass,
    Drop,
    Truncate,
}

/// Checks that a sent frame is the original, or its truncated form with correct checksums.
fn fate(sent: &[Vec<u8>], frame: &[u8], spoken: &Spoken) -> Fate {
    let [sent] = sent else {
        assert!(sent.is_empty());
        return Fate::Drop;
    };
    if sent == frame {
        return Fate::Pass;
    }
    let headers = parse(sent).unwrap();
    assert_ne!(verify_network(sent, &headers), Checksum::Wrong);
    assert_eq!(verify_transport(sent, &headers), Checksum::Correct);
    assert_eq!(headers.payload(sent), spoken.truncated());
    assert_eq!(headers.key, spoken.key());
    Fate::Truncate
}

/// Sends `count` responses at once and returns the number that pass unchanged.
fn whole(rig: &mut ChainRig, spoken: &Spoken, count: usize, now: Nanos) -> usize {
    let frame = spoken.frame();
    let sent: usize = (0..count)
        .map(|_| {
            let sent = rig.run(std::slice::from_ref(&frame), now);
            usize::from(fate(&sent, &frame, spoken) == Fate::Pass)
        })
        .sum();
    sent
}
