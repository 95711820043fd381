//! Packets that arrive while a function has no process: `onFailure`.

use crate::common::*;
use crate::failing::{misbehaving_with, with_orders_at};
use crate::{alone, reason, restarts, run_isolated, ways};
use serde_json::{Value, json};
use tailwater_dataplane::cores::available;

/// Packets in front of a process when it crashes: a batch.
const BATCH: u64 = 256;
/// Packets sent through the chain.
const PACKETS: u64 = 6003;
/// Maximum attempts if the machine takes too long to attach a process.
const ROUNDS: usize = 4;

/// Runs the chain with a function that crashes on order, with this treatment of its packets. Returns the report once
/// `is_as_expected`, or the last one.
fn run(on_failure: &str, times: [u64; 3], way: &str, is_as_expected: impl Fn(&Value) -> bool) -> Value {
    let folder = Folder::new();
    let chain = misbehaving_with(&folder, &format!(", onFailure: {on_failure}"));
    let traffic = with_orders_at(&folder, 7001, times);
    let core = available().pop().unwrap().to_string();
    let mut last = Value::Null;
    for _ in 0..ROUNDS {
        let (report, sent) = run_isolated(&chain, &traffic, way, &core);
        // In any case, every packet is sent or lost by the failed function, or at the end of a run on a busy machine.
        let lost = reason(&report, "misbehaving/process-failed") + reason(&report, "not-drained");
        let text = json!({"packets": report["packets"], "isolation": report["isolation"]});
        assert_eq!(sent.len() as u64, PACKETS - lost, "{way}: {text}");
        assert_eq!(wrong_checksums(&sent), 0);
        assert!(restarts(&report["isolation"]["functions"][1]) > 0, "{report}");
        last = report;
        if is_as_expected(&last) {
            break;
        }
    }
    last
}

/// Packets lost by a function that crashed, beyond the batches that it held.
fn lost_beyond_batches(report: &Value) -> u64 {
    let failed = restarts(&report["isolation"]["functions"][1]);
    reason(report, "misbehaving/process-failed").saturating_sub(failed * BATCH)
}

/// A function that crashed took the packets along that came until its successor was attached.
#[test]
fn packets_wait_for_the_successor() {
    let _alone = alone();
    for way in ways() {
        let is_held = |report: &Value| lost_beyond_batches(report) == 0 && reason(report, "misbehaving/held") > 0;
        let report = run("hold", [50, 120, 190], way, is_held);
        assert!(is_held(&report), "{way}: {report}");
    }
}

/// The second crash comes before a third process can be ready.
#[test]
fn packets_bypass_a_function_without_a_process() {
    let _alone = alone();
    for way in ways() {
        let passed = |report: &Value| lost_beyond_batches(report) == 0 && reason(report, "misbehaving/bypassed") > 0;
        let report = run("bypass", [50, 53, 56], way, passed);
        assert!(passed(&report), "{way}: {report}");
        // Those behind it have the core before the worker responds in its place, and are innocent.
        let functions = &report["isolation"]["functions"];
        let accused = [0, 2].map(|k| functions[k]["restarts"]["lied"].as_u64().unwrap());
        assert_eq!(accused, [0, 0], "{way}: {report}");
        // The functions around it processed all of them.
        let counts =
            ["packets", "bypassed", "process-failed"].map(|name| reason(&report, &format!("misbehaving/{name}")));
        let seen = counts.iter().sum::<u64>() + reason(&report, "not-drained");
        assert!(seen >= PACKETS, "{way}: {report}");
    }
}
