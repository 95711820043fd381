//! Output files that background threads write for workers. A file can hang: a pipe without a reader, or a disk or
//! server that does not respond. The end of a run waits for it for a bounded time.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
pub use tailwater_files::GRACE;
use tailwater_files::create;

/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Progress indicator of a thread; clones share it. After [`GRACE`] without progress, a waiting caller marks the thread
/// as given up for all callers.
#[derive(Clone, Debug, Default)]
pub struct Pulse(Arc<Beats>);

#[derive(Debug, Default)]
struct Beats {
    count: AtomicU64,
    given_up: AtomicBool,
}

impl Pulse {
    /// Records progress of the thread.
    pub fn beat(&self) {
        self.0.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns `true` if a caller has given the thread up.
    pub fn is_given_up(&self) -> bool {
        self.0.given_up.load(Ordering::Relaxed)
    }

    /// Waits until `is_done` returns `true`. Returns `false` if the thread hangs first or has been given up.
    #[must_use]
    pub fn wait(&self, mut is_done: impl FnMut() -> bool) -> bool {
        let beats = || self.0.count.load(Ordering::Relaxed);
        let (mut seen, mut since) = (beats(), Instant::now());
        while !is_done() {
            if self.is_given_up() {
                return false;
            }
            if beats() != seen {
                (seen, since) = (beats(), Instant::now());
            } else if since.elapsed() >= GRACE {
                self.0.given_up.store(true, Ordering::Relaxed);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        true
    }

    /// Waits until the thread ends, and returns its result. A thread that hangs ends when its file unblocks, or with
    /// the program.
    ///
    /// # Errors
    /// If the thread hangs.
    ///
    /// # Panics
    /// If the thread panicked.
    pub fn join<T>(&self, thread: JoinHandle<T>) -> io::Result<T> {
        if !self.wait(|| thread.is_finished()) {
            let message = format!("no data accepted for {} seconds", GRACE.as_secs());
            return Err(io::Error::new(ErrorKind::TimedOut, message));
        }
        let ended = thread.join();
        Ok(ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

/// File that a thread writes from its beginning; its [`Pulse`] beats with every accepted write.
#[derive(Debug)]
pub struct OutFile {
    file: File,
    pulse: Pulse,
}

impl OutFile {
    /// Creates the file, as [`create`] does.
    ///
    /// # Errors
    /// Same as [`create`].
    pub fn create(path: &Path, pulse: &Pulse) -> io::Result<OutFile> {
        let pulse = pulse.clone();
        create(path).map(|file| OutFile { file, pulse })
    }

    /// Returns `true` if there is something in the file: another process has begun it.
    pub fn is_begun(&self) -> bool {
        self.file
            .metadata()
            .is_ok_and(|found| found.is_file() && found.len() > 0)
    }
}

impl Write for OutFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes);
        self.pulse.beat();
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::path::PathBuf;
    use std::sync::atomic::AtomicU32;
    use std::sync::mpsc::channel;

    /// Named pipe, removed on drop.
    struct Pipe(PathBuf);

    impl Pipe {
        fn new() -> Pipe {
            static MADE: AtomicU32 = AtomicU32::new(0);
            let number = MADE.fetch_add(1, Ordering::Relaxed);
            let name = format!("tailwater-out-file-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let made = std::process::Command::new("mkfifo").arg(&path).status();
            assert!(made.unwrap().success());
            Pipe(path)
        }
    }

    impl Drop for Pipe {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_pipe_without_a_reader_is_told_and_one_that_comes_late_is_taken() {
        let pipe = Pipe::new();
        let error = create(&pipe.0).unwrap_err().to_string();
        assert_eq!(error, "expected a reader of this pipe within 5s, found none");
        let bytes = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut bytes = Vec::new();
                // Blocks until the writer opens the pipe.
                File::open(&pipe.0).unwrap().read_to_end(&mut bytes).unwrap();
                bytes
            });
            let pulse = Pulse::default();
            let mut file = OutFile::create(&pipe.0, &pulse).unwrap();
            // More than a pipe holds: the write blocks and does not fail.
            file.write_all(&[7; 200_000]).unwrap();
            drop(file);
            reader.join().unwrap()
        });
        assert_eq!(bytes, [7; 200_000]);
    }

    #[test]
    fn a_thread_that_hangs_is_given_up_by_all_and_one_that_is_slow_is_not() {
        let (pulse, (go_on, wait)) = (Pulse::default(), channel::<()>());
        let thread = std::thread::spawn(move || wait.recv().is_err());
        let error = pulse.join(thread).unwrap_err();
        assert_eq!(error.to_string(), "no data accepted for 5 seconds");
        assert!(pulse.is_given_up());
        // A second wait returns at once.
        assert!(!pulse.clone().wait(|| false));
        // Completed work still counts.
        assert!(pulse.wait(|| true));
        drop(go_on);

        let slow = Pulse::default();
        let beats = slow.clone();
        let thread = std::thread::spawn(move || {
            for _ in 0..GRACE.as_millis() / 500 + 4 {
                std::thread::sleep(Duration::from_millis(500));
                beats.beat();
            }
            "done"
        });
        assert_eq!(slow.join(thread).unwrap(), "done");
    }
}
