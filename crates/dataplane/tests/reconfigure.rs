//! Reload of functions while packets pass, on several cores: no loss, and every packet is treated by either the old
//! version or the new one.

mod common;

use common::mappers::random_flows;
use common::traffic::Traffic;
use common::{Folder, RunResult, Setup, run_spec, spec_text};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_dataplane::report::ReloadOutcome;
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::spec::ChainSpec;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_net::parse::parse;
use tailwater_traffic::{CaptureReader, PacketSource, ReadOptions};

const PACKETS: u32 = 50_000;

/// Runs a chain whose spec is replaced by the next of `versions` whenever the last one has taken effect. Returns the
/// results, and the messages about versions that took effect.
fn run_changing(versions: &[String], flows: u32, helped: bool) -> (RunResult, Vec<String>) {
    let folder = Folder::new();
    let path = folder.0.join("chain.yaml");
    let write = |number: usize| {
        let text = spec_text(&versions[number % versions.len()], "250ms");
        // A file that is written in place can be read while it is empty.
        let next = folder.0.join("next.yaml");
        std::fs::write(&next, format!("# {number}\n{text}")).unwrap();
        std::fs::rename(&next, &path).unwrap();
    };
    write(0);
    let setup = Setup {
        traffic: Traffic {
            flows,
            packets: PACKETS,
            spacing: Nanos::from_micros(50),
            ..Traffic::default()
        },
        workers: if helped { 2 } else { 1 },
        scaling: helped.then(|| random_flows(5, 1, Mode::Sleep)),
        ..Setup::default()
    };
    let (mut written, mut taken, mut told) = (0, 0, Vec::new());
    let spec = ChainSpec::read(&path).unwrap();
    let stop = AtomicBool::new(false);
    let outcome = run_spec(spec, setup, &folder, &stop, |progress| {
        let is_news = |line: &&String| line.contains("in force (version") || line.contains("reload rejected");
        taken += progress.news.iter().filter(is_news).count();
        told.extend(progress.news.iter().cloned());
        if written == taken {
            written += 1;
            write(written);
        }
    });
    (outcome, told)
}

/// Like [`run_changing`], for valid versions that let every packet pass.
fn run_passing(versions: &[&str], flows: u32, helped: bool) -> Vec<Vec<u8>> {
    let versions: Vec<String> = versions.iter().map(|text| (*text).to_owned()).collect();
    // On a busy machine the packets may be over before the second version.
    let mut runs = (0..5).map(|_| run_changing(&versions, flows, helped));
    let run = runs.find(|(_, told)| told.len() >= 2);
    let (outcome, told) = run.expect("a run that sees two versions");
    assert!(told.iter().all(|line| line.contains("in force (version")), "{told:?}");
    nothing_is_lost(&outcome, 0);
    in_order(&outcome.frames);
    outcome.frames
}

/// Every packet was sent, except those that rules denied, and those that a slow machine had not processed at the end.
fn nothing_is_lost(outcome: &RunResult, denied: u64) {
    let packets = &outcome.report().packets;
    let late = packets.reasons.get("not-drained").copied();
    let late = late.unwrap_or_default();
    let expected = (u64::from(PACKETS) - denied - late, denied, late);
    let found = (packets.delivered, packets.dropped_by_nf, packets.lost);
    assert_eq!(found, expected, "{packets:?}");
}

/// Flow and number of a packet, which begin its payload.
fn whose(frame: &[u8]) -> (u32, u32) {
    let headers = parse(frame).unwrap();
    let payload = headers.payload(frame);
    let word = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
    (word(0), word(4))
}

/// No packet is missing or has overtaken another of its flow.
fn in_order(frames: &[Vec<u8>]) {
    let mut numbers: BTreeMap<u32, u32> = BTreeMap::new();
    for frame in frames {
        let (flow, number) = whose(frame);
        let last = numbers.entry(flow).or_default();
        *last += 1;
        assert_eq!(*last, number, "flow {flow}");
    }
}

/// The values that a function gives packets are those of its versions, and both occur.
fn values<T: Ord + std::fmt::Debug>(frames: &[Vec<u8>], of: impl Fn(&[u8]) -> T, expected: [T; 2]) {
    let found: BTreeSet<T> = frames.iter().map(|frame| of(frame)).collect();
    assert_eq!(found, BTreeSet::from(expected));
}

