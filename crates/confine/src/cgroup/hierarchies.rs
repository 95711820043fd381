//! Control group hierarchies: where controllers are mounted, and directories in them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::files::{gone_is_fine, read, write};
use crate::error::Error;

/// Roots of the control group hierarchies on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hierarchies {
    /// Version 1: mount points by controller (and by `name=...`).
    pub first: BTreeMap<String, PathBuf>,
    /// Version 2: mount point.
    pub second: Option<PathBuf>,
}

/// Time the kernel may take to reap killed processes.
const PATIENCE: Duration = Duration::from_secs(5);

impl Hierarchies {
    /// Returns the mounted hierarchies.
    pub(crate) fn find() -> Result<Hierarchies, Error> {
        let mounts = read(Path::new("/proc/self/mountinfo"))?;
        Ok(Hierarchies::parse(&mounts))
    }

    /// Parses the text of `/proc/self/mountinfo` (see proc(5)).
    pub(super) fn parse(mounts: &str) -> Hierarchies {
        let mut found = Hierarchies::default();
        for line in mounts.lines() {
            let Some((place, kind)) = line.split_once(" - ") else {
                continue;
            };
            let Some(path) = place.split(' ').nth(4).map(PathBuf::from) else {
                continue;
            };
            let mut kind = kind.split(' ');
            match (kind.next(), kind.nth(1)) {
                (Some("cgroup"), Some(options)) => {
                    let controllers = options.split(',').filter(|name| !matches!(*name, "rw" | "ro"));
                    for controller in controllers {
                        found.first.entry(controller.to_owned()).or_insert_with(|| path.clone());
                    }
                }
                (Some("cgroup2"), _) => found.second = found.second.or(Some(path)),
                _ => {}
            }
        }
        found
    }

    /// Returns version 2's mount point if both versions are mounted, which some container runtimes do not support.
    pub(crate) fn hybrid(&self) -> Option<&Path> {
        let second = self.second.as_deref()?;
        (!self.first.is_empty()).then_some(second)
    }

    /// Creates the directory `name` for a controller, and enables the controller in all groups above it.
    pub(super) fn make(&self, controller: &'static str, name: &str) -> Result<PathBuf, Error> {
        if let Some(root) = self.first.get(controller) {
            let mut directory = root.clone();
            for part in Path::new(name) {
                let above = directory.clone();
                directory.push(part);
                make_directory(&directory)?;
                if controller == "cpuset" {
                    // A new group has no cores and no memory nodes, and rejects processes.
                    for file in ["cpuset.cpus", "cpuset.mems"] {
                        let path = directory.join(file);
                        if read(&path)?.trim().is_empty() {
                            write(&path, read(&above.join(file))?.trim())?;
                        }
                    }
                }
            }
            return Ok(directory);
        }
        let Some(root) = &self.second else {
            return Err(Error::NoController { controller });
        };
        let has = |directory: &Path| -> Result<bool, Error> {
            let text = read(&directory.join("cgroup.controllers"))?;
            Ok(text.split_whitespace().any(|name| name == controller))
        };
        if !has(root)? {
            return Err(Error::NoController { controller });
        }
        let mut directory = root.clone();
        for part in Path::new(name) {
            write(&directory.join("cgroup.subtree_control"), &format!("+{controller}"))?;
            directory.push(part);
            make_directory(&directory)?;
        }
        Ok(directory)
    }

    /// Returns all existing directories `name`, those a container runtime created among them.
    fn directories(&self, name: &str) -> Vec<PathBuf> {
        let mut directories: Vec<PathBuf> = self
            .first
            .values()
            .chain(&self.second)
            .map(|root| root.join(name))
            .filter(|directory| directory.is_dir())
            .collect();
        directories.sort();
        directories.dedup();
        directories
    }

    /// Returns the processes in the groups of that name and in groups below.
    pub(super) fn processes(&self, name: &str) -> Vec<i32> {
        let mut processes: Vec<i32> = self
            .directories(name)
            .iter()
            .flat_map(|directory| {
                let mut all = below(directory);
                all.push(directory.clone());
                all
            })
            .filter_map(|directory| fs::read_to_string(directory.join("cgroup.procs")).ok())
            .flat_map(|text| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>())
            .collect();
        processes.sort_unstable();
        processes.dedup();
        processes
    }

    /// Kills all processes in the groups of that name. Returns `true` if there were none.
    fn kill(&self, name: &str) -> bool {
        let processes = self.processes(name);
        for pid in processes.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        processes.is_empty()
    }

    /// Kills all processes in the groups of that name, until none is left.
    pub(super) fn empty(&self, name: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.kill(name) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Kills all processes in the groups of that name and removes the groups, child groups first.
    pub(crate) fn remove(&self, name: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.kill(name);
            let removed = self.directories(name).iter().all(|directory| {
                let mut all = below(directory);
                all.push(directory.clone());
                all.iter().all(|path| gone_is_fine(fs::remove_dir(path)).is_ok())
            });
            if removed || Instant::now() > deadline {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn make_directory(path: &Path) -> Result<(), Error> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(Error::File {
            path: path.to_owned(),
            error,
        }),
        _ => Ok(()),
    }
}

/// Returns the groups below a group, innermost first.
pub(super) fn below(directory: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            all.append(&mut below(&entry.path()));
            all.push(entry.path());
        }
    }
    all
}
