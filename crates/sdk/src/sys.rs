//! System calls of a function's program, through the C library that the standard library already uses.
//!
//! One of the few modules with `unsafe` code. Written by hand: `libc` or `rustix` would be the only external dependency
//! of every new function, whose folder gets a copy of this crate and builds without a network.

pub(crate) mod joining;

use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("functions are programs of 64-bit Linux");

#[cfg(target_arch = "x86_64")]
const FUTEX: c_long = 202;
#[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
const FUTEX: c_long = 98;

/// Bytes of a huge page: one fault, and one address for the processor to know, instead of 512.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

const FUTEX_WAIT: c_int = 0;
const FUTEX_WAKE: c_int = 1;
const PROT_READ: c_int = 1;
const PROT_WRITE: c_int = 2;
const PROT_NONE: c_int = 0;
const MAP_SHARED: c_int = 1;
const MAP_PRIVATE: c_int = 2;
const MAP_FIXED: c_int = 0x10;
const MAP_ANONYMOUS: c_int = 0x20;
const MAP_NORESERVE: c_int = 0x4000;
const MAP_POPULATE: c_int = 0x8000;
const MADV_POPULATE_WRITE: c_int = 23;
const MADV_COLLAPSE: c_int = 25;
const SOL_SOCKET: c_int = 1;
const SCM_RIGHTS: c_int = 1;
const MSG_CTRUNC: c_int = 0x08;
const MSG_TRUNC: c_int = 0x20;
const MSG_DONTWAIT: c_int = 0x40;
const MSG_NOSIGNAL: c_int = 0x4000;
const MSG_CMSG_CLOEXEC: c_int = 0x4000_0000;
const PR_SET_PDEATHSIG: c_int = 1;
const SIGKILL: c_ulong = 9;

#[repr(C)]
struct IoVector {
    base: *mut c_void,
    length: usize,
}

/// `struct msghdr`. Where a C library has `int`s and padding for the lengths, the bytes are the same.
#[repr(C)]
struct MessageHeader {
    name: *mut c_void,
    name_length: c_uint,
    vectors: *mut IoVector,
    vector_count: usize,
    control: *mut c_void,
    control_length: usize,
    flags: c_int,
}

/// `struct cmsghdr`, with room for descriptors.
#[repr(C)]
struct Control {
    length: usize,
    level: c_int,
    kind: c_int,
    descriptors: [RawFd; MOST_FILES],
}

/// Bytes of a [`Control`] before its descriptors.
const CONTROL_HEADER: usize = std::mem::offset_of!(Control, descriptors);

/// Maximum number of files in a message.
pub(crate) const MOST_FILES: usize = 8;

unsafe extern "C" {
    fn mmap(
        address: *mut c_void,
        length: usize,
        protection: c_int,
        flags: c_int,
        descriptor: c_int,
        offset: i64,
    ) -> *mut c_void;
    fn munmap(address: *mut c_void, length: usize) -> c_int;
    fn madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int;
    fn prctl(option: c_int, ...) -> c_int;
    fn recvmsg(socket: c_int, message: *mut MessageHeader, flags: c_int) -> isize;
    #[link_name = "sched_yield"]
    fn libc_sched_yield() -> c_int;
    fn sendmsg(socket: c_int, message: *const MessageHeader, flags: c_int) -> isize;
    fn syscall(number: c_long, ...) -> c_long;
}

/// Yields the core to other tasks queued on it.
#[inline]
pub(crate) fn sched_yield() {
    // SAFETY: the call has no arguments and accesses no memory. On Linux it always succeeds.
    unsafe { libc_sched_yield() };
}

