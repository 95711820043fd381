//! Trial runs in a child process that may crash.
//!
//! One of the few modules with `unsafe` code.

use super::error::LibraryError;
use std::ffi::{CStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Maximum run time of the child. Configurations can be large, and other code may have to build them first.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Polling interval of the parent.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum number of bytes of the child's output that an error shows.
const SHOWN: usize = 200;

/// Steps of a trial, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Load,
    Configure,
    Start,
    Stop,
    /// All steps have been completed.
    Done,
}

impl Step {
    const ALL: [Step; 5] = [Step::Load, Step::Configure, Step::Start, Step::Stop, Step::Done];

    fn doing(self) -> &'static str {
        match self {
            Step::Load => "loading",
            Step::Configure => "reading its configuration",
            Step::Start => "starting an instance",
            Step::Stop => "stopping",
            Step::Done => "exiting",
        }
    }
}

/// Program that runs trials, and its argument in front of the library's file.
static TRIED_BY: OnceLock<(OsString, OsString)> = OnceLock::new();

/// Sets the program that runs trials. It is started as `PROGRAM COMMAND FILE` and calls [`try_out`](super::try_out)
/// with the file. Without it, a process forks itself, which the kernel may refuse to one with much memory. Only the
/// first call has an effect.
pub fn try_by(program: impl Into<OsString>, command: impl Into<OsString>) {
    let _ = TRIED_BY.set((program.into(), command.into()));
}

/// Runs `work` in a child process, on a library's file and its configuration. `work` calls the function it is given at
/// the beginning of each step.
///
/// Memory, output and other changes of `work` vanish with the child: the only result is whether it reached the end. A
/// program that runs trials instead of this one [works likewise](tried).
///
/// # Errors
/// If no child can be started, or if it did not reach the end.
pub(super) fn survives(
    (file, config): (&Path, &str),
    work: fn(&Path, &str, &mut dyn FnMut(Step)),
) -> Result<(), LibraryError> {
    match TRIED_BY.get() {
        Some((program, command)) => {
            let mut program = Command::new(program);
            survives_program(program.arg(command).arg(file), config)
        }
        None => survives_within(TIMEOUT, |step| work(file, config, step)),
    }
}

/// Same as [`survives`], in a program that receives the configuration.
fn survives_program(program: &mut Command, config: &str) -> Result<(), LibraryError> {
    let mut trial = || {
        let (mut steps, said) = (memory(c"steps")?, memory(c"said")?);
        steps.write_all(config.as_bytes())?;
        steps.rewind()?;
        // The child reads the configuration from this file, and appends its steps.
        let [input, output, error] = [&steps, &said, &said].map(File::try_clone);
        let child = program.stdin(input?).stdout(output?).stderr(error?).spawn()?;
        Ok((child.id() as libc::pid_t, steps, said))
    };
    let (child, steps, said) = trial().map_err(LibraryError::Child)?;
    outcome(child, TIMEOUT, (steps, config.len() as u64), said)
}

/// Program's side: runs the work on a configuration from standard input, and ends the process.
pub(super) fn tried(file: &Path, work: fn(&Path, &str, &mut dyn FnMut(Step))) -> io::Error {
    let given = || {
        let mut steps = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let mut config = String::new();
        steps.read_to_string(&mut config)?;
        // Gives the library an empty standard input.
        let nothing = File::open("/dev/null")?;
        Ok((steps, config, nothing))
    };
    match given() {
        Err(error) => error,
        Ok((steps, config, nothing)) => {
            redirect(&nothing, 0);
            alone();
            end(steps, |step| work(file, &config, step))
        }
    }
}

fn survives_within(patience: Duration, work: impl FnOnce(&mut dyn FnMut(Step))) -> Result<(), LibraryError> {
    let steps = memory(c"steps").map_err(LibraryError::Child)?;
    let said = memory(c"said").map_err(LibraryError::Child)?;
    let no_other_loads = super::load::no_other_loads();
    // SAFETY: in a single-threaded program, such as one that reads its chain spec, a child can do whatever its parent
    // can. In a multi-threaded one (tests), the GNU C library keeps its allocator and its dynamic linker usable for the
    // child across `fork`. The child does not touch the standard library's locks: it does not print through it, and
    // ends by `_exit`. If it blocks anyway, it is killed below.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(LibraryError::Child(io::Error::last_os_error()));
    }
    if child == 0 {
        // The child's copy of the lock stays locked: it loads without it, and a nested lock would never return.
        std::mem::forget(no_other_loads);
        redirect(&said, 1);
        redirect(&said, 2);
        alone();
        end(steps, work);
    }
    drop(no_other_loads);
    outcome(child, patience, (steps, 0), said)
}

