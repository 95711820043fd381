//! `tailwater profile capacity`, and runs that use profiles.
//!
//! No measured values are asserted: the machine may be slow or busy.

mod common;

use common::*;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};
use tailwater_dataplane::cores::available;
use tailwater_policy::capacity::CapacityProfile;

/// Returns a dedicated core and an auxiliary one, or prints that the test is skipped.
fn two_cores() -> Option<[String; 2]> {
    match available()[..] {
        [first, second, ..] => Some([first, second].map(|core| core.to_string())),
        _ => {
            eprintln!("skipped: this machine has one core");
            None
        }
    }
}

/// Writes a chain with an objective that any machine meets, and a small capture.
fn chain(folder: &Folder) -> [std::path::PathBuf; 2] {
    let text = "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: test}\n\
                spec:\n  functions: [{accounting: }]\n  slo: {latency: 50ms}\n  \
                flows: {capacity: 4096}\n";
    let chain = folder.write("chain.yaml", text);
    [chain, folder.capture("in.pcap", &mixture(2000))]
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn start(args: &[&str]) -> Output {
    tailwater().args(args).output().unwrap()
}

/// Asserts a single line that starts with `error: ` and contains `expected`, and exit code 2.
fn refused(args: &[&str], expected: &str) {
    let output = start(args);
    let stderr = text(&output.stderr);
    let told = format!("{args:?} says\n{stderr}");
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert_eq!(stderr.lines().count(), 1, "{told}");
    assert!(stderr.starts_with("error: "), "{told}");
    assert!(stderr.contains(expected), "{expected} is not there: {told}");
    assert!(output.stdout.is_empty(), "{told}");
}

/// Writes an example profile that admits few packets, for the chain `test`.
fn made_up(folder: &Folder, file: &str, slo: &str, epoch: &str) -> std::path::PathBuf {
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: CapacityProfile\nchain: test\n\
         configuration: \"0\"\nmachine: elsewhere\nsloNanoseconds: {slo}\n\
         epochNanoseconds: {epoch}\nfrontier: [[1, 8], [4, 4]]\n"
    );
    folder.write(file, text)
}