#[test]
fn routes() {
    for cache in ["none", "flow"] {
        let version = |hop: u8, others: usize| {
            let more: String = (0..others)
                .map(|i| format!("{{prefix: 203.0.{i}.0/24, nextHop: b}}, "))
                .collect();
            format!(
                "ipForward: {{cache: {cache}, sourceMac: '02:00:00:00:00:01', nextHops: \
                 [{{name: b, mac: '02:00:00:00:00:0b'}}, {{name: a, mac: '02:00:00:00:00:{hop:02x}'}}], \
                 routes: [{more}{{prefix: 198.51.100.0/24, nextHop: a}}]}}"
            )
        };
        let frames = run_passing(&[&version(0x77, 0), &version(0x88, 100)], 300, true);
        values(
            &frames,
            |frame| frame[..6].to_vec(),
            [0x77, 0x88].map(|hop| vec![2, 0, 0, 0, 0, hop]),
        );
        for frame in &frames {
            assert_eq!(frame[22], 63, "one hop less");
        }
    }
}

#[test]
fn rates() {
    for per in ["limit", "flow"] {
        let version = |mark: u8| {
            format!(
                "policer: {{limits: [{{per: {per}, rate: 10Gbps, burst: 900000000, conforming: {{dscp: {mark}}}}}]}}"
            )
        };
        let frames = run_passing(&[&version(10), &version(20)], 300, true);
        values(&frames, |frame| frame[15] >> 2, [10, 20]);
    }
}

#[test]
fn tags() {
    for cache in ["none", "flow"] {
        let version = |vlan: u16| format!("tunnel: {{cache: {cache}, rules: [{{push: {{vlan: {vlan}}}}}]}}");
        let frames = run_passing(&[&version(100), &version(200)], 300, true);
        values(
            &frames,
            |frame| u16::from_be_bytes([frame[14], frame[15]]) & 0xfff,
            [100, 200],
        );
    }
}

/// Connections keep their address and port when the pool changes.
#[test]
fn pools() {
    let version = |pool: &str| format!("nat: {{external: [{pool}]}}");
    let versions = ["203.0.113.0/28", "192.0.2.0/28"].map(version);
    let frames = run_passing(&[&versions[0], &versions[1]], 20_000, true);
    let mut outside: BTreeMap<u32, (IpAddr, u16)> = BTreeMap::new();
    for frame in &frames {
        let key = parse(frame).unwrap().key;
        let now = (key.source(), key.source_port());
        let (flow, _) = whose(frame);
        assert_eq!(*outside.entry(flow).or_insert(now), now, "flow {flow}");
    }
    let pools: BTreeSet<bool> = outside
        .values()
        .map(|(address, _)| address.to_string().starts_with("192.0.2."))
        .collect();
    assert_eq!(pools.len(), 2, "connections were opened in both");
    let different: BTreeSet<_> = outside.values().collect();
    assert_eq!(different.len(), outside.len(), "two look alike outside");
}

/// Flows stay with a backend that stays.
#[test]
fn backends() {
    let version = |second: u8| {
        format!(
            "loadBalancer: {{services: [{{address: 0.0.0.0/0, port: any, protocol: udp, backends: \
             [{{address: 172.16.0.1}}, {{address: 172.16.0.{second}}}]}}]}}"
        )
    };
    let frames = run_passing(&[&version(2), &version(3)], 1000, true);
    let mut served: BTreeMap<u32, BTreeSet<u8>> = BTreeMap::new();
    for frame in &frames {
        served.entry(whose(frame).0).or_default().insert(frame[33]);
    }
    let all: BTreeSet<u8> = served.values().flatten().copied().collect();
    assert_eq!(all, BTreeSet::from([1, 2, 3]));
    // Flows of the first backend stay with it across a change. Flows of others may move to it.
    let mut first: BTreeSet<u32> = BTreeSet::new();
    for frame in &frames {
        let flow = whose(frame).0;
        match frame[33] {
            1 => drop(first.insert(flow)),
            other => assert!(!first.contains(&flow), "flow {flow} went to {other}"),
        }
    }
}

/// Denied packets are counted as such. Every stretch of packets was passed by one version.
#[test]
fn access_lists() {
    for cache in ["none", "flow"] {
        let version = |odd: bool| {
            let halves: String = (0..128)
                .map(|i| {
                    let low = 2 * i + u32::from(odd);
                    format!("{{action: deny, source: 10.0.0.{low}/32}}, {{action: deny, source: 10.0.1.{low}/32}}, ")
                })
                .collect();
            format!("acl: {{cache: {cache}, rules: [{halves}{{action: allow}}]}}")
        };
        let (outcome, told) = run_changing(&[version(false), version(true)], 300, false);
        let denied = outcome.report().packets.reasons.get("acl/denied").copied();
        nothing_is_lost(&outcome, denied.unwrap_or_default());
        let parity = outcome.frames.iter().map(|frame| whose(frame).0 % 2);
        let parity: Vec<u32> = parity.collect();
        let changes = parity.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(told.len() >= 2, "{told:?}");
        // In the batch in which a version takes effect, both may decide.
        assert!(changes <= 33 * told.len(), "{changes} changes in {told:?}");
    }
}

