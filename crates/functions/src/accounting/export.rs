//! Export of flow records to a file. One thread writes the records of all workers.

use crate::exporter::{ExportError, Exported, Exporter, RecordFile, Sender, Sink, Source, UnwrittenRecords};
use crate::out_file::Pulse;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos};

/// Records per worker that can wait for the disk: 1.5 MiB.
const RING: usize = 1 << 14;

/// File format of flow records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExportFormat {
    /// Comma-separated values (RFC 4180) with a header line.
    #[default]
    Csv,
    /// JSON Lines: one object per line.
    Json,
}

/// Record of a flow, or of a part of a long one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowRecord {
    pub(super) key: FlowKey,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    /// Union of all segments' flags.
    pub(super) flags: TcpFlags,
    pub(super) first: Nanos,
    pub(super) last: Nanos,
}

const HEADER: &str = "source,destination,protocol,source_port,destination_port,fragments,packets,\
                      bytes,tcp_flags,first_us,last_us\n";

impl FlowRecord {
    fn write(&self, format: ExportFormat, out: &mut impl Write) -> io::Result<()> {
        let FlowRecord {
            key,
            packets,
            bytes,
            flags,
            ..
        } = self;
        let (source, destination) = (key.source(), key.destination());
        let (source_port, destination_port) = (key.source_port(), key.destination_port());
        let (protocol, fragments) = (key.protocol(), key.is_fragment());
        // Negative if another instance received the packet before this run.
        let micros = |time: Nanos| time.0 as i64 / 1000;
        let (first, last) = (micros(self.first), micros(self.last));
        // No value needs quoting in CSV. In JSON only the text fields are quoted.
        match format {
            ExportFormat::Csv => writeln!(
                out,
                "{source},{destination},{protocol},{source_port},{destination_port},{},\
                 {packets},{bytes},{flags},{first},{last}",
                u8::from(fragments)
            ),
            ExportFormat::Json => writeln!(
                out,
                "{{\"source\":\"{source}\",\"destination\":\"{destination}\",\
                 \"protocol\":{protocol},\"source_port\":{source_port},\
                 \"destination_port\":{destination_port},\"fragments\":{fragments},\
                 \"packets\":{packets},\"bytes\":{bytes},\"tcp_flags\":\"{flags}\",\
                 \"first_us\":{first},\"last_us\":{last}}}"
            ),
        }
    }
}

/// Totals over all workers that have finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Flow records. A long flow may have several.
    pub records: u64,
    /// Packets.
    pub packets: u64,
    /// Bytes of the frames, without the frame check sequence.
    pub bytes: u64,
    /// Records lost because the ring was full.
    pub lost_records: u64,
}

impl Totals {
    pub(super) fn add(&mut self, other: &Totals) {
        self.records += other.records;
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.lost_records += other.lost_records;
    }
}

/// CSV or JSON Lines file of flow records.
#[derive(Debug)]
pub(super) struct FlowRecordFile {
    file: RecordFile,
    format: ExportFormat,
}

impl FlowRecordFile {
    fn create(
        path: &Path,
        format: ExportFormat,
        pulse: &Pulse,
        unwritten: Arc<UnwrittenRecords>,
    ) -> Result<FlowRecordFile, ExportError> {
        let header = match format {
            ExportFormat::Csv => HEADER,
            ExportFormat::Json => "",
        };
        let file = RecordFile::create(path, header, pulse, unwritten).map_err(ExportError::write(path))?;
        Ok(FlowRecordFile { file, format })
    }
}

impl Sink for FlowRecordFile {
    type Record = FlowRecord;
    type PerSender = ();

    const THREAD: &'static str = "flow-records";
    const POLL_INTERVAL: Duration = Duration::from_millis(50);
    const WAKE_EVERY: Option<u32> = Some(1024);
    const RECORDS_PER_POLL: usize = 1024;

    fn put(&mut self, record: &FlowRecord, _sender: &mut ()) {
        self.file.write(|out| record.write(self.format, out));
    }

    fn finish(self, _sources: &[Source<Self>], _abandoned: bool) -> io::Result<u64> {
        self.file.finish()
    }
}

