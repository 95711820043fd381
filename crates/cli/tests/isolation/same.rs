//! Functions behave in processes and containers as they do in one process.

use crate::common::*;
use crate::failing::{misbehaving, with_orders};
use crate::{TRUSTED, alone, by_flow, can_confine, process, reason, restarts, run_isolated, undisturbed, ways};
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tailwater_dataplane::cores::available;
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, protocol};

/// Returns the examples, with an objective that gives a busy machine time to catch up.
fn examples(folder: &Folder) -> Vec<PathBuf> {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    for data in ["rules", "patterns", "routes", "programs"] {
        symlink(from.join(data).canonicalize().unwrap(), folder.path(data)).unwrap();
    }
    let mut chains = Vec::new();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        // Libraries must be built first; they are tested below.
        if !text.contains("kind: Chain") || ["library:", "expression:"].iter().any(|it| text.contains(it)) {
            continue;
        }
        // Functions that cannot be isolated are tested below.
        let alone = [
            "- mirror:",
            // It writes a file, and caches are large: both are tested in `sharing`.
            "- upf:",
            "- name: main-office",
            "external:",
            "state:",
        ];
        let mut lines = text.lines().map(str::trim);
        if lines.any(|line| alone.contains(&line)) {
            continue;
        }
        // A confined function writes no files: removes the block below such a line.
        let indent = |line: &str| line.len() - line.trim_start().len();
        let mut export = None;
        let mut lines = String::new();
        for line in text.lines() {
            if export.is_some_and(|export| indent(line) > export) {
                continue;
            }
            export = line.trim_start().starts_with("export:").then(|| indent(line));
            match line.trim_start() {
                _ if export.is_some() => {}
                latency if latency.starts_with("latency:") => lines += "    latency: 10s\n",
                _ => lines += &format!("{line}\n"),
            }
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        chains.push(folder.write(name, lines));
    }
    assert!(chains.len() > 10, "{chains:?}");
    chains
}

/// Writes traffic of many short flows.
pub(crate) fn traffic(folder: &Folder) -> PathBuf {
    let path = folder.path("traffic.pcap");
    let made = tailwater()
        .args([
            "trace",
            "synth",
            "bursty",
            "--duration",
            "60ms",
            "--rate-scale",
            "0.05",
            "-o",
        ])
        .arg(&path)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", text(&made.stderr));
    path
}

fn flows(report: &Value) -> [Option<u64>; 5] {
    ["active", "opened", "expired", "evicted", "refused"].map(|name| report["flows"][name].as_u64())
}

/// Runs a chain in one process and in these isolation modes, and compares the results.
fn assert_same(chain: &Path, traffic: &Path, cores: &str, ways: &[&str]) {
    let (one, sent) = run_isolated(chain, traffic, "none", cores);
    for way in ways {
        assert_as((&one, &sent), chain, traffic, (cores, way));
    }
}

/// Runs a chain isolated, and compares it with another run's report and output. Returns its report.
pub(crate) fn assert_as(
    (one, sent): (&Value, &[Vec<u8>]),
    chain: &Path,
    traffic: &Path,
    (cores, way): (&str, &str),
) -> Value {
    let name = chain.display();
    let encrypted = ["encrypt", "ipsec"].iter().any(|it| name.to_string().contains(it));
    assert!(!sent.is_empty(), "{name}");
    let (other, sent_by_processes) = undisturbed(None, || run_isolated(chain, traffic, way, cores));
    assert_eq!(one["packets"], other["packets"], "{name}: {way}");
    assert_eq!(flows(one), flows(&other), "{name}: {way}");
    let same = by_flow(sent.to_vec(), encrypted) == by_flow(sent_by_processes, encrypted);
    assert!(same, "{name}: {way}: other packets were sent");
    let isolation = &other["isolation"];
    assert_eq!(isolation["mode"], way.split(' ').next().unwrap());
    let left_out = way.split_once("--isolation-without ");
    let left_out = left_out.map_or(vec![], |(_, left_out)| left_out.split(',').collect());
    assert_eq!(isolation["without"], json!(left_out), "{way}");
    for function in isolation["functions"].as_array().unwrap() {
        assert!(function["turns"].as_u64().unwrap() > 0, "{way}: {other}");
        assert_eq!(restarts(function), 0, "{way}: {other}");
    }
    other
}

