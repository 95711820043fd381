//! Loading a library, and reading what it says of itself.
//!
//! One of the few modules with `unsafe` code.

use super::error::LibraryError;
use crate::spec::document::is_label;
use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::slice;
use std::sync::Mutex;
use tailwater_sdk::abi;

/// A library that is loaded, and stays so.
#[derive(Debug)]
pub(super) struct Library {
    /// What the linker calls it: the same for a file that is loaded twice.
    handle: usize,
    /// The name it gives itself, a label.
    pub(super) name: &'static str,
    /// Why it drops packets; last, [`INVALID`].
    pub(super) drop_reasons: Vec<&'static str>,
    /// Which of these are losses.
    pub(super) losses: Vec<bool>,
    pub(super) counters: Vec<&'static str>,
    /// What it exports. Its pointers are to the library's own data and code, which stay.
    pub(super) function: abi::Function,
    pub(super) process: abi::Process,
}

/// Why packets are dropped that a library made unfit to go on.
const INVALID: &str = "invalid";

// SAFETY: it is not written after it was made, and the library's data that it points to is not either.
unsafe impl Sync for Library {}
// SAFETY: as above.
unsafe impl Send for Library {}

/// All libraries that were loaded: a file that is loaded again is the same library.
static LOADED: Mutex<Vec<&'static Library>> = Mutex::new(Vec::new());

impl Library {
    /// Loads a library, or finds it loaded.
    ///
    /// # Errors
    /// It cannot be loaded, or is none for this program.
    pub(super) fn load(path: &Path) -> Result<&'static Library, LibraryError> {
        let handle = open(path)?;
        let mut loaded = match LOADED.lock() {
            Ok(loaded) => loaded,
            Err(poisoned) => poisoned.into_inner(),
        };
        let there = |library: &&&Library| library.handle == handle as usize;
        if let Some(library) = loaded.iter().find(there) {
            return Ok(library);
        }
        let library: &'static Library = Box::leak(Box::new(Library::read(handle)?));
        loaded.push(library);
        Ok(library)
    }

    /// Loads a library in a process that will soon be gone: nothing is kept, and no lock taken, which a thread of
    /// the parent's might have held.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub(super) fn load_for_a_trial(path: &Path) -> Result<&'static Library, LibraryError> {
        Ok(Box::leak(Box::new(Library::read(open(path)?)?)))
    }

    fn read(handle: *mut c_void) -> Result<Library, LibraryError> {
        // SAFETY: a handle of `dlopen`, never closed, and a name that ends with a zero byte.
        let symbol = unsafe { libc::dlsym(handle, abi::SYMBOL.as_ptr()) };
        if symbol.is_null() || !symbol.cast::<abi::Function>().is_aligned() {
            return Err(LibraryError::NoSymbol);
        }
        // SAFETY: whatever the version, the object begins with its version and its size; aligned by the above.
        let [version, size] = unsafe { *symbol.cast::<[u32; 2]>() };
        if version != abi::ABI_VERSION {
            return Err(LibraryError::Version {
                expected: abi::ABI_VERSION,
                found: version,
            });
        }
        if (size as usize) < size_of::<abi::Function>() {
            return Err(wrong(format!(
                "expected a size of {} bytes or more, found {size}",
                size_of::<abi::Function>()
            )));
        }
        // SAFETY: an object of this version and at least this size, which the library does not change.
        let function = unsafe { *symbol.cast::<abi::Function>() };
        let name = text(function.name, "name")?;
        let [reasons, counters] =
            [function.drop_reason_count, function.counter_count].map(|count| count as usize);
        at_most(reasons, abi::MAX_DROP_REASONS, "drop_reason_count")?;
        at_most(counters, abi::MAX_COUNTERS, "counter_count")?;
        at_most(
            function.state_bytes as usize,
            abi::MAX_STATE_BYTES,
            "state_bytes",
        )?;
        if function.state_bytes == 0 && function.flows_ended.is_some() {
            let message = "flows_ended: expected NULL, since there is no state_bytes";
            return Err(wrong(message.to_owned()));
        }
        let known = abi::HEADERS_ONLY | abi::REWRITES_FLOWS;
        if function.flags & !known != 0 {
            let found = function.flags;
            return Err(wrong(format!(
                "flags: expected only those of tailwater_nf.h, found {found:#x}"
            )));
        }
        // SAFETY: lists of so many, by the header's rules.
        let (reasons, counters) = unsafe {
            (
                list(function.drop_reasons, reasons, "drop_reasons")?,
                list(function.counters, counters, "counters")?,
            )
        };
        let mut drop_reasons = Vec::new();
        for (i, reason) in reasons.iter().enumerate() {
            drop_reasons.push(text(reason.name, &format!("drop_reasons[{i}].name"))?);
        }
        drop_reasons.push(INVALID);
        let mut names = Vec::new();
        for (i, counter) in counters.iter().enumerate() {
            names.push(text(*counter, &format!("counters[{i}]"))?);
        }
        let all: Vec<&str> = drop_reasons.iter().chain(&names).copied().collect();
        if let Some(twice) = (1..all.len()).find(|i| all[..*i].contains(&all[*i])) {
            return Err(wrong(format!(
                "expected a different name for each reason and counter, found {:?} twice",
                all[twice]
            )));
        }
        let process = function
            .process
            .ok_or_else(|| wrong("expected process, found NULL".to_owned()))?;
        let losses = reasons.iter().map(|reason| reason.is_loss != 0);
        Ok(Library {
            handle: handle as usize,
            name,
            losses: losses.chain([true]).collect(),
            drop_reasons,
            counters: names,
            function,
            process,
        })
    }

    /// The place of [`INVALID`] in the reasons to drop.
    pub(super) fn invalid(&self) -> u8 {
        (self.drop_reasons.len() - 1) as u8
    }
}

