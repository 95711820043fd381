//! Requests for partitions.

use std::fmt;

use crate::info::Level;
use crate::mask::Mask;

/// Choice of ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WayChoice {
    /// Any free ways of this number, excluding those into which hardware writes.
    Ways(u32),
    /// Exactly these ways.
    Exactly(Mask),
}

/// Request for a partition.
#[derive(Debug, Clone)]
pub struct PartitionRequest {
    /// Level of the caches.
    pub level: Level,
    /// Identifiers of the caches ([`Resctrl::cache_of_core`](crate::Resctrl::cache_of_core)). If empty, all caches of
    /// the level.
    pub caches: Vec<u32>,
    /// Ways of each cache.
    pub ways: WayChoice,
    /// `true` for exclusive use: no other group on the machine keeps the ways.
    pub alone: bool,
    /// Limit on memory bandwidth, in per cent (in MiB/s if mounted with `mba_MBps`).
    pub bandwidth: Option<u32>,
    /// Tasks (threads) of the partition.
    pub tasks: Vec<i32>,
    /// Cores of the partition. It applies to tasks on these cores that are in no other group.
    pub cores: Vec<u32>,
}

impl PartitionRequest {
    /// Requests `ways` ways of every last-level cache for exclusive use.
    pub fn exclusive(ways: u32) -> PartitionRequest {
        PartitionRequest {
            level: Level::L3,
            caches: Vec::new(),
            ways: WayChoice::Ways(ways),
            alone: true,
            bandwidth: None,
            tasks: Vec::new(),
            cores: Vec::new(),
        }
    }

    /// Requests `ways` ways of every last-level cache, shared with other groups.
    pub fn shared(ways: u32) -> PartitionRequest {
        PartitionRequest {
            alone: false,
            ..PartitionRequest::exclusive(ways)
        }
    }
}

/// Sharing mode of a group, enforced by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Other groups may have the same ways.
    Shareable,
    /// No other group may have any of the group's ways, in any cache.
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
