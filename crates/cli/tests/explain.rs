//! `tailwater run --record` and `tailwater explain`.

mod common;

use common::*;
use std::path::{Path, PathBuf};
use std::process::Output;
use tailwater_baselines::catalog::Policy;
use tailwater_dataplane::cores::available;
use tailwater_dataplane::scaling::record::{Header, Recorder};
use tailwater_net::Nanos;
use tailwater_policy::capacity::{CapacityProfile, EpochFrontier, RateFrontier};
use tailwater_policy::core::{AuxiliaryCore, Load, Plan, QueuedFlow, View};
use tailwater_policy::server::{BucketLoad, CoreLoad, ServerMapper, ServerView};

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn explain(file: &Path, more: &[&str]) -> Output {
    let mut command = tailwater();
    command.args(["explain", name(file)]).args(more);
    command.output().unwrap()
}

/// Returns the output, and asserts that there is no error.
fn explained(file: &Path, more: &[&str]) -> String {
    let output = explain(file, more);
    assert_eq!(text(&output.stderr), "");
    assert!(output.status.success());
    text(&output.stdout)
}

fn json(file: &Path, more: &[&str]) -> serde_json::Value {
    let more = [more, &["--output", "json"]].concat();
    serde_json::from_str(&explained(file, &more)).unwrap()
}

/// Asserts a single line that starts with `error: ` and contains `expected`, and exit code 2.
fn refused(output: &Output, expected: &str) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("error: "), "{stderr}");
    assert!(stderr.contains(expected), "{expected} is not in {stderr}");
    assert!(output.stdout.is_empty());
}

/// Gives a server mapper observations of two cores with a capacity of a million packets per second each. First both
/// have load, then the first is overloaded, then the second is idle.
fn ask(mapper: &mut dyn ServerMapper) {
    for (at, rates) in [(1, [8e5, 7e5]), (2, [1.1e6, 5e5]), (3, [9e5, 0.0])] {
        let buckets: Vec<BucketLoad> = (0..512)
            .map(|bucket| BucketLoad {
                flows: 0.25,
                rate: rates[bucket % 2] / 256.0,
                core: (bucket % 2) as u16,
            })
            .collect();
        let cores = rates.map(|rate: f64| CoreLoad {
            dedicated: true,
            busy: (rate / 1e6).min(1.0),
            lost: (rate - 1e6).max(0.0) as u64,
            ..CoreLoad::default()
        });
        let view = ServerView {
            now: Nanos::from_secs(at),
            buckets: &buckets,
            cores: &cores,
            late: 0.0,
        };
        mapper.remap(&view, &mut Vec::new());
    }
}

