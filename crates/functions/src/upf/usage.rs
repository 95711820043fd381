//! Usage reports of sessions. One thread writes them; workers only mark sessions as due.

use super::due::ReportDue;
use super::records::Usage;
use super::table::UpfTable;
use crate::accounting::ExportFormat;
use crate::exporter::{ExportError, Exported, Exporter, RecordFile, Sink, Source, UnwrittenRecords};
use crate::out_file::Pulse;
use std::convert::Infallible;
use std::io::{self, Write};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tailwater_net::Nanos;

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
    exporter: Exporter<ReportFile>,
    unwritten: Arc<UnwrittenRecords>,
}

impl Reports {
    /// Creates the report file and starts its writer thread.
    ///
    /// # Errors
    /// The file or the thread cannot be created.
    pub(super) fn start(table: Arc<UpfTable>, path: &Path, format: ExportFormat) -> Result<Reports, ExportError> {
        let pulse = Pulse::default();
        let header = match format {
            ExportFormat::Csv => HEADER,
            ExportFormat::Json => "",
        };
        let unwritten = Arc::default();
        let file =
            RecordFile::create(path, header, &pulse, Arc::clone(&unwritten)).map_err(ExportError::write(path))?;
        let sink = ReportFile {
            table,
            file,
            unwritten: Arc::clone(&unwritten),
            format,
            collections: 0,
        };
        let exporter = Exporter::start(sink, pulse).map_err(ExportError::write(path))?;
        Ok(Reports {
            file: path.to_owned(),
            exporter,
            unwritten,
        })
    }

    /// Returns the counter of reports that could not be written.
    pub(super) fn unwritten(&self) -> &Arc<UnwrittenRecords> {
        &self.unwritten
    }

    /// Reports all sessions, and waits until everything is written.
    pub(super) fn end(&self) {
        self.exporter.end();
    }

    /// Reports all sessions, and waits until everything is written.
    ///
    /// # Errors
    /// The first write error, or the file hangs.
    pub(super) fn finish(self) -> Result<Exported, ExportError> {
        let written = self.exporter.finish().unwrap_or(Ok(0));
        let records = written.map_err(ExportError::unwritten(&self.file, self.unwritten.lost()))?;
        let file = self.file;
        Ok(Exported { file, records })
    }
}

/// File of reports. Its thread collects them from the table; no worker sends any.
#[derive(Debug)]
struct ReportFile {
    table: Arc<UpfTable>,
    file: RecordFile,
    unwritten: Arc<UnwrittenRecords>,
    format: ExportFormat,
    /// Collections so far.
    collections: u32,
}

impl ReportFile {
    /// Writes due reports and, with `all`, a final one of every session.
    fn write_reports(&mut self, all: bool) {
        let times = self.collections.is_multiple_of(TIMES);
        self.collections = self.collections.wrapping_add(1);
        // After a write error removed sessions are still taken from the table.
        let mut each = |report: Report| self.file.write(|out| report.write(self.format, out));
        collect(&self.table, times, &mut each);
        if all {
            collect_all(&self.table, &mut each);
        }
        // Billing systems follow the file.
        self.file.flush();
        self.table.add_unwritten(self.unwritten.take());
    }
}

impl Sink for ReportFile {
    type Record = Infallible;
    type PerSender = ();

    const THREAD: &'static str = "usage-reports";
    const POLL_INTERVAL: Duration = Duration::from_millis(100);
    const RECORDS_PER_POLL: usize = 0;

    fn put(&mut self, record: &Infallible, _sender: &mut ()) {
        match *record {}
    }

    fn on_idle(&mut self, _sources: &[Source<Self>]) -> ControlFlow<()> {
        self.write_reports(false);
        ControlFlow::Continue(())
    }

    fn finish(mut self, _sources: &[Source<Self>], _abandoned: bool) -> io::Result<u64> {
        self.write_reports(true);
        self.file.finish()
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
