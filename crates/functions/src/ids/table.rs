//! State shared by all workers of a detection function.

use super::alert_ring::AlertRing;
use super::eve::Eve;
use super::shared::{SharedParts, SharedSizes, UnwrittenAlerts};
use super::sources::{Loaded, Sources};
use crate::exporter::{ExportError, Exported};
use crate::kind::IsolationContext;
use crate::stream_pool::{StreamPool, stride};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tailwater_chain::live::Live;
use tailwater_ids::inspector::Settings;
use tailwater_ids::ruleset::{BitNames, RuleSet, RuleSetError};
use tailwater_ids::slots::slot_bytes;
use tailwater_ids::threshold::Thresholds;

/// Options of a detection function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Settings of packet inspection.
    pub settings: Settings,
    /// Connections whose streams are reassembled at a time, all workers together; at most 1,048,575.
    pub streams: usize,
    /// Path of the alert file, if any.
    pub eve: Option<PathBuf>,
}

impl Options {
    /// Returns the sizes of the memory that processes of an isolated function share.
    pub(super) fn shared_sizes(&self) -> SharedSizes {
        SharedSizes {
            streams: self.streams,
            window: self.settings.window,
            has_alerts: self.eve.is_some(),
        }
    }

    /// Returns the bytes of memory for all streams.
    pub fn stream_memory(&self) -> u64 {
        self.streams as u64 * stride(slot_bytes(self.settings.window)) as u64
    }
}

/// Reasons rules cannot take effect.
#[derive(Debug, thiserror::Error)]
pub enum IdsError {
    /// Too many rules.
    #[error("{0}")]
    Rules(#[from] RuleSetError),
    /// Not enough memory for streams.
    #[error("not enough memory for {streams} streams ({source}): lower streams or windowBytes")]
    Memory {
        /// Streams requested.
        streams: usize,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The alert file cannot be written.
    #[error("{0}")]
    Eve(#[from] ExportError),
}

/// Rules of a detection function, and the memory for its streams.
#[derive(Debug)]
pub struct IdsTable {
    pub(super) rules: Live<Arc<RuleSet>>,
    pub(super) thresholds: Arc<Thresholds>,
    pub(super) stream_pool: Arc<StreamPool>,
    pub(super) options: Options,
    pub(super) eve: Option<Eve>,
    /// Alerts for the host, which writes them, and those that it could not write: in a process of an isolated function.
    pub(super) alerts: Option<(AlertRing, UnwrittenAlerts)>,
    names: Mutex<BitNames>,
    /// Fingerprint of the first rules, and their version.
    first: (u64, u32),
}

impl IdsTable {
    /// Compiles the rules and allocates stream memory. `seed` decides which threshold counters share a slot.
    ///
    /// # Errors
    /// There are too many rules, memory is short, or the alert file cannot be created.
    pub fn new((sources, loaded): (&Sources, &Loaded), options: &Options, seed: u64) -> Result<IdsTable, IdsError> {
        let mut names = BitNames::default();
        let rules = Arc::new(RuleSet::new(loaded.rules.to_vec(), &mut names)?);
        let bytes = slot_bytes(options.settings.window);
        let stock = StreamPool::new(options.streams, bytes).map_err(|source| IdsError::Memory {
            streams: options.streams,
            source,
        })?;
        let eve = match &options.eve {
            Some(path) => Some(Eve::create(path, Arc::clone(&rules), sources.classes.clone())?),
            None => None,
        };
        let rules = Live::new(rules);
        Ok(IdsTable {
            first: (loaded.fingerprint(), rules.number()),
            rules,
            thresholds: Arc::new(Thresholds::new(seed)),
            stream_pool: Arc::new(stock),
            options: options.clone(),
            eve,
            alerts: None,
            names: Mutex::new(names),
        })
    }

    /// Same as [`new`](IdsTable::new), for a process of an isolated function. The processes share streams and
    /// thresholds; the host writes the alerts.
    ///
    /// # Errors
    /// There are too many rules or streams.
    pub(super) fn sharing(
        loaded: &Loaded,
        options: &Options,
        isolation: &IsolationContext,
    ) -> Result<IdsTable, IdsError> {
        let mut names = BitNames::default();
        let rules = Live::new(Arc::new(RuleSet::new(loaded.rules.to_vec(), &mut names)?));
        let parts = SharedParts::new(options.shared_sizes(), isolation).map_err(|source| IdsError::Memory {
            streams: options.streams,
            source,
        })?;
        Ok(IdsTable {
            first: (loaded.fingerprint(), rules.number()),
            rules,
            thresholds: Arc::new(parts.thresholds),
            stream_pool: Arc::new(parts.stream_pool),
            options: options.clone(),
            eve: None,
            alerts: parts.alerts,
            names: Mutex::new(names),
        })
    }

    /// Fingerprint of the rules: where it is the same, rules and flowbits have the same numbers. `None` if they were
    /// loaded again since the start.
    pub(super) fn fingerprint(&self) -> Option<u64> {
        let (fingerprint, version) = self.first;
        (self.rules.number() == version).then_some(fingerprint)
    }

    /// Compiles new rules without activating them. Flowbits keep their numbers.
    ///
    /// # Errors
    /// There are too many rules; the current ones remain in effect.
    pub(crate) fn prepare(&self, loaded: &Loaded) -> Result<Arc<RuleSet>, IdsError> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let rules = RuleSet::new(loaded.rules.to_vec(), &mut names)?;
        self.rules.free_unused();
        Ok(Arc::new(rules))
    }

    /// Replaces the rules of running workers, and returns the new version number.
    pub(crate) fn put(&self, rules: Arc<RuleSet>) -> u32 {
        // The lock serialises replacements.
        let _names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        // The alert writer gets the rules before any worker can raise alerts with them.
        if let Some(eve) = &self.eve {
            let number = tailwater_chain::live::number_after(self.rules.number());
            eve.renew(number, Arc::clone(&rules));
        }
        self.rules.replace(rules)
    }

    /// Waits until all alerts are in the file. All workers' chains must have
    /// [drained](tailwater_chain::chain::Chain::drain).
    /// Returns `None` if there is no file or it was finished before.
    ///
    /// # Errors
    /// The first write error, or missing alerts.
    pub fn finish(&self) -> Result<Option<Exported>, ExportError> {
        self.eve.as_ref().map_or(Ok(None), Eve::finish)
    }
}
