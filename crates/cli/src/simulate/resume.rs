//! File of completed runs, which a restarted command skips.
//!
//! The file has a header line, and one line per run: its key, a hash of everything that determines it, and its report.
//! Each line is written as soon as its run is done. An incomplete last line is removed.

use crate::error::CliError;
use crate::output::not_json;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use tailwater_sim::SimReport;

/// Header line.
const HEADER: &str = "{\"tailwater\":\"finished-runs\",\"format\":1}\n";

/// Maximum size of the file.
const MAX_BYTES: u64 = 1 << 30;

/// Part of a line that is parsed before the run is known to be needed.
#[derive(Deserialize)]
struct Head {
    key: String,
    #[serde(rename = "report")]
    _report: IgnoredAny,
}

#[derive(Deserialize)]
struct Line {
    report: SimReport,
}

#[derive(Serialize)]
struct NewLine<'r> {
    key: &'r str,
    report: &'r SimReport,
}

/// Runs in a file, which is locked meanwhile.
#[derive(Debug)]
pub struct Finished {
    name: String,
    file: Mutex<File>,
    /// Line number and line of each run, by key.
    lines: HashMap<String, (usize, String)>,
}

impl Finished {
    /// Opens or creates a file of runs.
    ///
    /// # Errors
    /// It is another kind of file, cannot be written, or is in use.
    pub fn open(path: &Path) -> Result<Finished, CliError> {
        let name = path.display().to_string();
        let wrong = |what: &str| CliError::Input(format!("--resume: {name}: {what}"));
        let refuse = |error: io::Error| CliError::of_file(format!("--resume: {name}: {error}"), &error);
        if path.metadata().is_ok_and(|file| !file.is_file()) {
            return Err(wrong("expected a file of finished runs, found no file"));
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true).open(path);
        let mut file = file.map_err(refuse)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => wrong("another `tailwater simulate` is using it"),
            TryLockError::Error(error) => refuse(error),
        })?;
        let mut bytes = Vec::new();
        (&file).take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(refuse)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(wrong("expected at most 1 GiB, found a larger file"));
        }
        let whole = bytes.iter().rposition(|byte| *byte == b'\n');
        let whole = whole.map_or(0, |end| end + 1);
        let torn = bytes.split_off(whole);
        let header = HEADER.as_bytes();
        let begun = header.starts_with(&torn);
        if !(bytes.starts_with(header) || bytes.is_empty() && begun) {
            return Err(wrong(
                "expected a file of finished runs of this format, found another file",
            ));
        }
        let text = String::from_utf8(bytes).map_err(|_| wrong("expected text, found bytes"))?;
        let mut lines = HashMap::new();
        for (number, line) in text.lines().enumerate().skip(1) {
            let head: Head = serde_json::from_str(line).map_err(|error| {
                CliError::Input(format!(
                    "--resume: {name}:{}: expected a finished run: {error}",
                    number + 1
                ))
            })?;
            lines.insert(head.key, (number + 1, line.to_owned()));
        }
        if !torn.is_empty() {
            file.set_len(whole as u64).map_err(refuse)?;
        }
        file.seek(io::SeekFrom::End(0)).map_err(refuse)?;
        if text.is_empty() {
            file.write_all(header).map_err(refuse)?;
        }
        Ok(Finished {
            name,
            file: Mutex::new(file),
            lines,
        })
    }

    /// Returns `true` if the file has no run.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns `true` if the file has this run.
    pub fn has(&self, key: &str) -> bool {
        self.lines.contains_key(key)
    }

    /// Returns a run's report, if the file has it.
    ///
    /// # Errors
    /// The line is invalid.
    pub fn get(&self, key: &str) -> Result<Option<SimReport>, CliError> {
        let Some((number, line)) = self.lines.get(key) else {
            return Ok(None);
        };
        let line: Line = serde_json::from_str(line)
            .map_err(|error| CliError::Input(format!("--resume: {}:{number}: {error}", self.name)))?;
        Ok(Some(line.report))
    }

    /// Adds a run. After the return, the run survives a crash of the program or the machine.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&self, key: &str, report: &SimReport) -> Result<(), CliError> {
        let line = serde_json::to_string(&NewLine { key, report });
        let line = line.map_err(not_json)? + "\n";
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line.as_bytes())
            .and_then(|()| file.sync_data())
            .map_err(|source| CliError::Report {
                file: self.name.clone(),
                source,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_used_by_one_at_a_time() {
        let name = format!("tailwater-resume-{}.jsonl", std::process::id());
        let path = std::env::temp_dir().join(name);
        let first = Finished::open(&path).unwrap();
        assert!(first.is_empty());
        let error = Finished::open(&path).unwrap_err().to_string();
        assert!(error.contains("another `tailwater simulate`"), "{error}");
        drop(first);
        assert!(Finished::open(&path).is_ok());
        std::fs::remove_file(&path).unwrap();
    }
}
