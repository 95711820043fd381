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

#[test]
fn explanations_name_the_limit_and_the_client_prefix() {
    let limits = Limits {
        responses: Some(1),
        all: Some(4),
        queries: Some(1),
        ..Limits::default()
    };
    let table = Arc::new(DnsGuardTable::new(GuardRules { limits, ..rules() }, SIZES, 7));
    let mut rig = ChainRig::new(vec![Box::new(DnsGuard::new(Arc::clone(&table)))], INPUT);
    let mut explain = |spoken: &Spoken| {
        let explained = rig.explain(&spoken.frame(), Nanos::from_secs(1));
        assert_eq!(explained.len(), 1);
        explained[0].clone()
    };
    let (query, answer) = (says(Says::Asks, "10.0.0.1"), says(Says::Answers, "10.0.0.1"));
    assert_eq!(explain(&query), "query of 10.0.0.0/24, within queries 1/s");
    assert_eq!(explain(&query), "query of 10.0.0.0/24, beyond queries 1/s");
    let to = "answer to 10.0.0.0/24";
    assert_eq!(explain(&answer), format!("{to}, within responses 1/s"));
    let beyond = format!("{to}, beyond responses 1/s");
    assert_eq!(explain(&answer), format!("{beyond}, number 1 in a row"));
    let slip = format!("{beyond}, number 2 in a row, let through by slip 2");
    assert_eq!(explain(&answer), slip);
    let mut refused = says(Says::NoData, "10.0.0.1");
    assert_eq!(explain(&refused), "nodata to 10.0.0.0/24, no limit of nodata");
    let of_all = "nodata to 10.0.0.0/24, beyond all 4/s, number 1 in a row";
    assert_eq!(explain(&refused), of_all);
    refused.client = "10.0.1.1".parse().unwrap();
    table.replace(GuardRules {
        limits,
        exempt: vec!["10.0.1.0/24".parse().unwrap()],
        ..rules()
    });
    assert_eq!(explain(&refused), "response without limit");
    table.replace(GuardRules {
        ports: vec![5353],
        ..rules()
    });
    assert_eq!(explain(&refused), "not DNS");
}

#[test]
fn explanations_tell_strict_mode_and_bytes() {
    let mut strict = guard(GuardRules {
        mode: Mode::Strict,
        ..rules()
    });
    let now = Nanos::from_secs(1);
    let answer = says(Says::Answers, "10.0.0.1").frame();
    let unsolicited = "no query of 10.0.0.1 waits for the response";
    assert_eq!(strict.explain(&answer, now), [unsolicited]);
    let mut bytes = guard(GuardRules {
        amplification: Some(Amplification { ratio: 1, burst: 512 }),
        ..rules()
    });
    let explained: Vec<_> = (0..3).flat_map(|_| bytes.explain(&answer, now)).collect();
    let beyond = "answer to 10.0.0.0/24, beyond the bytes that its queries earned";
    assert_eq!(explained.last().unwrap(), beyond);
}
