//! Explanations that functions give of traced packets.

use crate::acl::naming::RuleOrigin;
use crate::acl::{self, Acl, AclRules, AclTable, Rule};
use crate::encrypt::{Direction, Encrypt, EncryptRules, PacketNumbers};
use crate::firewall::{self, Firewall, FirewallTable};
use crate::ip_forward::{IpForward, NextHop, Route, RouteTable, Target};
use crate::load_balancer::{Backend, BackendState, Destination, LoadBalancer, LoadBalancerTable, Service};
use crate::nat::{Nat, NatRules, NatTable};
use crate::policer::{ExceedAction, Limit, Meter, Policer, PolicerRules, Rate, Scope};
use crate::wan_optimizer::{Fingerprints, LEAST_CACHE, Options, Sampling, WanOptimizer, WanTable};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use tailwater_chain::function::NetworkFunction;
use tailwater_chain::live::Live;
use tailwater_chain::rig::{ChainRig, INPUT, udp};
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::tcp::TcpFlags;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos, protocol};

const NOW: Nanos = Nanos::from_secs(1);

fn rig(function: impl NetworkFunction + 'static) -> ChainRig {
    ChainRig::new(vec![Box::new(function)], INPUT)
}

/// DNS queries from this port to 198.18.0.1.
fn rule(source_port: u16, action: acl::Action) -> Rule {
    Rule {
        source: None,
        destination: Some("198.18.0.0/15".parse().unwrap()),
        source_ports: source_port..=source_port,
        destination_ports: 0..=u16::MAX,
        protocol: Some(protocol::UDP),
        action,
    }
}

#[test]
fn an_acl_names_the_rule_with_its_line() {
    let rules = [rule(7, acl::Action::Allow), rule(9, acl::Action::Deny)];
    let origin = RuleOrigin::new(Some(Path::new("/etc/a.rules")), [3, 5]);
    let rules = AclRules::new(&rules, acl::Action::Allow).unwrap().of(origin);
    let table = Arc::new(AclTable::of(rules));
    for acl in [Acl::new(Arc::clone(&table)), Acl::without_flows(table)] {
        let mut rig = rig(acl);
        for (port, expected) in [
            (7, "rule 1 (a.rules:3): allow udp any port 7 > 198.18.0.0/15"),
            (9, "rule 2 (a.rules:5): deny udp any port 9 > 198.18.0.0/15"),
            (11, "no rule, default allow"),
        ] {
            assert_eq!(rig.explain(&udp(port), NOW), [expected]);
        }
    }
}

#[test]
fn a_firewall_names_the_rule_and_the_state_of_the_connection() {
    let rule = |port, action| firewall::Rule {
        action,
        source_ports: port..=port,
        ..firewall::Rule::any(action, 0)
    };
    let rules = [rule(9, firewall::Action::Reject), rule(7, firewall::Action::Allow)];
    let rules = (&[][..], &rules[..], firewall::Action::Deny);
    let table = FirewallTable::new(rules, firewall::Options::default(), 64, 7).unwrap();
    let mut rig = rig(Firewall::new(Arc::new(table)));
    let allowed = "connection not answered, from its initiator, rule 2: allow any any port 7 > any";
    assert_eq!(rig.explain(&udp(7), NOW), [allowed]);
    assert_eq!(rig.explain(&udp(9), NOW), ["rule 1: reject any any port 9 > any"]);
    assert_eq!(rig.explain(&udp(11), NOW), ["no rule, default deny"]);
}

#[test]
fn a_nat_names_the_binding() {
    let rules = NatRules {
        external: vec![Ipv4Addr::new(203, 0, 113, 1)],
        internal: vec!["10.0.0.0/8".parse().unwrap()],
        ports: 1024..=u16::MAX,
        drop_others: true,
        drop_inbound: true,
    };
    let table = NatTable::new(rules, RssHasher::default());
    let mut rig = rig(Nat::new(Arc::new(Live::new(table))));
    let binding = |age: &str, text: &[String]| {
        let start = format!("{age} binding, inside 10.0.0.1:7, outside 203.0.113.1:");
        text.len() == 1 && text[0].starts_with(&start)
    };
    let first = rig.explain(&udp(7), NOW);
    assert!(binding("new", &first), "{first:?}");
    let second = rig.explain(&udp(7), NOW);
    assert!(binding("existing", &second), "{second:?}");
    // Refused on the flow's first packet, before `process`.
    let ends = (Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(203, 0, 113, 1));
    let key = FlowKey::v4(ends.0, ends.1, protocol::UDP, 53, 9);
    let inbound = FrameBuilder::new(&key).to_vec().unwrap();
    assert_eq!(rig.explain(&inbound, NOW), ["no binding"]);
}

