//! Parsed configuration of each function type in a valid spec.

use super::*;
use tailwater_functions::count::CountConfig;
use tailwater_functions::flow_stats::FlowStatsConfig;
use tailwater_functions::ip_forward::IpForwardConfig;
use tailwater_functions::ipsec::IpsecConfig;
use tailwater_functions::mirror::MirrorConfig;
use tailwater_functions::nat::NatConfig;
use tailwater_functions::tunnel::TunnelConfig;
use tailwater_functions::upf::UpfConfig;
use tailwater_functions::url_filter::UrlFilterConfig;
use tailwater_functions::wan_optimizer::WanOptimizerConfig;

#[test]
fn user_planes_are_read() {
    let spec = right("upf.yaml");
    let [core, station] = [0, 1].map(|at| {
        let config = spec.functions[at].config_as::<UpfConfig>();
        config.unwrap()
    });
    let options = &core.options;
    assert_eq!((options.role, options.capacity, options.mtu), (Role::Core, 1000, 9000));
    assert_eq!((options.addresses.len(), options.ttl), (2, 7));
    assert_eq!(options.dont_fragment, DontFragment::Set);
    assert_eq!((options.others, options.errors_per_second), (PacketAction::Pass, 0));
    let sources = options.error_sources.map(|source| source.unwrap().to_string());
    assert_eq!(sources, ["203.0.113.1", "2001:db8::9"]);
    assert!(options.check_qfi && options.flow_ports && options.checksums && options.cached);
    let [internet, iot] = &core.profiles[..] else {
        panic!("{:?}", core.profiles);
    };
    assert_eq!(internet.volume, Some(1_000_000));
    assert_eq!(internet.time, Some(Nanos::from_secs(3600)));
    assert!(internet.session_rates.iter().all(Option::is_some));
    let [dns, mail] = [0, 1].map(|at| &internet.rules[at].treatment);
    assert_eq!((dns.qfi, dns.dscp), (Some(5), Some(46)));
    assert!(!dns.in_session_rate && !dns.counted);
    assert_eq!((mail.qfi, mail.dscp, mail.open), (Some(9), Some(10), [false, true]));
    assert!(mail.rates[0].is_some() && mail.rates[1].is_none());
    assert!(iot.rest.is_none() && internet.rest.is_some());
    let ids: Vec<_> = core.sessions.iter().map(|s| (s.id, s.profile)).collect();
    assert_eq!(ids, [(1, 0), (2, 1)]);
    assert_eq!(core.sessions[1].teid, 4098);
    assert_eq!(spec.functions[0].files.len(), 1);
    assert_eq!(station.options.role, Role::Access);
    assert_eq!(
        (station.options.mtu, station.options.others),
        (1500, PacketAction::Drop)
    );
    assert!(station.sessions.is_empty() && station.usage.is_none());
}

#[test]
fn optimizers_are_read() {
    let spec = right("wan-optimizer.yaml");
    let [near, other] = [0, 1].map(|at| {
        let config = spec.functions[at].config_as::<WanOptimizerConfig>();
        config.unwrap()
    });
    let options = &near.options;
    assert_eq!((options.port, options.streams), (50_000, 4));
    assert_eq!((options.cache, options.mtu, options.ttl), (1 << 20, 9000, 7));
    let fingerprints = options.fingerprints;
    assert_eq!((fingerprints.sampling, fingerprints.period), (Sampling::MaxP, 64));
    let destinations: Vec<_> = near.destinations.iter().map(ToString::to_string).collect();
    assert_eq!(destinations, ["10.2.0.0/16", "2001:db8:2::/48"]);
    let usual = &other.options;
    assert!(usual.local.is_ipv6() && usual.remote.is_ipv6() && other.destinations.is_empty());
    assert_eq!(
        (usual.port, usual.streams, usual.mtu, usual.ttl),
        (49_664, 16, 1500, 64)
    );
    let fingerprints = usual.fingerprints;
    assert_eq!((fingerprints.sampling, fingerprints.period), (Sampling::SampleByte, 32));
    assert_eq!([near.options.minimum, usual.minimum], [0, 64]);
    assert_eq!(usual.cache, 16 << 20);
}

#[test]
fn counters_are_read() {
    let spec = right("count.yaml");
    let Some(config) = spec.functions[0].config_as::<CountConfig>() else {
        panic!("{:?}", spec.functions[0].config);
    };
    let [dns, guests, untagged, all] = &config.counters[..] else {
        panic!("{:?}", config.counters);
    };
    assert_eq!((&*dns.name, dns.rule.protocol), ("dns", Some(17)));
    assert_eq!(dns.rule.destination_ports, 53..=53);
    assert_eq!(
        (guests.vlan, untagged.vlan),
        (Some(VlanMatch::Id(100)), Some(VlanMatch::Untagged))
    );
    assert_eq!(guests.rule.source, Some("10.9.0.0/16".parse().unwrap()));
    assert_eq!((all.vlan, all.rule.source), (None, None));
}

