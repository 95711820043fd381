//! Function in C whose counters show that no flow is lost or counted twice.

use crate::common::chain_server::{Folder, number};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Function in C that counts the packets of each flow, and sums those of flows that have ended.
const BOOKS: &str = r#"
#include <tailwater_nf.h>
static int process(void *instance, struct tw_batch *batch) {
    (void)instance;
    for (uint32_t i = 0; i < batch->count; i++) {
        uint64_t *packets = tw_update(&batch->packets[i]);
        if (batch->packets[i].flags & TW_NEW_FLOW && *packets > 0) batch->counters[0]++;
        ++*packets;
    }
    return 0;
}
static void flows_ended(void *instance, const struct tw_ended_flow *flows, uint32_t count, uint64_t *counters) {
    (void)instance;
    for (uint32_t i = 0; i < count; i++) counters[1] += *(const uint64_t *)flows[i].state;
}
static const char *const names[] = {"returned-flows", "packets-of-ended-flows"};
const struct tw_function tailwater_function = {
    TW_FUNCTION_HEAD, .name = "books", .flags = TW_HEADERS_ONLY, .state_bytes = 8, .state_version = 1,
    .counters = names, .counter_count = 2, .process = process, .flows_ended = flows_ended,
};
"#;

/// Builds [`BOOKS`] as a library beside the chains.
pub fn build_books(folder: &Folder) {
    folder.write("books.c", BOOKS);
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-fPIC", "-shared", "-I"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk/include"))
        .args(["-o", "chains/books.so", "books.c"])
        .current_dir(&folder.0);
    assert!(cc.status().unwrap().success());
}

/// Asserts that flows of a chain were opened once in several servers and found again by the last one, by their reports.
pub fn assert_flows_passed(name: &str, reports: &[&Value]) {
    let of = |report: &&Value| {
        let chains = report["chains"].as_array().unwrap();
        let mut named = chains.iter().filter(|chain| chain["name"] == name);
        named.next().unwrap()["report"].clone()
    };
    let reports: Vec<Value> = reports.iter().map(of).collect();
    let opened: Vec<u64> = reports.iter().map(|it| number(&it["flows"]["opened"])).collect();
    let last = reports.last().unwrap();
    assert!(opened[0] > 0, "{opened:?}");
    assert_eq!(
        opened.iter().sum::<u64>(),
        number(&last["flows"]["active"]),
        "{opened:?}"
    );
    let events = last["packets"]["packet_events"].as_array().unwrap();
    let returned = events.iter().find(|event| event["reason"] == "returned-flows");
    assert!(returned.is_some(), "{events:?}");
}

/// Asserts that the packets of all flows that a chain has ended are those that it delivered in two servers, except what
/// was lost on a busy machine behind the function, or in front of it.
pub fn assert_books_balance(name: &str, report: &Value) {
    let chains = report["chains"].as_array().unwrap();
    let packets = &chains.iter().find(|chain| chain["name"] == name).unwrap()["report"]["packets"];
    let mut events = packets["packet_events"].as_array().unwrap().iter();
    let ended = events.find(|event| event["reason"] == "packets-of-ended-flows");
    let [delivered, lost, ended] = [&packets["delivered"], &packets["lost"], &ended.unwrap()["count"]].map(number);
    assert!((delivered..=delivered + lost).contains(&ended), "{packets}");
}
