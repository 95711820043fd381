//! Chain specs on disk: wrong ones with the error each gives, right ones with what they mean.
//!
//! `UPDATE_GOLDEN=1 cargo test -p tailwater-nf --test spec_golden` writes the errors anew;
//! read the difference before you commit it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tailwater_net::Nanos;
use tailwater_nf::acl::Action;
use tailwater_nf::flow_stats::{Outlet, Transport};
use tailwater_nf::flow_table::WhenFull;
use tailwater_nf::ipsec::{DontFragment, PolicyAction, UdpPorts};
use tailwater_nf::mirror;
use tailwater_nf::spec::{
    ChainSpec, DdioSpec, Fate, FunctionConfig, PortSetup, RedisAddress, RedisSpec, Secret,
    StateSpec, Target, Throughput, WhenUnavailable,
};
use tailwater_nf::tunnel::VlanMatch;
use tailwater_nf::upf::Role;
use tailwater_nf::wan_optimizer::Sampling;

/// Relative, so that errors name the same file on every machine; tests run in the crate's folder.
const WRONG: &str = "tests/specs/wrong";
const RIGHT: &str = "tests/specs/right";

/// The specs in a folder, sorted.
fn specs(folder: &str) -> Vec<PathBuf> {
    let mut specs: Vec<_> = fs::read_dir(folder)
        .expect("the folder of specs")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
        })
        .collect();
    specs.sort();
    specs
}

fn right(name: &str) -> ChainSpec {
    let path = Path::new(RIGHT).join(name);
    ChainSpec::read(&path).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn wrong_specs_give_these_errors() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut differences = Vec::new();
    let specs = specs(WRONG);
    assert!(specs.len() >= 35, "only {} wrong specs", specs.len());
    for path in specs {
        let started = Instant::now();
        let (found, lines) = match ChainSpec::read(&path) {
            Ok(_) => ("no error".to_string(), 1),
            Err(error) => (error.to_string(), error.each().count()),
        };
        // A bound against hanging, not a measure of speed.
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "{path:?} took too long"
        );
        assert_eq!(
            found.lines().count(),
            lines,
            "not on one line each: {found:?}"
        );
        let golden = path.with_extension("txt");
        if update {
            fs::write(&golden, format!("{found}\n")).expect("writing the error");
            continue;
        }
        let expected = fs::read_to_string(&golden).unwrap_or_default();
        if expected.trim_end() != found {
            differences.push(format!("- {}\n+ {found}", expected.trim_end()));
        }
    }
    assert!(
        differences.is_empty(),
        "{} errors differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
}

#[test]
fn user_planes_are_read() {
    let spec = right("upf.yaml");
    let [core, station] = [0, 1].map(|at| match &spec.functions[at].config {
        FunctionConfig::Upf(upf) => upf,
        other => panic!("{other:?}"),
    });
    let options = &core.options;
    assert_eq!(
        (options.role, options.capacity, options.mtu),
        (Role::Core, 1000, 9000)
    );
    assert_eq!((options.addresses.len(), options.ttl), (2, 7));
    assert_eq!(options.dont_fragment, DontFragment::Set);
    assert_eq!((options.others, options.errors_per_second), (Fate::Pass, 0));
    let sources = options
        .error_sources
        .map(|source| source.unwrap().to_string());
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
    assert_eq!(
        (mail.qfi, mail.dscp, mail.open),
        (Some(9), Some(10), [false, true])
    );
    assert!(mail.rates[0].is_some() && mail.rates[1].is_none());
    assert!(iot.rest.is_none() && internet.rest.is_some());
    let ids: Vec<_> = core.sessions.iter().map(|s| (s.id, s.profile)).collect();
    assert_eq!(ids, [(1, 0), (2, 1)]);
    assert_eq!(core.sessions[1].teid, 4098);
    assert_eq!(spec.functions[0].files.len(), 1);
    assert_eq!(station.options.role, Role::Access);
    assert_eq!(
        (station.options.mtu, station.options.others),
        (1500, Fate::Drop)
    );
    assert!(station.sessions.is_empty() && station.usage.is_none());
}