#[test]
fn mirrors_are_read() {
    let spec = right("mirror.yaml");
    let [usual, rotated, interface] = [0, 1, 2].map(|at| {
        let config = spec.functions[at].config_as::<MirrorConfig>();
        config.unwrap()
    });
    let file = |path: &str, max_bytes, files| {
        let path = path.into();
        Some(mirror::Outlet::File { path, max_bytes, files })
    };
    assert_eq!(usual.options.to, file("all.pcap", 1 << 30, 1));
    assert_eq!(
        (usual.options.buffer, &usual.program, usual.snap),
        (4 << 20, &None, 65_535)
    );
    assert_eq!(usual.sampling, mirror::Sampling::All);
    assert_eq!(rotated.options.to, file("/tmp/some.pcap", 1 << 17, 100));
    // Rounded up.
    assert_eq!((rotated.options.buffer, rotated.snap), (1 << 20, 96));
    assert_eq!(rotated.sampling, mirror::Sampling::Flows(1000));
    assert_eq!(rotated.program.as_ref().map(Vec::len), Some(16));
    let to = mirror::Outlet::Interface("mon0".to_owned());
    assert_eq!(interface.options.to, Some(to));
    assert_eq!(interface.sampling, mirror::Sampling::Packets(2));
    let files: Vec<_> = spec.functions.iter().map(|it| it.config.outputs()).collect();
    // Includes the names of full files.
    let counts: Vec<_> = files.iter().map(Vec::len).collect();
    assert_eq!(counts, [1, 100, 0]);
    assert!(spec.functions.iter().all(|it| it.config.exports()));
}

#[test]
fn flow_stats_are_read() {
    let spec = right("flow-stats.yaml");
    let [usual, told] = [0, 1].map(|at| {
        let config = spec.functions[at].config_as::<FlowStatsConfig>();
        &config.unwrap().options
    });
    assert_eq!((usual.active, usual.idle), (Nanos::from_secs(60), Nanos::from_secs(15)));
    assert_eq!((usual.sampling, usual.domain), (1, 0));
    assert!(usual.outlets.is_empty());
    assert_eq!(
        (told.active, told.idle),
        (Nanos::from_secs(120), Nanos::from_millis(500))
    );
    assert_eq!((told.sampling, told.domain), (100, u32::MAX));
    let expected = [
        Outlet::Collector {
            address: "192.0.2.9:4739".parse().unwrap(),
            transport: Transport::Udp,
            message_bytes: 1400,
            refresh: Nanos::from_secs(60),
            bits_per_second: 100_000_000,
        },
        Outlet::Collector {
            address: "[2001:db8::9]:4740".parse().unwrap(),
            transport: Transport::Tcp,
            message_bytes: 9000,
            refresh: Nanos::from_secs(600),
            bits_per_second: 1_000_000_000,
        },
        Outlet::File("flows.ipfix".into()),
    ];
    assert_eq!(told.outlets, expected);
}

#[test]
fn tunnels_are_read() {
    let spec = right("ipsec.yaml");
    let Some(ipsec) = spec.functions[0].config_as::<IpsecConfig>() else {
        panic!("{:?}", spec.functions[0].config);
    };
    let rules = &ipsec.rules;
    let [east, north] = &rules.outbound[..] else {
        panic!("{rules:?}");
    };
    assert_eq!((east.association.spi, east.ttl, east.first), (0x1001, 64, 1));
    assert_eq!((east.udp, east.dscp), (None, None));
    assert_eq!(east.dont_fragment, DontFragment::Copy);
    assert!(!east.association.extended && north.association.extended);
    let ports = UdpPorts {
        source: 40_000,
        destination: 4500,
    };
    assert_eq!((north.udp, north.dscp, north.ttl), (Some(ports), Some(46), 7));
    assert_eq!(north.dont_fragment, DontFragment::Set);
    assert_eq!((north.association.spi, north.first), (4098, (1 << 32) + 1));
    let [west, south] = &rules.inbound[..] else {
        panic!("{rules:?}");
    };
    assert_eq!((west.window, west.udp, west.first), (Some(1024), None, 1));
    assert_eq!((south.window, south.udp), (None, Some(4500)));
    assert_eq!(south.allow[0].protocol, Some(6));
    let actions: Vec<_> = rules.policies.iter().map(|policy| policy.action).collect();
    let expected = [PolicyAction::Protect(0), PolicyAction::Protect(1), PolicyAction::Pass];
    assert_eq!(actions, expected);
    assert_eq!((rules.default, rules.mtu), (PolicyAction::Pass, 9000));
    assert!(!rules.pass_ike && rules.pass_keep_alives);
}