/// Whichever branch a flow is sent to, its packets pass either branch, and keep their order.
#[test]
fn branches() {
    for cache in ["none", "flow"] {
        let version = |odd: &str, even: &str| {
            let halves: String = (0..64)
                .map(|i| format!("{{to: {odd}, source: 10.0.0.{}/32}}, ", 2 * i + 1))
                .collect();
            let tag = |branch: &str, vlan: u16| {
                format!(
                    "{branch}: {{functions: [{{name: tag-{branch}, tunnel: {{cache: {cache}, rules: [{{push: {{vlan: {vlan}}}}}]}}}}]}}"
                )
            };
            format!(
                "{{classifier: {{cache: {cache}, rules: [{halves}], default: {even}, branches: {{{}, {}}}}}}}, {{acl: {{rules: [{{action: allow}}]}}}}",
                tag("a", 100),
                tag("b", 200)
            )
        };
        let frames = run_passing(&[&version("a", "b"), &version("b", "a")], 300, true);
        values(
            &frames,
            |frame| u16::from_be_bytes([frame[14], frame[15]]) & 0xfff,
            [100, 200],
        );
    }
}

/// Every sequence number is used once per key, also by a key that is configured again.
#[test]
fn keys_of_tunnels() {
    let version = |number: u32| {
        format!(
            "ipsec: {{outbound: [{{name: a, spi: {}, cipher: aes-128-gcm, key: \
             '000102030405060708090a0b0c0d0e0f1011{number:04x}', source: 192.0.2.1, destination: 192.0.2.2}}], \
             policies: [{{protect: a}}]}}",
            256 + number
        )
    };
    let (outcome, told) = run_changing(&[version(1), version(2)], 300, true);
    nothing_is_lost(&outcome, 0);
    assert!(told.len() >= 3, "{told:?}");
    let mut numbers: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for frame in &outcome.frames {
        let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        assert!(numbers.entry(word(34)).or_default().insert(word(38)), "a number twice");
    }
    assert_eq!(numbers.keys().copied().collect::<Vec<_>>(), [257, 258]);
    for (spi, numbers) in numbers {
        assert!((1..=numbers.len() as u32).eq(numbers), "spi {spi}");
    }
}

/// Frames after a chain that loses none.
fn passed_through(functions: &str, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let text = spec_text(functions, "1s");
    let spec = ChainSpec::parse(&text, "test", Path::new(".")).unwrap();
    let rss = spec.rss();
    let mut chain = ChainBuilder::new(&spec, &rss, 1).unwrap().instance(|_| true);
    let mut pool = BufferPool::new(4, 2048).unwrap();
    let mut batch = Batch::new(&pool, 4);
    let through = |frame: &Vec<u8>| {
        let hash = rss.hash_headers(&parse(frame).unwrap());
        assert!(batch.push(&mut pool, frame, Nanos::ZERO, hash));
        chain.process(&mut batch, Nanos::ZERO);
        let sent = batch.frame(0).to_vec();
        batch.release(&mut pool);
        sent
    };
    frames.iter().map(through).collect()
}

/// Every packet is encrypted, with either key.
#[test]
fn keys() {
    let version = |key: u8| {
        let key = format!("{key:02x}").repeat(32);
        format!("encrypt: {{key: '{key}'}}")
    };
    let versions = [version(1), version(2)];
    let (outcome, told) = run_changing(&versions, 300, true);
    assert!(told.len() >= 2, "{told:?}");
    nothing_is_lost(&outcome, 0);
    // A packet does not identify its key. If neither key decrypts it, it belongs to none.
    let plain = versions.map(|version| {
        let version = version.replace("encrypt: {", "encrypt: {direction: decrypt, ");
        passed_through(&version, &outcome.frames)
    });
    let known = |frame: &[u8]| {
        let (flow, number) = whose(frame);
        flow < 300 && number <= PACKETS
    };
    let mut under = [0, 0];
    for (i, first) in plain[0].iter().enumerate() {
        let made = [known(first), known(&plain[1][i])];
        assert_ne!(made[0], made[1], "packet {i}");
        under[usize::from(made[1])] += 1;
    }
    assert!(under[0] > 0 && under[1] > 0, "{under:?}");
}