/// Sets SIGKILL as this process's parent-death signal.
pub(crate) fn end_with_parent() -> io::Result<()> {
    // SAFETY: this option takes a number.
    match unsafe { prctl(PR_SET_PDEATHSIG, SIGKILL) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sleeps until woken, if `word` still equals `expected`. May wake spuriously.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32) {
    // SAFETY: the address is valid during the call; there is no timeout.
    unsafe {
        syscall(FUTEX, word.as_ptr(), FUTEX_WAIT, expected, ptr::null::<c_void>());
    }
}

/// Wakes one sleeper at `word`.
pub(crate) fn futex_wake(word: &AtomicU32) {
    // SAFETY: the address is valid during the call.
    unsafe { syscall(FUTEX, word.as_ptr(), FUTEX_WAKE, 1u32) };
}

/// Shared mapping of part of a file.
#[derive(Debug)]
pub(crate) struct Map {
    base: *mut u8,
    bytes: usize,
    /// Reserved address range around the map: start and length.
    room: (*mut u8, usize),
}

// SAFETY: an address and a length. The users of the bytes state the rules for accessing them.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `bytes` bytes, at least 1, all of which the file must have. Populates all pages at once, so that the first
    /// packets cause no page faults.
    pub(crate) fn new(file: &File, bytes: usize, writable: bool) -> io::Result<Map> {
        Map::with(file, bytes, writable, MAP_SHARED | MAP_POPULATE)
    }

    /// As [`new`](Map::new), but maps each page on first access.
    pub(crate) fn lazily(file: &File, bytes: usize, writable: bool) -> io::Result<Map> {
        Map::with(file, bytes, writable, MAP_SHARED)
    }

    fn with(file: &File, bytes: usize, writable: bool, flags: c_int) -> io::Result<Map> {
        let protection = match writable {
            true => PROT_READ | PROT_WRITE,
            false => PROT_READ,
        };
        if bytes < HUGE_PAGE {
            let base = map(ptr::null_mut(), bytes, protection, flags, file.as_raw_fd())?;
            let room = (base, bytes);
            return Ok(Map { base, bytes, room });
        }
        // Huge pages are mapped as such only at aligned addresses, which not every kernel chooses by itself.
        let length = bytes.next_multiple_of(HUGE_PAGE) + HUGE_PAGE;
        let kept = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        let first = map(ptr::null_mut(), length, PROT_NONE, kept, -1)?;
        let base = first.wrapping_add(first.align_offset(HUGE_PAGE));
        let mut reserved = Map {
            base,
            bytes,
            room: (first, length),
        };
        reserved.base = map(base, bytes, protection, flags | MAP_FIXED, file.as_raw_fd())?;
        Ok(reserved)
    }

    /// Populates missing pages for writing, from the start on, until all are present or `bound` has passed.
    pub(crate) fn populate(&self, bound: Duration) {
        let began = Instant::now();
        for at in (0..self.bytes).step_by(HUGE_PAGE) {
            let there = self.advise(at, HUGE_PAGE.min(self.bytes - at), MADV_POPULATE_WRITE);
            // A kernel without this advice populates pages on access.
            if there.is_err() || began.elapsed() >= bound {
                return;
            }
        }
    }

    /// Collapses pages into huge pages, where the kernel can.
    pub(crate) fn collapse(&self) -> io::Result<()> {
        match self.bytes / HUGE_PAGE {
            0 => Ok(()),
            whole => self.advise(0, whole * HUGE_PAGE, MADV_COLLAPSE),
        }
    }

    /// Gives advice that changes no byte. The range must be within the map.
    fn advise(&self, at: usize, bytes: usize, advice: c_int) -> io::Result<()> {
        // SAFETY: addresses of this map; the kernel refuses advice that it does not support.
        match unsafe { madvise(self.base.wrapping_add(at).cast(), bytes, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns the address of the first byte, which is page-aligned.
    #[inline(always)]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        let (first, length) = self.room;
        // SAFETY: mapped by `with`; nothing refers to it any more.
        unsafe { munmap(first.cast(), length) };
    }
}

/// Maps a file, or nothing, at an address of the kernel's choice. With `MAP_FIXED`, replaces the caller's own map at
/// `address`.
fn map(address: *mut u8, bytes: usize, protection: c_int, flags: c_int, file: RawFd) -> io::Result<*mut u8> {
    // SAFETY: a new map, or one that replaces a map which belongs to the caller alone and which nothing refers to; the
    // file is open during the call.
    let base = unsafe { mmap(address.cast(), bytes, protection, flags, file, 0) };
    match base as isize {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(base.cast()),
    }
}

/// Prefetches the cache line at an address. Any address is allowed.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64, and a prefetch of any address only affects caches.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Sends a packet with files, without blocking.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    if files.len() > MOST_FILES {
        return Err(io::Error::other("too many files for one message"));
    }
    let mut control = Control {
        length: CONTROL_HEADER + size_of_val(files),
        level: SOL_SOCKET,
        kind: SCM_RIGHTS,
        descriptors: [-1; MOST_FILES],
    };
    for (to, file) in control.descriptors.iter_mut().zip(files) {
        *to = file.as_raw_fd();
    }
    let mut vector = IoVector {
        base: bytes.as_ptr().cast_mut().cast(),
        length: bytes.len(),
    };
    let header = MessageHeader {
        name: ptr::null_mut(),
        name_length: 0,
        vectors: &raw mut vector,
        vector_count: 1,
        control: match files {
            [] => ptr::null_mut(),
            _ => (&raw mut control).cast(),
        },
        control_length: match files {
            [] => 0,
            _ => control.length.next_multiple_of(size_of::<usize>()),
        },
        flags: 0,
    };
    // SAFETY: the data that the header points to outlives the call, which only reads it. The control message's length
    // is at most its size, which is a multiple of a word.
    let sent = unsafe { sendmsg(socket.as_raw_fd(), &raw const header, MSG_NOSIGNAL | MSG_DONTWAIT) };
    match sent {
        -1 => Err(io::Error::last_os_error()),
        sent if sent as usize == bytes.len() => Ok(()),
        _ => Err(io::Error::other("a message was cut")),
    }
}

/// Waits for a packet. Returns its length in bytes, and the files that came with it.
///
/// # Errors
/// The system reports an error, or the packet does not fit.
pub(crate) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = MaybeUninit::<Control>::zeroed();
    let mut vector = IoVector {
        base: bytes.as_mut_ptr().cast(),
        length: bytes.len(),
    };
    let mut header = MessageHeader {
        name: ptr::null_mut(),
        name_length: 0,
        vectors: &raw mut vector,
        vector_count: 1,
        control: control.as_mut_ptr().cast(),
        control_length: size_of::<Control>(),
        flags: 0,
    };
    let received = loop {
        // SAFETY: buffers of the stated lengths, which outlive the call.
        match unsafe { recvmsg(socket.as_raw_fd(), &raw mut header, MSG_CMSG_CLOEXEC) } {
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            received => break received as usize,
        }
    };
    // SAFETY: zeroed at first, and any bytes are valid; the kernel wrote numbers.
    let control = unsafe { control.assume_init() };
    let is_files = header.control_length >= CONTROL_HEADER && (control.level, control.kind) == (SOL_SOCKET, SCM_RIGHTS);
    let count = match is_files {
        true => control.length.saturating_sub(CONTROL_HEADER) / size_of::<RawFd>(),
        false => 0,
    };
    let descriptors = control.descriptors.into_iter().take(count);
    // SAFETY: the kernel has just created these descriptors for this message, and nothing else owns them.
    let files = descriptors.map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) });
    // If the message is refused, dropping the list closes its files.
    let files: Vec<OwnedFd> = files.collect();
    match header.flags & (MSG_TRUNC | MSG_CTRUNC) {
        0 => Ok((received, files)),
        _ => Err(io::Error::other("a message that is too long")),
    }
}
