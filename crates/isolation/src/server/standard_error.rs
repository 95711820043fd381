//! Standard error of a function's programs: forwarded to this process's, within bounds.
//!
//! A program writes to a pipe. A thread forwards what it writes, at most [`PER_SECOND`] bytes in a second and
//! [`IN_ALL`] in a run, and discards the rest. It reads slowly while it discards, so that a flood costs little. The
//! program's end of the pipe never blocks: what the pipe has no room for is lost, and no turn waits for a terminal.

use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_setfl};
use tailwater_confine::{ThreadRole, keep_capabilities};

/// Maximum bytes that are forwarded within a second.
const PER_SECOND: u64 = 64 << 10;
/// Maximum bytes that are forwarded in a run.
const IN_ALL: u64 = 16 << 20;
/// Pause between two reads while bytes are discarded.
const PAUSE: Duration = Duration::from_millis(10);
/// Time for the last bytes when no program is left.
const ENDING: Duration = Duration::from_millis(200);

/// Bytes that programs have written.
#[derive(Debug, Default)]
pub(super) struct Written {
    forwarded: AtomicU64,
    discarded: AtomicU64,
}

/// Standard error of the programs of one function, for all workers.
#[derive(Debug)]
pub(super) struct StandardError {
    /// End of the pipe that programs get duplicates of; `None` at the end.
    writer: Option<PipeWriter>,
    written: Arc<Written>,
    /// Disconnected when the thread has forwarded everything.
    forwarded: Mutex<Receiver<()>>,
}

impl StandardError {
    /// Creates the pipe of a function of this name, and the thread that forwards to standard error.
    pub(super) fn new(function: &str) -> io::Result<StandardError> {
        StandardError::forwarding_to(function, io::stderr())
    }

    fn forwarding_to(function: &str, to: impl Write + Send + 'static) -> io::Result<StandardError> {
        let (reader, writer) = pipe()?;
        // The two ends have flags of their own.
        fcntl_setfl(&writer, OFlags::NONBLOCK)?;
        let written = Arc::new(Written::default());
        let (running, forwarded) = channel::<()>();
        let forward = Forward {
            function: function.to_owned(),
            written: Arc::clone(&written),
            bounds: Bounds::new(PER_SECOND, IN_ALL, Instant::now()),
        };
        thread::Builder::new().name("messages".to_owned()).spawn(move || {
            let _running = running;
            // Dropping capabilities is always permitted.
            let _ = keep_capabilities(ThreadRole::Forwarder);
            forward.all(reader, to);
        })?;
        Ok(StandardError {
            writer: Some(writer),
            written,
            forwarded: Mutex::new(forwarded),
        })
    }