/// Child's side: runs the work, records its steps, and ends the process.
fn end(mut steps: File, work: impl FnOnce(&mut dyn FnMut(Step))) -> ! {
    // A failed write hides the step from the parent, which then reports the one before.
    let mut step = |step| drop(steps.write_all(&[step as u8]));
    let ended = catch_unwind(AssertUnwindSafe(|| work(&mut step)));
    let code = match ended {
        Ok(()) => {
            step(Step::Done);
            0
        }
        Err(_) => 101,
    };
    // SAFETY: ends the child at once, without exit handlers of the forked parent or of the library.
    unsafe { libc::_exit(code) }
}

/// Result of a child whose steps start at offset `from` of this file.
fn outcome(
    child: libc::pid_t,
    patience: Duration,
    (mut steps, from): (File, u64),
    mut said: File,
) -> Result<(), LibraryError> {
    let status = wait(child, patience).map_err(LibraryError::Child)?;
    let mut seen = Vec::new();
    let read = steps.seek(SeekFrom::Start(from));
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

/// Creates an anonymous file in memory.
fn memory(name: &CStr) -> io::Result<File> {
    // SAFETY: the name ends with a zero byte. The descriptor is new, and the file owns it from here on.
    unsafe {
        match libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            descriptor => Ok(File::from_raw_fd(descriptor)),
        }
    }
}

/// Child's side: replaces one of its standard descriptors by a file.
fn redirect(file: &File, standard: i32) {
    // SAFETY: system call on the child's own descriptors.
    unsafe { libc::dup2(file.as_raw_fd(), standard) };
}

/// Child's side: disables core files, and makes the child die with its parent.
fn alone() {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: system calls on the child's own limits and signals. `none` outlives its call.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        // Restores the default actions, so that a program's handlers do not save the library from a crash.
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT, libc::SIGTERM] {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}

/// Waits for a child to end, and kills it after `patience`. Returns its status, or `None` if it was killed.
fn wait(child: libc::pid_t, patience: Duration) -> io::Result<Option<i32>> {
    let began = Instant::now();
    let mut killed = false;
    loop {
        let mut status = 0;
        let flags = if killed { 0 } else { libc::WNOHANG };
        // SAFETY: a child of this process that no other code waits for. `status` outlives the call.
        match unsafe { libc::waitpid(child, &raw mut status, flags) } {
            0 if !killed && began.elapsed() > patience => {
                // SAFETY: the child has not been waited for, so its process ID is still its own.
                unsafe { libc::kill(child, libc::SIGKILL) };
                killed = true;
            }
            0 => std::thread::sleep(POLL_INTERVAL),
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

/// Describes how a process ended.
fn ending(status: Option<i32>, patience: Duration) -> String {
    let Some(status) = status else {
        return format!("did not return within {patience:?}");
    };
    if !libc::WIFSIGNALED(status) {
        return format!("ended the process (exit code {})", libc::WEXITSTATUS(status));
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

/// Last line that the child printed, ready for a message.
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
        format!("; last output \"{shown}\"")
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
        assert_eq!(told(TIMEOUT, |_| {}), "all is well");
        let hangs = told(Duration::from_millis(200), |step| {
            step(Step::Load);
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        assert_eq!(hangs, "did not return within 200ms while loading");
        let ends = told(TIMEOUT, |step| {
            step(Step::Start);
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) }
        });
        assert_eq!(ends, "ended the process (exit code 0) while starting an instance");
    }

    #[test]
    fn what_becomes_of_a_program_is_told() {
        let told = |script: &str, config: &str| {
            let mut shell = Command::new("sh");
            let result = survives_program(shell.args(["-c", script]), config);
            result.map_or_else(|error| error.to_string(), |()| "all is well".to_owned())
        };
        // The configuration comes first; steps follow it, whatever bytes it contains.
        let whole = r#"cat > /dev/null; printf '\000\001\002\003\004' >&0"#;
        for config in ["", "{}", "\u{4}\u{4}"] {
            assert_eq!(told(whole, config), "all is well");
            assert_eq!(
                told("cat >&2; exit 3", config).split(';').next().unwrap(),
                "ended the process (exit code 3) while loading"
            );
        }
        assert_eq!(
            told(
                r#"cat > /dev/null; printf '\000\001' >&0; echo why; kill -SEGV $$"#,
                "{}"
            ),
            "crashed (SIGSEGV) while reading its configuration; last output \"why\""
        );
        let error = survives_program(&mut Command::new("/no/such/program"), "{}").unwrap_err();
        assert!(matches!(error, LibraryError::Child(_)), "{error}");
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
        assert_eq!(said("one\n two \n\n"), "; last output \"two\"");
        let long = "x".repeat(100_000);
        assert_eq!(said(&long), format!("; last output \"{}\"", "x".repeat(SHOWN)));
    }
}
