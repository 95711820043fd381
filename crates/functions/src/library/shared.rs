//! Library with a configuration, shared by all workers' instances.
//!
//! One of the few modules with `unsafe` code.

use super::child::{Step, survives, tried};
use super::error::LibraryError;
use super::function::LibraryInstance;
use super::load::{load, load_for_a_trial};
use std::fmt;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tailwater_sdk::host::Configured;

/// Function from a library, configured.
#[derive(Clone)]
pub struct LibraryFunction {
    file: PathBuf,
    /// Hash of the file.
    content: u64,
    /// Configuration as JSON.
    config: String,
    shared: Arc<Configured>,
}

impl LibraryFunction {
    /// Loads a library and passes it its configuration, a JSON object. Each step is tried in a child process first.
    ///
    /// # Errors
    /// If the library crashes, is not for this program, or rejects the configuration.
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
        // Checks that the library can create an instance.
        match shared.start() {
            // SAFETY: an instance of this library, not used again.
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

    /// Name that the library reports.
    pub fn name(&self) -> &str {
        self.shared.what.name
    }

    /// File of the library.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Configuration as JSON.
    pub fn config(&self) -> &str {
        &self.config
    }

    /// Creates an instance for a worker.
    ///
    /// # Panics
    /// If the library creates none, though it did when it was opened.
    pub fn instance(&self) -> LibraryInstance {
        let instance = self.shared.start();
        let name = self.shared.what.name;
        let instance = instance.unwrap_or_else(|| panic!("the library {name} returned no instance"));
        LibraryInstance::new(Arc::clone(&self.shared), instance)
    }
}

/// Shows a hash of the file's content and the configuration, but not the path.
impl fmt::Debug for LibraryFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LibraryFunction")
            .field("name", &self.name())
            .field("content", &self.content)
            .field("config", &self.config)
            .finish()
    }
}

/// Compares the files' contents and the configurations.
impl PartialEq for LibraryFunction {
    fn eq(&self, other: &LibraryFunction) -> bool {
        (self.content, &self.config) == (other.content, &other.config)
    }
}

impl Eq for LibraryFunction {}

/// Tries out a library, with a configuration from standard input, and ends the process. This is the task of a program
/// set by [`try_by`](super::try_by). Returns the error if it cannot start.
#[must_use]
pub fn try_out(file: &Path) -> io::Error {
    tried(file, trial)
}

/// Steps that a library has to survive.
fn trial(file: &Path, config: &str, step: &mut dyn FnMut(Step)) {
    step(Step::Load);
    // The parent finds errors other than crashes again, and reports them.
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
        // SAFETY: an instance of this library, not used again.
        unsafe { shared.stop(instance) }
    }
}

/// Hash of a file of any size.
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