    /// Returns a duplicate of the end that a program writes to.
    pub(super) fn duplicate(&self) -> io::Result<OwnedFd> {
        match &self.writer {
            Some(writer) => writer.as_fd().try_clone_to_owned(),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Returns the numbers of bytes that were forwarded and discarded so far, without those that the pipe had no room
    /// for.
    pub(super) fn counts(&self) -> (u64, u64) {
        let Written { forwarded, discarded } = &*self.written;
        (forwarded.load(Ordering::Relaxed), discarded.load(Ordering::Relaxed))
    }
}

impl Drop for StandardError {
    /// Waits for the last bytes. A program that is still there, such as one that a trusted function started, is left
    /// with the thread.
    fn drop(&mut self) {
        drop(self.writer.take());
        let forwarded = self.forwarded.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = forwarded.recv_timeout(ENDING);
    }
}

/// Bounds of the forwarded bytes.
#[derive(Debug)]
struct Bounds {
    per_second: u64,
    /// Bytes that are left of the run's.
    left: u64,
    /// Bytes that are left of the second's.
    left_now: u64,
    second: Instant,
}

impl Bounds {
    fn new(per_second: u64, in_all: u64, now: Instant) -> Bounds {
        Bounds {
            per_second,
            left: in_all,
            left_now: per_second,
            second: now,
        }
    }

    /// Returns how many of `bytes` bytes may be forwarded.
    fn take(&mut self, bytes: u64, now: Instant) -> u64 {
        if now.duration_since(self.second) >= Duration::from_secs(1) {
            (self.second, self.left_now) = (now, self.per_second);
        }
        let taken = bytes.min(self.left).min(self.left_now);
        self.left -= taken;
        self.left_now -= taken;
        taken
    }

    /// Returns the bound that is reached.
    fn reached(&self) -> String {
        match self.left {
            0 => format!("{} MiB in this run; nothing more is shown", IN_ALL >> 20),
            _ => format!("{} KiB in a second; the rest is discarded", self.per_second >> 10),
        }
    }
}

/// Work of the forwarding thread.
struct Forward {
    function: String,
    written: Arc<Written>,
    bounds: Bounds,
}

impl Forward {
    fn all(mut self, mut from: PipeReader, mut to: impl Write) {
        let mut buffer = [0; 8 << 10];
        let mut is_discarding = false;
        loop {
            let count = match from.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            let taken = self.bounds.take(count as u64, Instant::now());
            let Written { forwarded, discarded } = &*self.written;
            forwarded.fetch_add(taken, Ordering::Relaxed);
            discarded.fetch_add(count as u64 - taken, Ordering::Relaxed);
            let shown = &mut buffer[..taken as usize];
            make_printable(shown);
            // Standard error may be closed, which is its reader's decision.
            let _ = to.write_all(shown);
            if taken == count as u64 {
                is_discarding = false;
                continue;
            }
            if !std::mem::replace(&mut is_discarding, true) {
                let (function, reached) = (&self.function, self.bounds.reached());
                let _ = writeln!(to, "\nfunction {function}: standard error exceeds {reached}");
            }
            thread::sleep(PAUSE);
        }
    }
}

/// Replaces control characters, which could change what a terminal shows of other messages, by `?`.
fn make_printable(bytes: &mut [u8]) {
    for byte in bytes {
        if byte.is_ascii_control() && !matches!(byte, b'\n' | b'\t') {
            *byte = b'?';
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// Destination that a test reads.
    #[derive(Clone, Default)]
    struct Shown(Arc<Mutex<Vec<u8>>>);

    impl Write for Shown {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A function wrote 437 MB to the run's standard error in two seconds.
    #[test]
    fn a_flood_is_cut_and_counted() {
        let shown = Shown::default();
        let errors = StandardError::forwarding_to("loud", shown.clone()).unwrap();
        let mut program = File::from(errors.duplicate().unwrap());
        program.write_all(b"hello \x1b[2J\n").unwrap();
        // The writer never blocks, whatever it writes.
        let line = [b'x'; 4096];
        let deadline = Instant::now() + Duration::from_secs(30);
        while errors.counts().1 == 0 {
            let _ = program.write(&line);
            assert!(Instant::now() < deadline, "{:?}", errors.counts());
        }
        let (forwarded, discarded) = errors.counts();
        assert!(discarded > 0);
        drop(program);
        drop(errors);
        let text = String::from_utf8(shown.0.lock().unwrap().clone()).unwrap();
        assert!(text.starts_with("hello ?[2J\n"), "control characters are not shown");
        assert!(text.contains("function loud: standard error exceeds 64 KiB in a second"));
        assert!(forwarded >= PER_SECOND, "{forwarded}");
    }

    #[test]
    fn bounds_hold_by_second_and_in_all() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut bounds = Bounds::new(100, 250, start);
        assert_eq!([60, 60, 60].map(|bytes| bounds.take(bytes, start)), [60, 40, 0]);
        assert_eq!(bounds.take(70, after(1)), 70);
        assert_eq!(bounds.take(70, after(2)), 70);
        assert_eq!(bounds.take(70, after(3)), 10, "250 in all");
        assert_eq!(bounds.take(70, after(100)), 0);
        assert!(bounds.reached().contains("in this run"));
    }
}
