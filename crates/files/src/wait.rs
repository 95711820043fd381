//! Waiting for a stream, for a bounded time.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time after which a blocked thread looks for a request to stop.
const POLL_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Limits of waiting for a stream.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    /// Longest time without progress; `None` for a terminal or a pager, where a person decides.
    pub(crate) longest: Option<Duration>,
    /// Ends the wait.
    pub(crate) stop: Arc<AtomicBool>,
}

impl Patience {
    /// Returns `true` once a stop is requested.
    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits until the stream can be read or written, has an error, or its other end is closed.
    ///
    /// # Errors
    /// If nothing happens for the longest time (`silent` describes that), or a stop is requested meanwhile.
    pub(crate) fn wait(&self, file: &File, events: PollFlags, silent: &str) -> io::Result<()> {
        let began = Instant::now();
        loop {
            let mut files = [PollFd::new(file, events)];
            match poll(&mut files, Some(&POLL_INTERVAL)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            if self.is_over() {
                return Err(interrupted());
            }
            if let Some(longest) = self.longest
                && began.elapsed() >= longest
            {
                let message = format!("{silent} for {} seconds", longest.as_secs());
                return Err(io::Error::new(ErrorKind::TimedOut, message));
            }
        }
    }
}

pub(crate) fn interrupted() -> io::Error {
    io::Error::other("interrupted by a signal")
}