#[test]
fn nat_translates_private_space_unless_told_otherwise() {
    let spec = right("nat-defaults.yaml");
    let Some(nat) = spec.functions[0].config_as::<NatConfig>() else {
        panic!("{:?}", spec.functions[0]);
    };
    let internal: Vec<_> = nat.internal.iter().map(ToString::to_string).collect();
    let private = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"];
    assert_eq!(internal, private);
    assert_eq!(nat.ports, 1024..=u16::MAX);
    assert_eq!(
        (nat.other_protocols, nat.inbound),
        (PacketAction::Drop, PacketAction::Drop)
    );
    let size: usize = nat.external.iter().map(|prefix| 1 << (32 - prefix.prefix_len())).sum();
    assert_eq!(size, 4096, "the largest pool is accepted");
}

#[test]
fn routers_and_tunnels_keep_every_field() {
    use tailwater_functions::ip_forward::{Route, Target};
    use tailwater_functions::tunnel::{Action as TunnelAction, VlanMatch};
    let spec = right("router.yaml");
    let Some(tunnel) = spec.functions[0].config_as::<TunnelConfig>() else {
        panic!("{:?}", spec.functions[0]);
    };
    assert_eq!((tunnel.default, tunnel.cached), (PacketAction::Drop, false));
    let rule = &tunnel.rules[0];
    assert_eq!(rule.source, Some("10.0.0.0/8".parse().unwrap()));
    assert_eq!(rule.destination, Some("198.18.0.0/15".parse().unwrap()));
    assert_eq!((rule.protocol, rule.vlan), (Some(17), Some(VlanMatch::Id(7))));
    let TunnelAction::Push(tag) = rule.action else {
        panic!("{rule:?}");
    };
    assert_eq!((tag.id, tag.priority, tag.drop_eligible), (4094, 7, true));
    assert_eq!(tag.ethertype, 0x88a8);
    assert_eq!(tunnel.rules[1].vlan, Some(VlanMatch::Untagged));
    assert_eq!(tunnel.rules[2].action, TunnelAction::Pop);

    let Some(router) = spec.functions[1].config_as::<IpForwardConfig>() else {
        panic!("{:?}", spec.functions[1]);
    };
    assert_eq!(router.source_mac, [2, 0, 0, 0, 0, 1]);
    assert_eq!(router.next_hops[0].source_mac, Some([2, 0, 0, 0, 0, 2]));
    assert_eq!(router.next_hops[1].address, Some("2001:db8::1".parse().unwrap()));
    assert_eq!((router.local, router.cached), (PacketAction::Pass, true));
    assert_eq!(router.default, Some(Target::NextHop(0)));
    let route = |prefix: &str, target| Route {
        prefix: prefix.parse().unwrap(),
        target,
    };
    // The spec's own route for 198.18.0.0/15 overrides the file's.
    let routes = [
        route("0.0.0.0/0", Target::Blackhole),
        route("198.18.0.0/15", Target::NextHop(1)),
        route("198.18.7.0/24", Target::NextHop(0)),
        route("2001:db8::1/128", Target::Local),
    ];
    assert_eq!(router.routes, routes);
}

#[test]
fn url_filter_spec() {
    use tailwater_functions::url_filter::{Action, Pattern, Ports, Rest};
    let spec = right("url-filter.yaml");
    let Some(config) = spec.functions[0].config_as::<UrlFilterConfig>() else {
        panic!("{:?}", spec.functions[0]);
    };
    let texts = ["bad.example", "worse.example/x", "=exact.example", "*needle*"];
    let patterns: Vec<_> = texts
        .iter()
        .map(|text| Pattern::parse(text).expect("a pattern"))
        .collect();
    assert_eq!(config.patterns, patterns);
    let filter = &config.filter;
    assert_eq!((filter.action, filter.rest), (Action::Drop, Rest::Pass));
    assert_eq!(filter.http_ports, Ports(vec![80..=80, 8000..=8080]));
    assert_eq!(filter.tls_ports, Ports(vec![443..=443]));
    assert_eq!((filter.streams, filter.buffer_bytes), (100, 2048));
    assert_eq!(
        (filter.on_overflow, filter.fragments),
        (PacketAction::Drop, PacketAction::Drop)
    );
}
