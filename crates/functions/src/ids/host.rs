//! Memory that the processes of an isolated detection function share, and the function's part in the host, which writes
//! the alert file.

use super::alert_ring::{AlertReader, AlertRing};
use super::eve::SharedEve;
use super::spec::IdsConfig;
use super::table::Options;
use crate::exporter::{ExportError, Exported};
use crate::kind::{FunctionError, HostPart, HostServices, IsolationContext, Requirements};
use crate::stream_pool::StreamPool;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tailwater_chain::shared_counters::{CounterArray, SharedCounters};
use tailwater_ids::ruleset::{BitNames, RuleSet};
use tailwater_ids::slots::slot_bytes;
use tailwater_ids::threshold::Thresholds;

/// Number and bytes of the stream buffers.
fn shape(options: &Options) -> (usize, usize) {
    (options.streams, slot_bytes(options.settings.window))
}

/// Number of alerts that could not be written and that no process has counted.
#[derive(Debug)]
pub(super) struct UnwrittenAlerts(CounterArray);

impl UnwrittenAlerts {
    pub(super) fn add(&self, lost: u64) {
        if lost > 0 {
            self.0[0].fetch_add(lost, Relaxed);
        }
    }

    /// Returns and resets the number. Writes no memory while it is 0.
    #[inline]
    pub(super) fn take(&self) -> u64 {
        match self.0[0].load(Relaxed) {
            0 => 0,
            _ => self.0[0].swap(0, Relaxed),
        }
    }
}

/// A process's part of the shared memory.
#[derive(Debug)]
pub(super) struct SharedParts {
    pub(super) thresholds: Thresholds,
    pub(super) stream_pool: StreamPool,
    /// Alerts for the host, if it writes them, and those that it could not write.
    pub(super) alerts: Option<(AlertRing, UnwrittenAlerts)>,
}

/// Takes the arrays in front of the stream pool.
fn first_arrays(shared_counters: &SharedCounters) -> (Thresholds, UnwrittenAlerts) {
    let seed = shared_counters.take_seed();
    let thresholds = Thresholds::with_words(shared_counters.take(Thresholds::WORDS), seed);
    (thresholds, UnwrittenAlerts(shared_counters.take(1)))
}

impl SharedParts {
    /// Takes the part of one of the processes.
    ///
    /// # Errors
    /// If there are too many streams.
    pub(super) fn new(options: &Options, isolation: &IsolationContext) -> io::Result<SharedParts> {
        let shared_counters = &isolation.shared_counters;
        let (thresholds, unwritten) = first_arrays(shared_counters);
        let stream_pool = StreamPool::sharing(shape(options), isolation.part, shared_counters)?;
        let [part, of] = isolation.part;
        let alerts = options.eve.is_some().then(|| {
            let rings: Vec<_> = (0..of).map(|_| AlertRing::new(shared_counters)).collect();
            let own = rings.into_iter().nth(part.into());
            own.map(|ring| (ring, unwritten))
        });
        Ok(SharedParts {
            thresholds,
            stream_pool,
            alerts: alerts.flatten(),
        })
    }

    /// Sets the sizes of the shared memory.
    pub(super) fn require(config: &IdsConfig, requirements: Requirements) -> Requirements {
        let options = &config.options;
        let words = [1, Thresholds::WORDS, 1].map(SharedCounters::bytes_of);
        let pool = |of| StreamPool::shared_bytes(shape(options), of);
        let ring = options.eve.as_ref().map_or(0, |_| AlertRing::shared_bytes());
        Requirements {
            shared_bytes: words.iter().sum::<usize>() + pool(0),
            shared_bytes_of_process: pool(1) - pool(0) + ring,
            host: Some(Arc::new(AlertHost(config.clone()))),
            ..requirements
        }
    }
}

/// Alert file of the configuration, for the host.
#[derive(Debug)]
struct AlertHost(IdsConfig);

impl HostPart for AlertHost {
    fn start(&self, shared_counters: &SharedCounters, processes: u16) -> Result<Arc<dyn HostServices>, FunctionError> {
        let IdsConfig {
            options,
            sources,
            loaded,
        } = &self.0;
        let (_, unwritten) = first_arrays(shared_counters);
        StreamPool::fill_shared(shape(options), processes, shared_counters)?;
        let Some(path) = &options.eve else {
            return Ok(Arc::new(NoAlertFile));
        };
        let rings = (0..processes).map(|_| AlertReader::new(AlertRing::new(shared_counters)));
        // Alerts name rules by their index: the processes load the same text.
        let rules = RuleSet::new(loaded.rules.to_vec(), &mut BitNames::default())?;
        let classes = sources.classes.clone();
        let eve = SharedEve::create(path, (Arc::new(rules), classes), (rings.collect(), unwritten))?;
        Ok(Arc::new(eve))
    }
}

/// Part in the host of a function without an alert file.
#[derive(Debug)]
struct NoAlertFile;

impl HostServices for NoAlertFile {
    fn finish(&self) -> Result<Vec<Exported>, ExportError> {
        Ok(Vec::new())
    }
}

impl HostServices for SharedEve {
    fn finish(&self) -> Result<Vec<Exported>, ExportError> {
        SharedEve::finish(self).map(Vec::from_iter)
    }
}
