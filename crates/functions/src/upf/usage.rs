//! Usage reports of sessions. One thread writes them; workers only mark sessions as due.

use super::records::Usage;
use super::table::{ReportDue, UpfTable};
use crate::accounting::{ExportError, ExportFormat, Exported};
use crate::out_file::{OutFile, Pulse};
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tailwater_net::Nanos;

/// Interval at which due reports are collected.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Collections per check of time reports.
const TIMES: u32 = 10;

/// Cause of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportCause {
    Volume,
    Time,
    /// The session was removed.
    Removed,
    /// The run has ended.
    End,
}

/// Report of a session's usage so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) session: u64,
    pub(super) user: IpAddr,
    pub(super) cause: ReportCause,
    pub(super) time: Nanos,
    pub(super) usage: Usage,
}

const HEADER: &str = "session,user,cause,time_us,up_bytes,down_bytes,up_packets,down_packets\n";

impl Report {
    fn write(&self, format: ExportFormat, out: &mut impl Write) -> io::Result<()> {
        let Report { session, user, .. } = self;
        let cause = match self.cause {
            ReportCause::Volume => "volume",
            ReportCause::Time => "time",
            ReportCause::Removed => "removed",
            ReportCause::End => "end",
        };
        let time = self.time.0 / 1000;
        let Usage { bytes, packets } = self.usage;
        // Only the text in JSON needs quoting.
        match format {
            ExportFormat::Csv => writeln!(
                out,
                "{session},{user},{cause},{time},{},{},{},{}",
                bytes[0], bytes[1], packets[0], packets[1]
            ),
            ExportFormat::Json => writeln!(
                out,
                "{{\"session\":{session},\"user\":\"{user}\",\"cause\":\"{cause}\",\"time_us\":{time},\
                 \"up_bytes\":{},\"down_bytes\":{},\"up_packets\":{},\"down_packets\":{}}}",
                bytes[0], bytes[1], packets[0], packets[1]
            ),
        }
    }
}

/// Writer thread of reports.
#[derive(Debug)]
pub(super) struct Reports {
    file: PathBuf,
    shutting_down: Arc<AtomicBool>,
    pulse: Pulse,
    thread: Option<JoinHandle<io::Result<u64>>>,
}

impl Reports {
    /// Creates the report file and starts its writer thread.
    ///
    /// # Errors
    /// The file or the thread cannot be created.
    pub(super) fn start(table: Arc<UpfTable>, path: &Path, format: ExportFormat) -> Result<Reports, ExportError> {
        let error = |source| ExportError::Write {
            file: path.to_owned(),
            source,
        };
        let pulse = Pulse::default();
        let file = BufWriter::new(OutFile::create(path, &pulse).map_err(error)?);
        let over = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&over);
        let thread = std::thread::Builder::new()
            .name("usage-reports".to_owned())
            .spawn(move || write_reports(&table, file, format, &asked))
            .map_err(error)?;
        Ok(Reports {
            file: path.to_owned(),
            shutting_down: over,
            pulse,
            thread: Some(thread),
        })
    }

    /// Reports all sessions, and waits until everything is written.
    ///
    /// # Errors
    /// The first write error, or the file hangs.
    pub(super) fn finish(mut self) -> Result<Exported, ExportError> {
        let records = self.end().map_err(|source| ExportError::Write {
            file: self.file.clone(),
            source,
        })?;
        Ok(Exported {
            file: self.file.clone(),
            records,
        })
    }

    fn end(&mut self) -> io::Result<u64> {
        let Some(thread) = self.thread.take() else {
            return Ok(0);
        };
        self.shutting_down.store(true, Ordering::Relaxed);
        thread.thread().unpark();
        self.pulse.join(thread).flatten()
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        // Errors are reported by `finish`; here they are ignored.
        let _ = self.end();
    }
}

fn write_reports(
    table: &UpfTable,
    mut file: BufWriter<OutFile>,
    format: ExportFormat,
    over: &AtomicBool,
) -> io::Result<u64> {
    let mut outcome = match format {
        ExportFormat::Csv => file.write_all(HEADER.as_bytes()),
        ExportFormat::Json => Ok(()),
    };
    let (mut written, mut look) = (0, 0);
    loop {
        let last = over.load(Ordering::Relaxed);
        let before = written;
        let mut each = |report: Report| {
            // After an error removed sessions are still taken from the table.
            if outcome.is_ok() {
                outcome = report.write(format, &mut file);
                written += 1;
            }
        };
        collect(table, look % TIMES == 0, &mut each);
        if last {
            collect_all(table, &mut each);
        }
        // Billing systems follow the file.
        if outcome.is_ok() && (written > before || last) {
            outcome = file.flush();
        }
        if last {
            return outcome.map(|()| written);
        }
        look += 1;
        std::thread::park_timeout(POLL_INTERVAL);
    }
}

/// Passes due reports to `each`; with `times`, time reports as well.
pub(super) fn collect(table: &UpfTable, times: bool, each: &mut impl FnMut(Report)) {
    let time = table.now();
    for (session, user, usage) in table.take_removed() {
        each(Report {
            session,
            user,
            cause: ReportCause::Removed,
            time,
            usage,
        });
    }
    table.take_due(times, |due, record, usage| {
        each(Report {
            session: record.id,
            user: record.user(),
            cause: match due {
                ReportDue::Volume => ReportCause::Volume,
                ReportDue::Time => ReportCause::Time,
            },
            time,
            usage,
        });
    });
}

/// Passes a final report of every session with usage to `each`.
pub(super) fn collect_all(table: &UpfTable, each: &mut impl FnMut(Report)) {
    table.each(|record, usage| {
        if usage != Usage::default() {
            each(Report {
                session: record.id,
                user: record.user(),
                cause: ReportCause::End,
                time: table.now(),
                usage,
            });
        }
    });
}