#[test]
fn a_load_balancer_names_the_backend_and_why() {
    let backend = |last, state| Backend {
        destination: Destination::Address(Ipv4Addr::new(172, 16, 0, last).into(), Some(53)),
        weight: 1,
        state,
    };
    let services = |first| {
        [Service {
            address: "198.18.0.0/15".parse().unwrap(),
            port: Some(53),
            protocol: protocol::UDP,
            backends: vec![backend(1, first), backend(2, BackendState::Down)],
        }]
    };
    let table = Arc::new(LoadBalancerTable::new(&services(BackendState::Up), 2003, true).unwrap());
    let mut rig = rig(LoadBalancer::new(Arc::clone(&table)));
    let service = "service 198.18.0.0/15 port 53";
    let chosen = format!("{service}, backend 172.16.0.1 port 53");
    let first = format!("{chosen}, by the flow's hash, of 1 that are up");
    assert_eq!(rig.explain(&udp(7), NOW), [first]);
    assert_eq!(
        rig.explain(&udp(7), NOW),
        [format!("{chosen}, chosen for the flow before")]
    );
    table.replace(&services(BackendState::Drain)).unwrap();
    assert_eq!(
        rig.explain(&udp(7), NOW),
        [format!("{chosen}, chosen for the flow before, now draining")]
    );
    assert_eq!(rig.explain(&udp(8), NOW), [format!("{service}, no backend is up")]);
}

#[test]
fn a_router_names_the_longest_prefix_and_the_next_hop() {
    let route = |prefix: &str, target| Route {
        prefix: prefix.parse().unwrap(),
        target,
    };
    let hop = NextHop {
        name: "core".to_owned(),
        mac: [2, 0, 0, 0, 1, 7],
        source_mac: None,
        address: None,
    };
    let options = crate::ip_forward::function::ForwardOptions {
        pass_local: false,
        in_flow: false,
    };
    let explain = |routes: &[Route], default| {
        let table = RouteTable::new(routes, default, std::slice::from_ref(&hop), [2; 6]).unwrap();
        rig(IpForward::new(Arc::new(Live::new(table)), options)).explain(&udp(7), NOW)
    };
    let routes = [
        route("198.0.0.0/8", Target::Blackhole),
        route("198.18.0.0/15", Target::NextHop(0)),
    ];
    assert_eq!(
        explain(&routes, None),
        ["route 198.18.0.0/15, next hop core 02:00:00:00:01:07"]
    );
    assert_eq!(explain(&routes[..1], None), ["route 198.0.0.0/8, blackhole"]);
    let default = explain(&[], Some(Target::NextHop(0)));
    assert_eq!(default, ["default route, next hop core 02:00:00:00:01:07"]);
    assert_eq!(explain(&[], None), ["default route, no next hop"]);
}

#[test]
fn a_policer_tells_the_tokens_that_are_left() {
    let limit = |scope| Limit {
        source: None,
        destination: None,
        protocol: Some(protocol::UDP),
        scope,
        committed: Meter::new(Rate::Packets(1), 3),
        peak: None,
        conforming: ExceedAction::Pass,
        exceeding: ExceedAction::Pass,
        violating: ExceedAction::Drop,
    };
    for (scope, name) in [(Scope::Flow, "limit 1 per flow"), (Scope::All, "limit 1")] {
        let rules = PolicerRules::new(vec![limit(scope)], ExceedAction::Pass);
        let mut rig = rig(Policer::new(Arc::new(Live::new(rules))));
        for left in [2, 1, 0, 0] {
            let expected = format!("{name}, {left} of 3 packets left");
            assert_eq!(rig.explain(&udp(7), NOW), [expected]);
        }
        assert_eq!(rig.count("policer/violating"), 1);
    }
}

