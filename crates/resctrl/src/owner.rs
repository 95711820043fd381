//! Whose a group is: its name says it, so that what a killed process left is known.
//!
//! `tailwater-NAMESPACE-PID-START-NUMBER`, and for partitions `-alone-LEVEL-ID-ID...` or `-shared-LEVEL-ID-ID...`. Numbers of
//! processes are given out again, and mean something within their namespace only: hence its inode, and when the
//! process started.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::Error;

/// What a name says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    namespace: u64,
    process: u32,
    started: u64,
    number: u32,
    /// What it has a part of; in all other caches it has whatever the kernel gave it.
    pub part: Option<Part>,
}

/// Caches of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// Whether its ways there are its own.
    pub alone: bool,
    pub level: String,
    pub caches: Vec<u32>,
}

impl Part {
    /// Whether it has a part of that cache.
    pub(crate) fn is_of(&self, level: &str, cache: u32) -> bool {
        self.level == level && self.caches.contains(&cache)
    }
}

impl Name {
    /// A new one of this process.
    pub(crate) fn ours(part: Option<Part>) -> Result<Name, Error> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let process = process::id();
        let unknown = || Error::Absent {
            why: "/proc does not tell when this process started: mount -t proc proc /proc".to_owned(),
        };
        Ok(Name {
            namespace: namespace().ok_or_else(unknown)?,
            process,
            started: started(process).ok_or_else(unknown)?,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            part,
        })
    }

    /// Reads a name; `None` if it is no group of Tailwater's.
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
        // Only what we would write: no signs, no leading zeros.
        (name.to_string() == text).then_some(name)
    }

    /// Whether it is this process's.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == process::id()
            && namespace() == Some(self.namespace)
            && started(self.process) == Some(self.started)
    }

    /// Whether its process is known to be no more. Of another namespace nothing is known.
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

/// The namespace of this process's number.
fn namespace() -> Option<u64> {
    Some(fs::metadata("/proc/self/ns/pid").ok()?.ino())
}

/// When a process started, in ticks since the machine did; `None` if it does not run. One that is dead and not yet
/// waited for does not.
fn started(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Its name is in parentheses and may have blanks.
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
