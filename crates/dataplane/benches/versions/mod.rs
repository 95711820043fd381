//! Functions with two versions each, which are exchanged while packets pass. No version drops packets, so a packet that
//! is not sent was lost.

use crate::cases::{self, EXAMPLES, files};
use std::fmt::Write as _;
use std::path::Path;
use tailwater_functions::acl::classbench::write_rules;
use tailwater_functions::acl::generate::RuleSetSpec;

/// Cases: functions with the kind of change. Functions that are missing here cannot be reloaded.
pub const CASES: &[&str] = &[
    "acl-1500",
    "acl-30000",
    "classifier",
    "nat-pool-added",
    "nat-pool-replaced",
    "load-balancer",
    "router",
    "tunnel",
    "counters",
    "policer",
    "policer-flows",
    "dns-guard",
    "bpf-filter",
    "synthetic",
    "url-filter",
    "encrypt",
    "ipsec",
    "ipsec-both-ends",
    "firewall",
    "firewall-tcp",
    "upf",
    "wan-optimizer",
    "ids-1000",
    "ids",
];

/// Chain of [`cases`] that provides a case's traffic and flow table.
pub fn chain(case: &'static str) -> &'static str {
    match case {
        "acl-1500" | "acl-30000" => "acl",
        "classifier" => "branches",
        "nat-pool-added" | "nat-pool-replaced" => "nat",
        other => other,
    }
}

/// Functions of both versions, for `flows` flows.
pub fn versions(case: &'static str, flows: u32) -> [String; 2] {
    let chain = chain(case);
    let functions = cases::functions(chain, flows);
    let functions = functions.unwrap_or_else(|| panic!("{chain} is an example"));
    let other = |from: &str, to: &str| {
        assert!(functions.contains(from), "{case}: no {from} in {functions}");
        [functions.clone(), functions.replace(from, to)]
    };
    match case {
        "acl-1500" => of_rules(&functions, case, &example("rules/acl-1500.rules")),
        "acl-30000" => {
            let spec = RuleSetSpec {
                rules: 30_000,
                seed: 1,
                sources: vec![prefix("10.0.0.0/8")],
                destinations: vec![prefix("198.18.0.0/15"), prefix("203.0.113.0/24")],
            };
            let text = write_rules("access rules", &spec.generate());
            of_rules(&functions, case, &text)
        }
        // A thousand rules of networks without traffic, and one by which a quarter of the flows moves to the other
        // branch.
        "classifier" => ["0-32767", "0-16383"].map(|ports| {
            let networks: String = (0..1000)
                .map(|i| format!("{{to: a, source: 172.16.{}.{}/28}}, ", i / 16, i % 16 * 16))
                .collect();
            let decides = format!("rules: [{networks}{{to: a, sourcePorts: {ports}}}]");
            functions.replace("rules: [{to: a, sourcePorts: 0-32767}]", &decides)
        }),
        // Traffic to the chain's own pool is dropped.
        "nat-pool-added" | "nat-pool-replaced" => {
            let pools = match case {
                "nat-pool-added" => ["192.0.3.0/28", "192.0.3.0/28, 192.0.4.0/28"],
                _ => ["192.0.3.0/28", "192.0.4.0/28"],
            };
            pools.map(|pool| functions.replace("203.0.113.0/28", pool))
        }
        // One backend less per service: its flows move to others.
        "load-balancer" => other(", {address: 172.16.0.16}", ""),
        "router" => other("02:00:00:00:01:00", "02:00:00:00:02:00"),
        "tunnel" => other("vlan: 100", "vlan: 200"),
        "counters" => other("destinationPorts: 1-9", "destinationPorts: 1-99"),
        "policer" | "policer-flows" => other("rate: 9000Gbps", "rate: 8000Gbps"),
        "dns-guard" => other("responses: 100000", "responses: 90000"),
        "bpf-filter" => other("tcp port 80", "tcp port 8080"),
        "synthetic" => other("cycles: 200", "cycles: 250"),
        "url-filter" => [10_000, 9_000].map(|hosts| {
            let names: String = (0..hosts).map(|i| format!("host-{i}.example\n")).collect();
            let text = example("patterns/blocked.txt") + &names;
            let file = put(case, &format!("{hosts}.patterns"), &text);
            functions.replace("patterns/blocked.txt", &format!("'{file}'"))
        }),
        "encrypt" => other("1c1d1e1f", "1c1d1e1e"),
        "ipsec" | "ipsec-both-ends" => [1, 2].map(|number| tunnels(case, number)),
        "firewall" | "firewall-tcp" => {
            let mut text = String::new();
            for i in 0..1000 {
                let (high, low) = (i / 250, i % 250);
                let line = format!("allow tcp source 172.{}.{low}.0/24 ports 443", 16 + high);
                let _ = writeln!(text, "{line}");
            }
            let text = text + "allow\n";
            thinned(case, &text).map(|file| {
                let rules = format!("rulesFile: '{file}'");
                functions.replace("rules: [allow]", &rules)
            })
        }
        // All users move to other base stations.
        "upf" => {
            let file = |first: u32| files::sessions(flows, first).display().to_string();
            other(&file(10), &file(11))
        }
        "wan-optimizer" => {
            let networks: String = (0..60).map(|i| format!("172.16.{i}.0/24, ")).collect();
            let all = format!("destinations: [{networks}0.0.0.0/0]");
            other("destinations: [0.0.0.0/0]", &all)
        }
        "ids" | "ids-1000" => {
            let (_, file) = functions.split_once('\'').unwrap_or_default();
            let (file, _) = file.split_once('\'').unwrap_or_default();
            let [_, less] = thinned(case, &read(Path::new(file)));
            other(file, &less)
        }
        other => panic!("no versions of {other}"),
    }
}

/// Packets per second: at most a third of a core's capacity.
pub fn packets_per_second(case: &str) -> f64 {
    match case {
        "ids" => 200_000.0,
        "ids-1000" => 400_000.0,
        _ => 1_000_000.0,
    }
}

fn prefix<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("{text} is a prefix"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn example(name: &str) -> String {
    read(&Path::new(EXAMPLES).join(name))
}

/// Writes a file of a case. Returns its name.
fn put(case: &str, name: &str, text: &str) -> String {
    let file = files::write(&format!("changes-{case}-{name}"), text);
    file.display().to_string()
}

/// Files with all lines of a text, and with all but every tenth rule. The last rule stays.
fn thinned(case: &str, text: &str) -> [String; 2] {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let stay = |i: usize| i % 10 != 9 || i + 1 == lines.len();
    let fewer = (0..lines.len()).filter(|&i| stay(i)).map(|i| lines[i]);
    let fewer = fewer.collect::<Vec<_>>().join("\n");
    [put(case, "all.rules", text), put(case, "fewer.rules", &fewer)]
}

/// An access list with these rules, or with most of them.
fn of_rules(functions: &str, case: &str, text: &str) -> [String; 2] {
    thinned(case, text).map(|file| functions.replace("rules/acl-1500.rules", &format!("'{file}'")))
}

/// One end of a tunnel, or both, whose packets use the association with this number. The second end accepts those of
/// both.
fn tunnels(case: &str, number: u32) -> String {
    let association = |number: u32, more: &str| {
        format!(
            "{{name: a{number}, spi: {}, cipher: aes-128-gcm, esn: true, destination: 192.0.2.2, {more}\
             key: '000102030405060708090a0b0c0d0e0fa0a1a2{number:02x}'}}",
            0x1000 + number
        )
    };
    let outbound = association(number, "source: 192.0.2.1, ");
    let into =
        format!("{{name: into, ipsec: {{mtu: 9000, policies: [{{protect: a{number}}}], outbound: [{outbound}]}}}}");
    match case {
        "ipsec" => format!("[{into}]"),
        _ => {
            let inbound = [1, 2].map(|number| association(number, "")).join(", ");
            format!("[{into}, {{name: out-of, ipsec: {{inbound: [{inbound}]}}}}]")
        }
    }
}
