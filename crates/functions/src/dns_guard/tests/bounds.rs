//! Tests of full tables and of concurrent access.

use super::super::account;
use super::super::account_table::AccountTable;
use super::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of accounts is bounded, and those with the highest debt are kept.
#[test]
fn a_flood_of_prefixes_forgets_those_that_owe_least() {
    let table = Arc::new(DnsGuardTable::new(
        GuardRules {
            limits: Limits {
                responses: Some(2),
                ..Limits::default()
            },
            slip: 0,
            ..rules()
        },
        Sizes {
            accounts: 256,
            queries: 64,
        },
        7,
    ));
    let mut rig = ChainRig::new(vec![Box::new(DnsGuard::new(table))], INPUT);
    let now = Nanos::from_secs(1);
    // The victim's debt is high.
    let victim = says(Says::Answers, "10.0.0.1");
    assert_eq!(whole(&mut rig, &victim, 40, now), 2);
    for i in 0..20_000_u32 {
        let client = Ipv4Addr::from_bits(0x1000_0000 + (i << 8));
        let other = says(Says::Answers, &client.to_string());
        assert_eq!(whole(&mut rig, &other, 1, now), 1, "a new prefix gets its answer");
    }
    assert!(count(&rig, "accounts-evicted") > 19_000);
    assert_eq!(whole(&mut rig, &victim, 10, now), 0);
    // Accounts without debt are evicted, which does not count as a loss.
    let before = count(&rig, "accounts-evicted");
    let later = Nanos::from_secs(100);
    for i in 0..100_u32 {
        let client = Ipv4Addr::from_bits(0x2000_0000 + (i << 8));
        whole(&mut rig, &says(Says::Answers, &client.to_string()), 1, later);
    }
    assert!(count(&rig, "accounts-evicted") - before < 20);
    assert_eq!(whole(&mut rig, &victim, 2, later), 2);
}

/// A client that has spent its byte account does not get a new one by causing many others to be opened. Those with the
/// fewest spent bytes are evicted, and evictions are counted.
#[test]
fn a_flood_of_prefixes_forgets_no_account_whose_bytes_are_spent() {
    let victim = says(Says::Answers, "10.0.0.1");
    let bytes = victim.message().len();
    let table = Arc::new(DnsGuardTable::new(
        GuardRules {
            amplification: Some(Amplification {
                ratio: 1,
                burst: 8 * bytes as u32,
            }),
            slip: 0,
            ..rules()
        },
        Sizes {
            accounts: 256,
            queries: 64,
        },
        7,
    ));
    let mut rig = ChainRig::new(vec![Box::new(DnsGuard::new(table))], INPUT);
    let from = |i: u32| Ipv4Addr::from_bits(0x1000_0000 + (i << 8)).to_string();
    let start = Nanos::from_secs(1);
    assert_eq!(whole(&mut rig, &victim, 40, start), 8);
    for i in 0..20_000_u32 {
        let now = start + Nanos::from_millis(u64::from(i));
        let other = says(Says::Answers, &from(i));
        assert_eq!(whole(&mut rig, &other, 1, now), 1, "a new prefix has all");
    }
    assert!(count(&rig, "accounts-evicted") > 19_000);
    let now = start + Nanos::from_secs(21);
    assert_eq!(whole(&mut rig, &victim, 10, now), 0);
    // An unused account may be evicted after ten minutes.
    let (before, now) = (count(&rig, "accounts-evicted"), start + Nanos::from_secs(700));
    for i in 0..64 {
        whole(&mut rig, &says(Says::Answers, &from(i + 50_000)), 1, now);
    }
    assert!(count(&rig, "accounts-evicted") - before < 20);
    for i in 0..5000 {
        whole(&mut rig, &says(Says::Answers, &from(i)), 1, now);
    }
    assert_eq!(whole(&mut rig, &victim, 10, now), 8);
}

/// A full table of queries evicts and counts the oldest. After their timeout there is room again.
#[test]
fn waiting_queries_have_a_bound() {
    let table = Arc::new(DnsGuardTable::new(
        GuardRules {
            mode: Mode::Strict,
            ..rules()
        },
        Sizes {
            accounts: 64,
            queries: 256,
        },
        7,
    ));
    let mut rig = ChainRig::new(vec![Box::new(DnsGuard::new(table))], INPUT);
    let answered = |rig: &mut ChainRig, now: Nanos, ports: std::ops::Range<u16>| {
        let with = |says_what, port| Spoken {
            port,
            ..says(says_what, "10.0.0.1")
        };
        for port in ports.clone() {
            assert_eq!(whole(rig, &with(Says::Asks, port), 1, now), 1);
        }
        ports
            .filter(|port| whole(rig, &with(Says::Answers, *port), 1, now) == 1)
            .count()
    };
    let now = Nanos::from_secs(1);
    let few = answered(&mut rig, now, 1000..1100);
    assert!(few >= 95, "{few}");
    let evicted = count(&rig, "queries-evicted");
    let many = answered(&mut rig, Nanos::from_secs(60), 1000..6000);
    assert!((200..=256).contains(&many), "{many}");
    let lost = count(&rig, "queries-evicted") - evicted;
    assert_eq!(lost as usize + many, 5000);
    assert!(answered(&mut rig, Nanos::from_secs(120), 1000..1100) >= 95);
}

/// Many cores charge one account at the same time, and exactly as many responses as the rate allows are within it.
/// Meanwhile accounts in other sets are opened and evicted.
#[test]
fn accounts_are_shared_between_cores() {
    const CORES: u64 = 4;
    let ledger = AccountTable::new(64);
    let within = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for core in 0..CORES {
            let (ledger, within) = (&ledger, &within);
            scope.spawn(move || {
                for round in 0..2000 {
                    let found = ledger.open(99 << 32, account::EMPTY);
                    let value = found.map(|found| found.value);
                    if let Some(value) = value
                        && account::debit(value, 1000, account::SECOND / 1000, account::SECOND)
                            == account::RateVerdict::Within
                    {
                        within.fetch_add(1, Ordering::Relaxed);
                    }
                    // Accounts of other sets are opened and evicted.
                    ledger.open((core * 2000 + round) << 33, 1 << 12);
                }
            });
        }
    });
    // If two cores open the account at once, it may exist twice, and one copy may be used once per core.
    let within = within.load(Ordering::Relaxed);
    assert!((1000..1000 + 2 * CORES).contains(&within), "{within}");
}
