//! Loading of libraries.
//!
//! One of the few modules with `unsafe` code.

use super::error::LibraryError;
use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tailwater_sdk::abi;
use tailwater_sdk::host::{self, FunctionDescription};

/// All libraries loaded so far, which stay loaded, by the linker's handle: loading a file again gives the same library.
static LOADED: Mutex<Vec<(usize, &'static FunctionDescription)>> = Mutex::new(Vec::new());

/// Held while a library is loaded, and while a process is forked for a trial: the linker of a child that was forked in
/// the middle of a `dlopen` refuses to load anything.
static LINKER: Mutex<()> = Mutex::new(());

/// Keeps other threads from loading libraries, until the guard is dropped.
pub(super) fn no_other_loads() -> MutexGuard<'static, ()> {
    LINKER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Loads a library, or returns the one already loaded.
///
/// # Errors
/// If the file cannot be loaded, or is not for this program.
pub fn load(path: &Path) -> Result<&'static FunctionDescription, LibraryError> {
    let handle = {
        let _alone = no_other_loads();
        open(path)?
    };
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let there = |(other, _): &&(usize, &'static FunctionDescription)| *other == handle as usize;
    if let Some((_, library)) = loaded.iter().find(there) {
        return Ok(library);
    }
    let library: &'static FunctionDescription = Box::leak(Box::new(read(handle)?));
    loaded.push((handle as usize, library));
    Ok(library)
}

/// Loads a library in a short-lived process. It records nothing and takes no lock, since a thread of the parent might
/// have held it.
///
/// # Errors
/// Same as [`load`].
pub(super) fn load_for_a_trial(path: &Path) -> Result<&'static FunctionDescription, LibraryError> {
    Ok(Box::leak(Box::new(read(open(path)?)?)))
}

fn read(handle: *mut c_void) -> Result<FunctionDescription, LibraryError> {
    // SAFETY: a handle of `dlopen`, never closed, and a name that ends with a zero byte.
    let symbol = unsafe { libc::dlsym(handle, host::SYMBOL.as_ptr()) };
    let function = symbol.cast::<abi::Function>();
    if function.is_null() || !function.is_aligned() {
        return Err(LibraryError::NoSymbol);
    }
    // SAFETY: aligned, as checked above. By the header's rules, a library exports a function under this name, which
    // stays as long as the library is loaded.
    Ok(unsafe { FunctionDescription::read(function) }?)
}

/// Makes the linker load a library if it is not loaded yet.
fn open(path: &Path) -> Result<*mut c_void, LibraryError> {
    // Without a slash, the linker would search other directories.
    let path = path.canonicalize().map_err(LibraryError::Read)?;
    let path = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| LibraryError::Linker("expected a name without zero bytes".to_owned()))?;
    // SAFETY: this runs the library's constructors, which can do anything; the author of the chain spec trusts them.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    match handle.is_null() {
        true => Err(LibraryError::Linker(linker_says(&path))),
        false => Ok(handle),
    }
}

/// Message of the linker's last error, without the file's name.
fn linker_says(path: &CStr) -> String {
    // SAFETY: a text that is valid until this thread calls the linker again, or null.
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