#[test]
fn optimizers_are_read() {
    let spec = right("wan-optimizer.yaml");
    let [near, other] = [0, 1].map(|at| match &spec.functions[at].config {
        FunctionConfig::WanOptimizer(config) => config,
        wrong => panic!("{wrong:?}"),
    });
    let options = &near.options;
    assert_eq!((options.port, options.streams), (50_000, 4));
    assert_eq!(
        (options.cache, options.mtu, options.ttl),
        (1 << 20, 9000, 7)
    );
    let fingerprints = options.fingerprints;
    assert_eq!(
        (fingerprints.sampling, fingerprints.period),
        (Sampling::MaxP, 64)
    );
    let destinations: Vec<_> = near.destinations.iter().map(ToString::to_string).collect();
    assert_eq!(destinations, ["10.2.0.0/16", "2001:db8:2::/48"]);
    let usual = &other.options;
    assert!(usual.local.is_ipv6() && usual.remote.is_ipv6() && other.destinations.is_empty());
    assert_eq!(
        (usual.port, usual.streams, usual.mtu, usual.ttl),
        (49_664, 16, 1500, 64)
    );
    let fingerprints = usual.fingerprints;
    assert_eq!(
        (fingerprints.sampling, fingerprints.period),
        (Sampling::SampleByte, 32)
    );
    assert_eq!([near.options.minimum, usual.minimum], [0, 64]);
    assert_eq!(usual.cache, 16 << 20);
}