#[test]
fn every_example_does_what_it_does_in_one_process() {
    let _alone = alone();
    let folder = Folder::new();
    let traffic = traffic(&folder);
    let core = available().pop().unwrap().to_string();
    for chain in examples(&folder) {
        let name = chain.file_name().unwrap().to_str().unwrap();
        let all = [
            "acl-nat.yaml",
            "acl-lb-accounting.yaml",
            "acl-urlfilter-encrypt.yaml",
            "router.yaml",
            "branches.yaml",
        ];
        match all.contains(&name) {
            true => assert_same(&chain, &traffic, &core, &ways()),
            false => assert_same(&chain, &traffic, &core, &[process()]),
        }
    }
}

/// Writes connections of an inside client: its packets, responses to them, and forged packets from outside.
fn connections(folder: &Folder) -> PathBuf {
    let outside = Ipv4Addr::new(203, 0, 113, 9);
    let mut packets = Vec::new();
    for n in 0..240u32 {
        let (inside, port) = (client((n % 240) as u8 + 1), 2000 + n as u16);
        let segment = |flags, sequence, acknowledgment, reversed| {
            let key = FlowKey::v4(inside, SERVER, protocol::TCP, port, 80);
            let key = if reversed { key.reversed() } else { key };
            let fields = TcpFields {
                flags,
                sequence,
                acknowledgment,
                ..TcpFields::default()
            };
            FrameBuilder::new(&key).tcp(fields).to_vec().unwrap()
        };
        let (syn, ack, end) = (TcpFlags::SYN, TcpFlags::ACK, TcpFlags::FIN);
        let of_connection = match n % 3 {
            0 => vec![
                segment(syn, 100, 0, false),
                segment(syn | ack, 700, 101, true),
                segment(ack, 101, 701, false),
                segment(ack, 90_000_000, 701, false),
                segment(ack, 701, 101, true),
                segment(end | ack, 101, 701, false),
            ],
            1 => vec![
                udp(inside, port, SERVER, 53),
                udp(SERVER, 53, inside, port),
                udp(outside, 53, inside, port),
            ],
            _ => vec![
                segment(ack, 1, 1, true),
                udp(outside, 53, inside, port),
                udp(inside, port, outside, 53),
                udp(outside, 53, inside, port),
            ],
        };
        let at = |i: usize| u64::from(n) * 200_000 + i as u64 * 3_000_000;
        let numbered = of_connection.into_iter().enumerate();
        packets.extend(numbered.map(|(i, frame)| (at(i), frame)));
    }
    packets.sort_by_key(|(time, _)| *time);
    folder.capture("connections.pcap", &packets)
}

/// Both directions are one flow to the firewall, and two to the functions around it.
#[test]
fn a_firewall_among_others_does() {
    let _alone = alone();
    let folder = Folder::new();
    let traffic = connections(&folder);
    let functions = "[{name: counted, accounting: }, {firewall: {zones: {lan: {prefixes: [10.0.0.0/8]}}, \
                     rules: [deny udp from lan ports 99, allow from lan], timeouts: {udp: 5s}}}, \
                     {name: behind, policer: {limits: [{rate: 1000pps, burst: 2, per: flow}]}}]";
    let chain = folder.spec("firewall.yaml", functions, "  flows: {capacity: 4096}\n");
    let core = available().pop().unwrap().to_string();
    assert_same(&chain, &traffic, &core, &ways());
    let (report, _) = run_isolated(&chain, &traffic, process(), &core);
    for (name, least) in [
        ("firewall/opened", 80),
        ("firewall/out-of-window", 80),
        ("firewall/denied", 160),
    ] {
        assert!(reason(&report, name) >= least, "{name}: {report}");
    }
    if let [.., one, other] = available()[..] {
        assert_same(&chain, &traffic, &format!("{one},{other}"), &[process()]);
    }
}

