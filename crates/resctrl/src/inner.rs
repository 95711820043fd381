//! The mounted file system, and how it is changed.

use std::fs::File;

use crate::changes::{Changes, all_or_nothing};
use crate::error::Error;
use crate::info::Info;
use crate::mount::{Settings, User, lock_state, lock_tree, unmount};
use crate::tree::Tree;

/// State shared by clones of [`Resctrl`](crate::Resctrl) and the groups made through them.
#[derive(Debug)]
pub(crate) struct Inner {
    pub settings: Settings,
    pub tree: Tree,
    pub info: Info,
    pub user: User,
}

/// Exclusive locks. While they are held, no other process changes anything.
pub(crate) struct Locks {
    // Dropped in this order: unmounting holds the state lock only.
    _tree: File,
    _state: File,
}

impl Inner {
    /// Takes the exclusive locks, and waits for them if others hold them.
    ///
    /// # Errors
    /// A lock cannot be taken within the time of the settings.
    pub fn lock(&self) -> Result<Locks, Error> {
        let state = lock_state(&self.settings)?;
        let tree = lock_tree(&self.tree.root, &self.settings)?;
        Ok(Locks {
            _tree: tree,
            _state: state,
        })
    }

    /// Sets the default group's masks to their correct values. Both locks must be held.
    ///
    /// # Errors
    /// A group cannot be read or written.
    pub fn settle(&self) -> Result<(), Error> {
        crate::default::settle(&self.tree, &self.settings.state, &crate::default::MaskOverrides::new())
    }

    /// Applies changes, and reverts all of them if one fails.
    ///
    /// # Errors
    /// The error of `change`.
    pub fn all_or_nothing<T>(&self, change: impl FnOnce(&mut Changes) -> Result<T, Error>) -> Result<T, Error> {
        all_or_nothing(&self.tree, &self.settings.state, change)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A file system that stays mounted is unmounted by the next process that exits.
        if let Ok(_state) = lock_state(&self.settings) {
            let _ = unmount(&self.settings, &self.tree.root, &self.user);
        }
    }
}
