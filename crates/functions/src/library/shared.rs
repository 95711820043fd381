//! A library with a configuration: what all workers' instances share.
//!
//! One of the few modules with `unsafe` code.

use super::child::{Step, survives, tried};
use super::error::LibraryError;
use super::function::Foreign;
use super::load::{load, load_for_a_trial};
use std::fmt;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tailwater_sdk::host::Configured;

/// A function from a library, configured.
#[derive(Clone)]
pub struct LibraryFunction {
    file: PathBuf,
    /// A hash of the file.
    content: u64,
    /// JSON.
    config: String,
    shared: Arc<Configured>,
}

impl LibraryFunction {
    /// Loads a library and has it read its configuration, a JSON object; each in a child process first.
    ///
    /// # Errors
    /// The library crashes, is none for this program, or refuses the configuration.
    pub fn open(file: &Path, config: &str) -> Result<LibraryFunction, LibraryError> {
        let kind = fs::metadata(file).map_err(LibraryError::Read)?.file_type();
        if !kind.is_file() {
            return Err(LibraryError::NoFile);
        }
        let content = content(file).map_err(LibraryError::Read)?;
        survives((file, config), trial)?;
        LibraryFunction::loaded(file, content, config)
    }

    fn loaded(file: &Path, content: u64, config: &str) -> Result<LibraryFunction, LibraryError> {
        let shared = Configured::new(load(file)?, config)?;
        // Can one be had at all?
        match shared.start() {
            // SAFETY: an instance of this library, not used any more.
            Some(instance) => unsafe { shared.stop(instance) },
            None => return Err(LibraryError::NoInstance),
        }
        Ok(LibraryFunction {
            file: file.to_owned(),
            content,
            config: config.to_owned(),
            shared: Arc::new(shared),
        })
    }

    /// The name that the library gives itself.
    pub fn name(&self) -> &str {
        self.shared.what.name
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The configuration, as JSON.
    pub fn config(&self) -> &str {
        &self.config
    }

    /// An instance for a worker.
    ///
    /// # Panics
    /// If the library gives none, though it gave one when it was opened.
    pub fn instance(&self) -> Foreign {
        let instance = self.shared.start();
        let name = self.shared.what.name;
        let instance = instance.unwrap_or_else(|| panic!("the library {name} gave no instance"));
        Foreign::new(Arc::clone(&self.shared), instance)
    }
}

/// The file's content and the configuration: where the file lies makes no difference.
impl fmt::Debug for LibraryFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LibraryFunction")
            .field("name", &self.name())
            .field("content", &self.content)
            .field("config", &self.config)
            .finish()
    }
}

/// Equal if the files' contents and the configurations are.
impl PartialEq for LibraryFunction {
    fn eq(&self, other: &LibraryFunction) -> bool {
        (self.content, &self.config) == (other.content, &other.config)
    }
}

impl Eq for LibraryFunction {}

/// Tries out a library, with a configuration that comes from standard input, and ends the process: what a program does
/// that
/// libraries are [tried out by](super::try_by). If it cannot, why not.
#[must_use]
pub fn try_out(file: &Path) -> io::Error {
    tried(file, trial)
}

/// What a library has to survive.
fn trial(file: &Path, config: &str, step: &mut dyn FnMut(Step)) {
    step(Step::Load);
    // What is wrong without a crash is found again by the parent, and told.
    let Ok(library) = load_for_a_trial(file) else {
        return;
    };
    step(Step::Configure);
    let Ok(shared) = Configured::new(library, config) else {
        return;
    };
    step(Step::Start);
    let instance = shared.start();
    step(Step::Stop);
    if let Some(instance) = instance {
        // SAFETY: an instance of this library, not used any more.
        unsafe { shared.stop(instance) }
    }
}

/// A hash of a file, however large.
fn content(file: &Path) -> io::Result<u64> {
    let mut hash = DefaultHasher::new();
    let mut reader = BufReader::new(File::open(file)?);
    loop {
        let bytes = reader.fill_buf()?;
        if bytes.is_empty() {
            return Ok(hash.finish());
        }
        hash.write(bytes);
        let length = bytes.len();
        reader.consume(length);
    }
}
