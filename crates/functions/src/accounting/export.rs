//! Flow records on their way to a file: one thread writes what all workers hand it.

use crate::chunks::{ChunkReceiver, ChunkSender, Chunks};
use crate::out_file::{OutFile, Pulse};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos};

/// Records in a chunk.
const CHUNK: usize = 1024;
/// Chunks of each worker: 1.5 MiB. As many records may be waiting for the disk.
const CHUNKS: usize = 16;
/// Most workers; more wait for each other.
const WORKERS: usize = 256;

/// How records are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExportFormat {
    /// Comma-separated values (RFC 4180) with a header line.
    #[default]
    Csv,
    /// JSON Lines: an object a line.
    Json,
}

/// What is known of a flow, or of a part of a long one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowRecord {
    pub(super) key: FlowKey,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    /// The union of all segments' flags.
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
        // Negative for what another instance saw before this run.
        let micros = |time: Nanos| time.0 as i64 / 1000;
        let (first, last) = (micros(self.first), micros(self.last));
        // None of the values needs quoting in either format, but for the text in JSON.
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

/// What was counted, by all workers that have finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Records of flows; a long flow may have several.
    pub records: u64,
    /// Packets.
    pub packets: u64,
    /// Bytes of frames, without the frame check sequence.
    pub bytes: u64,
    /// Of the records, those that found no room on their way to the file.
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

/// Why not every record is in the file.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The file cannot be written.
    #[error("{}: cannot write records: {source}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Records came faster than they could be written.
    #[error("{lost} of {records} flow records came faster than they could be written")]
    Lost {
        /// The file.
        file: PathBuf,
        /// Records that are missing.
        lost: u64,
        /// Records in all.
        records: u64,
    },
    /// Copies of packets cannot be written, or some of them.
    #[error("{}: cannot write copies of packets: {source}", to.display())]
    Copies {
        /// The file or the interface.
        to: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A collector did not take them, or not fast enough.
    #[error("{}: {lost} of {records} flow records were not delivered", file.display())]
    Undelivered {
        /// The collector, or the file.
        file: PathBuf,
        /// Records that are missing.
        lost: u64,
        /// Records in all.
        records: u64,
    },
}

/// What an export came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// The file.
    pub file: PathBuf,
    /// Records written.
    pub records: u64,
}

/// The thread that writes, and the file's name.
#[derive(Debug)]
struct Writer {
    file: PathBuf,
    pulse: Pulse,
    thread: JoinHandle<io::Result<u64>>,
}

/// What the workers of an accounting function share.
#[derive(Debug)]
pub struct AccountingTable {
    totals: Mutex<Totals>,
    chunks: Mutex<Option<Chunks<FlowRecord>>>,
    writer: Mutex<Option<Writer>>,
}

impl AccountingTable {
    /// Without a file only totals are kept.
    pub fn new() -> AccountingTable {
        AccountingTable {
            totals: Mutex::default(),
            chunks: Mutex::new(None),
            writer: Mutex::new(None),
        }
    }

    /// With a file, which is created, and a thread that writes it.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn with_export(path: &Path, format: ExportFormat) -> Result<AccountingTable, ExportError> {
        let error = |source| ExportError::Write {
            file: path.to_owned(),
            source,
        };
        let (chunks, receiver) = Chunks::new(WORKERS, CHUNKS, CHUNK);
        let pulse = chunks.pulse().clone();
        let file = OutFile::create(path, &pulse).map_err(error)?;
        let thread = std::thread::Builder::new()
            .name("flow-records".to_owned())
            .spawn(move || write_records(BufWriter::new(file), format, receiver))
            .map_err(error)?;
        let writer = Writer {
            file: path.to_owned(),
            pulse,
            thread,
        };
        Ok(AccountingTable {
            totals: Mutex::default(),
            chunks: Mutex::new(Some(chunks)),
            writer: Mutex::new(Some(writer)),
        })
    }

    /// With a receiver instead of the thread.
    #[cfg(test)]
    pub(super) fn unattended() -> (AccountingTable, ChunkReceiver<FlowRecord>) {
        let (chunks, receiver) = Chunks::new(1, CHUNKS, CHUNK);
        let chunks = Mutex::new(Some(chunks));
        let table = AccountingTable {
            chunks,
            ..AccountingTable::new()
        };
        (table, receiver)
    }

    /// What the workers that have finished counted.
    pub fn totals(&self) -> Totals {
        *self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, totals: &Totals) {
        let mut all = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        all.add(totals);
    }

    pub(super) fn sender(&self) -> Option<ChunkSender<FlowRecord>> {
        let chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        chunks.as_ref().map(|chunks| chunks.sender(0))
    }

    /// Waits until everything is in the file, all workers' chains having
    /// [finished](tailwater_chain::chain::Chain::finish). `None` if there is no file, or not any more.
    ///
    /// # Errors
    /// The first error of writing; the file hangs; records that are missing.
    pub fn finish(&self) -> Result<Option<Exported>, ExportError> {
        drop(self.chunks.lock().unwrap_or_else(PoisonError::into_inner).take());
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Writer { file, pulse, thread }) = writer.take() else {
            return Ok(None);
        };
        let records = match pulse.join(thread).flatten() {
            Ok(records) => records,
            Err(source) => return Err(ExportError::Write { file, source }),
        };
        let totals = self.totals();
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

impl Default for AccountingTable {
    fn default() -> Self {
        AccountingTable::new()
    }
}

fn write_records(
    mut file: BufWriter<OutFile>,
    format: ExportFormat,
    receiver: ChunkReceiver<FlowRecord>,
) -> io::Result<u64> {
    let mut outcome = match format {
        ExportFormat::Csv => file.write_all(HEADER.as_bytes()),
        ExportFormat::Json => Ok(()),
    };
    let mut written = 0;
    receiver.for_each(|_, records| {
        for record in records {
            // After an error the workers are still relieved of their chunks.
            if outcome.is_ok() {
                outcome = record.write(format, &mut file);
                written += 1;
            }
        }
    });
    outcome.and_then(|()| file.flush()).map(|()| written)
}
