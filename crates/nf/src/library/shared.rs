//! A library with a configuration: what all workers' instances share.
//!
//! One of the few modules with `unsafe` code.

use super::child::{Step, survives};
use super::error::LibraryError;
use super::function::Foreign;
use super::load::Library;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::Arc;
use tailwater_sdk::abi;

/// A function from a library, configured.
#[derive(Clone)]
pub struct LibraryFunction {
    file: PathBuf,
    /// A hash of the file.
    content: u64,
    /// JSON.
    config: String,
    shared: Arc<Shared>,
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
        survives(|step| {
            step(Step::Load);
            // What is wrong without a crash is found again, and told, below.
            let Ok(library) = Library::load_for_a_trial(file) else {
                return;
            };
            step(Step::Configure);
            let Ok(shared) = Shared::new(library, config) else {
                return;
            };
            step(Step::Start);
            let instance = shared.start();
            step(Step::Stop);
            if let Some(instance) = instance {
                // SAFETY: an instance of this library, not used any more.
                unsafe { shared.stop(instance) }
            }
        })?;
        LibraryFunction::loaded(file, content, config)
    }

    /// As [`open`](Self::open), by a process that another one started after it had opened the same library: it is not
    /// tried out again. If it crashes, so does this process.
    ///
    /// # Errors
    /// The library is none for this program, or refuses the configuration.
    pub fn open_tried(file: &Path, config: &str) -> Result<LibraryFunction, LibraryError> {
        let content = content(file).map_err(LibraryError::Read)?;
        LibraryFunction::loaded(file, content, config)
    }

    fn loaded(file: &Path, content: u64, config: &str) -> Result<LibraryFunction, LibraryError> {
        let shared = Shared::new(Library::load(file)?, config)?;
        // Can one be had at all?
        match shared.start() {
            // SAFETY: an instance of this library, not used any more.
            Some(instance) => unsafe { shared.stop(instance) },
            None => {
                let message = "start: expected an instance, found NULL".to_owned();
                return Err(LibraryError::Description(message));
            }
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
        self.shared.library.name
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
        let name = self.shared.library.name;
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

/// What `configure` made. Outlives every instance.
pub(super) struct Shared {
    pub(super) library: &'static Library,
    made: *mut c_void,
}

// SAFETY: the header's rules: `made` is read-only, `start` may be called by any thread, `release` by the last.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    fn new(library: &'static Library, config: &str) -> Result<Shared, LibraryError> {
        let mut made = null_mut();
        let Some(configure) = library.function.configure else {
            return match config {
                "{}" => Ok(Shared { library, made }),
                _ => Err(LibraryError::Config {
                    field: String::new(),
                    message: format!("expected none, since {} takes none", library.name),
                }),
            };
        };
        let text = CString::new(config).map_err(|_| LibraryError::Config {
            field: String::new(),
            message: "expected no zero bytes".to_owned(),
        })?;
        let mut error = abi::Error {
            message: [0; 512],
            field: [0; 128],
        };
        // SAFETY: as the header says: a text of so many bytes with a zero behind it, and places for what
        // comes back, all of which outlive the call.
        let code = unsafe { configure(text.as_ptr(), config.len(), &raw mut made, &raw mut error) };
        if code == 0 {
            return Ok(Shared { library, made });
        }
        let message = match told(&error.message) {
            message if message.is_empty() => {
                format!(
                    "{} refuses it (code {code}) and does not say why",
                    library.name
                )
            }
            message => message,
        };
        Err(LibraryError::Config {
            field: told(&error.field),
            message,
        })
    }

    /// An instance; `None` if the library gives none.
    fn start(&self) -> Option<*mut c_void> {
        match self.library.function.start {
            // SAFETY: as the header says: what `configure` made, not released.
            Some(start) => Some(unsafe { start(self.made) }).filter(|made| !made.is_null()),
            None => Some(self.made),
        }
    }

    /// Ends an instance.
    ///
    /// # Safety
    /// It is of [`start`](Self::start), and not used again.
    pub(super) unsafe fn stop(&self, instance: *mut c_void) {
        if let Some(stop) = self.library.function.stop {
            // SAFETY: the caller's word.
            unsafe { stop(instance) }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(release) = self.library.function.release {
            // SAFETY: once, and after the last instance: each holds the `Arc` that this is in.
            unsafe { release(self.made) }
        }
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

/// A text of the library's, up to its zero byte.
fn told(text: &[c_char]) -> String {
    // SAFETY: a `c_char` is a byte, and the slice stays as it is.
    let bytes = unsafe { std::slice::from_raw_parts(text.as_ptr().cast::<u8>(), text.len()) };
    let text = CStr::from_bytes_until_nul(bytes).map_or(bytes, CStr::to_bytes);
    String::from_utf8_lossy(text).into_owned()
}