#[test]
fn encryption_names_the_inputs_of_its_key() {
    let key = |protocol| FlowKey::v4([10, 0, 0, 1].into(), [192, 0, 2, 1].into(), protocol, 7, 80);
    let segment = |sequence, flags, payload: &[u8]| {
        let fields = TcpFields {
            sequence,
            flags,
            ..TcpFields::default()
        };
        let builder = FrameBuilder::new(&key(protocol::TCP)).tcp(fields);
        builder.payload(payload).to_vec().unwrap()
    };
    let with = |direction, midstream, drop_others| {
        let rules = EncryptRules {
            key: [7; 32],
            direction,
            mtu: 1500,
            midstream,
            drop_others,
        };
        let numbers = Arc::new(PacketNumbers::among(0, 1));
        rig(Encrypt::new(Arc::new(Live::new(rules)), numbers))
    };
    let mut strict = with(Direction::Encrypt, false, true);
    let data = segment(6, TcpFlags::ACK, b"data");
    let no_syn = "data of a connection without a SYN, midstream is off";
    assert_eq!(strict.explain(&data, NOW), [no_syn]);
    assert_eq!(strict.explain(&segment(5, TcpFlags::SYN, b""), NOW), ["no data"]);
    let by_connection = "encrypted with the connection's key, initial sequence number 5";
    assert_eq!(strict.explain(&data, NOW), [by_connection]);
    let mut frame = udp(7);
    let number = |text: &[String]| {
        let number = text[0].strip_prefix("encrypted with the flow's key, packet number ");
        number.unwrap_or_else(|| panic!("{text:?}")).parse::<u64>().unwrap()
    };
    let first = number(&strict.explain(&frame, NOW));
    assert_eq!(number(&strict.explain(&frame, NOW)), first + 1);
    let long = FrameBuilder::new(&key(protocol::UDP))
        .payload(&[0; 1465])
        .to_vec()
        .unwrap();
    let oversize = "1501 bytes with the packet number, mtu 1500";
    assert_eq!(strict.explain(&long, NOW), [oversize]);
    frame[20..22].copy_from_slice(&0x2000u16.to_be_bytes());
    let mut lenient = with(Direction::Decrypt, true, false);
    for rig in [&mut strict, &mut lenient] {
        assert_eq!(rig.explain(&frame, NOW), ["fragment"]);
    }
    let midstream = "decrypted with the connection's key, its SYN was not seen";
    assert_eq!(lenient.explain(&data, NOW), [midstream]);
    assert_eq!(lenient.explain(&long, NOW), ["decrypted with the flow's key"]);
    let short = FrameBuilder::new(&key(protocol::UDP))
        .payload(b"short")
        .to_vec()
        .unwrap();
    assert_eq!(lenient.explain(&short, NOW), ["no packet number behind the data"]);
}

#[test]
fn a_wan_optimizer_tells_what_its_cache_had() {
    let ends: [Ipv4Addr; 2] = [[192, 0, 2, 1].into(), [192, 0, 2, 2].into()];
    let end = |local: usize| {
        let options = Options {
            local: ends[local].into(),
            remote: ends[1 - local].into(),
            port: 4000,
            streams: 1,
            cache: LEAST_CACHE,
            minimum: 64,
            fingerprints: Fingerprints {
                sampling: Sampling::SampleByte,
                period: 32,
            },
            mtu: 1500,
            ttl: 64,
        };
        let behind = vec!["198.18.0.0/15".parse().unwrap()];
        let table = WanTable::new(options, if local == 0 { behind } else { Vec::new() });
        rig(WanOptimizer::new(Arc::new(table.unwrap())))
    };
    let (mut near, mut far, mut late) = (end(0), end(1), end(1));
    let key = |source, destination| FlowKey::v4(source, destination, protocol::UDP, 7, 53);
    let there = key([10, 0, 0, 1].into(), [198, 18, 0, 1].into());
    let payload: Vec<u8> = (0..1000u32).map(|i| ((i * i) >> 5) as u8).collect();
    let frame = |key: &FlowKey, length: usize| {
        let builder = FrameBuilder::new(key);
        builder.payload(&payload[..length]).to_vec().unwrap()
    };
    let elsewhere = key([10, 0, 0, 1].into(), [203, 0, 113, 1].into());
    assert_eq!(
        near.explain(&frame(&elsewhere, 500), NOW),
        ["not behind the remote end"]
    );
    let small = "payload of 10 bytes, minimum 64";
    assert_eq!(near.explain(&frame(&there, 10), NOW), [small]);
    let long = FrameBuilder::new(&there).payload(&[0; 1472]).to_vec().unwrap();
    assert_eq!(near.explain(&long, NOW), ["encoded longer than mtu 1500"]);
    let repeated = frame(&there, 1000);
    let unknown = "stream 0, 0 of 1028 bytes in the cache, in 0 regions";
    assert_eq!(near.explain(&repeated, NOW), [unknown]);
    let known = near.explain(&repeated, NOW);
    assert!(
        known[0].starts_with("stream 0, 10") && known[0].ends_with("in 1 regions"),
        "{known:?}"
    );
    let coded = near.run(&[repeated], NOW);
    let missing = late.explain(&coded[0], NOW);
    let request = "stream 0, not in the cache, a request to avoid ";
    assert!(missing[0].starts_with(request), "{missing:?}");
    let request = late.run(&coded, NOW);
    let applied = "request of the remote end, applied";
    assert_eq!(near.explain(&request[0], NOW), [applied]);
    let whole = near.run(&[frame(&there, 999)], NOW);
    assert_eq!(far.explain(&whole[0], NOW), ["stream 0, 1027 bytes restored"]);
    let mut damaged = whole[0].clone();
    *damaged.last_mut().unwrap() ^= 1;
    let reset = "stream 0, wrong checksum, a new epoch is requested";
    assert_eq!(far.explain(&damaged, NOW), [reset]);
    damaged[14 + 20 + 8] = 0xff;
    assert_eq!(far.explain(&damaged, NOW), ["from the remote end"]);
}
