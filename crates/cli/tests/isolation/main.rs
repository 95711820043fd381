//! Functions in processes of their own: they behave as in one process, and a failing one affects no other.

#[path = "../common/mod.rs"]
mod common;

mod auxiliary;
mod chaos;
mod defences;
mod exiting;
mod failing;
mod faults;
mod killed;
mod leftovers;
mod on_failure;
mod own_rights;
mod processes;
mod programs;
mod quota;
mod refused;
mod same;
#[path = "../../../state/tests/server/mod.rs"]
mod server;
mod sharing;
mod state;
mod thief;

use common::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tailwater_confine::ContainerRuntime;

/// Serialises tests: workers with isolated functions never yield their core to each other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // A failed test has ended, too.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a run's report and its sent frames.
fn run_isolated(chain: &Path, traffic: &Path, isolation: &str, cores: &str) -> (Value, Vec<Vec<u8>>) {
    let sent = chain.with_extension("pcap");
    let mut more = vec![
        "--ring",
        "1000000",
        "--cores",
        cores,
        "--capture-out",
        sent.to_str().unwrap(),
        "--isolation",
    ];
    more.extend(isolation.split(' '));
    let report = report(chain, traffic, &more);
    assert_identity(&report);
    (report, frames(&sent))
}

/// Runs a chain, and up to four times again if a function other than the number `told` was overdue: a machine that
/// preempts the core causes that, too.
fn undisturbed(told: Option<usize>, run: impl Fn() -> (Value, Vec<Vec<u8>>)) -> (Value, Vec<Vec<u8>>) {
    let was_disturbed = |report: &Value| {
        let functions = report["isolation"]["functions"].as_array().unwrap();
        let mut untold = functions.iter().enumerate().filter(|(i, _)| Some(*i) != told);
        untold.any(|(_, function)| function["restarts"]["overdue"] != 0)
    };
    let mut ended = run();
    for _ in 0..4 {
        if !was_disturbed(&ended.0) {
            break;
        }
        ended = run();
    }
    ended
}

/// Returns the frames of each flow, in order. The output of `Encrypt` for UDP varies between runs, so only headers and
/// length are kept.
fn by_flow(frames: Vec<Vec<u8>>, encrypted: bool) -> BTreeMap<[u64; 5], Vec<Vec<u8>>> {
    let mut flows = BTreeMap::<_, Vec<_>>::new();
    for mut frame in frames {
        let words = key(&frame).words();
        if encrypted {
            let length = frame.len();
            frame.truncate(34);
            frame.extend((length as u32).to_be_bytes());
        }
        flows.entry(words).or_default().push(frame);
    }
    flows
}

/// Processes with the rights of `tailwater`.
const TRUSTED: &str = "process --isolation-without all";

/// Returns `true` if functions can be confined; prints the reason if not.
fn can_confine() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: confining functions needs root");
    }
    root
}

/// Returns the mode for processes, with every defence if possible.
fn process() -> &'static str {
    match can_confine() {
        true => "process",
        false => TRUSTED,
    }
}

/// Returns all isolation modes of this machine.
fn ways() -> Vec<&'static str> {
    let mut ways = vec![TRUSTED];
    if can_confine() {
        ways.push("process");
        match ContainerRuntime::find() {
            Some(_) => ways.push("container"),
            None => println!("skipped in containers: no crun (apt-get install crun)"),
        }
    }
    ways
}

fn restarts(function: &Value) -> u64 {
    let causes = ["ended", "overdue", "lied", "not_attached"];
    causes
        .iter()
        .map(|cause| function["restarts"][cause].as_u64().unwrap())
        .sum()
}

fn reason(report: &Value, name: &str) -> u64 {
    report["packets"]["reasons"][name].as_u64().unwrap_or(0)
}
