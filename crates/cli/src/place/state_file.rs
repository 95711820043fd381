//! File of `--state`, locked by one command at a time and replaced atomically.

use crate::error::CliError;
use crate::files::{locked, same_place};
use crate::text::one_line;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use tailwater_placement::spec::{State, StateSpec};

/// A state file, locked until dropped.
pub struct StateFile {
    path: PathBuf,
    /// New file that replaces the state in the end. It carries the lock until then: the state itself is another file
    /// after each command, and may not exist.
    new: File,
    beside: PathBuf,
    is_replaced: bool,
}

impl StateFile {
    /// Opens the file at `path`, which may not exist yet and must not be one of the `inputs`.
    ///
    /// # Errors
    /// It cannot be written, or another command has locked it.
    pub fn open(path: &Path, inputs: &[&Path]) -> Result<Self, CliError> {
        // Behind a link, the file is replaced, and the link stays.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut beside = path.clone().into_os_string();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        for file in [&path, &beside] {
            if let Some(input) = inputs.iter().find(|input| same_place(file, input)) {
                let (file, input) = (file.display(), input.display());
                return Err(CliError::Input(format!(
                    "--state: {file} would overwrite the input {input}"
                )));
            }
            // The whole file is replaced, which is impossible for a device or a pipe.
            if fs::metadata(file).is_ok_and(|found| !found.is_file()) {
                return Err(CliError::Input(format!(
                    "--state: expected a file, found {}",
                    file.display()
                )));
            }
        }
        let new = locked("--state", &path, &beside, "place")?;
        // Does not create the file to test writability: a command that waits for the lock would read it.
        if let Err(error) = OpenOptions::new().append(true).open(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            let _ = fs::remove_file(&beside);
            return Err(unwritable(&path, &error));
        }
        Ok(StateFile {
            path,
            new,
            beside,
            is_replaced: false,
        })
    }

    /// Reads the state of the cluster `cluster`; an empty one if the file does not exist.
    ///
    /// # Errors
    /// The file is not a state, or belongs to another cluster.
    pub fn read(&self, cluster: &str) -> Result<State, CliError> {
        if !fs::metadata(&self.path).is_ok_and(|file| file.len() > 0) {
            return Ok(State::default());
        }
        let kept = StateSpec::read(&self.path)?;
        if kept.cluster != cluster {
            let (path, of) = (self.path.display(), one_line(&kept.cluster));
            return Err(CliError::Input(format!(
                "--state: {path} is the state of cluster {of}, not of {cluster}"
            )));
        }
        Ok(kept)
    }

    /// Replaces the state atomically, also if the machine stops.
    ///
    /// # Errors
    /// It cannot be written; the previous state remains.
    pub fn replace(mut self, text: &str) -> Result<(), CliError> {
        // Checks that the written state can be parsed.
        StateSpec::parse(text, "the new state").map_err(|error| CliError::System {
            what: "the state could not be read again, and is not written",
            source: io::Error::other(error.to_string()),
        })?;
        let path = &self.path;
        let failed = |source| CliError::Report {
            file: path.display().to_string(),
            source,
        };
        // A killed command may have left a partial state.
        self.new.set_len(0).map_err(failed)?;
        (&self.new).write_all(text.as_bytes()).map_err(failed)?;
        self.new.sync_all().map_err(failed)?;
        fs::rename(&self.beside, path).map_err(failed)?;
        self.is_replaced = true;
        // The rename is durable once the directory is synced.
        let folder = path.parent().filter(|folder| *folder != Path::new(""));
        let folder = File::open(folder.unwrap_or(Path::new(".")));
        folder.and_then(|folder| folder.sync_all()).map_err(failed)
    }
}

impl Drop for StateFile {
    fn drop(&mut self) {
        if !self.is_replaced {
            let _ = fs::remove_file(&self.beside);
        }
    }
}

fn unwritable(path: &Path, error: &io::Error) -> CliError {
    let path = path.display();
    CliError::of_file(format!("--state: {path} cannot be written: {error}"), error)
}
