//! Access to the mounted tree: bounded reads, and commands of one write each, with the kernel's message on errors.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::error::Error;
use crate::text::{MOST_BYTES, Schemata, parse_cores, parse_tasks};

/// The directory where `resctrl` is mounted.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    pub root: PathBuf,
}

/// Entries of the root that are not groups.
const NO_GROUPS: [&str; 3] = ["info", "mon_groups", "mon_data"];

/// Reads a file, up to [`MOST_BYTES`].
pub(crate) fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = fs::File::open(path)?;
    file.take(MOST_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

impl Tree {
    /// Returns a group's directory. The default group is the root and has an empty name.
    pub(crate) fn group(&self, group: &str) -> PathBuf {
        self.root.join(group)
    }

    /// Reads a file of the tree.
    pub(crate) fn read(&self, path: &Path) -> Result<String, Error> {
        read(path).map_err(|error| self.explain(path, "", error))
    }

    /// Reads a file that is missing in older kernels or on machines without a resource.
    pub(crate) fn read_if_there(&self, path: &Path) -> Result<Option<String>, Error> {
        match read(path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.explain(path, "", error)),
        }
    }

    /// Writes a command in one call, because the kernel takes each call as one command.
    pub(crate) fn write(&self, path: &Path, text: &str) -> Result<(), Error> {
        let written = OpenOptions::new().write(true).open(path).and_then(|mut file| {
            match file.write(text.as_bytes())? == text.len() {
                true => Ok(()),
                false => Err(io::Error::other("written only in part")),
            }
        });
        written.map_err(|error| self.explain(path, text, error))
    }

    /// Creates a group.
    pub(crate) fn make(&self, path: &Path) -> Result<(), Error> {
        fs::create_dir(path).map_err(|error| self.explain(path, "mkdir", error))
    }

    /// Removes a group. A missing group is not an error.
    pub(crate) fn remove(&self, path: &Path) -> Result<(), Error> {
        match fs::remove_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.explain(path, "rmdir", error)),
            _ => Ok(()),
        }
    }

    /// Returns the names of the subdirectories, sorted.
    fn directories(&self, path: &Path) -> Result<Vec<String>, Error> {
        let explain = |error| self.explain(path, "", error);
        let mut names = Vec::new();
        for entry in fs::read_dir(path).map_err(explain)? {
            let entry = entry.map_err(explain)?;
            // A name that is not UTF-8 belongs to no known group.
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => names.push(name),
                // The entry was removed meanwhile.
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(explain(error));
                }
                _ => {}
            }
        }
        names.sort();
        Ok(names)
    }

    /// Returns the control groups without the default group.
    pub(crate) fn groups(&self) -> Result<Vec<String>, Error> {
        let mut names = self.directories(&self.root)?;
        names.retain(|name| !NO_GROUPS.contains(&name.as_str()));
        Ok(names)
    }

    /// Returns the monitoring groups of a control group, or none without monitoring.
    pub(crate) fn watches(&self, group: &str) -> Result<Vec<String>, Error> {
        let path = self.group(group).join("mon_groups");
        match path.is_dir() {
            true => self.directories(&path),
            false => Ok(Vec::new()),
        }
    }

    /// Returns the directories of monitored caches.
    pub(crate) fn monitored(&self, group: &Path) -> Result<Vec<String>, Error> {
        self.directories(&group.join("mon_data"))
    }

    pub(crate) fn schemata(&self, group: &str) -> Result<Schemata, Error> {
        let path = self.group(group).join("schemata");
        Schemata::parse(&self.read(&path)?, &path)
    }

    pub(crate) fn tasks(&self, group: &Path) -> Result<Vec<i32>, Error> {
        let path = group.join("tasks");
        parse_tasks(&self.read(&path)?, &path)
    }

    pub(crate) fn cores(&self, group: &Path) -> Result<Vec<u32>, Error> {
        let path = group.join("cpus_list");
        parse_cores(&self.read(&path)?, &path)
    }

    /// Returns the kernel's message on the last command, unless it is "ok".
    fn said(&self) -> Option<String> {
        let text = read(&self.root.join("info/last_cmd_status")).ok()?;
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        Some(lines.join("; ")).filter(|said| !said.is_empty() && said != "ok")
    }

    /// Maps an I/O error to its cause. `wrote` is empty for reads.
    fn explain(&self, path: &Path, wrote: &str, error: io::Error) -> Error {
        let path = path.to_owned();
        let group = path.strip_prefix(&self.root).ok().and_then(|inner| {
            let name = inner.components().next()?.as_os_str().to_str()?;
            let removed = inner.components().count() > 1 && !self.root.join(name).exists();
            (!NO_GROUPS.contains(&name) && removed).then(|| name.to_owned())
        });
        let errno = Errno::from_io_error(&error);
        match (errno, group) {
            (Some(Errno::ROFS), _) => return Error::ReadOnly { path },
            (Some(Errno::ACCESS | Errno::PERM), _) if wrote.is_empty() => {
                return Error::Denied { path, error };
            }
            (Some(Errno::NOENT | Errno::NODEV), Some(group)) => return Error::Vanished { group },
            _ if wrote.is_empty() => return Error::File { path, error },
            _ => {}
        }
        let said = self.said();
        let what = said.clone().unwrap_or_default();
        match errno {
            Some(Errno::ACCESS | Errno::PERM) if said.is_none() => Error::Denied { path, error },
            Some(Errno::BUSY) => Error::Busy {
                what: path.display().to_string(),
                why: match what.contains("RMID") {
                    true => {
                        format!("{what}: RMIDs of removed groups still occupy cache lines; try again later")
                    }
                    false => format!("{what} {error}").trim().to_owned(),
                },
            },
            Some(Errno::SRCH) => match wrote.trim().parse() {
                Ok(task) => Error::NoTask { task },
                Err(_) => Error::Refused {
                    path,
                    wrote: wrote.trim().to_owned(),
                    said,
                    error,
                },
            },
            Some(Errno::NOSPC) if what.contains("RMID") => Error::OutOfRmids { said: what },
            Some(Errno::NOSPC) if what.contains("CLOSID") || said.is_none() => {
                let groups = self.groups().unwrap_or_default();
                // The default group uses a class as well.
                let limit = groups.len() as u32 + 1;
                Error::OutOfClosids { limit, groups }
            }
            _ => Error::Refused {
                path,
                wrote: wrote.trim().to_owned(),
                said,
                error,
            },
        }
    }
}
