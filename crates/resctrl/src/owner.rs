//! Group names that identify the owning process, so that groups of killed processes can be recognised.
//!
//! The format is `tailwater-NAMESPACE-PID-START-NUMBER`, with the suffix `-alone-LEVEL-ID-ID...` or
//! `-shared-LEVEL-ID-ID...` for partitions. PIDs are reused and are valid within their namespace only. So the name
//! contains the namespace's inode and the process's start time.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::Error;

/// Parsed group name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    namespace: u64,
    process: u32,
    started: u64,
    number: u32,
    /// Caches that the group partitions. In all other caches it has the kernel's default.
    pub part: Option<Part>,
}

/// Caches of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// `true` if the group uses its ways exclusively.
    pub alone: bool,
    pub level: String,
    pub caches: Vec<u32>,
}

impl Part {
    /// Returns `true` if the partition covers this cache.
    pub(crate) fn is_of(&self, level: &str, cache: u32) -> bool {
        self.level == level && self.caches.contains(&cache)
    }
}

impl Name {
    /// Returns a new name for this process.
    pub(crate) fn ours(part: Option<Part>) -> Result<Name, Error> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let process = process::id();
        let unknown = || Error::Absent {
            why: "/proc does not contain this process's start time: mount -t proc proc /proc".to_owned(),
        };
        Ok(Name {
            namespace: namespace().ok_or_else(unknown)?,
            process,
            started: started(process).ok_or_else(unknown)?,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            part,
        })
    }

    /// Parses a name. Returns `None` if the group is not Tailwater's.
    pub(crate) fn parse(text: &str) -> Option<Name> {
        let mut fields = text.strip_prefix("tailwater-")?.split('-');
        let mut name = Name {
            namespace: fields.next()?.parse().ok()?,
            process: fields.next()?.parse().ok()?,
            started: fields.next()?.parse().ok()?,
            number: fields.next()?.parse().ok()?,
            part: None,
        };
        if let Some(field) = fields.next() {
            let alone = match field {
                "alone" => true,
                "shared" => false,
                _ => return None,
            };
            let level = fields.next().filter(|level| matches!(*level, "L2" | "L3"))?;
            let caches: Option<Vec<u32>> = fields.map(|id| id.parse().ok()).collect();
            name.part = Some(Part {
                alone,
                level: level.to_owned(),
                caches: caches?,
            });
        }
        // Accepts only the canonical form: no signs, no leading zeros.
        (name.to_string() == text).then_some(name)
    }

    /// Returns `true` if the group belongs to this process.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == process::id()
            && namespace() == Some(self.namespace)
            && started(self.process) == Some(self.started)
    }

    /// Returns `true` if the owning process is known to be dead. Processes of other namespaces are unknown.
    pub(crate) fn is_dead(&self) -> bool {
        namespace() == Some(self.namespace) && started(self.process) != Some(self.started)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Name {
            namespace,
            process,
            started,
            number,
            part,
        } = self;
        write!(f, "tailwater-{namespace}-{process}-{started}-{number}")?;
        if let Some(part) = part {
            let how = if part.alone { "alone" } else { "shared" };
            write!(f, "-{how}-{}", part.level)?;
            part.caches.iter().try_for_each(|id| write!(f, "-{id}"))?;
        }
        Ok(())
    }
}

/// Returns the PID namespace of this process.
fn namespace() -> Option<u64> {
    Some(fs::metadata("/proc/self/ns/pid").ok()?.ino())
}

/// Returns the start time of a process in ticks since boot, or `None` if it does not run. A zombie counts as not
/// running.
fn started(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The process name is in parentheses and may contain blanks.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ours_lives() {
        let name = Name::ours(Some(Part {
            alone: true,
            level: "L3".to_owned(),
            caches: vec![0, 7],
        }))
        .unwrap();
        assert_eq!(Name::parse(&name.to_string()), Some(name.clone()));
        assert!(name.is_ours() && !name.is_dead());
        let later = Name {
            started: name.started + 1,
            ..name.clone()
        };
        assert!(!later.is_ours() && later.is_dead());
        let elsewhere = Name {
            namespace: name.namespace + 1,
            started: 0,
            ..name
        };
        assert!(!elsewhere.is_ours() && !elsewhere.is_dead());
    }

    #[test]
    fn others_names_are_not_ours() {
        for name in [
            "p0",
            "tailwater",
            "tailwater-1-2-3",
            "tailwater-1-2-3-4-",
            "tailwater-1-2-3-4-alone",
            "tailwater-1-2-3-4-mine-L3-0",
            "tailwater-1-2-3-4-alone-L4-0",
            "tailwater-1-2-3-4-alone-L3-x",
            "tailwater-+1-2-3-4",
            "tailwater-01-2-3-4",
        ] {
            assert_eq!(Name::parse(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_name_is_read_as_written(name in "tailwater-[0-9a-z-]{0,40}|.*") {
            if let Some(read) = Name::parse(&name) {
                prop_assert_eq!(read.to_string(), name);
            }
        }
    }
}