/// Writes a record of NetBlaze's mappers with two auxiliary cores. At 1 ms a whale (heavy flow) is offloaded to one of
/// them. At 5 ms there are more minnows (light flows) than all three cores can process. At 2 s RSS buckets are moved.
fn record(folder: &Folder) -> PathBuf {
    let slo = Nanos::from_micros(160);
    let mut frontier = EpochFrontier::default();
    for (flows, packets) in [(1, 120), (40, 80)] {
        frontier.insert(Load { flows, packets });
    }
    let profile = CapacityProfile {
        chain: "edge".to_owned(),
        slo,
        epoch: Nanos::from_micros(80),
        frontier,
        rates: RateFrontier::constant(1e6),
        ..CapacityProfile::default()
    };
    let header = Header {
        chain: "edge".to_owned(),
        policy: "netblaze".to_owned(),
        slo,
        epoch: profile.epoch,
        auxiliary: 2,
        dedicated: 0,
        started: Nanos(1),
        profile: profile.to_string(),
        dedicated_cpus: vec![5, 7],
        auxiliary_cpus: vec![2, 3],
    };
    let file = folder.path("run.decisions");
    let recorder = Recorder::create(&file, &header).unwrap();
    let policy = Policy::named("netblaze").unwrap();
    let make = policy.server_mappers(slo, &profile, false).unwrap().unwrap();
    ask(&mut *recorder.recording_server(make)());
    let make = policy.mappers(slo, &profile).unwrap().unwrap();
    let mut mapper = recorder.recording(make)();
    let mut plan = Plan::default();
    let busy = AuxiliaryCore {
        active: true,
        load: Load { flows: 1, packets: 100 },
        ..AuxiliaryCore::default()
    };
    // Twice a core's capacity in an epoch.
    let over = AuxiliaryCore {
        load: Load { flows: 2, packets: 200 },
        ..busy
    };
    let idle = AuxiliaryCore::default();
    for (at, waited, queue, helpers) in [
        (1_000, 70, vec![100, 10, 5, 15], [idle, idle]),
        (1_080, 75, vec![20, 10], [over, idle]),
        (1_160, 20, vec![8], [over, idle]),
        (1_240, 20, vec![8], [idle, idle]),
        (5_000, 60, vec![9; 50], [idle, idle]),
        (5_080, 140, vec![9; 60], [busy, busy]),
        (5_160, 220, vec![9; 70], [busy, busy]),
        (5_240, 10, vec![9; 2], [idle, idle]),
    ] {
        let queued: Vec<QueuedFlow> = queue
            .into_iter()
            .map(|packets| QueuedFlow { packets, bound: false })
            .collect();
        let now = Nanos::from_micros(at);
        let view = View {
            now,
            oldest: now - Nanos::from_micros(waited),
            parked: Load {
                flows: 1,
                packets: if at == 1_160 { 3 } else { 0 },
            },
            packets: queued.iter().map(|flow| flow.packets).sum(),
            queued: &queued,
            auxiliaries: &helpers,
        };
        plan.clear(queued.len());
        mapper.decide(&view, &mut plan);
    }
    drop(mapper);
    assert_eq!(recorder.finish().unwrap().unwrap().decisions, 11);
    file
}

#[test]
fn the_worst_episodes_are_told() {
    let folder = Folder::new();
    let file = record(&folder);
    let document = json(&file, &[]);
    assert_eq!(document["chain"], "edge");
    assert_eq!(document["helpers"], 2);
    assert_eq!(document["lost"], 0);
    let summary = &document["summary"];
    assert_eq!(summary["decisions"], 8);
    assert_eq!(summary["episodes"], 2);
    assert_eq!(summary["episodes_late"], 1);
    assert_eq!(summary["longest_wait_us"], 220.0);
    assert_eq!((&summary["relieved"], &summary["most_held"]), (&1.into(), &3.into()));
    let episodes = document["episodes"].as_array().unwrap();
    assert_eq!(episodes[0]["kind"], "minnows");
    assert_eq!(episodes[0]["late"], true);
    assert_eq!(episodes[0]["lease"]["outcome"], "out-of-cores");
    assert_eq!(episodes[0]["peak_packets"], 630);
    assert_eq!(episodes[0]["first_move_us"], 60.0);
    assert_eq!(episodes[0]["out_of_cores"], 3);
    assert_eq!(episodes[1]["kind"], "whale");
    assert_eq!(episodes[1]["late"], false);
    assert_eq!(episodes[1]["length_us"], 310.0);

    let table = explained(&file, &[]);
    assert!(table.lines().all(|line| line.chars().count() <= 90), "{table}");
    for expected in [
        "160.00 us, in epochs of 80.00 us",
        "cores               dedicated: core 0 is CPU 5, core 1 is CPU 7\n",
        "                    auxiliary: core 0 is CPU 2, core 1 is CPU 3\n",
        "dedicated core 0 (CPU 5), for ",
        "2 with more work than one core processes in an epoch",
        "1 in which queued packets were late",
        "whale (large flow): 130 packets of 4 flows, largest 100 (76.923 %)",
        "minnows (many flows): 630 packets of 70 flows",
        "policy reported insufficient cores",
        "lease not made: ",
        "the policy expected them too late there, too",
        "overloaded once, up to 3 packets parked",
        "auxiliary core overloaded once, up to 3 packets parked",
        "RSS buckets         3 decisions, 1 of which moved",
        "dedicated cores     2 in use",
        "at 2,000.00 ms",
        "dedicated core 0 (CPU 5): 256 buckets, 24 leaving\n",
        "1.10Mpps of 64.00 flows, busy 100 %, 100,000 lost\n",
        "dedicated core 1 (CPU 7): 256 buckets, 24 arriving\n",
        "500kpps of 64.00 flows, busy 50 %\n",
    ] {
        assert!(table.contains(expected), "{expected} is not in\n{table}");
    }
    assert!(!table.contains("the worst"));
    let table = explained(&file, &["--late", "1"]);
    assert!(table.contains("the worst 1:"), "{table}");
    assert!(!table.contains("whale (large flow):"), "{table}");
}

