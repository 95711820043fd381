//! A failing function loses the packets it holds, without other effects.

use crate::common::*;
use crate::{TRUSTED, alone, by_flow, can_confine, reason, restarts, run_isolated, undisturbed, ways};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;
use tailwater_dataplane::cores::available;

/// Builds the function that fails on order, and a chain in which it is between others.
pub(crate) fn misbehaving(folder: &Folder) -> PathBuf {
    misbehaving_with(folder, "")
}

/// Like [`misbehaving`], with more keys beside that function's.
pub(crate) fn misbehaving_with(folder: &Folder, beside: &str) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built = Command::new("cc")
        .args([
            "-std=c11", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-I",
        ])
        .arg(sources.join("../sdk/include"))
        .arg("-o")
        .arg(folder.path("misbehaving.so"))
        .arg(sources.join("tests/isolation/misbehaving.c"))
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", text(&built.stderr));
    let functions = format!(
        "[{{name: front, nat: {{external: [203.0.113.0/28]}}}}, {{library: {{file: misbehaving.so}}{beside}}}, \
         {{name: behind, accounting: }}]"
    );
    folder.spec("misbehaving.yaml", &functions, "")
}

/// Writes 6,000 packets of twenty flows in 300 ms, with three extra packets to this port.
pub(crate) fn with_orders(folder: &Folder, port: u16) -> PathBuf {
    with_orders_at(folder, port, [50, 120, 190])
}

/// Like [`with_orders`], with the extra packets at these milliseconds.
pub(crate) fn with_orders_at(folder: &Folder, port: u16, times: [u64; 3]) -> PathBuf {
    let mut packets: Vec<_> = (0..6000u64)
        .map(|i| (i * 50_000, udp(client((i % 20) as u8 + 1), 5000, SERVER, 53)))
        .collect();
    for at in times {
        packets.push((at * 1_000_000 + 1, udp(client(200), at as u16, SERVER, port)));
    }
    packets.sort_by_key(|(time, _)| *time);
    folder.capture(&format!("orders-{port}.pcap"), &packets)
}

/// Asserts that a function that fails three times this way loses only the packets it holds. Returns the reported exits
/// of its processes.
fn assert_survived(port: u16, cause: &str, way: &str) -> String {
    let folder = Folder::new();
    let (chain, traffic) = (misbehaving(&folder), with_orders(&folder, port));
    let core = available().pop().unwrap().to_string();
    let told = (cause == "overdue").then_some(1);
    let (report, sent) = undisturbed(told, || run_isolated(&chain, &traffic, way, &core));
    let report = json!({"packets": report["packets"], "isolation": report["isolation"]});
    let functions = report["isolation"]["functions"].as_array().unwrap();
    let failed = restarts(&functions[1]);
    assert!((1..=3).contains(&failed), "{port}: {report}");
    assert_eq!(functions[1]["restarts"][cause], failed, "{port}: {report}");
    assert_eq!([restarts(&functions[0]), restarts(&functions[2])], [0, 0], "{report}");
    // Every packet is sent or lost by the failed function.
    let lost = reason(&report, "misbehaving/process-failed");
    assert!(lost >= failed, "{port}: {report}");
    assert_eq!(
        [count(&report, "lost"), count(&report, "dropped_by_nf")],
        [lost, 0],
        "{report}"
    );
    assert_eq!(sent.len() as u64, 6003 - lost, "{report}");
    // At least all packets before the first order, except those in its batch. The delay until the replacement depends
    // on the machine.
    assert!(sent.len() > 1000 - 256, "{port}: {report}");
    assert_eq!(wrong_checksums(&sent), 0);
    // Earlier translations persist: every flow has one, in memory that outlives the process.
    let flows = by_flow(sent, false);
    let translated = flows.keys().filter(|words| words[4] as u16 >> 8 != 0);
    assert!(translated.count() <= 23, "{port}: {flows:?}");
    functions[1]["ends"].to_string()
}

/// Runs [`assert_survived`] in every isolation mode. Returns the modes with the reported exits.
fn assert_survived_everywhere(port: u16, cause: &str) -> Vec<(&'static str, String)> {
    let ways = ways().into_iter();
    ways.map(|way| (way, assert_survived(port, cause, way))).collect()
}

