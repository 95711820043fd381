//! Passes the workers' records to a session.

use super::record::FlowRecord;
use super::session::Session;
use crate::exporter::{Sink, Source};
use std::io;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Time for which a message waits for more records.
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);

/// Session whose messages wait for more records for a bounded time.
#[derive(Debug)]
pub(super) struct SessionSink {
    session: Session,
    flushed: Instant,
}

impl SessionSink {
    pub(super) fn new(session: Session) -> SessionSink {
        SessionSink {
            session,
            flushed: Instant::now(),
        }
    }
}

impl Sink for SessionSink {
    type Record = FlowRecord;
    type PerSender = ();

    const THREAD: &'static str = "flow-export";
    const POLL_INTERVAL: Duration = Duration::from_millis(50);
    const RECORDS_PER_POLL: usize = 1024;

    fn is_ready(&mut self) -> bool {
        self.session.is_ready()
    }

    fn put(&mut self, record: &FlowRecord, _sender: &mut ()) {
        self.session.add_record(record);
    }

    fn discard(&mut self, record: &FlowRecord) {
        self.session.discard(record);
    }

    fn on_idle(&mut self, _sources: &[Source<Self>]) -> ControlFlow<()> {
        if self.flushed.elapsed() >= FLUSH_INTERVAL {
            self.session.flush();
            self.flushed = Instant::now();
        }
        ControlFlow::Continue(())
    }

    fn finish(self, _sources: &[Source<Self>], abandoned: bool) -> io::Result<u64> {
        self.session.end(abandoned)
    }
}