#[test]
fn another_policy_is_shown_the_same_queues() {
    let folder = Folder::new();
    let file = record(&folder);
    let replay = &json(&file, &["--policy", "netblaze"])["replay"];
    assert_eq!(replay["policy"], "netblaze");
    assert_eq!((&replay["same"], &replay["different"]), (&8.into(), &0.into()));

    let more = ["--policy", "netblaze-core-static-safe"];
    let replay = &json(&file, &more)["replay"];
    let count = |name: &str| replay[name].as_u64().unwrap();
    assert_eq!(count("same") + count("different"), 8);
    assert!(count("different") > 0);
    let table = explained(&file, &more);
    assert!(table.contains("with netblaze-core-static-safe\n"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 90), "{table}");

    refused(
        &explain(&file, &["--policy", "static"]),
        "--policy static makes no decisions of the recorded kinds",
    );
    refused(&explain(&file, &["--policy", "netblase"]), "did you mean");
}

#[test]
fn another_policy_is_shown_the_same_buckets() {
    let folder = Folder::new();
    let file = record(&folder);
    let document = json(&file, &[]);
    let server = &document["server"];
    assert_eq!((&server["decisions"], &server["moves"]), (&3.into(), &1.into()));
    let moved = server["buckets_moved"].as_u64().unwrap();
    assert!(moved > 0);
    assert_eq!(server["list"][0]["at_us"], 2e6);
    assert_eq!(server["list"][0]["cores"][1]["coming"], moved);
    assert!(server["replay"].is_null());
    let same = &json(&file, &["--policy", "netblaze"])["server"]["replay"];
    assert_eq!((&same["same"], &same["different"]), (&3.into(), &0.into()));
    assert_eq!(same["buckets_moved_replayed"], moved);
    // rss++ has no core mapper, so only bucket decisions are replayed to it.
    let document = json(&file, &["--policy", "rss++"]);
    assert!(document["replay"].is_null());
    let other = &document["server"]["replay"];
    assert_eq!(other["policy"], "rss++");
    assert!(other["different"].as_u64() > Some(0), "{other}");
    let none = json(&file, &["--late", "0"]);
    assert_eq!(none["server"]["list"], serde_json::json!([]));
}

#[test]
fn every_field_and_flag_is_documented_and_what_is_documented_is_there() {
    let folder = Folder::new();
    let file = record(&folder);
    let page = include_str!("../../../docs/reference/commands/explain.md");
    let document = json(&file, &["--policy", "netblaze-core-static-safe"]);
    assert_eq!(fields(&document, &[]), documented(page, "## JSON"));

    let help = text(&tailwater().args(["help", "explain"]).output().unwrap().stdout);
    for flag in ["--late", "--policy", "--output"] {
        assert!(help.contains(flag), "{help}");
        assert!(page.contains(&format!("`{flag} ")), "{flag}");
    }
}