/// Returns a mode in which a function can inspect its mappings to respond invalidly: the filter and an empty root would
/// prevent that.
fn can_look_around() -> &'static str {
    match can_confine() {
        true => "process --isolation-without filter,root",
        false => TRUSTED,
    }
}

/// Asserts that the filter ends a confined process that makes this call; a trusted one is overdue.
fn assert_forbidden(port: u16, call: &str) {
    assert_survived(port, "overdue", TRUSTED);
    for way in ways().into_iter().filter(|way| *way != TRUSTED) {
        let told = assert_survived(port, "ended", way);
        let expected = format!("forbidden system call {call}");
        assert!(told.contains(&expected), "{way}: {told}");
    }
}

#[test]
fn a_function_that_crashes() {
    let _alone = alone();
    for (way, told) in assert_survived_everywhere(7001, "ended") {
        let expected = match way {
            TRUSTED => "signal 6",
            // As process 1 of its namespace it ignores the signal, and continues into the code behind.
            "process" => "it crashed (signal 11)",
            // The server does not wait for a runtime that reports its program's exit late.
            _ if told.contains("unknown status") => continue,
            _ => "signal 11",
        };
        assert!(told.contains(expected), "{way}: {told}");
    }
}

#[test]
fn a_function_that_ends() {
    let _alone = alone();
    for (way, told) in assert_survived_everywhere(7002, "ended") {
        let unknown = way == "container" && told.contains("unknown status");
        assert!(unknown || told.contains("exit code 7"), "{way}: {told}");
    }
}

#[test]
fn a_function_that_never_yields() {
    let _alone = alone();
    assert_survived_everywhere(7003, "overdue");
}

#[test]
fn a_function_that_sleeps_in_its_turn() {
    let _alone = alone();
    assert_forbidden(7004, "pause");
}

#[test]
fn a_function_that_is_stopped() {
    let _alone = alone();
    assert_forbidden(7005, "tgkill");
}

#[test]
fn a_function_whose_frames_reach_beyond_their_buffers() {
    let _alone = alone();
    assert_survived(7006, "lied", can_look_around());
}

#[test]
fn a_function_that_denies_packets() {
    let _alone = alone();
    assert_survived(7007, "lied", can_look_around());
}

#[test]
fn a_function_that_says_nothing_of_its_packets() {
    let _alone = alone();
    assert_survived(7008, "lied", can_look_around());
}

#[test]
fn a_function_that_makes_packets() {
    let _alone = alone();
    assert_survived(7010, "lied", can_look_around());
}

#[test]
fn a_function_that_destroys_its_packets_destroys_no_more() {
    let _alone = alone();
    let folder = Folder::new();
    let (chain, traffic) = (misbehaving(&folder), with_orders(&folder, 7009));
    let core = available().pop().unwrap().to_string();
    let (report, sent) = run_isolated(&chain, &traffic, can_look_around(), &core);
    // Frames that are no longer packets are dropped by the next function; all others are sent.
    let malformed = reason(&report, "behind/other");
    assert!((3..2000).contains(&malformed), "{report}");
    assert_eq!(sent.len() as u64, 6003 - malformed, "{report}");
    assert_eq!(wrong_checksums(&sent), 0);
}

/// It could rewrite frames after later functions had seen them.
#[test]
fn a_function_that_only_reads_has_no_memory_of_packets_to_write() {
    let _alone = alone();
    let folder = Folder::new();
    misbehaving(&folder);
    let functions = "[{library: {file: misbehaving.so, readOnly: true}}, {name: behind, accounting: }]";
    let (chain, traffic) = (folder.spec("read.yaml", functions, ""), with_orders(&folder, 7009));
    let core = available().pop().unwrap().to_string();
    let (report, sent) = run_isolated(&chain, &traffic, can_look_around(), &core);
    // It found no mapping to overwrite.
    assert_eq!(reason(&report, "misbehaving/packets"), 6003, "{report}");
    assert_eq!((sent.len(), wrong_checksums(&sent)), (6003, 0), "{report}");
}

#[test]
fn a_function_that_looks_around_is_stopped() {
    let _alone = alone();
    for way in ways().into_iter().filter(|way| *way != TRUSTED) {
        let told = assert_survived(7006, "ended", way);
        let expected = "forbidden system call openat";
        assert!(told.contains(expected), "{way}: {told}");
    }
}
