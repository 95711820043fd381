//! Processes that a run started, and their system resources.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tailwater_confine::FIRST_USER;

/// Returns the functions' processes started by this one.
pub(crate) fn processes_of(parent: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    let children = children.unwrap_or_default();
    let threads = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten();
    let of_threads = threads
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let all = of_threads.collect::<Vec<_>>().join(" ") + &children;
    let mut processes: Vec<u32> = all.split_whitespace().filter_map(|id| id.parse().ok()).collect();
    processes.sort_unstable();
    processes.dedup();
    processes
}

pub(crate) fn is_there(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // A zombie counts as ended.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Returns a process and all its descendants.
pub(crate) fn family_of(process: u32) -> Vec<u32> {
    let mut family = vec![process];
    let mut next = 0;
    while let Some(&process) = family.get(next) {
        family.extend(processes_of(process));
        next += 1;
    }
    family
}

/// Returns the descendants that are processes of the function at this index of the chain.
pub(crate) fn processes_at(tailwater: u32, place: usize) -> Vec<u32> {
    let family = family_of(tailwater).into_iter().skip(1);
    let is_at = |process: &u32| {
        let command = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let mut words = command.split(|byte| *byte == 0).rev().skip(1);
        words.next() == Some(place.to_string().as_bytes())
            && command.windows(16).any(|part| part == b"function-process")
    };
    family.filter(is_at).collect()
}

/// Returns the directories and control groups of a confined function's process.
pub(crate) fn places_of(process: u32) -> Vec<PathBuf> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let user = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let user = user.and_then(|users| users.split_whitespace().next()?.parse::<u32>().ok());
    let Some(number) = user.and_then(|user| user.checked_sub(FIRST_USER)) else {
        return Vec::new();
    };
    let number = number.to_string();
    let groups = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten();
    let hierarchies = groups.flatten().map(|entry| entry.path());
    let hierarchies = hierarchies.chain(["/sys/fs/cgroup".into()]);
    let groups = hierarchies.map(|path| path.join("tailwater").join(&number));
    let directory = Path::new("/run/tailwater/functions").join(&number);
    groups.chain([directory]).filter(|path| path.exists()).collect()
}

pub(crate) fn signal(process: u32, signal: &str) {
    let killed = Command::new("kill").args([signal, &process.to_string()]).status();
    assert!(killed.unwrap().success());
}

/// Like [`signal`], for a process that may have ended.
pub(crate) fn signal_if_there(process: u32, signal: &str) {
    let killed = Command::new("kill")
        .args([signal, &process.to_string()])
        .stderr(Stdio::null())
        .status();
    // A missing process is not an error.
    let _ = killed.unwrap();
}
