//! `tailwater serve` that divides the last-level cache, on the model of the kernel's `resctrl`.
//!
//! The model does not affect performance. The test is skipped where FUSE cannot be mounted.
#![cfg(feature = "control")]

mod common;
#[path = "../../resctrl/tests/model/mod.rs"]
mod model;

use common::chain_server::*;
use model::fuse::Mounted;
use model::kernel::Machine;
use std::fs;

/// Tasks of the groups that servers have made.
fn groups(mounted: &Mounted) -> Vec<Vec<u32>> {
    let entries = fs::read_dir(mounted.root()).unwrap().map(|entry| entry.unwrap());
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("tailwater-"));
    let tasks = ours.map(|group| fs::read_to_string(group.path().join("tasks")).unwrap_or_default());
    tasks
        .map(|tasks| tasks.lines().map(|task| task.parse().unwrap()).collect())
        .collect()
}

/// Names of threads.
fn names(tasks: &[u32]) -> Vec<String> {
    let name = |task: &u32| fs::read_to_string(format!("/proc/{task}/comm")).unwrap_or_default();
    tasks.iter().map(|task| name(task).trim().to_owned()).collect()
}

#[test]
fn the_core_of_a_chain_has_a_class_and_what_a_killed_server_leaves_is_removed() {
    let folder = Folder::new();
    let core = folder.core();
    let Some(mounted) = Machine::here(core).and_then(Mounted::in_place) else {
        return;
    };
    let before = mounted.snapshot();
    folder.server("  cache: {others: 2, onDemand: 3}\n");
    folder.chain("first", "10.0.0.0/17", "{forward: }");
    let mut serving = Serving::start(&folder);
    wait("the class", || {
        groups(&mounted).len() == 1 && groups(&mounted)[0].len() == 1
    });
    assert_eq!(names(&groups(&mounted)[0]), [format!("core-{core}")]);
    wait("the cache of the chain", || {
        let cache = folder.chains()["chains"][0]["cache"].clone();
        cache["class"] == "shared" && number(&cache["ways"]) >= 3 && number(&cache["cores"]) == 1
    });
    let described = folder.ok(&["describe", "chain", "first"]);
    assert!(described.contains("\nCache:        "), "{described}");
    let killed = groups(&mounted);
    serving.kill();
    assert_eq!(groups(&mounted).len(), 1);
    let serving = Serving::start_again(&folder);
    wait("the class of the next server", || {
        groups(&mounted).len() == 1 && groups(&mounted) != killed
    });
    serving.stop();
    assert_eq!(mounted.snapshot(), before);
}

#[test]
fn without_resctrl_the_user_is_told_and_chains_run() {
    let folder = Folder::new();
    if fs::exists("/sys/fs/resctrl").unwrap() {
        println!("skipped: this kernel has resctrl");
        return;
    }
    folder.server("  cache: {}\n");
    folder.chain("first", "10.0.0.0/17", "{forward: }");
    let serving = Serving::start(&folder);
    wait("the event", || {
        folder.ok(&["events"]).contains("the cache is not divided: ")
    });
    wait("packets", || {
        number(&folder.chains()["chains"][0]["packets"]["delivered"]) > 0
    });
    assert!(folder.chains()["chains"][0]["cache"].is_null());
    serving.stop();
}
