//! Chain specs on disk: invalid ones with their errors, and valid ones with their contents.
//!
//! `UPDATE_GOLDEN=1 cargo test -p tailwater-functions --test spec_golden` rewrites the errors; read the difference
//! before you commit it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tailwater_api::{
    DdioSpec, PacketAction, PortSetup, RedisAddress, RedisSpec, Secret, StateSpec, Throughput, WhenUnavailable,
};
use tailwater_api::{WhenFull, WhenOverloaded};
use tailwater_functions::acl::{AclConfig, Action};
use tailwater_functions::classifier::{ClassifierConfig, Target};
use tailwater_functions::flow_stats::{Outlet, Transport};
use tailwater_functions::forward::ForwardConfig;
use tailwater_functions::ipsec::{DontFragment, PolicyAction, UdpPorts};
use tailwater_functions::mirror;
use tailwater_functions::nat::NatConfig;
use tailwater_functions::spec::ChainSpec;
use tailwater_functions::tunnel::VlanMatch;
use tailwater_functions::upf::Role;
use tailwater_functions::wan_optimizer::Sampling;
use tailwater_net::Nanos;

#[path = "spec_golden/functions.rs"]
mod functions;

/// Relative, so that errors name the same file on every machine. Tests run in the crate's folder.
const WRONG: &str = "tests/specs/wrong";
const RIGHT: &str = "tests/specs/right";

/// Specs in a folder, sorted.
fn specs(folder: &str) -> Vec<PathBuf> {
    let mut specs: Vec<_> = fs::read_dir(folder)
        .expect("the folder of specs")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    specs.sort();
    specs
}

fn right(name: &str) -> ChainSpec {
    let path = Path::new(RIGHT).join(name);
    ChainSpec::read(&path).unwrap_or_else(|error| panic!("{error}"))
}

/// Removes the list of all kinds of functions from an error, so that a new kind changes no expected error.
/// `tests/kinds.rs` checks the list.
fn without_kinds(error: &str) -> String {
    const LIST: &str = "one function (";
    match error.split_once(LIST) {
        Some((before, after)) => match after.split_once(')') {
            Some((_, rest)) => format!("{before}{LIST}){rest}"),
            None => error.to_owned(),
        },
        None => error.to_owned(),
    }
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
        // A limit against hanging, not a measure of speed.
        assert!(started.elapsed() < Duration::from_secs(20), "{path:?} took too long");
        assert_eq!(found.lines().count(), lines, "not on one line each: {found:?}");
        let golden = path.with_extension("txt");
        if update {
            fs::write(&golden, format!("{found}\n")).expect("writing the error");
            continue;
        }
        let expected = fs::read_to_string(&golden).unwrap_or_default();
        if without_kinds(expected.trim_end()) != without_kinds(&found) {
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

/// A key file that only its owner can read causes no warning; one readable by all does.
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
        assert!(warnings.iter().all(|warning| warning.contains("north.key (mode 644)")));
    }
    fs::remove_dir_all(&folder).expect("a folder");
}