#[test]
fn a_profile_is_written_printed_and_used() {
    let folder = Folder::new();
    let [chain, traffic] = chain(&folder);
    let output = start(&[
        "profile",
        "capacity",
        name(&chain),
        "--traffic",
        name(&traffic),
        "--output",
        "json",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let file = folder.path("chain.profile.yaml");
    let written = std::fs::read(&file).unwrap();
    let profile = CapacityProfile::parse(&written, "chain.profile.yaml").unwrap();
    assert_eq!(profile.to_string().as_bytes(), written);
    assert_eq!(profile.chain, "test");
    assert!(!profile.frontier.is_empty());
    assert_eq!(document["file"], name(&file));
    assert_eq!(document["slo_us"], 50_000.0);
    assert_eq!(document["configuration"], profile.configuration);
    let corners = document["frontier"].as_array().unwrap();
    assert_eq!(corners.len(), profile.frontier.corners().len());

    let page = include_str!("../../../docs/reference/commands/profile-capacity.md");
    let mut found = fields(&document, &[]);
    let mut expected = documented(page, "## JSON");
    // Lists may be empty: a chain of one function cannot be cut, and a busy machine may meet no rate.
    for list in ["splits", "rates"] {
        let of_list = |field: &String| !field.starts_with(list);
        found.retain(of_list);
        expected.retain(of_list);
    }
    assert_eq!(found, expected);

    let Some([dedicated, auxiliary]) = two_cores() else {
        return;
    };
    let output = start(&[
        "run",
        name(&chain),
        "--traffic",
        name(&traffic),
        "--cores",
        &dedicated,
        "--auxiliary",
        &auxiliary,
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "the profile fits");
    assert!(text(&output.stdout).contains("offloaded"));
}

/// Offloading loses no packet. On a shared machine some packets may still wait when the time is over. With a ring that
/// holds all packets, nothing else is lost.
#[test]
fn a_run_hands_packets_over_and_loses_none_of_them() {
    let Some([dedicated, auxiliary]) = two_cores() else {
        return;
    };
    let folder = Folder::new();
    let [chain, _] = chain(&folder);
    // Bursts of 400 packets, where the profile admits eight per epoch.
    let packets: Vec<_> = mixture(4000)
        .into_iter()
        .enumerate()
        .map(|(i, (_, frame))| (i as u64 / 400 * 20_000_000, frame))
        .collect();
    let traffic = folder.capture("bursts.pcap", &packets);
    let profile = made_up(&folder, "small.yaml", "50000000", "25000000");
    let out = folder.path("out.pcap");
    for wait in ["sleep", "spin", "50us"] {
        let report = report(
            &chain,
            &traffic,
            &[
                "--cores",
                &dedicated,
                "--auxiliary",
                &auxiliary,
                "--policy",
                "netblaze",
                "--profile",
                name(&profile),
                "--wait",
                wait,
                "--ring",
                "4096",
                "--capture-out",
                name(&out),
            ],
        );
        assert_identity(&report);
        assert_eq!(count(&report, "offered"), 4000, "{report}");
        assert_eq!(count(&report, "dropped_by_nf"), 0, "{report}");
        let late = &report["packets"]["reasons"]["not-drained"];
        assert_eq!(count(&report, "lost"), late.as_u64().unwrap_or(0), "{report}");
        let causes = report["late_by_cause"].as_object().unwrap();
        let caused: u64 = causes.values().filter_map(|count| count.as_u64()).sum();
        assert!(caused >= count(&report, "lost"), "{report}");
        assert_eq!(frames(&out).len() as u64, count(&report, "delivered"));
        assert_eq!(report["cores"]["dedicated"], 1);
        assert!(report["scaling"]["decisions"].as_u64().is_some());
    }
}

#[test]
fn a_run_without_profile_measures_one_and_says_so() {
    let Some([dedicated, auxiliary]) = two_cores() else {
        return;
    };
    let folder = Folder::new();
    let [chain, traffic] = chain(&folder);
    let args = [
        "run",
        name(&chain),
        "--traffic",
        name(&traffic),
        "--cores",
        &dedicated,
        "--auxiliary",
        &auxiliary,
    ];
    let output = start(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let notices = text(&output.stderr);
    assert_eq!(notices.lines().count(), 1, "{notices}");
    assert!(
        notices.starts_with("notice: no capacity profile of the chain"),
        "{notices}"
    );
    assert!(!folder.path("chain.profile.yaml").exists());

    // A profile of another chain is reported, and not used.
    made_up(&folder, "chain.profile.yaml", "50000000", "25000000");
    let output = start(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let notices = text(&output.stderr);
    let expected = "not used: measured for another configuration of the chain, machine";
    assert!(notices.contains(expected), "{notices}");
    assert_eq!(notices.lines().count(), 2, "{notices}");
}

#[test]
fn policies_that_hand_nothing_over_need_no_profile() {
    let Some([dedicated, auxiliary]) = two_cores() else {
        return;
    };
    let folder = Folder::new();
    let [chain, traffic] = chain(&folder);
    for (policy, scaling) in [("static", false), ("netblaze-no-core-mapper", true)] {
        let more = ["--cores", &dedicated, "--auxiliary", &auxiliary, "--policy", policy];
        let report = report(&chain, &traffic, &more);
        assert_identity(&report);
        assert_eq!(report["scaling"].is_object(), scaling, "{policy}");
        assert_eq!(report["cores"]["auxiliary_avg"], 0.0);
    }
}

#[test]
fn wrong_input_is_refused() {
    let folder = Folder::new();
    let [chain, traffic] = chain(&folder);
    let (chain, traffic) = (name(&chain), name(&traffic));
    let core = available()[0].to_string();
    let run = ["run", chain, "--traffic", traffic];
    let with = |more: &[&'static str]| -> Vec<String> {
        let all = run.iter().copied().chain(more.iter().copied());
        all.map(str::to_owned).collect()
    };
    let check = |args: Vec<String>, expected: &str| {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        refused(&args, expected);
    };
    check(with(&["--policy", "netblase"]), "did you mean \"netblaze\"?");
    check(with(&["--policy", "quux"]), "the policies are: static, netblaze");
    check(with(&["--policy", "netblaze"]), "set --auxiliary");
    for more in [&["--profile", "x.yaml"][..], &["--record", "x"]] {
        check(with(more), "--policy static");
    }
    for policy in [
        "rss++",
        "metron",
        "quadrant",
        "quadrant-metron",
        "dyssect",
        "netblaze-server-static-safe",
        "netblaze-server-static-unsafe",
        "netblaze-on-demand-rss",
    ] {
        check(with(&["--policy", policy]), "set two or more with --cores");
    }
    check(with(&["--policy", "oracle"]), "is for the simulator only");
    check(with(&["--wait", "doze"]), "expected sleep, spin, or a time");
    check(with(&["--auxiliary", "x"]), "expected a list of cores");
    let mut both = with(&["--cores"]);
    both.extend([core.clone(), "--auxiliary".to_owned(), core.clone()]);
    check(both, "is both in --cores and in --auxiliary");
    let mut saturated = with(&["--saturate", "--auxiliary"]);
    saturated.push(core);
    check(saturated, "--saturate");

    let missing = folder.path("missing.yaml");
    let broken = folder.write("broken.yaml", "kind: CapacityProfile\nfrontier: 3\n");
    let other = made_up(&folder, "other.yaml", "100000000", "50000000");
    if let Some([dedicated, auxiliary]) = two_cores() {
        let both = format!("{dedicated},{auxiliary}");
        let several = |more: &[&'static str]| {
            let mut args = with(&["--cores"]);
            args.push(both.clone());
            args.extend(more.iter().copied().map(str::to_owned));
            args
        };
        let saturated = several(&["--policy", "rss++", "--saturate"]);
        check(saturated, "--saturate: --policy rss++ makes no decisions");
        let recorded = several(&["--record", "x"]);
        check(recorded, "--policy static makes no decisions");
        let profile = several(&["--policy", "rss++", "--profile", "x"]);
        check(profile, "--policy rss++ uses no profile");
        let profile = several(&["--policy", "metron", "--profile", "x"]);
        check(profile, "--policy metron uses no profile");
        let rateless = made_up(&folder, "rateless.yaml", "50000000", "25000000");
        let mut args = several(&["--policy", "netblaze", "--profile"]);
        args.push(name(&rateless).to_owned());
        check(args, "rateless.yaml: the profile has no rates");
        for (file, expected) in [
            (&missing, "missing.yaml: cannot be read"),
            (&broken, "broken.yaml:2:11: frontier: expected"),
            (&other, "measured for a latency objective of 100ms"),
        ] {
            let mut args = with(&["--cores"]);
            args.extend([dedicated.clone(), "--auxiliary".to_owned(), auxiliary.clone()]);
            args.extend(["--profile".to_owned(), name(file).to_owned()]);
            check(args, expected);
        }
    }

    let capacity = |more: &[&str], expected: &str| {
        let args: Vec<&str> = ["profile", "capacity"].iter().chain(more).copied().collect();
        refused(&args, expected);
    };
    capacity(&["missing.yaml"], "missing.yaml: cannot be read");
    capacity(&[chain, "--slo", "200"], "the unit is missing");
    capacity(&[chain, "--core", "99999"], "is not available");
    capacity(&[chain, "--traffic", "backbon"], "did you mean \"backbone\"?");
    capacity(&[chain, "-o", chain], "would overwrite the input");
    capacity(&[chain, "-o", "/nonexistent/x.yaml"], "cannot write");
    assert!(!folder.path("chain.profile.yaml").exists());
}

/// Returns the flags in a text, such as `--cores`.
fn flags<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let words = lines.flat_map(|line| line.split([' ', '`', ',', '|', '\\']));
    words
        .filter(|word| word.starts_with("--") && word.len() > 2)
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_flag_is_documented_and_every_documented_flag_is_there() {
    for (command, page) in [
        (&["run"][..], include_str!("../../../docs/reference/commands/run.md")),
        (
            &["profile", "capacity"],
            include_str!("../../../docs/reference/commands/profile-capacity.md"),
        ),
        (
            &["profile", "all"],
            include_str!("../../../docs/reference/commands/profile-curves.md"),
        ),
        (
            &["profile", "contention"],
            include_str!("../../../docs/reference/commands/profile-contention.md"),
        ),
    ] {
        let output = tailwater().arg("help").args(command).output().unwrap();
        assert!(output.status.success());
        let help = text(&output.stdout);
        // An option's line begins with its names.
        let options = help.lines().filter_map(|line| {
            let line = line.trim_start();
            let names = line.strip_prefix('-').map(|_| line);
            names.map(|names| names.split("  ").next().unwrap_or_default())
        });
        let mut found = flags(options);
        assert!(found.remove("--help"), "{help}");
        let (_, section) = page.split_once("## Flags").expect("the heading");
        let section = section.split("\n## ").next().unwrap_or_default();
        let column = section
            .lines()
            .filter(|line| line.starts_with("| `"))
            .filter_map(|line| line.split(" | ").next());
        assert_eq!(found, flags(column), "{command:?}");
    }
}

#[test]
fn measuring_that_is_interrupted_writes_nothing() {
    let folder = Folder::new();
    let [chain, traffic] = chain(&folder);
    let mut child = tailwater()
        .args(["profile", "capacity", name(&chain), "--traffic", name(&traffic)])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(700));
    let killed = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(killed.unwrap().success());
    // Timeout against hangs, not a measurement.
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(20), "it goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success());
    assert!(output.stdout.is_empty());
    assert!(!folder.path("chain.profile.yaml").exists());
}
