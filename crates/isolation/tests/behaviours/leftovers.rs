//! Processes of a case, and what they leave behind.

use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tailwater_confine::FIRST_USER;

/// Time in which everything of a case must be gone. Removing namespaces is slow on a busy machine.
const GONE_WITHIN: Duration = Duration::from_secs(30);

/// Returns the descendants of this process that have this argument.
pub(crate) fn descendants_with(argument: &str) -> Vec<u32> {
    let children = |process: u32| {
        let threads = fs::read_dir(format!("/proc/{process}/task"));
        let threads = threads.into_iter().flatten().flatten();
        let lists = threads.filter_map(|it| fs::read_to_string(it.path().join("children")).ok());
        let lists = lists.collect::<Vec<_>>().join(" ");
        let numbers = lists.split_whitespace().filter_map(|it| it.parse().ok());
        numbers.collect::<Vec<u32>>()
    };
    let mut found = children(std::process::id());
    let mut next = 0;
    while let Some(&process) = found.get(next) {
        found.extend(children(process));
        next += 1;
    }
    found.retain(|process| {
        let command = fs::read_to_string(format!("/proc/{process}/cmdline"));
        command.is_ok_and(|words| words.split('\0').any(|word| word == argument))
    });
    found
}

/// Kills the descendants of this process that have this argument.
pub(crate) fn kill_all(argument: &str) {
    for process in descendants_with(argument) {
        if let Some(process) = Pid::from_raw(process as i32) {
            // It may have ended.
            let _ = kill_process(process, Signal::KILL);
        }
    }
}

/// Processes of a case, their directories, control groups and namespaces.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    processes: BTreeSet<u32>,
    places: BTreeSet<PathBuf>,
    namespaces: BTreeSet<PathBuf>,
}

impl Traces {
    /// Adds those of the processes that have this argument.
    pub(crate) fn look(&mut self, argument: &str) {
        for process in descendants_with(argument) {
            self.processes.insert(process);
            self.places.extend(places_of(process));
            for kind in ["ipc", "mnt", "net", "pid", "uts"] {
                let name = |process: &str| fs::read_link(format!("/proc/{process}/ns/{kind}"));
                if let (Ok(its), Ok(ours)) = (name(&process.to_string()), name("self"))
                    && its != ours
                {
                    self.namespaces.insert(its);
                }
            }
        }
    }

    /// Waits until all of it is gone. Returns what is left after half a minute.
    pub(crate) fn left(&self) -> Option<String> {
        let until = Instant::now() + GONE_WITHIN;
        loop {
            let processes: Vec<_> = self.processes.iter().filter(|it| is_there(**it)).collect();
            let places: Vec<_> = self.places.iter().filter(|it| it.exists()).collect();
            let namespaces = self.namespaces_in_use();
            if processes.is_empty() && places.is_empty() && namespaces.is_empty() {
                return None;
            }
            if Instant::now() > until {
                return Some(format!("{processes:?} {places:?} {namespaces:?}"));
            }
            sleep(Duration::from_millis(5));
        }
    }

    fn namespaces_in_use(&self) -> Vec<PathBuf> {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let links =
            processes.flat_map(|process| fs::read_dir(process.path().join("ns")).into_iter().flatten().flatten());
        let names = links.filter_map(|link| fs::read_link(link.path()).ok());
        names.filter(|name| self.namespaces.contains(name)).collect()
    }
}

fn is_there(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // A zombie counts as ended.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Returns the directories and control groups of a confined process.
fn places_of(process: u32) -> Vec<PathBuf> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let user = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let user = user.and_then(|users| users.split_whitespace().next()?.parse::<u32>().ok());
    let Some(number) = user.and_then(|user| user.checked_sub(FIRST_USER)) else {
        return Vec::new();
    };
    let number = number.to_string();
    let groups = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
    let hierarchies = groups.map(|entry| entry.path()).chain(["/sys/fs/cgroup".into()]);
    let groups = hierarchies.map(|path| path.join("tailwater").join(&number));
    let directory = Path::new("/run/tailwater/functions").join(&number);
    groups.chain([directory]).filter(|path| path.exists()).collect()
}