/// Copies of some flows, and of all, alternately: for a flow that both select, all packets are copied, in order.
#[test]
fn copies() {
    let name = format!("tailwater-mirrored-{}.pcap", std::process::id());
    let file = std::env::temp_dir().join(name);
    let version = |sample: &str| {
        let to = file.display();
        format!("mirror: {{to: {{file: {to}}}, buffer: 64MiB{sample}}}")
    };
    let some = version(", sample: {every: 2, by: flow}");
    let sent = run_passing(&[&some, &version("")], 300, false);
    let mut reader = CaptureReader::open(&file, &ReadOptions::default()).unwrap();
    let mut copied = Vec::new();
    while let Some(packet) = reader.next_packet().unwrap() {
        copied.push(packet.data.to_vec());
    }
    std::fs::remove_file(&file).unwrap();
    let of_flows = |frames: &[Vec<u8>]| {
        let mut flows: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (flow, number) in frames.iter().map(|frame| whose(frame)) {
            flows.entry(flow).or_default().push(number);
        }
        flows
    };
    let (sent, copied) = (of_flows(&sent), of_flows(&copied));
    let (mut whole, mut parts) = (0, 0);
    for (flow, numbers) in &sent {
        let copies = copied.get(flow).map_or(&[][..], Vec::as_slice);
        assert!(copies.is_sorted_by(|a, b| a < b), "flow {flow}");
        assert!(copies.iter().all(|number| numbers.contains(number)));
        match copies == numbers {
            true => whole += 1,
            false => parts += 1,
        }
    }
    assert!(copied.keys().all(|flow| sent.contains_key(flow)));
    assert!(whole > 50 && parts > 50, "{whole} {parts}");
}

#[test]
fn patterns() {
    let version = |count: usize| {
        let names: Vec<String> = (0..count).map(|i| format!("host-{i}.example")).collect();
        format!("urlFilter: {{patterns: [{}]}}", names.join(", "))
    };
    run_passing(&[&version(1), &version(500)], 300, true);
}

/// The counter that applies to all packets changes its position: each packet is counted once.
#[test]
fn counters() {
    let version = |first: u8, second: u8| {
        format!("count: {{counters: [{{name: first, protocol: {first}}}, {{name: second, protocol: {second}}}]}}")
    };
    let (outcome, told) = run_changing(&[version(17, 132), version(132, 17)], 300, true);
    assert!(told.len() >= 2, "{told:?}");
    nothing_is_lost(&outcome, 0);
    in_order(&outcome.frames);
    let packets = &outcome.report().packets;
    let count = |name: &str| packets.reasons.get(name).copied().unwrap_or_default();
    let counted = ["count/first", "count/second"].map(count);
    assert!(counted[0] > 0 && counted[1] > 0, "{counted:?}");
    assert_eq!(counted[0] + counted[1], packets.delivered, "{packets:?}");
}

/// Alternately one or the other half of the flows is dropped: every stretch of packets was passed by one program.
#[test]
fn filters() {
    let folder = Folder::new();
    let version = |bit: u32| {
        // Classic BPF: tests the eighth bit of the source address's last byte.
        let program = format!("5\n32 0 0 26\n84 0 0 128\n21 0 1 {bit}\n6 0 0 65535\n6 0 0 0\n");
        let file = folder.0.join(format!("{bit}.bpf"));
        std::fs::write(&file, program).unwrap();
        let file = file.display();
        format!("bpfFilter: {{rules: [{{programFile: '{file}', action: drop}}]}}")
    };
    let (outcome, told) = run_changing(&[version(0), version(128)], 256, false);
    assert!(told.len() >= 2, "{told:?}");
    nothing_is_lost(&outcome, outcome.report().packets.dropped_by_nf);
    let halves: Vec<u32> = outcome.frames.iter().map(|frame| whose(frame).0 & 128).collect();
    assert_eq!(halves.iter().collect::<BTreeSet<_>>().len(), 2);
    let changes = halves.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes <= 33 * told.len(), "{changes} changes in {told:?}");
}

