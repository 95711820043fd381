//! Runs that move RSS buckets between dedicated cores.
//!
//! No measured values are asserted: the machine may be slow or busy.

mod common;

use common::*;
use tailwater_dataplane::cores::available;

/// Profile of the chain in these tests.
const PROFILE: &str = "apiVersion: tailwater.dev/v1alpha1\nkind: CapacityProfile\nchain: test\n\
                       configuration: \"0\"\nmachine: elsewhere\nsloNanoseconds: 250000000\n\
                       epochNanoseconds: 125000000\nfrontier: [[1, 80], [40, 40]]\n\
                       rates: [[10, 1000000], [1000, 400000]]\n";

/// Returns two cores as a list, or prints that the test is skipped.
fn two_cores() -> Option<String> {
    match available()[..] {
        [first, second, ..] => Some(format!("{first},{second}")),
        _ => {
            eprintln!("skipped: this machine has one core");
            None
        }
    }
}

/// Asserts that packets by result and by cause add up.
fn assert_sums(report: &serde_json::Value) {
    assert_identity(report);
    let causes = report["late_by_cause"].as_object().unwrap();
    let late: u64 = causes.values().map(|count| count.as_u64().unwrap()).sum();
    let windows = report["windows"]["list"].as_array().unwrap();
    let sum = |name: &str| -> u64 { windows.iter().map(|w| w[name].as_u64().unwrap()).sum() };
    assert_eq!(late, sum("late") + sum("lost"));
}

/// With traffic that one core handles easily, a balancer takes all buckets from the other core, which is released.
#[test]
fn a_core_that_is_not_needed_is_let_go() {
    let Some(cores) = two_cores() else {
        return;
    };
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(1000));
    let file = folder.path("run.decisions");
    let more = [
        "--cores",
        &cores,
        "--policy",
        "rss++",
        "--duration",
        "1s",
        "--record",
        file.to_str().unwrap(),
    ];
    let report = report(&folder.acl_nat(), &traffic, &more);
    assert_sums(&report);
    assert_eq!(count(&report, "offered"), 10_000);
    assert!(!report["packets"]["reasons"].to_string().contains("bucket-not-held"));
    assert!(report["scaling"].is_null());
    let server = &report["server"];
    assert_eq!(server["buckets_moved"], 256, "{server}");
    assert_eq!(server["moves"], 1);
    let used = &report["cores"];
    assert_eq!(used["dedicated"], 2);
    let in_use = used["dedicated_avg"].as_f64().unwrap();
    assert!((1.0..2.0).contains(&in_use), "{used}");
    assert_eq!(used["avg"], used["dedicated_avg"]);

    // The record gives the same result with another policy.
    let explained = run(&[&"explain", &file, &"--policy", &"rss++", &"--output", &"json"]);
    assert!(explained.status.success(), "{}", text(&explained.stderr));
    let document: serde_json::Value = serde_json::from_slice(&explained.stdout).unwrap();
    let recorded = &document["server"];
    assert_eq!(document["summary"]["decisions"], 0);
    assert_eq!(recorded["decisions"], server["decisions"]);
    assert_eq!(recorded["buckets_moved"], 256);
    assert_eq!(recorded["fewest_cores"], 1);
    assert_eq!(recorded["list"][0]["cores_before"], 2);
    assert_eq!(recorded["replay"]["different"], 0, "{recorded}");
    let table = run(&[&"explain", &file]);
    let table = text(&table.stdout);
    assert!(table.contains("256 buckets moved: 1 core in use, 2 before"), "{table}");
    assert!(!table.contains("episodes"), "{table}");
}

/// Metron, Quadrant and Dyssect release a core that they do not need, too, and count it no more.
#[test]
fn controllers_of_racks_run_on_one_server() {
    let Some(cores) = two_cores() else {
        return;
    };
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(1000));
    let chain = folder.acl_nat();
    let profile = folder.write("measured.yaml", PROFILE);
    for (policy, duration, profile) in [
        // Metron decides twice a second. Quadrant drains a core within a second.
        ("metron", "800ms", None),
        ("quadrant", "1300ms", Some(&profile)),
        ("quadrant-metron", "300ms", None),
        ("dyssect", "300ms", Some(&profile)),
    ] {
        let file = folder.path("run.decisions");
        let mut more = vec!["--cores", &cores, "--policy", policy, "--duration", duration];
        more.extend(["--record", file.to_str().unwrap()]);
        if let Some(profile) = profile {
            more.extend(["--profile", profile.to_str().unwrap()]);
        }
        let report = report(&chain, &traffic, &more);
        assert_sums(&report);
        assert!(report["scaling"].is_null(), "{policy}");
        let server = &report["server"];
        assert!(server["buckets_moved"].as_u64().unwrap() >= 256, "{policy}: {server}");
        let used = &report["cores"];
        assert_eq!(used["dedicated"], 2);
        let in_use = used["dedicated_avg"].as_f64().unwrap();
        assert!((1.0..2.0).contains(&in_use), "{policy}: {used}");
        // The policy gives the recorded views the same plans again.
        let explained = run(&[&"explain", &file, &"--policy", &policy, &"--output", &"json"]);
        assert!(explained.status.success(), "{}", text(&explained.stderr));
        let document: serde_json::Value = serde_json::from_slice(&explained.stdout).unwrap();
        let recorded = &document["server"];
        assert_eq!(recorded["decisions"], server["decisions"], "{policy}");
        assert_eq!(recorded["fewest_cores"], 1, "{policy}");
        assert_eq!(recorded["replay"]["different"], 0, "{policy}: {recorded}");
    }
}

/// A server mapper together with core mappers, with a profile; and alone, without auxiliary cores.
#[test]
fn policies_with_a_server_mapper_run() {
    let Some(cores) = two_cores() else {
        return;
    };
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(1000));
    let chain = folder.acl_nat();
    let profile = folder.write("measured.yaml", PROFILE);
    let profile = profile.to_str().unwrap();
    for policy in [
        "tailwater",
        "netblaze",
        "netblaze-core-static-safe",
        "netblaze-no-core-mapper",
        "netblaze-server-static-safe",
        "netblaze-server-static-unsafe",
        "netblaze-on-demand-rss",
    ] {
        let more = ["--cores", &cores, "--policy", policy, "--profile", profile];
        let report = report(&chain, &traffic, &more);
        assert_sums(&report);
        assert_eq!(count(&report, "offered"), 1000, "{policy}");
        assert!(report["server"].is_object(), "{policy}");
        // Its dedicated cores help each other.
        assert_eq!(report["scaling"].is_null(), policy != "tailwater", "{policy}");
    }
    // The text report lists the moves.
    let output = tailwater()
        .args(["run", "--cores", &cores, "--policy", "netblaze"])
        .args(["--profile", profile, "--duration", "1500ms"])
        .arg("--traffic")
        .args([&traffic, &chain])
        .output()
        .unwrap();
    let table = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(table.contains("cores               2 dedicated, "), "{table}");
    assert!(table.contains(" of them in use\nmoved "), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 90), "{table}");
}