/// Functions that cannot be isolated stay in the run's own process: in front of isolated ones, behind and among them.
#[test]
fn and_with_functions_that_stay() {
    let _alone = alone();
    let folder = Folder::new();
    let traffic = connections(&folder);
    let ids = "{ids: {mode: drop, rules: ['drop udp any any -> any 53 (msg: \"asks\"; content: \"query\"; sid: 1;)', \
               'alert tcp any any -> any 80 (msg: \"opens\"; flags: S; sid: 2;)']}}";
    let stays = |way: &str, names: &str| {
        let except = format!("process --isolation-except {names}");
        way.replacen("process", &except, 1)
    };
    let core = available().pop().unwrap().to_string();
    let mut ways = vec![process()];
    ways.extend(can_confine().then_some(TRUSTED));
    let told = folder.path("told.csv");
    let export = format!("{{name: told, accounting: {{export: {{file: {}}}}}}}", told.display());
    let limit = "{name: limit, policer: {limits: [{rate: 1000pps, burst: 2, per: flow}]}}";
    let of_firewall =
        "{firewall: {zones: {lan: {prefixes: [10.0.0.0/8]}}, rules: [allow from lan], timeouts: {udp: 5s}}}";
    for (functions, names) in [
        (
            format!(
                "[{{name: counted, accounting: }}, {ids}, {{name: edge, acl: {{default: allow, rules: [{{action: deny, \
                 sourcePorts: 2001}}]}}}}, {limit}]"
            ),
            "ids",
        ),
        (
            format!("[{ids}, {{name: counted, accounting: }}, {export}, {limit}]"),
            "ids,told",
        ),
        // The copies stay in this process, too; their content is tested elsewhere.
        (
            format!(
                "[{{name: counted, accounting: }}, {{name: copies, mirror: {{to: {{file: {}}}, snap: 96}}}}, {{name: edge, acl: \
                 {{default: allow, rules: [{{action: deny, sourcePorts: 2001}}]}}}}]",
                folder.path("copies.pcap").display()
            ),
            "copies",
        ),
        // Functions behind see the packets as changed by those in front.
        (
            format!(
                "[{{nat: {{external: [192.0.2.0/28]}}}}, {export}, {{name: edge, acl: {{default: allow, rules: [{{action: deny, \
                 source: 192.0.2.0/30}}]}}}}]"
            ),
            "told",
        ),
        (
            format!(
                "[{{tunnel: {{rules: [{{push: {{vlan: 100}}}}]}}}}, {export}, {{nat: {{external: [192.0.2.0/28]}}}}]"
            ),
            "told",
        ),
        // Both directions are one flow to all functions.
        (format!("[{of_firewall}, {export}, {limit}]"), "told"),
        (format!("[{limit}, {export}, {of_firewall}]"), "told"),
    ] {
        let chain = folder.spec("stays.yaml", &functions, "  flows: {capacity: 4096}\n");
        // All fields except the times, which start with the run.
        let records = || {
            let text = std::fs::read_to_string(&told).unwrap();
            std::fs::remove_file(&told).unwrap();
            let lines = text.lines().map(|line| line.rsplitn(3, ',').last());
            let mut lines: Vec<_> = lines.flatten().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let (one, sent) = run_isolated(&chain, &traffic, "none", &core);
        // All chains except the tunnel's have packets to drop.
        let passed = one["packets"]["drops"].as_array().unwrap().is_empty();
        assert_eq!(passed, functions.contains("tunnel"), "{}", one["packets"]);
        assert!(count(&one, "delivered") > 0, "{}", one["packets"]);
        let expected = names.contains("told").then(records);
        assert_ne!(expected.as_ref().map(Vec::len), Some(1));
        for way in &ways {
            let way = stays(way, names);
            assert_as((&one, &sent), &chain, &traffic, (&core, &way));
            assert_eq!(names.contains("told").then(records), expected, "{way}");
        }
    }
}

/// Nested branches, exits, functions in front and behind. Some branches contain functions that stay in this process, or
/// have companion candidates. Each branch's functions see its packets only, and packets leave in order of arrival.
#[test]
fn and_with_branches() {
    let _alone = alone();
    let folder = Folder::new();
    let traffic = connections(&folder);
    let limit = |name: &str, burst: u32| {
        format!("{{name: {name}, policer: {{limits: [{{rate: 1pps, burst: {burst}, per: flow}}]}}}}")
    };
    let inner = format!(
        "{{name: inner, classifier: {{rules: [{{to: dns, sourcePorts: 53}}, {{to: send, sourcePorts: 2001-2030}}], directions: each, \
         branches: {{dns: {{functions: [{}, {{name: answers, accounting: }}]}}}}}}}}",
        limit("answered", 1)
    );
    let branches = format!(
        "branches: {{web: {{functions: [{{name: opened, accounting: }}, {}, {{name: hop, tunnel: {{rules: [{{push: {{vlan: 7}}}}]}}}}]}}, \
         names: {{functions: [{inner}, {}], then: send}}}}",
        limit("web-limit", 3),
        limit("names-limit", 2)
    );
    let outer = format!(
        "{{name: outer, classifier: {{rules: [{{to: web, protocol: tcp}}, {{to: names, protocol: udp}}], {branches}}}}}"
    );
    let uncached = "{classifier: {cache: none, rules: [{to: tagged, protocol: udp}], branches: {tagged: {functions: \
                    [{tunnel: {cache: none, rules: [{push: {vlan: 9}}]}}]}}}}";
    let translated = "{classifier: {rules: [{to: out, source: 10.0.0.0/8}, {to: out, destination: 192.0.2.0/28}], branches: {out: \
                      {functions: [{name: seen, accounting: }, {nat: {external: [192.0.2.0/28]}}]}}}}";
    let watched = "{classifier: {rules: [{to: watched, protocol: udp}], branches: {watched: {functions: [{name: before, accounting: }, \
                   {ids: {mode: drop, rules: ['drop udp any any -> any 53 (msg: \"asks\"; sid: 1;)']}}, \
                   {name: after, accounting: }]}}}}";
    let of_firewall =
        "{firewall: {zones: {lan: {prefixes: [10.0.0.0/8]}}, rules: [allow from lan], timeouts: {udp: 5s}}}";
    let last = "{name: last, accounting: }";
    let core = available().pop().unwrap().to_string();
    let ends = format!("[{{name: first, accounting: }}, {outer}, {last}]");
    let except = process().replacen("process", "process --isolation-except ids", 1);
    for (functions, ways) in [
        (ends.clone(), ways()),
        (format!("[{of_firewall}, {outer}, {last}]"), vec![process()]),
        (format!("[{uncached}]"), vec![process()]),
        (format!("[{translated}, {last}]"), vec![process()]),
        (format!("[{watched}, {last}]"), vec![except.as_str()]),
    ] {
        let chain = folder.spec("branches.yaml", &functions, "  flows: {capacity: 4096}\n");
        assert_same(&chain, &traffic, &core, &ways);
    }
    let chain = folder.spec("branches.yaml", &ends, "  flows: {capacity: 4096}\n");
    let (report, sent) = run_isolated(&chain, &traffic, process(), &core);
    let reasons = &report["packets"]["reasons"];
    for name in [
        "outer/to-web",
        "outer/to-names",
        "inner/to-dns",
        "inner/to-send",
        "inner/to-next",
    ] {
        assert!(reason(&report, name) > 0, "{name}: {reasons}");
    }
    for name in ["web-limit", "answered"] {
        let over = ["exceeding", "violating"].map(|color| reason(&report, &format!("{name}/{color}")));
        assert!(over.iter().sum::<u64>() > 0, "{name}: {reasons}");
    }
    // The order holds across flows, too.
    let (_, expected) = run_isolated(&chain, &traffic, "none", &core);
    assert!(sent == expected);
    if let [.., one, other] = available()[..] {
        assert_same(&chain, &traffic, &format!("{one},{other}"), &[process()]);
    }
}

#[test]
fn and_on_several_cores() {
    let _alone = alone();
    let cores = available();
    let [.., one, other] = cores[..] else {
        return eprintln!("skipped: one core");
    };
    let folder = Folder::new();
    let traffic = traffic(&folder);
    for chain in examples(&folder) {
        let name = chain.file_name().unwrap().to_str().unwrap();
        if ["acl-nat.yaml", "acl-lb-accounting.yaml", "acl-urlfilter-encrypt.yaml"].contains(&name) {
            assert_same(&chain, &traffic, &format!("{one},{other}"), &[process()]);
        }
    }
}

#[test]
fn a_library_is_in_its_process_what_it_is_in_ours() {
    let _alone = alone();
    let folder = Folder::new();
    let (chain, traffic) = (misbehaving(&folder), with_orders(&folder, 7000));
    let core = available().pop().unwrap().to_string();
    assert_same(&chain, &traffic, &core, &ways());
    let (report, _) = run_isolated(&chain, &traffic, process(), &core);
    assert_eq!(reason(&report, "misbehaving/asked-for"), 3);
    // Counted by the function, in `process` and when flows end.
    assert_eq!(reason(&report, "misbehaving/packets"), 6003);
    assert_eq!(reason(&report, "misbehaving/new-flows"), 23);
    assert_eq!(reason(&report, "misbehaving/ended-packets"), 6003);
}

/// Flows begin and end all the time while a balancer moves buckets. Each end is reported once, with all the flow's
/// packets. On a busy machine, a worker that had to wait for memory loses the batch that its functions may have
/// changed.
#[test]
fn and_while_buckets_move() {
    let _alone = alone();
    let cores = available();
    let [.., one, other] = cores[..] else {
        return eprintln!("skipped: one core");
    };
    let folder = Folder::new();
    let chain = misbehaving(&folder);
    let spec = std::fs::read_to_string(&chain).unwrap();
    let flows = "  flows: {capacity: 8192, idleTimeout: {udp: 100ms}}\n";
    folder.write("misbehaving.yaml", format!("{spec}{flows}"));
    // 500 new flows every 250 ms, with four packets each.
    const PACKETS: u64 = 12_000;
    let packets = (0..PACKETS).map(|i| {
        let (flow, port) = (i % 500, 1024 + (i / 2000) as u16 * 2 + (i % 500 / 250) as u16);
        (i * 125_000, udp(client((flow % 250) as u8 + 1), port, SERVER, 53))
    });
    let traffic = folder.capture("flows.pcap", &packets.collect::<Vec<_>>());
    let cores = format!("{one},{other}");
    let mut more = vec!["--ring", "1000000", "--cores", &cores, "--policy", "rss++"];
    more.push("--isolation");
    more.extend(process().split(' '));
    let report = report(&chain, &traffic, &more);
    assert_identity(&report);
    let told = json!({"packets": report["packets"], "isolation": report["isolation"], "server": report["server"]});
    let lost = count(&report, "lost");
    let functions = ["front", "misbehaving", "behind"];
    let waited: u64 = functions
        .iter()
        .map(|it| reason(&report, &format!("{it}/process-failed")))
        .sum();
    assert!(lost == waited && lost < 512, "{told}");
    assert_eq!(count(&report, "delivered"), PACKETS - lost, "{told}");
    assert!(report["server"]["buckets_moved"].as_u64().unwrap() > 0);
    for function in report["isolation"]["functions"].as_array().unwrap() {
        assert_eq!(restarts(function), 0, "{report}");
    }
    assert_eq!(reason(&report, "misbehaving/packets"), PACKETS);
    assert_eq!(reason(&report, "misbehaving/ended-packets"), PACKETS);
}
