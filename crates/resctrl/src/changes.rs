//! Transactions: changes that are undone together if one of them fails.

use std::path::{Path, PathBuf};

use crate::default::{MaskOverrides, settle};
use crate::error::Error;
use crate::tree::Tree;

/// A completed change, with the data to undo it.
enum Step {
    /// A group was created.
    Made(PathBuf),
    /// A file was written. Contains its previous text.
    Wrote(PathBuf, String),
    /// The default group's masks were changed.
    Settled,
}

pub(crate) struct Changes<'a> {
    tree: &'a Tree,
    state: &'a Path,
    done: Vec<Step>,
}

impl Changes<'_> {
    pub(crate) fn make(&mut self, path: &Path) -> Result<(), Error> {
        self.tree.make(path)?;
        self.done.push(Step::Made(path.to_owned()));
        Ok(())
    }

    /// Writes to a file of a group created in this transaction. Removing the group undoes the write.
    pub(crate) fn write_new(&mut self, path: &Path, text: &str) -> Result<(), Error> {
        self.tree.write(path, text)
    }

    /// Writes to a file. The change is undone by writing `old` to `back`.
    pub(crate) fn write(&mut self, path: &Path, text: &str, back: &Path, old: &str) -> Result<(), Error> {
        self.tree.write(path, text)?;
        self.done.push(Step::Wrote(back.to_owned(), old.to_owned()));
        Ok(())
    }

    /// Removes ways from the default group that other groups are about to get.
    pub(crate) fn settle(&mut self, instead: &MaskOverrides) -> Result<(), Error> {
        // A group created in this transaction has all ways until its mask is written. Undo removes it first and then
        // restores the default group.
        if !self.done.iter().any(|step| matches!(step, Step::Made(_))) {
            self.done.push(Step::Settled);
        }
        settle(self.tree, self.state, instead)
    }

    fn undo(self) -> Result<(), Error> {
        let mut first = Ok(());
        for step in self.done.into_iter().rev() {
            let undone = match step {
                Step::Made(path) => self.tree.remove(&path),
                Step::Wrote(path, old) => self.tree.write(&path, &old),
                Step::Settled => settle(self.tree, self.state, &MaskOverrides::new()),
            };
            match undone {
                // A removed group or an ended task needs no undo.
                Ok(()) | Err(Error::Vanished { .. } | Error::NoTask { .. }) => {}
                Err(error) => first = first.and(Err(error)),
            }
        }
        first.and(settle(self.tree, self.state, &MaskOverrides::new()))
    }
}

/// Applies all changes of `change`, or none.
pub(crate) fn all_or_nothing<T>(
    tree: &Tree,
    state: &Path,
    change: impl FnOnce(&mut Changes) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut changes = Changes {
        tree,
        state,
        done: Vec::new(),
    };
    change(&mut changes).map_err(|first| match changes.undo() {
        Ok(()) => first,
        Err(then) => Error::NotUndone {
            first: first.into(),
            then: then.into(),
        },
    })
}
