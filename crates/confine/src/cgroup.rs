//! Control groups, of version 1, version 2, or both at once.

mod files;
mod hierarchies;
#[cfg(test)]
mod tests;

pub(crate) use files::write;
pub(crate) use hierarchies::Hierarchies;

use std::fs;
use std::path::{Path, PathBuf};

use crate::confinement::Groups;
use crate::error::Error;
use files::read;

/// Control groups of one program: a directory in each version 1 hierarchy that limits something, or one in version 2.
#[derive(Debug)]
pub(crate) struct Group {
    /// Name below the hierarchies' roots.
    name: String,
    hierarchies: Hierarchies,
    /// Directories that were created.
    directories: Vec<PathBuf>,
    /// Directory of the `cpuset` controller, if the program is pinned to a core.
    cores: Option<PathBuf>,
    /// Directory of the `memory` controller, which counts OOM kills.
    memory: Option<PathBuf>,
    /// Directory of the `pids` controller.
    pids: Option<PathBuf>,
}

impl Group {
    /// Creates the groups, empty. `core` is the core the program is pinned to, if [`Groups::cores`] is set.
    pub(crate) fn make(
        hierarchies: Hierarchies,
        name: String,
        limits: &Groups,
        core: Option<usize>,
    ) -> Result<Group, Error> {
        let mut group = Group {
            name,
            hierarchies,
            directories: Vec::new(),
            cores: None,
            memory: None,
            pids: None,
        };
        // If a later step fails, `Drop` removes what was created.
        if let Some(bytes) = limits.memory {
            let directory = group.join("memory")?;
            let limit = |file: &str| write(&directory.join(file), &bytes.to_string());
            if directory.join("memory.max").exists() {
                limit("memory.max")?;
                // The file is missing without swap accounting.
                let swap = directory.join("memory.swap.max");
                if swap.exists() {
                    write(&swap, "0")?;
                }
            } else {
                limit("memory.limit_in_bytes")?;
                // The limit of memory and swap together is the same.
                if directory.join("memory.memsw.limit_in_bytes").exists() {
                    limit("memory.memsw.limit_in_bytes")?;
                }
            }
            group.memory = Some(directory);
        }
        if let Some(processes) = limits.processes {
            group.pids = Some(group.join("pids")?);
            group.limit_processes(processes)?;
        }
        if limits.cores {
            let directory = group.join("cpuset")?;
            group.cores = Some(directory);
            if let Some(core) = core {
                group.pin(core)?;
            }
        }
        Ok(group)
    }

    /// Returns the directory for a controller, creating it if it does not exist.
    fn join(&mut self, controller: &'static str) -> Result<PathBuf, Error> {
        let directory = self.hierarchies.make(controller, &self.name)?;
        if !self.directories.contains(&directory) {
            self.directories.push(directory.clone());
        }
        Ok(directory)
    }

    /// Changes the limit of processes. Does nothing if the groups do not limit them.
    pub(crate) fn limit_processes(&self, processes: u32) -> Result<(), Error> {
        match &self.pids {
            Some(directory) => write(&directory.join("pids.max"), &processes.to_string()),
            None => Ok(()),
        }
    }

    /// Moves a process into the groups.
    pub(crate) fn add(&self, pid: i32) -> Result<(), Error> {
        for directory in &self.directories {
            write(&directory.join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// Pins the groups' processes to one core. Does nothing if the groups have no `cpuset`.
    pub(crate) fn pin(&self, core: usize) -> Result<(), Error> {
        let Some(directory) = &self.cores else {
            return Ok(());
        };
        let write = |directory: &Path| {
            let path = directory.join("cpuset.cpus");
            fs::write(&path, core.to_string()).map_err(|error| Error::Core { core, error })
        };
        let inside = || {
            let below = hierarchies::below(directory);
            below.into_iter().filter(|path| path.join("cpuset.cpus").exists())
        };
        // In version 1 a child group (a container's) may have no core that its parent lacks. The parent is widened
        // first, then all groups are narrowed from the inside out.
        let mut both: Vec<PathBuf> = inside().collect();
        if both.is_empty() {
            return write(directory);
        }
        let path = directory.join("cpuset.cpus");
        let before = read(&path)?;
        let widened = match before.trim() {
            "" => core.to_string(),
            before => format!("{before},{core}"),
        };
        fs::write(&path, widened).map_err(|error| Error::Core { core, error })?;
        both.push(directory.clone());
        both.iter().try_for_each(|path| write(path))
    }

    /// Returns `true` if the processes reached the memory limit. Called after a process was killed and no defence of
    /// the agent's did it.
    pub(crate) fn ran_out_of_memory(&self) -> bool {
        let Some(directory) = &self.memory else {
            return false;
        };
        let text = |file: &str| fs::read_to_string(directory.join(file)).unwrap_or_default();
        let kills = [text("memory.events"), text("memory.oom_control")];
        let killed = |text: &String| {
            let mut counts = text.lines().filter_map(|line| line.strip_prefix("oom_kill "));
            counts.any(|count| count.trim() != "0")
        };
        if kills.iter().any(killed) {
            return true;
        }
        // Version 1 does not count OOM kills in child groups, which the runtime has removed by now. It does record this
        // group's peak usage. The kernel charges pages in batches of 64, so the peak may stay that far below the limit.
        const BATCH: u64 = 64 * 4096;
        let number = |file: &str| text(file).trim().parse::<u64>().ok();
        match (number("memory.max_usage_in_bytes"), number("memory.limit_in_bytes")) {
            (Some(most), Some(limit)) => most + BATCH >= limit,
            _ => false,
        }
    }

    /// Returns the processes in the groups and in groups below.
    pub(crate) fn processes(&self) -> Vec<i32> {
        self.hierarchies.processes(&self.name)
    }

    /// Kills all processes in the groups and in groups below, until none is left.
    pub(crate) fn empty(&self) {
        self.hierarchies.empty(&self.name);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.hierarchies.remove(&self.name);
    }
}