/// Has the linker load a library, if it has not yet.
fn open(path: &Path) -> Result<*mut c_void, LibraryError> {
    // Without a slash the linker would look elsewhere.
    let path = path.canonicalize().map_err(LibraryError::Read)?;
    let path = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| LibraryError::Linker("its name has a zero byte".to_owned()))?;
    // SAFETY: this runs the library's constructors, which can do anything: who wrote the chain spec trusts them.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    match handle.is_null() {
        true => Err(LibraryError::Linker(linker_says(&path))),
        false => Ok(handle),
    }
}

fn wrong(message: String) -> LibraryError {
    LibraryError::Description(message)
}

fn at_most(found: usize, most: usize, what: &str) -> Result<(), LibraryError> {
    match found <= most {
        true => Ok(()),
        false => Err(wrong(format!(
            "{what}: expected at most {most}, found {found}"
        ))),
    }
}

/// What the linker has to say about its last error, without the file's name.
fn linker_says(path: &CStr) -> String {
    // SAFETY: a text that stays until this thread calls the linker again, or null.
    let said = unsafe {
        let said = libc::dlerror();
        match said.is_null() {
            true => "no reason was given".into(),
            false => CStr::from_ptr(said).to_string_lossy(),
        }
    };
    let file = path.to_string_lossy();
    said.strip_prefix(&*file)
        .map_or(&*said, |rest| rest.trim_start_matches([':', ' ']))
        .to_owned()
}

/// A copy of a name, for as long as the library is loaded: for ever.
fn text(pointer: *const c_char, what: &str) -> Result<&'static str, LibraryError> {
    let expected = |found: &str| {
        wrong(format!(
            "{what}: expected a name of 1 to 63 lower-case letters, digits and dashes, found {found}"
        ))
    };
    if pointer.is_null() {
        return Err(expected("NULL"));
    }
    // SAFETY: not null; by the header's rules, a text that ends with a zero byte.
    let found = unsafe { CStr::from_ptr(pointer) }.to_string_lossy();
    match is_label(&found) {
        true => Ok(found.into_owned().leak()),
        false => Err(expected(&format!("{found:?}"))),
    }
}

/// # Safety
/// Unless it is null, `first` points to so many values that are never written.
unsafe fn list<T>(first: *const T, count: usize, what: &str) -> Result<&'static [T], LibraryError> {
    match (count, first.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(wrong(format!("{what}: expected {count}, found NULL"))),
        // SAFETY: the caller's word.
        _ => Ok(unsafe { slice::from_raw_parts(first, count) }),
    }
}
