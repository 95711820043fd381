//! What the processor can do: the directory `info`.

use std::path::Path;

use crate::error::Error;
use crate::text::parse_number;
use crate::tree::Tree;

/// What can be controlled and watched here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    /// Ways of the last-level cache, of each (CAT).
    pub l3: Option<CacheInfo>,
    /// Ways of second-level caches.
    pub l2: Option<CacheInfo>,
    /// Memory bandwidth (MBA).
    pub bandwidth: Option<BandwidthInfo>,
    /// What can be watched (CMT, MBM).
    pub monitor: Option<MonitorInfo>,
}

/// A level of caches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheInfo {
    /// How many groups there can be, the default group included.
    pub closids: u32,
    /// All ways.
    pub mask: u32,
    /// The fewest ways that a group can have.
    pub min_ways: u32,
    /// Ways into which hardware writes, too (DDIO): programs there suffer from packets that arrive.
    pub shareable: u32,
    /// Whether a group's ways need not be neighbours.
    pub sparse: bool,
    /// Whether code and data have masks of their own (CDP).
    pub cdp: bool,
}

/// Limits on memory bandwidth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BandwidthInfo {
    /// How many groups there can be, the default group included.
    pub closids: u32,
    /// The lowest limit, in per cent.
    pub min: u32,
    /// Limits between are rounded up to steps of so much, in per cent.
    pub step: u32,
}

/// Monitoring of the last-level cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonitorInfo {
    /// How many groups can be watched, groups that only watch included.
    pub rmids: u32,
    /// `llc_occupancy`, `mbm_total_bytes`, `mbm_local_bytes`.
    pub events: Vec<String>,
}

impl Info {
    pub(crate) fn read(tree: &Tree) -> Result<Info, Error> {
        let info = tree.root.join("info");
        let number = |path: &Path, radix| parse_number(&tree.read(path)?, radix, path);
        let number_or = |path: &Path, radix, otherwise| match tree.read_if_there(path)? {
            Some(text) => parse_number(&text, radix, path),
            None => Ok(otherwise),
        };
        let cache = |level: &str| -> Result<Option<CacheInfo>, Error> {
            let code = info.join(format!("{level}CODE"));
            let cdp = code.is_dir();
            let at = match cdp {
                true => code,
                false => info.join(level),
            };
            if !at.is_dir() {
                return Ok(None);
            }
            Ok(Some(CacheInfo {
                closids: number(&at.join("num_closids"), 10)?,
                mask: number(&at.join("cbm_mask"), 16)?,
                min_ways: number(&at.join("min_cbm_bits"), 10)?,
                shareable: number_or(&at.join("shareable_bits"), 16, 0)?,
                sparse: number_or(&at.join("sparse_masks"), 10, 0)? != 0,
                cdp,
            }))
        };
        let memory = info.join("MB");
        let monitor = info.join("L3_MON");
        Ok(Info {
            l3: cache("L3")?,
            l2: cache("L2")?,
            bandwidth: match memory.is_dir() {
                true => Some(BandwidthInfo {
                    closids: number(&memory.join("num_closids"), 10)?,
                    min: number(&memory.join("min_bandwidth"), 10)?,
                    step: number(&memory.join("bandwidth_gran"), 10)?,
                }),
                false => None,
            },
            monitor: match monitor.is_dir() {
                true => Some(MonitorInfo {
                    rmids: number(&monitor.join("num_rmids"), 10)?,
                    events: tree
                        .read(&monitor.join("mon_features"))?
                        .lines()
                        .map(|line| line.trim().to_owned())
                        .filter(|event| !event.ends_with("_config"))
                        .collect(),
                }),
                false => None,
            },
        })
    }

    /// A level of caches, if its ways can be given out.
    pub fn cache(&self, level: Level) -> Option<&CacheInfo> {
        match level {
            Level::L2 => self.l2.as_ref(),
            Level::L3 => self.l3.as_ref(),
        }
    }

    /// How many groups there can be at a time, the default group included: the fewest of all resources.
    pub fn closids(&self) -> u32 {
        let caches = self.l3.iter().chain(&self.l2).map(|cache| cache.closids);
        let all = caches.chain(self.bandwidth.iter().map(|memory| memory.closids));
        all.min().unwrap_or(0)
    }
}

/// A level of caches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Level {
    /// Second-level caches, usually one a core.
    L2,
    /// Last-level caches, usually one a socket.
    #[default]
    L3,
}

impl Level {
    /// `L2` or `L3`.
    pub fn name(self) -> &'static str {
        match self {
            Level::L2 => "L2",
            Level::L3 => "L3",
        }
    }

    /// Names of its lines in `schemata`.
    pub(crate) fn resources(self, info: &CacheInfo) -> Vec<String> {
        let names: &[&str] = match info.cdp {
            true => &["CODE", "DATA"],
            false => &[""],
        };
        names.iter().map(|part| format!("{}{part}", self.name())).collect()
    }
}
