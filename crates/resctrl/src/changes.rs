//! Changes that are taken back together if one of them fails.

use std::path::{Path, PathBuf};

use crate::default::{Instead, settle};
use crate::error::Error;
use crate::tree::Tree;

/// What was done, and how it is taken back.
enum Step {
    /// A group was made.
    Made(PathBuf),
    /// A file had this text.
    Wrote(PathBuf, String),
    /// The default group was given something else.
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

    /// Writes to a file of a group that was made just now, and goes with it.
    pub(crate) fn write_new(&mut self, path: &Path, text: &str) -> Result<(), Error> {
        self.tree.write(path, text)
    }

    /// Writes to a file; `old` written to `back` takes it back.
    pub(crate) fn write(&mut self, path: &Path, text: &str, back: &Path, old: &str) -> Result<(), Error> {
        self.tree.write(path, text)?;
        self.done.push(Step::Wrote(back.to_owned(), old.to_owned()));
        Ok(())
    }

    /// Takes from the default group what others are about to have.
    pub(crate) fn settle(&mut self, instead: &Instead) -> Result<(), Error> {
        // A group that was made just now has all ways until it is told which. It goes first, and then everything is put
        // right.
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
                Step::Settled => settle(self.tree, self.state, &Instead::new()),
            };
            match undone {
                // What is gone needs nothing taken back, nor does a task that has ended.
                Ok(()) | Err(Error::Vanished { .. } | Error::NoTask { .. }) => {}
                Err(error) => first = first.and(Err(error)),
            }
        }
        first.and(settle(self.tree, self.state, &Instead::new()))
    }
}

/// Does all of it, or nothing.
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