#[test]
fn counters_are_read() {
    let spec = right("count.yaml");
    let FunctionConfig::Count(config) = &spec.functions[0].config else {
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
    let [usual, rotated, interface] = [0, 1, 2].map(|at| match &spec.functions[at].config {
        FunctionConfig::Mirror(mirror) => mirror,
        other => panic!("{other:?}"),
    });
    let file = |path: &str, max_bytes, files| {
        let path = path.into();
        Some(mirror::Outlet::File {
            path,
            max_bytes,
            files,
        })
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
    let files: Vec<_> = spec.functions.iter().map(|it| it.config.writes()).collect();
    assert_eq!(files.iter().flatten().count(), 2);
    assert!(spec.functions.iter().all(|it| it.config.exports()));
}

#[test]
fn flow_stats_are_read() {
    let spec = right("flow-stats.yaml");
    let [usual, told] = [0, 1].map(|at| match &spec.functions[at].config {
        FunctionConfig::FlowStats(stats) => &stats.options,
        other => panic!("{other:?}"),
    });
    assert_eq!(
        (usual.active, usual.idle),
        (Nanos::from_secs(60), Nanos::from_secs(15))
    );
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
    let FunctionConfig::Ipsec(ipsec) = &spec.functions[0].config else {
        panic!("{:?}", spec.functions[0].config);
    };
    let rules = &ipsec.rules;
    let [east, north] = &rules.outbound[..] else {
        panic!("{rules:?}");
    };
    assert_eq!(
        (east.association.spi, east.ttl, east.first),
        (0x1001, 64, 1)
    );
    assert_eq!((east.udp, east.dscp), (None, None));
    assert_eq!(east.dont_fragment, DontFragment::Copy);
    assert!(!east.association.extended && north.association.extended);
    let ports = UdpPorts {
        source: 40_000,
        destination: 4500,
    };
    assert_eq!(
        (north.udp, north.dscp, north.ttl),
        (Some(ports), Some(46), 7)
    );
    assert_eq!(north.dont_fragment, DontFragment::Set);
    assert_eq!((north.association.spi, north.first), (4098, (1 << 32) + 1));
    let [west, south] = &rules.inbound[..] else {
        panic!("{rules:?}");
    };
    assert_eq!((west.window, west.udp, west.first), (Some(1024), None, 1));
    assert_eq!((south.window, south.udp), (None, Some(4500)));
    assert_eq!(south.allow[0].protocol, Some(6));
    let actions: Vec<_> = rules.policies.iter().map(|policy| policy.action).collect();
    let expected = [
        PolicyAction::Protect(0),
        PolicyAction::Protect(1),
        PolicyAction::Pass,
    ];
    assert_eq!(actions, expected);
    assert_eq!((rules.default, rules.mtu), (PolicyAction::Pass, 9000));
    assert!(!rules.pass_ike && rules.pass_keep_alives);
}

/// Only by its owner, a key is not told of; by everybody, it is.
#[test]
fn a_key_that_everybody_can_read_is_told_of() {
    let folder = std::env::temp_dir().join(format!("tailwater-ipsec-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let key = folder.join("north.key");
    fs::write(&key, "33".repeat(36)).expect("a key");
    let text = fs::read_to_string(Path::new(RIGHT).join("ipsec.yaml")).expect("the spec");
    let text = text.replace("keys/north.key", "north.key");
    for (mode, told) in [(0o600, false), (0o640, false), (0o644, true)] {
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).expect("a mode");
        let spec = ChainSpec::parse(&text, "spec", &folder).expect("a right spec");
        let warnings: Vec<_> = spec.warnings().collect();
        assert_eq!(warnings.len(), usize::from(told), "{warnings:?}");
        assert!(
            warnings
                .iter()
                .all(|warning| warning.contains("north.key (mode 644)"))
        );
    }
    fs::remove_dir_all(&folder).expect("a folder");
}

#[test]
fn state_is_read() {
    let spec = right("state.yaml");
    let state = spec.state.expect("state");
    let expected = StateSpec {
        instance: None,
        redis: RedisSpec {
            address: RedisAddress::Tls {
                host: "redis.example".to_owned(),
                port: 6380,
                authorities: Some(Path::new(RIGHT).join("ca.pem")),
            },
            user: Some("tailwater".to_owned()),
            password: Some(Secret::Environment("REDIS_PASSWORD".to_owned())),
        },
        when_unavailable: WhenUnavailable::Pass,
        packets: 512,
        wait: Nanos::from_millis(2),
    };
    assert_eq!(state, expected);
    assert_eq!(right("ports.yaml").state, None);
}

#[test]
fn ports_are_read() {
    let ports = right("ports.yaml").ports.expect("ports");
    assert_eq!(ports.entry.to_string(), "0000:3b:00.0");
    assert_eq!(
        ports
            .exit
            .and_then(|exit| exit.interface().map(str::to_owned)),
        Some("veth0".to_owned())
    );
    let PortSetup {
        both_ways,
        mtu,
        promiscuous,
        ddio,
    } = ports.set_up;
    assert_eq!((both_ways, mtu, promiscuous), (true, Some(1500), false));
    let expected = DdioSpec {
        ways: Some(4),
        cache_ways: Some(11),
        cache_bytes: Some(33 << 19),
    };
    assert_eq!(ddio, expected);
    assert_eq!(right("minimal.yaml").ports, None);
}

#[test]
fn every_error_belongs_to_a_spec() {
    for entry in fs::read_dir(WRONG).expect("the folder of specs") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "txt") {
            assert!(path.with_extension("yaml").exists(), "{path:?} has no spec");
        }
    }
}

#[test]
fn every_right_spec_is_accepted() {
    for path in specs(RIGHT) {
        if let Err(error) = ChainSpec::read(&path) {
            panic!("{error}");
        }
    }
}

#[test]
fn minimal_spec_has_the_documented_defaults() {
    let spec = right("minimal.yaml");
    assert_eq!(spec.name, "minimal");
    assert_eq!(spec.match_, Default::default());
    assert_eq!(spec.functions.len(), 1);
    assert_eq!(spec.functions[0].name, "forward");
    let FunctionConfig::Forward(forward) = &spec.functions[0].config else {
        panic!("{:?}", spec.functions[0]);
    };
    assert_eq!((forward.source_mac, forward.destination_mac), (None, None));
    assert_eq!(spec.slo.latency, Nanos::from_micros(200));
    assert_eq!((spec.slo.percentile, spec.slo.throughput), (99.0, None));
    assert_eq!(spec.flows.capacity, 65_536);
    assert_eq!(spec.flows.idle_timeout.tcp, Nanos::from_secs(300));
    assert_eq!(spec.flows.idle_timeout.udp, Nanos::from_secs(60));
    assert_eq!(spec.flows.idle_timeout.other, Nanos::from_secs(30));
    assert_eq!(spec.flows.when_full, WhenFull::Evict);
    assert_eq!(
        (spec.packets.malformed, spec.packets.non_ip),
        (Fate::Drop, Fate::Pass)
    );
    assert_eq!(spec.packets.batch, 32);
}

#[test]
fn full_spec_keeps_every_field() {
    let spec = right("full.yaml");
    assert_eq!(spec.metadata.name, "acl-nat");
    assert_eq!(spec.metadata.namespace.as_deref(), Some("edge"));
    assert_eq!(spec.metadata.labels["tier"], "gold");
    assert_eq!(spec.metadata.annotations["tailwater.dev/revision"], "7");

    let text = |prefixes: &[ipnet::IpNet]| -> Vec<String> {
        prefixes.iter().map(ToString::to_string).collect()
    };
    assert_eq!(text(&spec.match_.sources), ["10.0.0.0/8", "2001:db8::/32"]);
    assert_eq!(text(&spec.match_.destinations), ["198.51.100.7/32"]);
    assert_eq!(spec.match_.protocols, [6, 17, 1, 47]);
    assert_eq!(spec.match_.vlans, [10, 20]);

    let names: Vec<_> = spec
        .functions
        .iter()
        .map(|function| &*function.name)
        .collect();
    assert_eq!(names, ["edge", "nat", "out"]);
    let kinds: Vec<_> = spec
        .functions
        .iter()
        .map(|function| function.config.kind())
        .collect();
    assert_eq!(kinds, ["acl", "nat", "forward"]);

    let FunctionConfig::Acl(acl) = &spec.functions[0].config else {
        panic!("{:?}", spec.functions[0]);
    };
    assert_eq!(
        (acl.default, &acl.source, acl.rules.len()),
        (Action::Allow, &None, 2)
    );
    let rule = &acl.rules[0];
    assert_eq!(
        rule.source.map(|prefix| prefix.to_string()).as_deref(),
        Some("10.0.0.0/8")
    );
    assert_eq!(rule.destination, None);
    assert_eq!(rule.source_ports, 0..=u16::MAX);
    assert_eq!(rule.destination_ports, 80..=443);
    assert_eq!((rule.protocol, rule.action), (Some(6), Action::Allow));
    let rule = &acl.rules[1];
    assert_eq!(
        (rule.source, rule.destination, rule.protocol),
        (None, None, None)
    );
    assert_eq!(
        (&rule.source_ports, rule.action),
        (&(53..=53), Action::Deny)
    );

    let FunctionConfig::Nat(nat) = &spec.functions[1].config else {
        panic!("{:?}", spec.functions[1]);
    };
    let text: Vec<_> = nat.external.iter().map(ToString::to_string).collect();
    assert_eq!(text, ["203.0.113.0/28", "198.51.100.7/32"]);
    assert_eq!(nat.internal.len(), 1);
    assert_eq!(nat.ports, 2048..=4095);
    assert_eq!((nat.other_protocols, nat.inbound), (Fate::Pass, Fate::Pass));

    let FunctionConfig::Forward(forward) = &spec.functions[2].config else {
        panic!("{:?}", spec.functions[2]);
    };
    assert_eq!(forward.source_mac, Some([2, 0, 0, 0, 0, 1]));
    assert_eq!(forward.destination_mac, Some([2, 0, 0, 0, 0, 0xfe]));

    assert_eq!(spec.slo.latency, Nanos(1_500_000));
    assert_eq!(spec.slo.percentile, 99.9);
    assert_eq!(
        spec.slo.throughput,
        Some(Throughput::PacketsPerSecond(2_500_000))
    );
    assert_eq!(
        (spec.flows.capacity, spec.flows.when_full),
        (1 << 20, WhenFull::Refuse)
    );
    assert_eq!(spec.flows.idle_timeout.tcp, Nanos::from_secs(600));
    assert_eq!(spec.flows.idle_timeout.udp, Nanos::from_secs(60));
    assert_eq!(spec.flows.idle_timeout.other, Nanos::from_millis(500));
    assert_eq!(
        (spec.packets.malformed, spec.packets.non_ip),
        (Fate::Pass, Fate::Drop)
    );
    assert_eq!(spec.packets.batch, 64);
}

#[test]
fn nat_translates_private_space_unless_told_otherwise() {
    let spec = right("nat-defaults.yaml");
    let FunctionConfig::Nat(nat) = &spec.functions[0].config else {
        panic!("{:?}", spec.functions[0]);
    };
    let internal: Vec<_> = nat.internal.iter().map(ToString::to_string).collect();
    let private = [
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "100.64.0.0/10",
    ];
    assert_eq!(internal, private);
    assert_eq!(nat.ports, 1024..=u16::MAX);
    assert_eq!((nat.other_protocols, nat.inbound), (Fate::Drop, Fate::Drop));
    let size: usize = nat
        .external
        .iter()
        .map(|prefix| 1 << (32 - prefix.prefix_len()))
        .sum();
    assert_eq!(size, 4096, "the largest pool is accepted");
}

#[test]
fn rules_files_are_read() {
    let spec = right("rules-files.yaml");
    let expected = [
        (
            "classbench",
            vec![Action::Deny, Action::Deny],
            "rules/two.rules",
        ),
        (
            "yaml-list",
            vec![Action::Allow, Action::Deny],
            "rules/list.yaml",
        ),
        ("yaml-map", vec![Action::Deny], "rules/map.yml"),
        (
            "by-format",
            vec![Action::Allow, Action::Deny],
            "rules/list-without-extension",
        ),
    ];
    assert_eq!(spec.functions.len(), expected.len());
    for (function, (name, actions, file)) in spec.functions.iter().zip(expected) {
        let FunctionConfig::Acl(acl) = &function.config else {
            panic!("{function:?}");
        };
        let found: Vec<_> = acl.rules.iter().map(|rule| rule.action).collect();
        assert_eq!((&*function.name, found), (name, actions));
        assert_eq!(acl.source, Some(Path::new(RIGHT).join(file)));
    }
}

#[test]
fn unusual_but_valid_yaml() {
    let spec = right("unusual-yaml.yaml");
    assert_eq!(spec.name, "unusual");
    assert_eq!(spec.functions.len(), 3);
    let first = &spec.functions[0].config;
    assert_eq!(
        first, &spec.functions[1].config,
        "an alias stands for its anchor"
    );
    assert_eq!(spec.slo.latency, Nanos::from_micros(250));
    assert_eq!(
        spec.slo.throughput,
        Some(Throughput::BitsPerSecond(10_000_000_000))
    );
    let timeouts = spec.flows.idle_timeout;
    assert_eq!(
        [timeouts.tcp, timeouts.udp, timeouts.other],
        [Nanos::from_secs(45); 3]
    );
}

#[test]
fn the_example_of_the_documentation_is_accepted() {
    let page = fs::read_to_string("../../docs/chain-spec.md").expect("the page");
    let example = page
        .split("```yaml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let example = example.expect("a YAML block");
    let spec = ChainSpec::parse(example, "chain-spec.md", Path::new(""))
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(spec.functions.len(), 3);
}

#[test]
fn a_missing_file_is_named() {
    let error = ChainSpec::read(Path::new("tests/specs/none.yaml")).unwrap_err();
    assert_eq!((error.line, error.column, &*error.path), (0, 0, ""));
    let text = error.to_string();
    assert!(
        text.starts_with("tests/specs/none.yaml: cannot be read: "),
        "{text}"
    );
}

#[test]
fn a_huge_file_is_refused_before_it_is_parsed() {
    let path = std::env::temp_dir().join(format!("tailwater-huge-{}.yaml", std::process::id()));
    let file = fs::File::create(&path).expect("a file");
    file.set_len((16 << 20) + 1).expect("a sparse file");
    let error = ChainSpec::read(&path).unwrap_err();
    fs::remove_file(&path).expect("removing the file");
    assert_eq!(
        error.message,
        "expected at most 16 MiB, found a larger file"
    );
    let text = " ".repeat((16 << 20) + 1);
    let error = ChainSpec::parse(&text, "huge.yaml", Path::new("")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "huge.yaml: expected at most 16 MiB, found a larger file"
    );
}

#[test]
fn routers_and_tunnels_keep_every_field() {
    use tailwater_nf::ip_forward::{Route, Target};
    use tailwater_nf::tunnel::{Action as TunnelAction, VlanMatch};
    let spec = right("router.yaml");
    let FunctionConfig::Tunnel(tunnel) = &spec.functions[0].config else {
        panic!("{:?}", spec.functions[0]);
    };
    assert_eq!((tunnel.default, tunnel.cached), (Fate::Drop, false));
    let rule = &tunnel.rules[0];
    assert_eq!(rule.source, Some("10.0.0.0/8".parse().unwrap()));
    assert_eq!(rule.destination, Some("198.18.0.0/15".parse().unwrap()));
    assert_eq!(
        (rule.protocol, rule.vlan),
        (Some(17), Some(VlanMatch::Id(7)))
    );
    let TunnelAction::Push(tag) = rule.action else {
        panic!("{rule:?}");
    };
    assert_eq!((tag.id, tag.priority, tag.drop_eligible), (4094, 7, true));
    assert_eq!(tag.ethertype, 0x88a8);
    assert_eq!(tunnel.rules[1].vlan, Some(VlanMatch::Untagged));
    assert_eq!(tunnel.rules[2].action, TunnelAction::Pop);

    let FunctionConfig::IpForward(router) = &spec.functions[1].config else {
        panic!("{:?}", spec.functions[1]);
    };
    assert_eq!(router.source_mac, [2, 0, 0, 0, 0, 1]);
    assert_eq!(router.next_hops[0].source_mac, Some([2, 0, 0, 0, 0, 2]));
    assert_eq!(
        router.next_hops[1].address,
        Some("2001:db8::1".parse().unwrap())
    );
    assert_eq!((router.local, router.cached), (Fate::Pass, true));
    assert_eq!(router.default, Some(Target::NextHop(0)));
    let route = |prefix: &str, target| Route {
        prefix: prefix.parse().unwrap(),
        target,
    };
    // The spec's own route for 198.18.0.0/15, not the file's.
    let routes = [
        route("0.0.0.0/0", Target::Blackhole),
        route("198.18.0.0/15", Target::NextHop(1)),
        route("198.18.7.0/24", Target::NextHop(0)),
        route("2001:db8::1/128", Target::Local),
    ];
    assert_eq!(router.routes, routes);
}

#[test]
fn external_functions_keep_every_field_and_cut_the_chain() {
    use tailwater_nf::spec::{Changes, Missing};
    let spec = right("external.yaml");
    let (names, externals): (Vec<_>, Vec<_>) = spec.externals().unzip();
    assert_eq!(names, ["firewall", "external"]);
    let [firewall, other] = externals[..] else {
        panic!("{externals:?}");
    };
    let ports: Vec<_> = firewall.ports().map(|port| port.interface()).collect();
    assert_eq!(ports, [Some("fw-in"), Some("fw-out")]);
    assert_eq!(
        (firewall.timeout, firewall.outside),
        (Nanos::from_millis(20), 1024)
    );
    assert_eq!(
        (firewall.missing, firewall.own),
        (Missing::Dropped, Fate::Drop)
    );
    let changes = Changes {
        ip_id: true,
        payload: true,
        tcp_sequence: false,
    };
    assert_eq!(firewall.changes, changes);
    // The documented defaults.
    assert_eq!(other.return_port, None);
    assert_eq!(
        (other.timeout, other.outside),
        (Nanos::from_millis(100), 16_384)
    );
    assert_eq!((other.missing, other.own), (Missing::Lost, Fate::Pass));
    assert_eq!(other.changes, Changes::default());
    let kinds = spec.parts().into_iter().map(|part| {
        let kinds = part.functions.iter().map(|function| function.config.kind());
        kinds.collect::<Vec<_>>()
    });
    assert_eq!(
        kinds.collect::<Vec<_>>(),
        [vec!["forward"], vec!["nat"], vec![]]
    );
    let port = |name: &str| spec.external_at(&name.parse().expect("a port"));
    assert_eq!(port("net_af_xdp0,iface=fw-out"), Some("firewall"));
    assert_eq!(port("net_memif0"), Some("external"));
    assert_eq!(port("net_af_xdp0,iface=lan"), None);
}

#[test]
fn url_filter_spec() {
    use tailwater_nf::url_filter::{Action, Pattern, Ports, Rest};
    let spec = right("url-filter.yaml");
    let FunctionConfig::UrlFilter(config) = &spec.functions[0].config else {
        panic!("{:?}", spec.functions[0]);
    };
    let texts = [
        "bad.example",
        "worse.example/x",
        "=exact.example",
        "*needle*",
    ];
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
        (Fate::Drop, Fate::Drop)
    );
}

/// A long file of rules, in which one line in so many is wrong and one contradicts an earlier one.
fn long_rules(format: &str, wrong: bool) -> String {
    let line = |i: u32| {
        let (a, b) = (i / 250, i % 250);
        let port = match i % 700 {
            350 if wrong => 70_000 + i,
            _ => 443,
        };
        // The last rule is for what the first is for.
        let (a, b) = if i == 35_000 { (0, 1) } else { (a, b) };
        let action = ["deny", "allow"][usize::from(i < 35_000)];
        match format {
            "yaml" => format!(
                "- {{action: {action}, source: 10.{a}.{b}.0/24, destinationPorts: {port}, protocol: tcp}}\n"
            ),
            "firewall" => format!("{action} tcp source 10.{a}.{b}.0/24 ports {port}\n"),
            _ => format!("@10.{a}.{b}.0/24 0.0.0.0/0 0 : 65535 {port} : {port} 0x06/0xFF\n"),
        }
    };
    (1..=35_000).map(line).collect()
}

/// Of 35,000 lines all 50 that are wrong are told at once, each with its place and why; what is shadowed is pointed out.
#[test]
fn all_that_is_wrong_in_a_file_of_rules_is_told() {
    let folder = std::env::temp_dir().join(format!("tailwater-rules-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let read = |format: &str, wrong: bool| {
        let name = match format {
            "classbench" => "list.rules",
            "yaml" => "list.yaml",
            _ => "firewall.rules",
        };
        let function = if format == "firewall" { format } else { "acl" };
        std::fs::write(folder.join(name), long_rules(format, wrong)).unwrap();
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: a}}\nspec:\n  \
             slo: {{latency: 1ms}}\n  functions: [{{{function}: {{rulesFile: {name}}}}}]\n"
        );
        ChainSpec::parse(&text, "chain.yaml", &folder)
    };
    for format in ["classbench", "yaml", "firewall"] {
        let error = read(format, true).unwrap_err();
        let told: Vec<_> = error.each().collect();
        assert_eq!(told.len(), 50, "{format}");
        for (i, error) in told.iter().enumerate() {
            let line = 700 * i + 350;
            assert_eq!(error.line, line, "{format}: {error}");
            let what = error.alone();
            assert!(what.contains(&(70_000 + line).to_string()), "{what}");
            assert!(what.contains("expected"), "{what}");
        }
        let spec = read(format, false).unwrap();
        let warnings = spec.functions[0].config.warnings();
        let [warning] = &warnings[..] else {
            panic!("{format}: {warnings:?}");
        };
        // Rules in ClassBench's format have no action of their own to contradict with.
        let what = match format {
            "classbench" => ":35000: this rule is not needed: line 1 matches all that it does",
            _ => {
                ":35000: this rule never decides: line 1 matches all that it does, and says allow \
                 where this says deny"
            }
        };
        assert!(warning.ends_with(what), "{warning}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn functions_of_branches_stand_behind_their_classifier() {
    let spec = right("classifier.yaml");
    let functions: Vec<_> = spec
        .functions
        .iter()
        .map(|f| (f.name.as_str(), f.branch))
        .collect();
    let expected = [
        ("accounting", None),
        ("services", None),
        ("tenants", Some(0)),
        ("slow", Some(3)),
        ("marked", Some(0)),
        ("fast", Some(1)),
        ("edge", None),
    ];
    assert_eq!(functions, expected);
    let branches = spec.branches.iter();
    let branches: Vec<_> = branches
        .map(|b| (b.name.as_str(), b.classifier.as_str(), b.within, b.ends))
        .collect();
    let expected = [
        ("web", "services", None, false),
        ("voice", "services", None, true),
        ("send", "services", None, true),
        ("guests", "tenants", Some(0), false),
    ];
    assert_eq!(branches, expected);
    let FunctionConfig::Classifier(services) = &spec.functions[1].config else {
        panic!("{:?}", spec.functions[1]);
    };
    let targets = [Target::Branch(0), Target::Branch(1), Target::Send];
    assert_eq!(services.targets, targets);
    assert_eq!(services.default, Target::Next);
    assert!(services.both && services.cached);
    let FunctionConfig::Classifier(tenants) = &spec.functions[2].config else {
        panic!("{:?}", spec.functions[2]);
    };
    assert!(!tenants.both && !tenants.cached);
}
