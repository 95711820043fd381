//! Sources of facts about a machine.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Result of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe<T> {
    /// The value.
    Value(T),
    /// The queried object does not exist.
    Absent,
    /// Permission denied.
    Forbidden,
}

impl<T> Probe<T> {
    /// Returns the value, if available.
    pub fn value(self) -> Option<T> {
        match self {
            Probe::Value(value) => Some(value),
            Probe::Absent | Probe::Forbidden => None,
        }
    }

    /// Converts the value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Probe<U> {
        match self {
            Probe::Value(value) => Probe::Value(change(value)),
            Probe::Absent => Probe::Absent,
            Probe::Forbidden => Probe::Forbidden,
        }
    }

    fn of(result: io::Result<T>) -> Probe<T> {
        match result {
            Ok(value) => Probe::Value(value),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Probe::Forbidden,
            Err(_) => Probe::Absent,
        }
    }
}

/// A machine that can be queried.
pub trait System {
    /// Returns a file's text without leading and trailing white space.
    fn read(&self, path: &str) -> Probe<String>;

    /// Returns the sorted names in a directory.
    fn list(&self, path: &str) -> Probe<Vec<String>>;

    /// Returns the last component of a symbolic link's target.
    fn link(&self, path: &str) -> Probe<String>;

    /// Returns the output of a program if it is installed and succeeds.
    fn run(&self, program: &str, arguments: &[&str]) -> Probe<String>;
}

/// Maximum bytes read from a file or from a program's output.
const MOST_BYTES: u64 = 4 << 20;

/// Time limit of a program.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The local machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct LiveSystem;

impl System for LiveSystem {
    fn read(&self, path: &str) -> Probe<String> {
        let read = || {
            let mut bytes = Vec::new();
            let file = std::fs::File::open(path)?;
            file.take(MOST_BYTES).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
        };
        Probe::of(read())
    }

    fn list(&self, path: &str) -> Probe<Vec<String>> {
        let list = || {
            let mut names = Vec::new();
            for entry in std::fs::read_dir(path)? {
                names.push(entry?.file_name().to_string_lossy().into_owned());
            }
            names.sort();
            Ok(names)
        };
        Probe::of(list())
    }

    fn link(&self, path: &str) -> Probe<String> {
        Probe::of(std::fs::read_link(path)).map(|target| {
            let name = target.file_name().unwrap_or_default();
            name.to_string_lossy().into_owned()
        })
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Probe<String> {
        // Administrative programs are not in every user's path.
        let found = ["/usr/sbin/", "/sbin/", "/usr/bin/", "/bin/"]
            .map(|folder| format!("{folder}{program}"))
            .into_iter()
            .find(|path| Path::new(path).exists());
        found.map_or(Probe::Absent, |path| Probe::of(output(&path, arguments)))
    }
}

/// Runs a program and returns its output. Kills it after [`TIMEOUT`].
fn output(program: &str, arguments: &[&str]) -> io::Result<String> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let stdout = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = stdout.map(|out| out.take(MOST_BYTES).read_to_end(&mut bytes));
        read.transpose().map(|_| bytes)
    });
    let until = Instant::now() + TIMEOUT;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > until {
            child.kill()?;
            break child.wait()?;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let bytes = reader.join().unwrap_or_else(|_| Ok(Vec::new()))?;
    match status.success() {
        true => Ok(String::from_utf8_lossy(&bytes).trim().to_owned()),
        false => Err(io::Error::other("the command failed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_answers() {
        assert!(matches!(LiveSystem.read("/proc/self/status"), Probe::Value(text) if text.contains("Pid:")));
        assert_eq!(LiveSystem.read("/proc/no such file"), Probe::Absent);
        assert!(matches!(LiveSystem.list("/proc/self"), Probe::Value(names) if names.is_sorted()));
        assert!(matches!(LiveSystem.link("/proc/self/exe"), Probe::Value(name) if !name.contains('/')));
        let said = LiveSystem.run("echo", &["a", "b"]);
        assert_eq!(said, Probe::Value("a b".to_owned()));
        assert_eq!(LiveSystem.run("false", &[]), Probe::Absent);
        assert_eq!(LiveSystem.run("no-such-program", &[]), Probe::Absent);
    }

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        let began = Instant::now();
        assert_eq!(LiveSystem.run("sleep", &["60"]), Probe::Absent);
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
