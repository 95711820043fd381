//! Export of flow records to a file. One thread writes the records of all workers.

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
/// Chunks per worker: 1.5 MiB of records that can wait for the disk.
const CHUNKS: usize = 16;
/// Number of workers served without waiting. Further workers wait for each other.
const WORKERS: usize = 256;

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
    /// Records lost because no chunk was free.
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

/// Failure to export every record.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The file cannot be written.
    #[error("{}: cannot write records: {source}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Records arrived faster than they could be written.
    #[error("lost {lost} of {records} flow records: they arrived faster than they could be written")]
    Lost {
        /// The file.
        file: PathBuf,
        /// Missing records.
        lost: u64,
        /// Records in total.
        records: u64,
    },
    /// Some or all copies of packets cannot be written.
    #[error("{}: cannot write copies of packets: {source}", to.display())]
    Copies {
        /// The file or the interface.
        to: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A collector rejected the records or was too slow.
    #[error("{}: {lost} of {records} flow records were not delivered", file.display())]
    Undelivered {
        /// The collector, or the file.
        file: PathBuf,
        /// Missing records.
        lost: u64,
        /// Records in total.
        records: u64,
    },
}

/// Result of a completed export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// The file.
    pub file: PathBuf,
    /// Number of records written.
    pub records: u64,
}

/// The writing thread and its file's name.
#[derive(Debug)]
struct Writer {
    file: PathBuf,
    pulse: Pulse,
    thread: JoinHandle<io::Result<u64>>,
}

/// State shared by the workers of an `Accounting` function.
#[derive(Debug)]
pub struct AccountingTable {
    totals: Mutex<Totals>,
    chunks: Mutex<Option<Chunks<FlowRecord>>>,
    writer: Mutex<Option<Writer>>,
}

impl AccountingTable {
    /// Creates a table without a file: only totals are counted.
    pub fn new() -> AccountingTable {
        AccountingTable {
            totals: Mutex::default(),
            chunks: Mutex::new(None),
            writer: Mutex::new(None),
        }
    }

    /// Creates a table, its file and the thread that writes the file.
    ///
    /// # Errors
    /// If the file or the thread cannot be created.
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

    /// Creates a table with a bare receiver instead of the thread.
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

    /// Returns the totals of the workers that have finished.
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

    /// Waits until all records are in the file. All workers' chains must have [drained](tailwater_chain::chain::Chain::drain).
    /// Returns `None` if there is no file, or if an earlier call has closed it.
    ///
    /// # Errors
    /// [`ExportError::Write`] for the first write error or if the file hangs; [`ExportError::Lost`] if records are
    /// missing.
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
            // After an error, chunks are still drained so that workers do not block.
            if outcome.is_ok() {
                outcome = record.write(format, &mut file);
                written += 1;
            }
        }
    });
    outcome.and_then(|()| file.flush()).map(|()| written)
}