#[test]
fn state_is_read() {
    let spec = right("state.yaml");
    let state = spec.settings.state.expect("state");
    let expected = StateSpec {
        instance: None,
        chain: None,
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
    let ports = right("ports.yaml").settings.ports.expect("ports");
    assert_eq!(ports.entry.to_string(), "0000:3b:00.0");
    assert_eq!(
        ports.exit.and_then(|exit| exit.interface().map(str::to_owned)),
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
    let Some(forward) = spec.functions[0].config_as::<ForwardConfig>() else {
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
        (PacketAction::Drop, PacketAction::Pass)
    );
    assert_eq!(spec.packets.batch, 32);
    assert_eq!(spec.cores, None);
}

#[test]
fn full_spec_keeps_every_field() {
    let spec = right("full.yaml");
    assert_eq!(spec.metadata.name, "acl-nat");
    assert_eq!(spec.metadata.namespace.as_deref(), Some("edge"));
    assert_eq!(spec.metadata.labels["tier"], "gold");
    assert_eq!(spec.metadata.annotations["tailwater.dev/revision"], "7");

    let text = |prefixes: &[ipnet::IpNet]| -> Vec<String> { prefixes.iter().map(ToString::to_string).collect() };
    assert_eq!(text(&spec.match_.sources), ["10.0.0.0/8", "2001:db8::/32"]);
    assert_eq!(text(&spec.match_.destinations), ["198.51.100.7/32"]);
    assert_eq!(spec.match_.protocols, [6, 17, 1, 47]);
    assert_eq!(spec.match_.vlans, [10, 20]);

    let names: Vec<_> = spec.functions.iter().map(|function| &*function.name).collect();
    assert_eq!(names, ["edge", "nat", "out"]);
    let kinds: Vec<_> = spec.functions.iter().map(|function| function.config.kind()).collect();
    assert_eq!(kinds, ["acl", "nat", "forward"]);

    let Some(acl) = spec.functions[0].config_as::<AclConfig>() else {
        panic!("{:?}", spec.functions[0]);
    };
    assert_eq!((acl.default, &acl.source, acl.rules.len()), (Action::Allow, &None, 2));
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
    assert_eq!((rule.source, rule.destination, rule.protocol), (None, None, None));
    assert_eq!((&rule.source_ports, rule.action), (&(53..=53), Action::Deny));

    let Some(nat) = spec.functions[1].config_as::<NatConfig>() else {
        panic!("{:?}", spec.functions[1]);
    };
    let text: Vec<_> = nat.external.iter().map(ToString::to_string).collect();
    assert_eq!(text, ["203.0.113.0/28", "198.51.100.7/32"]);
    assert_eq!(nat.internal.len(), 1);
    assert_eq!(nat.ports, 2048..=4095);
    assert_eq!(
        (nat.other_protocols, nat.inbound),
        (PacketAction::Pass, PacketAction::Pass)
    );

    let Some(forward) = spec.functions[2].config_as::<ForwardConfig>() else {
        panic!("{:?}", spec.functions[2]);
    };
    assert_eq!(forward.source_mac, Some([2, 0, 0, 0, 0, 1]));
    assert_eq!(forward.destination_mac, Some([2, 0, 0, 0, 0, 0xfe]));

    assert_eq!(spec.slo.latency, Nanos(1_500_000));
    assert_eq!(spec.when_overloaded, WhenOverloaded::ServeFresh);
    assert_eq!(spec.slo.percentile, 99.9);
    assert_eq!(spec.slo.throughput, Some(Throughput::PacketsPerSecond(2_500_000)));
    assert_eq!((spec.flows.capacity, spec.flows.when_full), (1 << 20, WhenFull::Refuse));
    assert_eq!(spec.flows.idle_timeout.tcp, Nanos::from_secs(600));
    assert_eq!(spec.flows.idle_timeout.udp, Nanos::from_secs(60));
    assert_eq!(spec.flows.idle_timeout.other, Nanos::from_millis(500));
    assert_eq!(
        (spec.packets.malformed, spec.packets.non_ip),
        (PacketAction::Pass, PacketAction::Drop)
    );
    assert_eq!(spec.packets.batch, 64);
    assert_eq!(spec.cores, Some(2));
}

#[test]
fn rules_files_are_read() {
    let spec = right("rules-files.yaml");
    let expected = [
        ("classbench", vec![Action::Deny, Action::Deny], "rules/two.rules"),
        ("yaml-list", vec![Action::Allow, Action::Deny], "rules/list.yaml"),
        ("yaml-map", vec![Action::Deny], "rules/map.yml"),
        (
            "by-format",
            vec![Action::Allow, Action::Deny],
            "rules/list-without-extension",
        ),
    ];
    assert_eq!(spec.functions.len(), expected.len());
    for (function, (name, actions, file)) in spec.functions.iter().zip(expected) {
        let Some(acl) = function.config_as::<AclConfig>() else {
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
    assert_eq!(first, &spec.functions[1].config, "an alias stands for its anchor");
    assert_eq!(spec.slo.latency, Nanos::from_micros(250));
    assert_eq!(spec.slo.throughput, Some(Throughput::BitsPerSecond(10_000_000_000)));
    let timeouts = spec.flows.idle_timeout;
    assert_eq!([timeouts.tcp, timeouts.udp, timeouts.other], [Nanos::from_secs(45); 3]);
}

#[test]
fn the_example_of_the_documentation_is_accepted() {
    let page = fs::read_to_string("../../docs/reference/chain-spec.md").expect("the page");
    let example = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next());
    let example = example.expect("a YAML block");
    let spec = ChainSpec::parse(example, "chain-spec.md", Path::new("")).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(spec.functions.len(), 3);
}

#[test]
fn a_missing_file_is_named() {
    let error = ChainSpec::read(Path::new("tests/specs/none.yaml")).unwrap_err();
    assert_eq!((error.line, error.column, &*error.path), (0, 0, ""));
    let text = error.to_string();
    assert!(text.starts_with("tests/specs/none.yaml: cannot be read: "), "{text}");
}

#[test]
fn a_huge_file_is_refused_before_it_is_parsed() {
    let path = std::env::temp_dir().join(format!("tailwater-huge-{}.yaml", std::process::id()));
    let file = fs::File::create(&path).expect("a file");
    file.set_len((16 << 20) + 1).expect("a sparse file");
    let error = ChainSpec::read(&path).unwrap_err();
    fs::remove_file(&path).expect("removing the file");
    assert_eq!(error.message, "expected at most 16 MiB, found a larger file");
    let text = " ".repeat((16 << 20) + 1);
    let error = ChainSpec::parse(&text, "huge.yaml", Path::new("")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "huge.yaml: expected at most 16 MiB, found a larger file"
    );
}

#[test]
fn external_functions_keep_every_field_and_cut_the_chain() {
    use tailwater_functions::external::{Changes, Missing};
    let spec = right("external.yaml");
    let (names, externals): (Vec<_>, Vec<_>) = spec.externals().unzip();
    assert_eq!(names, ["firewall", "external"]);
    let [firewall, other] = externals[..] else {
        panic!("{externals:?}");
    };
    let ports: Vec<_> = firewall.ports().map(|port| port.interface()).collect();
    assert_eq!(ports, [Some("fw-in"), Some("fw-out")]);
    assert_eq!((firewall.timeout, firewall.outside), (Nanos::from_millis(20), 1024));
    assert_eq!((firewall.missing, firewall.own), (Missing::Dropped, PacketAction::Drop));
    let changes = Changes {
        ip_id: true,
        payload: true,
        tcp_sequence: false,
    };
    assert_eq!(firewall.changes, changes);
    let interfaces = right("external-interfaces.yaml");
    let ports = interfaces.externals().flat_map(|(_, external)| external.ports());
    let ports: Vec<_> = ports.map(|port| port.interface_of(1)).collect();
    assert_eq!(ports, ["fw-in1", "fw-out1", "proxy"].map(|name| Some(name.to_owned())));
    // The documented defaults.
    assert_eq!(other.return_port, None);
    assert_eq!((other.timeout, other.outside), (Nanos::from_millis(100), 16_384));
    assert_eq!((other.missing, other.own), (Missing::Lost, PacketAction::Pass));
    assert_eq!(other.changes, Changes::default());
    let kinds = spec.parts().into_iter().map(|part| {
        let kinds = part.functions.iter().map(|function| function.config.kind());
        kinds.collect::<Vec<_>>()
    });
    assert_eq!(kinds.collect::<Vec<_>>(), [vec!["forward"], vec!["nat"], vec![]]);
    let port = |name: &str| spec.external_at(&name.parse().expect("a port"));
    assert_eq!(port("net_af_xdp0,iface=fw-out"), Some("firewall"));
    assert_eq!(port("net_memif0"), Some("external"));
    assert_eq!(port("net_af_xdp0,iface=lan"), None);
}

/// Long rules file, in which some lines are invalid and one contradicts an earlier one.
fn long_rules(format: &str, wrong: bool) -> String {
    let line = |i: u32| {
        let (a, b) = (i / 250, i % 250);
        let port = match i % 700 {
            350 if wrong => 70_000 + i,
            _ => 443,
        };
        // The last rule matches the same packets as the first.
        let (a, b) = if i == 35_000 { (0, 1) } else { (a, b) };
        let action = ["deny", "allow"][usize::from(i < 35_000)];
        match format {
            "yaml" => {
                format!("- {{action: {action}, source: 10.{a}.{b}.0/24, destinationPorts: {port}, protocol: tcp}}\n")
            }
            "firewall" => format!("{action} tcp source 10.{a}.{b}.0/24 ports {port}\n"),
            _ => format!("@10.{a}.{b}.0/24 0.0.0.0/0 0 : 65535 {port} : {port} 0x06/0xFF\n"),
        }
    };
    (1..=35_000).map(line).collect()
}

/// All 50 invalid lines of 35,000 are reported at once, each with position and reason. Shadowed rules are reported.
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
            let what = error.to_line();
            assert!(what.contains(&(70_000 + line).to_string()), "{what}");
            assert!(what.contains("expected"), "{what}");
        }
        let spec = read(format, false).unwrap();
        let warnings = spec.functions[0].config.notices();
        let [warning] = &warnings[..] else {
            panic!("{format}: {warnings:?}");
        };
        // Rules in ClassBench's format have no action that could conflict.
        let what = match format {
            "classbench" => ":35000: redundant rule: line 1 matches all of its packets",
            _ => ":35000: shadowed rule: line 1 matches all of its packets with allow, this rule has deny",
        };
        assert!(warning.ends_with(what), "{warning}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn functions_of_branches_stand_behind_their_classifier() {
    let spec = right("classifier.yaml");
    let functions: Vec<_> = spec.functions.iter().map(|f| (f.name.as_str(), f.branch)).collect();
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
    let Some(services) = spec.functions[1].config_as::<ClassifierConfig>() else {
        panic!("{:?}", spec.functions[1]);
    };
    let targets = [Target::Branch(0), Target::Branch(1), Target::Send];
    assert_eq!(services.targets, targets);
    assert_eq!(services.default, Target::Next);
    assert!(services.both && services.cached);
    let Some(tenants) = spec.functions[2].config_as::<ClassifierConfig>() else {
        panic!("{:?}", spec.functions[2]);
    };
    assert!(!tenants.both && !tenants.cached);
}
