//! The default group, to which everything else on the machine belongs. It loses the ways that other groups use
//! exclusively and gets them back later.
//!
//! Its original masks are stored in the file `default` of the state directory, which is written before the group is
//! changed. Its correct masks follow from this file and from the existing groups. So after a process was killed, the
//! next one can restore them. Values that another program has set meanwhile are kept.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use crate::error::Error;
use crate::mask::longest;
use crate::owner::{Name, Part};
use crate::text::{Schemata, syntax};
use crate::tree::Tree;

/// Ways by group name and cache, which override the groups' `schemata`.
pub(crate) type MaskOverrides = BTreeMap<String, BTreeMap<u32, u32>>;

/// Record of the changed values of the default group.
#[derive(Debug, Default, PartialEq, Eq)]
struct Journal {
    /// Values before all changes.
    original: Schemata,
    /// Values before the last change.
    before: Schemata,
    /// Values after the last change.
    written: Schemata,
}

const NAMES: [&str; 3] = ["original", "before", "written"];

impl Journal {
    fn parts(&self) -> [&Schemata; 3] {
        [&self.original, &self.before, &self.written]
    }

    fn read(path: &Path) -> Result<Journal, Error> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Journal::default()),
            Err(error) => {
                return Err(Error::File {
                    path: path.to_owned(),
                    error,
                });
            }
        };
        let mut parts = [const { String::new() }; 3];
        for (index, line) in text.lines().enumerate() {
            let named = line.split_once(' ').and_then(|(name, line)| {
                let part = NAMES.iter().position(|known| *known == name)?;
                Some((part, line))
            });
            let (part, line) = named.ok_or_else(|| syntax(path, index, "original, before or written", line))?;
            parts[part] += line;
            parts[part].push('\n');
        }
        let [original, before, written] = parts.map(|part| Schemata::parse(&part, path));
        Ok(Journal {
            original: original?,
            before: before?,
            written: written?,
        })
    }

    fn write(&self, path: &Path) -> Result<(), Error> {
        let file = |error| Error::File {
            path: path.to_owned(),
            error,
        };
        if self.original.resources.is_empty() {
            return match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file(error)),
                _ => Ok(()),
            };
        }
        let mut text = String::new();
        for (name, part) in NAMES.iter().zip(self.parts()) {
            part.to_text()
                .lines()
                .for_each(|line| text += &format!("{name} {line}\n"));
        }
        // Renaming makes the update atomic for readers.
        let new = path.with_extension("new");
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, path))
            .map_err(file)
    }
}

/// Returns the ways that groups use exclusively, by level and cache.
fn taken(tree: &Tree, instead: &MaskOverrides) -> Result<BTreeMap<(String, u32), u32>, Error> {
    let mut taken = BTreeMap::new();
    for group in tree.groups()? {
        let part = Name::parse(&group).and_then(|name| name.part);
        let Some(Part { level, caches, .. }) = part.filter(|part| part.alone) else {
            continue;
        };
        let schemata = match instead.contains_key(&group) {
            true => Schemata::default(),
            false => tree.schemata(&group)?,
        };
        for id in caches {
            let ways = match instead.get(&group) {
                Some(ways) => ways.get(&id).copied().unwrap_or(0),
                None => schemata.ways(&level, id),
            };
            *taken.entry((level.clone(), id)).or_default() |= ways;
        }
    }
    Ok(taken)
}

/// Sets the default group's masks to their correct values. Both locks must be held.
pub(crate) fn settle(tree: &Tree, state: &Path, instead: &MaskOverrides) -> Result<(), Error> {
    let path = state.join("default");
    let old = Journal::read(&path)?;
    let taken = taken(tree, instead)?;
    if taken.is_empty() && old == Journal::default() {
        return Ok(());
    }
    let current = tree.schemata("")?;
    let (mut journal, mut lasting) = (Journal::default(), Journal::default());
    for (resource, values) in &current.resources {
        let Some(level) = ["L2", "L3"].into_iter().find(|level| resource.starts_with(level)) else {
            continue;
        };
        for (&id, &now) in values {
            let taken = taken.get(&(level.to_owned(), id)).copied().unwrap_or(0);
            let known = old.parts().map(|part| part.get(resource, id));
            let original = match known[0].filter(|_| known.contains(&Some(now))) {
                Some(original) => original,
                // Never changed by this crate, or changed by another program since.
                None if taken & now == 0 => continue,
                None => now,
            };
            let wanted = match original & taken {
                0 => original,
                _ => longest(original & !taken).map_or(now, |mask| mask.bits()),
            };
            journal.original.set(resource, id, original);
            journal.before.set(resource, id, now);
            journal.written.set(resource, id, wanted);
            if wanted != original {
                lasting.original.set(resource, id, original);
                lasting.before.set(resource, id, wanted);
                lasting.written.set(resource, id, wanted);
            }
        }
    }
    if journal.before != journal.written {
        journal.write(&path)?;
        tree.write(&tree.root.join("schemata"), &journal.written.to_text())?;
    }
    match lasting == old {
        true => Ok(()),
        false => lasting.write(&path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_read_as_written() {
        let folder = std::env::temp_dir().join(format!("tailwater-journal-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("default");
        let mut journal = Journal::default();
        assert_eq!(Journal::read(&path).unwrap(), journal);
        journal.original.set("L3CODE", 3, 0xfffff);
        journal.original.set("L3DATA", 3, 0xfffff);
        journal.before.set("L3CODE", 3, 0xffff0);
        journal.written.set("L3CODE", 3, 0xfff00);
        journal.write(&path).unwrap();
        assert_eq!(Journal::read(&path).unwrap(), journal);
        fs::write(&path, "original L3:0=f\nnonsense\n").unwrap();
        let error = Journal::read(&path).unwrap_err().to_string();
        assert!(
            error.ends_with("default:2: expected original, before or written, found \"nonsense\""),
            "{error}"
        );
        Journal::default().write(&path).unwrap();
        assert!(!path.exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
