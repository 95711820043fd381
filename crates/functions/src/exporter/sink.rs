//! Output of an exporter.

use std::fmt::Debug;
use std::io;
use std::ops::ControlFlow;
use std::time::Duration;
use tailwater_handover::ring::Consumer;

/// Output of records: encodes and writes them. Only the exporter's thread calls it.
pub(crate) trait Sink: Debug + Send + Sized + 'static {
    /// Record in a ring.
    type Record: Copy + Debug + Send + 'static;
    /// State that the thread keeps for each sender.
    type PerSender: Debug + Send + 'static;

    /// Name of the thread.
    const THREAD: &'static str;
    /// Polling interval of the thread without records.
    const POLL_INTERVAL: Duration;
    /// Records of a sender after which it wakes the thread before the polling interval has passed, which may take a
    /// system call. `None` if senders must not do that.
    const WAKE_EVERY: Option<u32> = None;
    /// Maximum number of records taken from a sender's ring at a time.
    const RECORDS_PER_POLL: usize;
    /// Record with which new rings are filled once, to allocate their memory before the first packet.
    const BLANK: Option<Self::Record> = None;

    /// Returns `true` if the sink accepts records now. Otherwise they wait in the rings and, at the end of a run, are
    /// [discarded](Sink::discard) after 5 seconds.
    fn is_ready(&mut self) -> bool {
        true
    }

    /// Writes a record.
    fn put(&mut self, record: &Self::Record, sender: &mut Self::PerSender);

    /// Counts a record as lost that the sink was not ready for.
    fn discard(&mut self, _record: &Self::Record) {}

    /// Called before the thread sleeps because there are no records or the sink is not ready. A break ends the thread.
    fn on_idle(&mut self, _sources: &[Source<Self>]) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Writes the rest, closes the output and returns the number of exported records. Nobody waits for that if
    /// `abandoned`.
    ///
    /// # Errors
    /// The first error of the output.
    fn finish(self, sources: &[Source<Self>], abandoned: bool) -> io::Result<u64>;
}

/// Reading end of a sender's ring, with the thread's state for it.
#[derive(Debug)]
pub(crate) struct Source<S: Sink> {
    pub(super) ring: Consumer<S::Record>,
    pub(crate) state: S::PerSender,
}
