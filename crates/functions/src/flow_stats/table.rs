//! State that a function's workers share: one exporter per outlet.

use super::losses::Losses;
use super::outlet::{Options, Outlet};
use super::record::FlowRecord;
use super::session::Session;
use super::sink::SessionSink;
use crate::exporter::{ExportError, Exported, Exporter, LossCounters, Sender};
use crate::origin::Origin;
use crate::out_file::Pulse;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tailwater_net::Nanos;

/// Records per worker that can wait for an outlet: 1.3 MiB.
const RING: usize = 1 << 14;

/// A worker's sender to an outlet.
#[derive(Debug)]
pub(super) struct OutletSender {
    records: Sender<SessionSink>,
    losses: Arc<Losses>,
}

impl OutletSender {
    /// Sends a record. Returns `false` if it is lost because the ring is full.
    pub(super) fn send(&mut self, record: &FlowRecord) -> bool {
        let has_room = self.records.send(*record);
        self.count(record, has_room)
    }

    /// Same as [`send`](OutletSender::send), but waits for room. The record is lost only if the outlet has ended or
    /// hangs.
    pub(super) fn send_waiting(&mut self, record: &FlowRecord) -> bool {
        let has_room = self.records.send_waiting(*record);
        self.count(record, has_room)
    }

    fn count(&self, record: &FlowRecord, has_room: bool) -> bool {
        if !has_room {
            self.losses.add_without_room(record);
        }
        has_room
    }
}

/// Exporter of records to one outlet.
#[derive(Debug)]
struct OutletExporter {
    /// Name used in errors.
    name: PathBuf,
    losses: Arc<Losses>,
    exporter: Exporter<SessionSink>,
}

impl OutletExporter {
    fn start(
        outlet: &Outlet,
        options: &Options,
        origin: &Arc<Origin>,
        unsent: &Arc<LossCounters<1>>,
    ) -> Result<OutletExporter, ExportError> {
        let name = outlet.name();
        let losses = Arc::new(Losses::new(Arc::clone(unsent)));
        let pulse = Pulse::default();
        let session = Session::new(outlet, options, Arc::clone(origin), Arc::clone(&losses), pulse.clone());
        let exporter = session.and_then(|session| Exporter::start(SessionSink::new(session), pulse));
        Ok(OutletExporter {
            exporter: exporter.map_err(ExportError::write(&name))?,
            name,
            losses,
        })
    }

    fn sender(&self) -> OutletSender {
        OutletSender {
            records: self.exporter.sender(RING, ()),
            losses: Arc::clone(&self.losses),
        }
    }

    fn finish(&self) -> Result<Option<Exported>, ExportError> {
        let Some(sent) = self.exporter.finish() else {
            return Ok(None);
        };
        let records = sent.map_err(ExportError::write(&self.name))?;
        let file = self.name.clone();
        match self.losses.not_sent().records {
            0 => Ok(Some(Exported { file, records })),
            lost => Err(ExportError::Undelivered {
                file,
                lost,
                records: records + lost,
            }),
        }
    }
}

/// State shared by all workers of a function.
#[derive(Debug)]
pub struct FlowStatsTable {
    options: Options,
    outlets: Vec<OutletExporter>,
    /// Start of the run in wall-clock time.
    origin: Arc<Origin>,
    /// Records lost behind the rings, until a worker counts them.
    unsent: Arc<LossCounters<1>>,
    /// Number of instances that may have more records.
    instances: AtomicUsize,
}

impl FlowStatsTable {
    /// Creates the files and starts a thread for each outlet. Collectors are connected later.
    ///
    /// # Errors
    /// If a file cannot be created or a thread cannot be started.
    pub fn new(options: Options) -> Result<FlowStatsTable, ExportError> {
        let (origin, unsent) = (Arc::default(), Arc::default());
        let outlets = options.outlets.iter();
        let outlets = outlets.map(|outlet| OutletExporter::start(outlet, &options, &origin, &unsent));
        Ok(FlowStatsTable {
            outlets: outlets.collect::<Result<_, ExportError>>()?,
            options,
            origin,
            unsent,
            instances: AtomicUsize::new(0),
        })
    }

    /// Returns the options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns a worker's senders, one per outlet and in their order. [`deregister`](FlowStatsTable::deregister) takes
    /// them back.
    pub(super) fn senders(&self) -> Vec<OutletSender> {
        self.instances.fetch_add(1, Ordering::Relaxed);
        self.outlets.iter().map(OutletExporter::sender).collect()
    }

    /// Sets the start of the run from the time since then. Only the first call has an effect.
    #[inline]
    pub(super) fn set_origin(&self, now: Nanos) {
        self.origin.set_by(now);
    }

    /// Returns and resets the number of records that outlets could not send.
    #[inline]
    pub(super) fn take_unsent(&self) -> u64 {
        let [unsent] = self.unsent.take();
        unsent
    }

    /// Deregisters a worker that has no more records. Returns `true` for the last worker.
    pub(super) fn deregister(&self, senders: Vec<OutletSender>) -> bool {
        drop(senders);
        self.instances.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Waits until all records are sent or lost. Every worker must have [left](FlowStatsTable::deregister).
    pub(super) fn end(&self) {
        self.outlets.iter().for_each(|outlet| outlet.exporter.end());
    }

    /// Declares that a worker receives no more packets. From then on it waits for slow outlets.
    pub(super) fn begin_drain(&self) {
        self.outlets.iter().for_each(|outlet| outlet.exporter.begin_drain());
    }

    /// Waits until all records are sent or given up. All workers' chains must have
    /// [drained](tailwater_chain::chain::Chain::drain).
    ///
    /// # Errors
    /// The error of the first outlet that lost records or whose file could not be written.
    pub fn finish(&self) -> Result<Vec<Exported>, ExportError> {
        let finished: Vec<_> = self.outlets.iter().map(OutletExporter::finish).collect();
        finished.into_iter().filter_map(Result::transpose).collect()
    }
}
