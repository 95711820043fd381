//! Memory that runs out: a clear error and, if a run is on, its report, instead of an abort.
//!
//! The program's allocator sets a reserve aside. When the system refuses memory, the reserve is released and the
//! command asked to stop, as by a signal; it then has enough to print its report. A request that is larger fails: its
//! caller handles that or aborts, and the abort is turned into an error.
//!
//! A module with `unsafe` code: an allocator, and a handler of a signal.

use signal_hook::consts::SIGABRT;
use signal_hook::low_level;
use std::alloc::{GlobalAlloc, Layout, System};
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use tailwater_files::stop_requested;

/// Size of the reserve in bytes. Not touched, so that it takes addresses only.
const RESERVE: Layout = match Layout::from_size_align(16 << 20, 16) {
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};

/// Largest request in bytes that the reserve is released for.
const SMALL: usize = 1 << 20;

#[global_allocator]
static ALLOCATOR: Reserving = Reserving;

/// The reserve; null if there is none (any more).
static AT: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// `true` once the reserve was released and the command asked to stop.
static IS_SHORT: AtomicBool = AtomicBool::new(false);
/// Size of the last request that failed, in bytes.
static FAILED: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator with a reserve.
struct Reserving;

/// Sets the reserve aside, and turns the abort after a failed request into an error.
///
/// # Errors
/// The signal cannot be handled.
pub fn prepare() -> io::Result<()> {
    // Allocates, which must not happen later.
    stop_requested();
    // SAFETY: the layout has a size above 0.
    AT.store(unsafe { System.alloc(RESERVE) }, Ordering::Release);
    let abort = || {
        if FAILED.load(Ordering::Relaxed) > 0 {
            let text = b"error: out of memory: the machine or a limit of this process (ulimit -v) has no room left\n";
            let _ = rustix::io::write(rustix::stdio::stderr(), text);
            low_level::exit(1);
        }
    };
    // SAFETY: the handler reads an atomic, writes to a descriptor and ends the process; it neither allocates nor locks.
    unsafe { low_level::register(SIGABRT, abort) }.map(drop)
}

/// Returns `true` if the command was stopped because memory ran out.
pub fn is_short() -> bool {
    IS_SHORT.load(Ordering::Relaxed)
}

impl Reserving {
    /// Tries a failed request again, if it is small and there is a reserve to release.
    #[cold]
    fn again(size: usize, request: impl Fn() -> *mut u8) -> *mut u8 {
        FAILED.store(size.max(1), Ordering::Relaxed);
        if size > SMALL {
            return ptr::null_mut();
        }
        let reserve = AT.swap(ptr::null_mut(), Ordering::AcqRel);
        if !reserve.is_null() {
            // SAFETY: allocated by `prepare` with this layout, and taken out by the swap, so released once.
            unsafe { System.dealloc(reserve, RESERVE) };
            IS_SHORT.store(true, Ordering::Relaxed);
            stop_requested().store(true, Ordering::Relaxed);
        }
        // Another thread may have released it just now.
        request()
    }
}

// SAFETY: every request and release is passed to the system's allocator as it is; one that fails is repeated unchanged.
// Nothing here unwinds or allocates: `stop_requested` did so in `prepare`, without which there is no reserve.
unsafe impl GlobalAlloc for Reserving {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: guaranteed by the caller, here and below.
        let request = || unsafe { System.alloc(layout) };
        let memory = request();
        match memory.is_null() {
            false => memory,
            true => Reserving::again(layout.size(), request),
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        let request = || unsafe { System.alloc_zeroed(layout) };
        let memory = request();
        match memory.is_null() {
            false => memory,
            true => Reserving::again(layout.size(), request),
        }
    }

    #[inline]
    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `alloc`. After a failure the old memory is unchanged, so the request can be repeated.
        let request = || unsafe { System.realloc(old, layout, size) };
        let memory = request();
        match memory.is_null() {
            false => memory,
            true => Reserving::again(size, request),
        }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}
