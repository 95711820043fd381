//! What all workers of a detection function share.

use super::eve::Eve;
use super::sources::{Loaded, Sources};
use crate::accounting::{ExportError, Exported};
use crate::stock::{Stock, stride};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tailwater_chain::live::Live;
use tailwater_ids::inspector::Settings;
use tailwater_ids::ruleset::{BitNames, RuleSet, RuleSetError};
use tailwater_ids::slots::slot_bytes;
use tailwater_ids::threshold::Thresholds;

/// How a detection function works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How packets are inspected.
    pub settings: Settings,
    /// Connections whose streams are followed at a time, of all workers together; at most 1,048,575.
    pub streams: usize,
    /// Where alerts go, if anywhere.
    pub eve: Option<PathBuf>,
}

impl Options {
    /// Bytes of all streams' memory.
    pub fn stream_memory(&self) -> u64 {
        self.streams as u64 * stride(slot_bytes(self.settings.window)) as u64
    }
}

/// Why rules cannot be put in force.
#[derive(Debug, thiserror::Error)]
pub enum IdsError {
    /// They are too many.
    #[error("{0}")]
    Rules(#[from] RuleSetError),
    /// There is not enough memory for streams.
    #[error("there is no memory for {streams} streams ({source}): lower streams or windowBytes")]
    Memory {
        /// The streams asked for.
        streams: usize,
        /// What the system says.
        source: io::Error,
    },
    /// Alerts cannot be written.
    #[error("{0}")]
    Eve(#[from] ExportError),
}

/// Rules of a detection function, and the memory for its streams.
#[derive(Debug)]
pub struct IdsTable {
    pub(super) rules: Live<Arc<RuleSet>>,
    pub(super) thresholds: Arc<Thresholds>,
    pub(super) stock: Arc<Stock>,
    pub(super) options: Options,
    pub(super) eve: Option<Eve>,
    names: Mutex<BitNames>,
}

impl IdsTable {
    /// Puts rules in force. `seed` decides what shares a place where matches are counted.
    ///
    /// # Errors
    /// What there is not enough of; the file for alerts cannot be written.
    pub fn new((sources, loaded): (&Sources, &Loaded), options: &Options, seed: u64) -> Result<IdsTable, IdsError> {
        let mut names = BitNames::default();
        let rules = Arc::new(RuleSet::new(loaded.rules.to_vec(), &mut names)?);
        let bytes = slot_bytes(options.settings.window);
        let stock = Stock::new(options.streams, bytes).map_err(|source| IdsError::Memory {
            streams: options.streams,
            source,
        })?;
        let eve = match &options.eve {
            Some(path) => Some(Eve::create(path, Arc::clone(&rules), sources.classes.clone())?),
            None => None,
        };
        Ok(IdsTable {
            rules: Live::new(rules),
            thresholds: Arc::new(Thresholds::new(seed)),
            stock: Arc::new(stock),
            options: options.clone(),
            eve,
            names: Mutex::new(names),
        })
    }

    /// Makes rules ready to be put in force. Bits of connections keep their numbers.
    ///
    /// # Errors
    /// They are too many: those in force stay.
    pub(crate) fn prepare(&self, loaded: &Loaded) -> Result<Arc<RuleSet>, IdsError> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let rules = RuleSet::new(loaded.rules.to_vec(), &mut names)?;
        self.rules.free_unheld();
        Ok(Arc::new(rules))
    }

    /// Replaces the rules under the workers. Returns their number.
    pub(crate) fn put(&self, rules: Arc<RuleSet>) -> u32 {
        // Nobody else replaces them meanwhile.
        let _names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever writes what they tell knows them first.
        if let Some(eve) = &self.eve {
            let number = tailwater_chain::live::number_after(self.rules.number());
            eve.renew(number, Arc::clone(&rules));
        }
        self.rules.replace(rules)
    }

    /// Waits until all alerts are in their file, all workers' chains having
    /// [finished](tailwater_chain::chain::Chain::finish). `None` if there is no file, or not any more.
    ///
    /// # Errors
    /// The first error of writing; alerts that are missing.
    pub fn finish(&self) -> Result<Option<Exported>, ExportError> {
        self.eve.as_ref().map_or(Ok(None), Eve::finish)
    }
}
