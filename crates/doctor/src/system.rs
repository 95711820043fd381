//! Sources of facts about a machine.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Result of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<T> {
    /// The value.
    Is(T),
    /// The queried object does not exist.
    Absent,
    /// Permission denied.
    Forbidden,
}

impl<T> Answer<T> {
    /// Returns the value, if available.
    pub fn told(self) -> Option<T> {
        match self {
            Answer::Is(value) => Some(value),
            Answer::Absent | Answer::Forbidden => None,
        }
    }

    /// Converts the value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Answer<U> {
        match self {
            Answer::Is(value) => Answer::Is(change(value)),
            Answer::Absent => Answer::Absent,
            Answer::Forbidden => Answer::Forbidden,
        }
    }

    fn of(result: io::Result<T>) -> Answer<T> {
        match result {
            Ok(value) => Answer::Is(value),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Answer::Forbidden,
            Err(_) => Answer::Absent,
        }
    }
}

/// A machine that can be queried.
pub trait System {
    /// Returns a file's text without leading and trailing white space.
    fn read(&self, path: &str) -> Answer<String>;

    /// Returns the sorted names in a directory.
    fn list(&self, path: &str) -> Answer<Vec<String>>;

    /// Returns the last component of a symbolic link's target.
    fn link(&self, path: &str) -> Answer<String>;

    /// Returns the output of a program if it is installed and succeeds.
    fn run(&self, program: &str, arguments: &[&str]) -> Answer<String>;
}

/// Maximum bytes read from a file or from a program's output.
const MOST_BYTES: u64 = 4 << 20;

/// Time limit of a program.
const PATIENCE: Duration = Duration::from_secs(2);

/// The local machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Live;

impl System for Live {
    fn read(&self, path: &str) -> Answer<String> {
        let read = || {
            let mut bytes = Vec::new();
            let file = std::fs::File::open(path)?;
            file.take(MOST_BYTES).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
        };
        Answer::of(read())
    }

    fn list(&self, path: &str) -> Answer<Vec<String>> {
        let list = || {
            let mut names = Vec::new();
            for entry in std::fs::read_dir(path)? {
                names.push(entry?.file_name().to_string_lossy().into_owned());
            }
            names.sort();
            Ok(names)
        };
        Answer::of(list())
    }

    fn link(&self, path: &str) -> Answer<String> {
        Answer::of(std::fs::read_link(path)).map(|target| {
            let name = target.file_name().unwrap_or_default();
            name.to_string_lossy().into_owned()
        })
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Answer<String> {
        // Administrative programs are not in every user's path.
        let found = ["/usr/sbin/", "/sbin/", "/usr/bin/", "/bin/"]
            .map(|folder| format!("{folder}{program}"))
            .into_iter()
            .find(|path| Path::new(path).exists());
        found.map_or(Answer::Absent, |path| Answer::of(output(&path, arguments)))
    }
}

/// Runs a program and returns its output. Kills it after [`PATIENCE`].
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
    let until = Instant::now() + PATIENCE;
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
        false => Err(io::Error::other("it failed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_answers() {
        assert!(matches!(Live.read("/proc/self/status"), Answer::Is(text) if text.contains("Pid:")));
        assert_eq!(Live.read("/proc/no such file"), Answer::Absent);
        assert!(matches!(Live.list("/proc/self"), Answer::Is(names) if names.is_sorted()));
        assert!(matches!(Live.link("/proc/self/exe"), Answer::Is(name) if !name.contains('/')));
        let said = Live.run("echo", &["a", "b"]);
        assert_eq!(said, Answer::Is("a b".to_owned()));
        assert_eq!(Live.run("false", &[]), Answer::Absent);
        assert_eq!(Live.run("no-such-program", &[]), Answer::Absent);
    }

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        let began = Instant::now();
        assert_eq!(Live.run("sleep", &["60"]), Answer::Absent);
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
