//! The file of `--state`: one command at a time has it, and it is replaced whole or stays as it is.

use crate::error::CliError;
use crate::run::same_place;
use crate::text::one_line;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tailwater_placement::spec::{State, StateSpec};

/// How often a file is looked for that others make and remove at the same time.
const TRIALS: usize = 1000;

/// A file of states, for as long as this is there.
pub struct StateFile {
    path: PathBuf,
    /// What takes the state's place in the end. Until then its lock is the state's: the state itself is another file
    /// each time, and may not be there.
    new: File,
    beside: PathBuf,
    is_replaced: bool,
}

impl StateFile {
    /// Opens the file at `path`, which may not be there yet and is none of the `inputs`.
    ///
    /// # Errors
    /// It cannot be written, or another command has it.
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
            // It is replaced as a whole, which a device or a pipe is not to be.
            if fs::metadata(file).is_ok_and(|found| !found.is_file()) {
                return Err(CliError::Input(format!(
                    "--state: expected a file, found {}",
                    file.display()
                )));
            }
        }
        let new = locked(&path, &beside)?;
        // Nothing is made to try it out: somebody who waits for the lock would find it.
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

    /// The state of the cluster called `cluster`: an empty one where there is none yet.
    ///
    /// # Errors
    /// It is no state, or another cluster's.
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

    /// Writes another state in its place, whole or not at all, whenever the machine stops.
    ///
    /// # Errors
    /// It cannot be written; what was there stays.
    pub fn replace(mut self, text: &str) -> Result<(), CliError> {
        // What is written can be read again.
        StateSpec::parse(text, "the new state").map_err(|error| CliError::System {
            what: "the state could not be read again, and is not written",
            source: io::Error::other(error.to_string()),
        })?;
        let path = &self.path;
        let failed = |source| CliError::Report {
            file: path.display().to_string(),
            source,
        };
        // A command that was killed may have left a part of another one.
        self.new.set_len(0).map_err(failed)?;
        (&self.new).write_all(text.as_bytes()).map_err(failed)?;
        self.new.sync_all().map_err(failed)?;
        fs::rename(&self.beside, path).map_err(failed)?;
        self.is_replaced = true;
        // That it has another file now is in its folder.
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
    CliError::Input(format!("--state: {path} cannot be written: {error}"))
}

/// The file `beside` that is to take the state's place, which nobody else has.
fn locked(path: &Path, beside: &Path) -> Result<File, CliError> {
    let failed = |error| unwritable(beside, &error);
    let busy = || {
        let path = path.display();
        CliError::Input(format!("--state: {path}: another `tailwater place` is using it"))
    };
    for _ in 0..TRIALS {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).open(beside);
        let file = file.map_err(failed)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => busy(),
            TryLockError::Error(source) => failed(source),
        })?;
        // Whoever had it may have renamed or removed it before the lock was ours.
        let mine = file.metadata().map_err(failed)?;
        if fs::metadata(beside).is_ok_and(|there| (there.dev(), there.ino()) == (mine.dev(), mine.ino())) {
            return Ok(file);
        }
    }
    Err(busy())
}