#[test]
fn what_is_no_record_is_refused_and_a_part_of_one_is_told() {
    let folder = Folder::new();
    refused(&explain(&folder.path("none"), &[]), "none: cannot be read");
    let chain = folder.forward();
    refused(&explain(&chain, &[]), "byte 0: expected a record of decisions");
    let file = record(&folder);
    let bytes = std::fs::read(&file).unwrap();
    let mut newer = bytes.clone();
    newer[20] = 9;
    let newer = folder.write("newer", newer);
    refused(
        &explain(&newer, &[]),
        "byte 20: expected a record of version 6, found version 9",
    );
    let mut wrong = bytes.clone();
    let at = bytes.windows(8).position(|word| word == b"frontier").unwrap();
    wrong[at] = b'F';
    let wrong = folder.write("wrong", wrong);
    refused(&explain(&wrong, &[]), "recorded profile");

    let part = folder.write("part", &bytes[..bytes.len() - 30]);
    let output = explain(&part, &["--output", "json"]);
    assert!(output.status.success());
    let stderr = text(&output.stderr);
    assert!(
        stderr.starts_with("notice: ") && stderr.contains("cut short"),
        "{stderr}"
    );
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["cut_short"], true);
    assert_eq!(document["lost"], serde_json::Value::Null);
    assert_eq!(document["summary"]["decisions"], 7);
    // Escape sequences must not reach the terminal.
    let mut escape = bytes;
    let at = escape.windows(4).position(|word| word == b"edge").unwrap();
    escape[at] = 0x1b;
    let escape = folder.write("escape", escape);
    assert!(!explained(&escape, &[]).contains('\u{1b}'));
}

#[test]
fn a_run_is_recorded() {
    let cores = available();
    let [dedicated, auxiliary, ..] = cores[..] else {
        eprintln!("skipped: this machine has one core");
        return;
    };
    let cores = [dedicated, auxiliary].map(|core| core.to_string());
    let folder = Folder::new();
    let spec = "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: test}\n\
                spec:\n  functions: [{accounting: }]\n  slo: {latency: 1ms}\n  \
                flows: {capacity: 4096}\n";
    let chain = folder.write("chain.yaml", spec);
    let profile = "apiVersion: tailwater.dev/v1alpha1\nkind: CapacityProfile\nchain: test\n\
                   configuration: \"0\"\nmachine: elsewhere\nsloNanoseconds: 1000000\n\
                   epochNanoseconds: 500000\nfrontier: [[1, 8], [4, 4]]\n";
    let profile = folder.write("small.yaml", profile);
    let packets = mixture(4000).into_iter().enumerate();
    let packets: Vec<_> = packets
        .map(|(i, (_, frame))| (i as u64 / 400 * 5_000_000, frame))
        .collect();
    let traffic = folder.capture("bursts.pcap", &packets);
    let file = folder.path("run.decisions");
    let helped = ["--cores", &cores[0], "--auxiliary", &cores[1], "--record", name(&file)];
    let report = report(
        &chain,
        &traffic,
        &[&helped[..], &["--policy", "netblaze", "--profile", name(&profile)]].concat(),
    );
    let document = json(&file, &["--policy", "netblaze"]);
    let (decided, lost) = (&report["scaling"]["decisions"], &document["lost"]);
    let recorded = document["summary"]["decisions"].as_u64().unwrap();
    assert_eq!(Some(recorded + lost.as_u64().unwrap()), decided.as_u64());
    assert_eq!(document["policy"], "netblaze");
    assert_eq!(document["epoch_us"], 500.0);
    if *lost == 0 {
        assert_eq!(document["replay"]["different"], 0, "{document}");
    }

    let run = |args: &[&str]| {
        let mut command = tailwater();
        command.args(["run", name(&chain), "--traffic", name(&traffic)]);
        command.args(args).output().unwrap()
    };
    refused(&run(&["--record", name(&file)]), "--auxiliary");
    refused(
        &run(&[&helped[..], &["--policy", "static"]].concat()),
        "makes no decisions",
    );
    let both = [&helped[..], &["--capture-out", name(&file)]].concat();
    refused(&run(&both), "--record and --capture-out are both");
    let mut input = helped;
    input[5] = name(&traffic);
    refused(&run(&input), "would overwrite the input");
}