/// Functions whose new versions treat these packets as the old ones do.
#[test]
fn limits_rules_sessions_and_loads() {
    let guard = |all: u32| format!("dnsGuard: {{limits: {{all: {all}}}}}");
    run_passing(&[&guard(90_000), &guard(100_000)], 300, true);
    let detection = |count: usize| {
        let rule = |sid: usize| format!("'alert udp any any -> any 53 (content:\"none-{sid}\"; sid:{sid};)'");
        let rules: Vec<String> = (1..=count).map(rule).collect();
        format!("ids: {{rules: [{}]}}", rules.join(", "))
    };
    run_passing(&[&detection(1), &detection(200)], 300, true);
    let users = |count: usize| {
        let session = |user: usize| format!("'{user} ue 10.60.0.{user} teid {user} profile all'");
        let sessions: Vec<String> = (1..=count).map(session).collect();
        let sessions = sessions.join(", ");
        format!("upf: {{addresses: [192.0.2.1], default: pass, profiles: {{all: {{}}}}, sessions: [{sessions}]}}")
    };
    run_passing(&[&users(1), &users(200)], 300, false);
    let load = |cycles: u32| format!("synthetic: {{cycles: {cycles}}}");
    run_passing(&[&load(100), &load(200)], 300, true);
}

/// Packets pass a tunnel in which no data is sent twice, or bypass it: the output equals the input.
#[test]
fn destinations_of_an_optimizer() {
    let version = |destinations: &str| {
        format!(
            "{{name: near, wanOptimizer: {{local: 192.0.2.1, remote: 192.0.2.2, mtu: 9000, destinations: [{destinations}]}}}}, \
             {{name: far, wanOptimizer: {{local: 192.0.2.2, remote: 192.0.2.1, mtu: 9000}}}}"
        )
    };
    run_passing(&[&version("0.0.0.0/0"), &version("203.0.113.0/24")], 300, false);
}

/// A change between the reading of the spec and the first packet takes effect.
#[test]
fn what_changes_before_packets_come() {
    let folder = Folder::new();
    let path = folder.0.join("chain.yaml");
    let write = |cycles: u32| {
        let text = spec_text(&format!("synthetic: {{cycles: {cycles}}}"), "250ms");
        std::fs::write(&path, text).unwrap();
    };
    write(1);
    let spec = ChainSpec::read(&path).unwrap();
    write(2);
    let setup = Setup {
        traffic: Traffic {
            packets: PACKETS,
            spacing: Nanos::from_micros(50),
            ..Traffic::default()
        },
        ..Setup::default()
    };
    let mut told = Vec::new();
    let stop = AtomicBool::new(false);
    let outcome = run_spec(spec, setup, &folder, &stop, |progress| {
        told.extend(progress.news.iter().cloned());
    });
    nothing_is_lost(&outcome, 0);
    assert_eq!(told, ["synthetic: 2 cycles in force (version 2)"]);
}

/// An invalid version is reported with its position, and the current configuration stays.
#[test]
fn wrong_versions_change_nothing() {
    let acl = "{action: allow}";
    let spec = |vlan: &str, acl: &str, more: &str| {
        format!(
            "{{acl: {{rules: [{acl}]}}}}, {{tunnel: {{rules: [{{push: {{vlan: {vlan}}}}}]}}}}, {{forward: {{}}}}{more}"
        )
    };
    let versions = [
        spec("100", acl, ""),
        // The second function is invalid, so the first one, which is valid, is not changed either.
        spec("5000", "{action: deny}", ""),
        spec("100", acl, ", {accounting: {}}"),
        // Branches cannot be added.
        spec("100", acl, "").replace("{forward: {}}", "{name: forward, classifier: {rules: [{to: send}]}}"),
        // Properties that determine the flow table's layout cannot change.
        spec("100", "{action: deny}], cache: none, default: [", "").replace(", default: []", ""),
    ];
    let (outcome, told) = run_changing(&versions, 300, true);
    nothing_is_lost(&outcome, 0);
    values(&outcome.frames, |frame| frame[15], [100, 100]);
    // A rejected reload was a notice only.
    let reloads = &outcome.report().reloads;
    assert!(reloads.counters.rejected >= 2, "{reloads:?}");
    assert_eq!(reloads.counters.applied, 0);
    // A file that changed while the run began is read again, without a change.
    let mut rejected = reloads.list.iter();
    let first = rejected.find(|event| event.outcome == ReloadOutcome::Rejected);
    let first = first.expect("a rejected reload");
    assert!(
        first.lines[0].contains("chain.yaml:7:81: spec.functions[1].tunnel"),
        "{first:?}"
    );
    let stays = told
        .iter()
        .filter(|line| *line == "reload rejected, keeping the current configuration:");
    assert!(stays.count() >= 2, "{told:?}");
    for what in [
        "chain.yaml:7:81: spec.functions[1].tunnel.rules[0].push.vlan",
        "expected the list of functions (acl, tunnel, forward)",
        "expected the branches of classifiers as at the start of the run",
    ] {
        assert!(told.iter().any(|line| line.contains(what)), "{what}: {told:?}");
    }
    assert!(!told.iter().any(|line| line.contains("in force (version")), "{told:?}");
}
