//! Capabilities of the processor, from the directory `info`.

use std::path::Path;

use crate::error::Error;
use crate::text::parse_number;
use crate::tree::Tree;

/// Resources that can be controlled and monitored on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    /// Ways of the last-level caches (CAT).
    pub l3: Option<CacheInfo>,
    /// Ways of the second-level caches.
    pub l2: Option<CacheInfo>,
    /// Memory bandwidth (MBA).
    pub bandwidth: Option<BandwidthInfo>,
    /// Monitoring (CMT, MBM).
    pub monitor: Option<MonitorInfo>,
}

/// Allocation of one level's caches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheInfo {
    /// Maximum number of groups, the default group included.
    pub closids: u32,
    /// Mask of all ways.
    pub mask: u32,
    /// Minimum number of ways of a group.
    pub min_ways: u32,
    /// Ways into which hardware writes as well (DDIO). Programs in these ways compete with arriving packets.
    pub shareable: u32,
    /// `true` if a group's ways need not be adjacent.
    pub sparse: bool,
    /// `true` if code and data have separate masks (CDP).
    pub cdp: bool,
}

/// Limits on memory bandwidth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BandwidthInfo {
    /// Maximum number of groups, the default group included.
    pub closids: u32,
    /// Lowest limit, in per cent.
    pub min: u32,
    /// Granularity of limits, in per cent. Values in between are rounded up.
    pub step: u32,
}

/// Monitoring of the last-level cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonitorInfo {
    /// Maximum number of monitored groups, monitoring-only groups included.
    pub rmids: u32,
    /// Supported events: `llc_occupancy`, `mbm_total_bytes`, `mbm_local_bytes`.
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

    /// Returns a level's caches, or `None` if their ways cannot be allocated.
    pub fn cache(&self, level: Level) -> Option<&CacheInfo> {
        match level {
            Level::L2 => self.l2.as_ref(),
            Level::L3 => self.l3.as_ref(),
        }
    }

    /// Returns the maximum number of simultaneous groups, the default group included. This is the minimum over all
    /// resources.
    pub fn closids(&self) -> u32 {
        let caches = self.l3.iter().chain(&self.l2).map(|cache| cache.closids);
        let all = caches.chain(self.bandwidth.iter().map(|memory| memory.closids));
        all.min().unwrap_or(0)
    }
}

/// Level of caches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Level {
    /// Second-level caches, usually one per core.
    L2,
    /// Last-level caches, usually one per socket.
    #[default]
    L3,
}

impl Level {
    /// Returns `L2` or `L3`.
    pub fn name(self) -> &'static str {
        match self {
            Level::L2 => "L2",
            Level::L3 => "L3",
        }
    }

    /// Returns the names of the level's lines in `schemata`.
    pub(crate) fn resources(self, info: &CacheInfo) -> Vec<String> {
        let names: &[&str] = match info.cdp {
            true => &["CODE", "DATA"],
            false => &[""],
        };
        names.iter().map(|part| format!("{}{part}", self.name())).collect()
    }
}
