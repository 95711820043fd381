//! A run whose whole process is stopped for a while, as by a debugger, a hypervisor, or `kill -STOP`.

mod common;

use common::serving::Serving;
use common::*;
use std::time::Duration;

/// Runs a chain for four seconds, during which the process is stopped for 200 ms.
fn stopped(folder: &Folder, more: &[&str]) -> serde_json::Value {
    let nat = "[{nat: {external: [203.0.113.0/28]}}]";
    let chain = folder.spec_with_slo("200us", "hurried.yaml", nat, "");
    let mut command = tailwater();
    command
        .args(["run", "--output", "json", "--duration", "4s"])
        .args(["--window", "50ms"])
        .args(more)
        .arg(chain);
    let mut serving = Serving::run(&mut command);
    serving.page_with("tailwater_packets_offered_total ");
    for signal in ["-STOP", "-CONT"] {
        serving.signal(signal);
        std::thread::sleep(Duration::from_millis(200));
    }
    serde_json::from_str(&serving.finish()).unwrap()
}

/// Asserts that all packets of that time are accounted for, as late or lost for that reason.
fn assert_noticed(report: &serde_json::Value) {
    assert_identity(report);
    assert_eq!(report["interrupted"], false);
    let windows = report["windows"]["list"].as_array().unwrap();
    let flagged = windows.iter().filter(|window| window["flagged"] == true);
    let longest = flagged.filter_map(|window| window["longest_gap_us"].as_f64());
    let longest = longest.fold(0.0, f64::max);
    assert!(longest > 100e3, "{longest} us");
    let lost: u64 = windows.iter().filter_map(|w| w["lost"].as_u64()).sum();
    assert_eq!(lost, count(report, "lost"));
}

#[test]
fn a_run_that_is_stopped_goes_on() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(100));
    let report = stopped(&folder, &["--traffic", traffic.to_str().unwrap(), "--ring", "512"]);
    assert_noticed(&report);
    // Ten thousand per second, of which 2,000 arrive meanwhile: 512 wait, the others are lost.
    assert_eq!(count(&report, "offered"), 40_000);
    assert!(count(&report, "lost") > 500, "{report}");
    let late = report["late_by_cause"]["descheduled"].as_u64().unwrap();
    assert!(late > 1_000, "{report}");
}

#[test]
fn a_run_with_a_helper_that_is_stopped_goes_on() {
    let cores = tailwater_dataplane::cores::available();
    let [first, second, ..] = cores[..] else {
        eprintln!("skipped: one core only");
        return;
    };
    let (dedicated, auxiliary) = (second.to_string(), first.to_string());
    let folder = Folder::new();
    let more = ["--traffic", "bursty", "--cores", &dedicated];
    let more = [&more[..], &["--auxiliary", &auxiliary]].concat();
    let report = stopped(&folder, &more);
    assert_noticed(&report);
    assert!(report["scaling"].is_object());
    let late = report["late_by_cause"]["descheduled"].as_u64().unwrap();
    assert!(late > 1_000, "{report}");
}