/// State shared by the workers of an `Accounting` function.
#[derive(Debug, Default)]
pub struct AccountingTable {
    totals: Mutex<Totals>,
    export: Option<Export>,
}

/// The file's name and the thread that writes it.
#[derive(Debug)]
struct Export {
    file: PathBuf,
    exporter: Exporter<FlowRecordFile>,
    unwritten: Arc<UnwrittenRecords>,
}

impl AccountingTable {
    /// Creates a table without a file: only totals are counted.
    pub fn new() -> AccountingTable {
        AccountingTable::default()
    }

    /// Creates a table, its file and the thread that writes the file.
    ///
    /// # Errors
    /// If the file or the thread cannot be created.
    pub fn with_export(path: &Path, format: ExportFormat) -> Result<AccountingTable, ExportError> {
        let (table, file) = AccountingTable::paused(path, format)?;
        table.launch(file)?;
        Ok(table)
    }

    /// Creates a table and its file, but not the thread.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub(super) fn paused(path: &Path, format: ExportFormat) -> Result<(AccountingTable, FlowRecordFile), ExportError> {
        let pulse = Pulse::default();
        let unwritten = Arc::default();
        let file = FlowRecordFile::create(path, format, &pulse, Arc::clone(&unwritten))?;
        let export = Export {
            file: path.to_owned(),
            exporter: Exporter::paused(pulse),
            unwritten,
        };
        let table = AccountingTable {
            totals: Mutex::default(),
            export: Some(export),
        };
        Ok((table, file))
    }

    /// Starts the thread of a paused table.
    ///
    /// # Errors
    /// If the thread cannot be created.
    pub(super) fn launch(&self, file: FlowRecordFile) -> Result<(), ExportError> {
        let launched = self.export.as_ref().map(|export| {
            let launched = export.exporter.launch(file);
            launched.map_err(ExportError::write(&export.file))
        });
        launched.unwrap_or(Ok(()))
    }

    /// Returns the totals of the workers that have finished.
    pub fn totals(&self) -> Totals {
        *self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, totals: &Totals) {
        let mut all = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        all.add(totals);
    }

    /// Returns a worker's sender, or `None` without a file. [`deregister`](AccountingTable::deregister) takes it back.
    pub(super) fn sender(&self) -> Option<Sender<FlowRecordFile>> {
        self.export.as_ref().map(|export| {
            export.unwritten.register();
            export.exporter.sender(RING, ())
        })
    }

    /// Returns and resets the number of records that could not be written.
    #[inline]
    pub(super) fn take_unwritten(&self) -> u64 {
        self.export.as_ref().map_or(0, |export| export.unwritten.take())
    }

    /// Deregisters a worker that has sent this many records. The last one waits for the file, and gets the number of
    /// records that were not written and that no worker has counted.
    pub(super) fn deregister(&self, sender: Sender<FlowRecordFile>, sent: u64, may_wait: bool) -> u64 {
        drop(sender);
        match &self.export {
            Some(export) if export.unwritten.deregister(sent) && may_wait => {
                export.exporter.end();
                export.unwritten.take_last()
            }
            _ => 0,
        }
    }

    /// Waits until all records are in the file. All workers' chains must have
    /// [drained](tailwater_chain::chain::Chain::drain).
    /// Returns `None` if there is no file, or if an earlier call has closed it.
    ///
    /// # Errors
    /// [`ExportError::Unwritten`] for the first write error or if the file hangs; [`ExportError::Lost`] if records are
    /// missing because they came too fast.
    pub fn finish(&self) -> Result<Option<Exported>, ExportError> {
        let Some(Export {
            file,
            exporter,
            unwritten,
        }) = &self.export
        else {
            return Ok(None);
        };
        let Some(written) = exporter.finish() else {
            return Ok(None);
        };
        let records = written.map_err(ExportError::unwritten(file, unwritten.lost()))?;
        let (file, totals) = (file.clone(), self.totals());
        match totals.lost_records {
            0 => Ok(Some(Exported { file, records })),
            lost => Err(ExportError::Lost {
                file,
                lost,
                records: totals.records,
            }),
        }
    }
}
