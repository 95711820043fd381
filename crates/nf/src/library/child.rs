//! Trying something out in a child process that may crash.
//!
//! One of the few modules with `unsafe` code.

use super::error::LibraryError;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// How long the child may take: configurations can be large, and it may have to be built by others first.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often the parent looks.
const LOOK: Duration = Duration::from_millis(1);
/// How much of what the child printed is shown.
const SHOWN: usize = 200;

/// What a library is asked to do, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Load,
    Configure,
    Start,
    Stop,
    /// All is done.
    Done,
}

impl Step {
    const ALL: [Step; 5] = [
        Step::Load,
        Step::Configure,
        Step::Start,
        Step::Stop,
        Step::Done,
    ];

    fn doing(self) -> &'static str {
        match self {
            Step::Load => "it was loaded",
            Step::Configure => "it read its configuration",
            Step::Start => "an instance was started",
            Step::Stop => "it was stopped",
            Step::Done => "the process ended",
        }
    }
}

/// Runs `work` in a child process. It is given a function to call at the beginning of each step.
///
/// What `work` allocates, prints or changes is gone with the child: only whether it came to its end counts.
///
/// # Errors
/// There can be no child, or it did not come to the end.
pub(super) fn survives(work: impl FnOnce(&mut dyn FnMut(Step))) -> Result<(), LibraryError> {
    survives_within(PATIENCE, work)
}

fn survives_within(
    patience: Duration,
    work: impl FnOnce(&mut dyn FnMut(Step)),
) -> Result<(), LibraryError> {
    let mut steps = memory(c"steps").map_err(LibraryError::Child)?;
    let mut said = memory(c"said").map_err(LibraryError::Child)?;
    // SAFETY: in a program with one thread, such as one that reads its chain spec, a child can do whatever its
    // parent can. In one with several (tests), the GNU C library has `fork` leave its allocator and its dynamic
    // linker usable for the child, and the child does not touch the standard library's locks: it prints nothing
    // by it and ends by `_exit`. Should it stand still all the same, it is killed below.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(LibraryError::Child(io::Error::last_os_error()));
    }
    if child == 0 {
        quiet(&said);
        // What cannot be written is a step that the parent does not see: it will say that of the one before.
        let mut step = |step| drop(steps.write_all(&[step as u8]));
        let ended = catch_unwind(AssertUnwindSafe(|| work(&mut step)));
        let code = match ended {
            Ok(()) => {
                step(Step::Done);
                0
            }
            Err(_) => 101,
        };
        // SAFETY: ends the child at once, without the parent's exit handlers.
        unsafe { libc::_exit(code) };
    }
    let status = wait(child, patience).map_err(LibraryError::Child)?;
    let mut seen = Vec::new();
    let read = steps.seek(SeekFrom::Start(0));
    read.and_then(|_| steps.read_to_end(&mut seen))
        .map_err(LibraryError::Child)?;
    let last = seen.last().copied().unwrap_or_default();
    let step = Step::ALL.get(usize::from(last)).copied();
    let step = step.unwrap_or(Step::Load);
    if step == Step::Done && status == Some(0) {
        return Ok(());
    }
    Err(LibraryError::Crashed {
        doing: step.doing(),
        how: ending(status, patience),
        said: last_line(&mut said),
    })
}

/// A file in memory.
fn memory(name: &CStr) -> io::Result<File> {
    // SAFETY: a name that ends with a zero byte; the descriptor is new, and the file's from here on.
    unsafe {
        match libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            descriptor => Ok(File::from_raw_fd(descriptor)),
        }
    }
}

/// In the child: what the library prints goes to `said`, and a crash leaves no core file behind.
fn quiet(said: &File) {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: system calls on the child's own descriptors and limits; `none` outlives its call.
    unsafe {
        libc::dup2(said.as_raw_fd(), 1);
        libc::dup2(said.as_raw_fd(), 2);
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        // Where a program caught these, the library is not to be saved by it.
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT, libc::SIGTERM] {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}

/// Waits for a child to end, and ends it if that takes too long. Its status; `None` if it was ended.
fn wait(child: libc::pid_t, patience: Duration) -> io::Result<Option<i32>> {
    let began = Instant::now();
    let mut killed = false;
    loop {
        let mut status = 0;
        let flags = if killed { 0 } else { libc::WNOHANG };
        // SAFETY: a child of this process that nobody else waits for; `status` outlives the call.
        match unsafe { libc::waitpid(child, &raw mut status, flags) } {
            0 if !killed && began.elapsed() > patience => {
                // SAFETY: the child has not been waited for, so its number is still its own.
                unsafe { libc::kill(child, libc::SIGKILL) };
                killed = true;
            }
            0 => std::thread::sleep(LOOK),
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            _ => return Ok((!killed).then_some(status)),
        }
    }
}

/// How a process ended, in words.
fn ending(status: Option<i32>, patience: Duration) -> String {
    let Some(status) = status else {
        return format!("did not come back within {patience:?}");
    };
    if !libc::WIFSIGNALED(status) {
        return format!(
            "ended the process (exit code {})",
            libc::WEXITSTATUS(status)
        );
    }
    let signal = libc::WTERMSIG(status);
    let name = match signal {
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGKILL => "SIGKILL",
        _ => return format!("crashed (signal {signal})"),
    };
    format!("crashed ({name})")
}

/// The last line that the child printed, ready to be said.
fn last_line(said: &mut File) -> String {
    const TAIL: u64 = 4096;
    let mut bytes = Vec::new();
    let length = said.seek(SeekFrom::End(0)).unwrap_or(0);
    let tail = said.seek(SeekFrom::Start(length.saturating_sub(TAIL)));
    if tail.and_then(|_| said.read_to_end(&mut bytes)).is_err() {
        return String::new();
    }
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty());
    line.map_or(String::new(), |line| {
        let shown: String = line.chars().take(SHOWN).collect();
        format!("; it said \"{shown}\"")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(patience: Duration, work: impl FnOnce(&mut dyn FnMut(Step))) -> String {
        let result = survives_within(patience, work);
        result.map_or_else(|error| error.to_string(), |()| "all is well".to_owned())
    }

    #[test]
    fn what_becomes_of_a_child_is_told() {
        assert_eq!(told(PATIENCE, |_| {}), "all is well");
        let hangs = told(Duration::from_millis(200), |step| {
            step(Step::Load);
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        assert_eq!(hangs, "did not come back within 200ms while it was loaded");
        let ends = told(PATIENCE, |step| {
            step(Step::Start);
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) }
        });
        assert_eq!(
            ends,
            "ended the process (exit code 0) while an instance was started"
        );
    }

    #[test]
    fn the_last_line_is_shown_and_no_more() {
        let said = |text: &str| {
            let mut file = memory(c"test").unwrap();
            file.write_all(text.as_bytes()).unwrap();
            last_line(&mut file)
        };
        assert_eq!(said(""), "");
        assert_eq!(said(" \n\n"), "");
        assert_eq!(said("one\n two \n\n"), "; it said \"two\"");
        let long = "x".repeat(100_000);
        assert_eq!(said(&long), format!("; it said \"{}\"", "x".repeat(SHOWN)));
    }
}
