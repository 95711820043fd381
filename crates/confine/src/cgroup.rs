//! Control groups, of version 1, version 2, or both at once.

mod hierarchies;
#[cfg(test)]
mod tests;

pub(crate) use hierarchies::Hierarchies;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::confinement::Groups;
use crate::error::Error;

/// The groups of one program: one directory for each hierarchy that limits something, or the one of version 2.
#[derive(Debug)]
pub(crate) struct Group {
    /// Its name below the roots of hierarchies.
    name: String,
    hierarchies: Hierarchies,
    /// Where it was made.
    directories: Vec<PathBuf>,
    /// Whether it keeps the program on a core.
    cores: Option<PathBuf>,
    /// Where the kernel counts what died for want of memory.
    memory: Option<PathBuf>,
    /// Where its processes are counted.
    pids: Option<PathBuf>,
}

pub(crate) fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(|error| Error::File {
        path: path.to_owned(),
        error,
    })
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|error| Error::File {
        path: path.to_owned(),
        error,
    })
}

impl Group {
    /// Makes the groups, with nobody in them. `core` is where the program is to stay, if [`Groups::cores`] says so.
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
        // What was made is removed if the rest fails: by `Drop`.
        if let Some(bytes) = limits.memory {
            let directory = group.join("memory")?;
            let limit = |file: &str| write(&directory.join(file), &bytes.to_string());
            if directory.join("memory.max").exists() {
                limit("memory.max")?;
                // Not there without swap accounting.
                let swap = directory.join("memory.swap.max");
                if swap.exists() {
                    write(&swap, "0")?;
                }
            } else {
                limit("memory.limit_in_bytes")?;
                // Memory and swap together: no more than that.
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

    /// The directory for a controller, made if it is not there yet.
    fn join(&mut self, controller: &'static str) -> Result<PathBuf, Error> {
        let directory = self.hierarchies.make(controller, &self.name)?;
        if !self.directories.contains(&directory) {
            self.directories.push(directory.clone());
        }
        Ok(directory)
    }

    /// Changes how many processes there may be. Nothing if its groups do not limit that.
    pub(crate) fn limit_processes(&self, processes: u32) -> Result<(), Error> {
        match &self.pids {
            Some(directory) => write(&directory.join("pids.max"), &processes.to_string()),
            None => Ok(()),
        }
    }

    /// Puts a process in.
    pub(crate) fn add(&self, pid: i32) -> Result<(), Error> {
        for directory in &self.directories {
            write(&directory.join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// Keeps its processes on one core from now on. Nothing if its groups do not.
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
        // A group in it (a container's) may have no core that this one does not: on version 1 it is first widened,
        // then all of them are narrowed from the inside.
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

    /// Whether its processes ran against the limit of memory: told of one that was killed, and by nobody that we know.
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
        // Version 1 does not count what was killed in a group below, which its runtime has removed by now; but how
        // full this one ever was. The kernel takes pages in batches of 64, so it may end as far below the limit.
        const BATCH: u64 = 64 * 4096;
        let number = |file: &str| text(file).trim().parse::<u64>().ok();
        match (number("memory.max_usage_in_bytes"), number("memory.limit_in_bytes")) {
            (Some(most), Some(limit)) => most + BATCH >= limit,
            _ => false,
        }
    }

    /// Who is in it, and in groups below.
    pub(crate) fn processes(&self) -> Vec<i32> {
        self.hierarchies.processes(&self.name)
    }

    /// Kills whoever is in it, and in groups below, until nobody is.
    pub(crate) fn empty(&self) {
        self.hierarchies.empty(&self.name);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.hierarchies.remove(&self.name);
    }
}

/// Ignores that something is gone already.
fn gone_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
