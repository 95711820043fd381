//! Tests of the conditions under which responses are limited, and of new rules.

use super::*;
use tailwater_chain::function::NetworkFunction;

#[test]
fn servers_clients_ports_and_exemptions_are_gone_by() {
    let answer = says(Says::Answers, "10.0.0.1");
    let five = Limits {
        responses: Some(5),
        ..Limits::default()
    };
    let now = Nanos::from_secs(1);
    let with = |change: &dyn Fn(&mut GuardRules)| {
        let mut rules = GuardRules {
            limits: five,
            slip: 0,
            ..rules()
        };
        change(&mut rules);
        whole(&mut guard(rules), &answer, 20, now)
    };
    let prefix = |text: &str| vec![text.parse().unwrap()];
    assert_eq!(with(&|_| {}), 5);
    assert_eq!(with(&|rules| rules.ports = vec![5353]), 20);
    assert_eq!(with(&|rules| rules.ports = vec![5353, 53]), 5);
    assert_eq!(with(&|rules| rules.servers = prefix("192.0.2.0/24")), 5);
    assert_eq!(with(&|rules| rules.servers = prefix("192.0.3.0/24")), 20);
    assert_eq!(with(&|rules| rules.exempt = prefix("10.0.0.0/31")), 20);
    assert_eq!(with(&|rules| rules.exempt = prefix("10.0.0.2/31")), 5);
    assert_eq!(with(&|rules| rules.mode = Mode::Strict), 0);
    let strict = |clients: &str| {
        with(&|rules| {
            rules.mode = Mode::Strict;
            rules.clients = prefix(clients);
        })
    };
    assert_eq!((strict("10.0.0.0/24"), strict("10.1.0.0/16")), (0, 5));
}

/// New rules take effect at once, and debts are kept.
#[test]
fn rules_are_replaced_under_traffic() {
    let limits = |responses| Limits {
        responses,
        ..Limits::default()
    };
    let with = |responses| GuardRules {
        limits: limits(responses),
        slip: 0,
        ..rules()
    };
    let table = Arc::new(DnsGuardTable::new(with(Some(10)), SIZES, 7));
    let function = DnsGuard::new(Arc::clone(&table));
    assert_eq!(function.state_bytes(), 0);
    let mut rig = ChainRig::new(vec![Box::new(function)], INPUT);
    let answer = says(Says::Answers, "10.0.0.1");
    let now = Nanos::from_secs(1);
    assert_eq!(whole(&mut rig, &answer, 30, now), 10);
    assert_eq!(table.replace(with(None)), 2);
    assert_eq!(whole(&mut rig, &answer, 30, now), 30);
    table.replace(with(Some(20)));
    assert_eq!(whole(&mut rig, &answer, 30, now), 0);
    // Repaying the first 30 takes 3 seconds, the later 30 another 1.5 seconds.
    assert_eq!(whole(&mut rig, &answer, 30, Nanos::from_millis(5500)), 20);
}
