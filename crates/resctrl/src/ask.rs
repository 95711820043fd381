//! What a partition is to have.

use std::fmt;

use crate::info::Level;
use crate::mask::Mask;

/// Which ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// So many, wherever they are free, but never where hardware writes, too.
    Ways(u32),
    /// These.
    Exactly(Mask),
}

/// What a partition is to have.
#[derive(Debug, Clone)]
pub struct Ask {
    /// Of which caches.
    pub level: Level,
    /// Their numbers ([`Resctrl::cache_of_core`](crate::Resctrl::cache_of_core)); all, if empty.
    pub caches: Vec<u32>,
    /// Which ways of each.
    pub place: Place,
    /// Whether nobody else may have them: everything else on the machine goes without.
    pub alone: bool,
    /// The limit on memory bandwidth, in per cent (in MiB/s if mounted with `mba_MBps`).
    pub bandwidth: Option<u32>,
    /// Tasks (threads) that are in it.
    pub tasks: Vec<i32>,
    /// Cores on which tasks that are in no other group are in it.
    pub cores: Vec<u32>,
}

impl Ask {
    /// `ways` ways of every last-level cache, for its tasks alone.
    pub fn alone(ways: u32) -> Ask {
        Ask {
            level: Level::L3,
            caches: Vec::new(),
            place: Place::Ways(ways),
            alone: true,
            bandwidth: None,
            tasks: Vec::new(),
            cores: Vec::new(),
        }
    }

    /// At most `ways` ways of every last-level cache, which others use, too.
    pub fn shared(ways: u32) -> Ask {
        Ask {
            alone: false,
            ..Ask::alone(ways)
        }
    }
}

/// Whether the kernel lets another group have the same ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It does.
    Shareable,
    /// It refuses. All ways of the group, of all its caches, must be its own.
    Exclusive,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Shareable => "shareable",
            Mode::Exclusive => "exclusive",
        })
    }
}
