//! The system calls that a function's program needs, of the C library that the standard library uses already.
//!
//! One of the few modules with `unsafe` code. A crate for them would be this crate's only dependency.

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

/// `struct msghdr`. Where a C library has `int`s and padding for the lengths, these are the same bytes.
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

/// `struct cmsghdr` with room for descriptors.
#[repr(C)]
struct Control {
    length: usize,
    level: c_int,
    kind: c_int,
    descriptors: [RawFd; MOST_FILES],
}

/// Bytes of a [`Control`] in front of its descriptors.
const CONTROL_HEADER: usize = std::mem::offset_of!(Control, descriptors);

/// The most files that come with a message.
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

/// Lets others run that are queued on this core.
#[inline]
pub(crate) fn sched_yield() {
    // SAFETY: it takes and touches nothing. On Linux it always succeeds.
    unsafe { libc_sched_yield() };
}

/// Has the kernel kill this process when the one that started it ends.
pub(crate) fn end_with_parent() -> io::Result<()> {
    // SAFETY: a number, as this option wants.
    match unsafe { prctl(PR_SET_PDEATHSIG, SIGKILL) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sleeps until woken, unless `word` is another value than `expected` by now; or wakes for no reason.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32) {
    // SAFETY: an address that is valid for the call, and no bound on the time.
    unsafe {
        syscall(FUTEX, word.as_ptr(), FUTEX_WAIT, expected, ptr::null::<c_void>());
    }
}

/// Wakes one that sleeps at `word`.
pub(crate) fn futex_wake(word: &AtomicU32) {
    // SAFETY: an address that is valid for the call.
    unsafe { syscall(FUTEX, word.as_ptr(), FUTEX_WAKE, 1u32) };
}

/// Part of a file, mapped, so that what others write there is seen.
#[derive(Debug)]
pub(crate) struct Map {
    base: *mut u8,
    bytes: usize,
    /// The addresses that the map is in: where they begin, and how many there are.
    room: (*mut u8, usize),
}

// SAFETY: an address and a length. Who may touch the bytes, and how, is said where they are touched.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps so many bytes, at least 1, all of which the file is to have; all pages at once: the first packets are not
    /// to pay for them.
    pub(crate) fn new(file: &File, bytes: usize, writable: bool) -> io::Result<Map> {
        Map::with(file, bytes, writable, MAP_SHARED | MAP_POPULATE)
    }

    /// As [`new`](Map::new), each page when it is touched.
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
        // Huge pages are mapped as such only where addresses have their alignment, which not every kernel chooses.
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

    /// Has pages there that are not, to write, the first of them first, until all are or `bound` is over.
    pub(crate) fn populate(&self, bound: Duration) {
        let began = Instant::now();
        for at in (0..self.bytes).step_by(HUGE_PAGE) {
            let there = self.advise(at, HUGE_PAGE.min(self.bytes - at), MADV_POPULATE_WRITE);
            // A kernel that does not know this gives pages when they are touched.
            if there.is_err() || began.elapsed() >= bound {
                return;
            }
        }
    }

    /// Has the kernel put huge pages in the place of others, where it can.
    pub(crate) fn collapse(&self) -> io::Result<()> {
        match self.bytes / HUGE_PAGE {
            0 => Ok(()),
            whole => self.advise(0, whole * HUGE_PAGE, MADV_COLLAPSE),
        }
    }

    /// Advice that changes no byte. The part is within the map.
    fn advise(&self, at: usize, bytes: usize, advice: c_int) -> io::Result<()> {
        // SAFETY: addresses of this map; the kernel refuses what it does not know.
        match unsafe { madvise(self.base.wrapping_add(at).cast(), bytes, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The first byte, which is that of a page.
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
        // SAFETY: mapped by `with`, and nothing refers to it any more.
        unsafe { munmap(first.cast(), length) };
    }
}

/// Maps a file, or nothing: at an address of the kernel's choice, or with `MAP_FIXED` in the place of what is mapped at
/// `address`, which is the caller's.
fn map(address: *mut u8, bytes: usize, protection: c_int, flags: c_int, file: RawFd) -> io::Result<*mut u8> {
    // SAFETY: a new map, or one in the place of another that is the caller's alone and that nothing refers to; a file
    // that is open during the call.
    let base = unsafe { mmap(address.cast(), bytes, protection, flags, file, 0) };
    match base as isize {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(base.cast()),
    }
}

/// Asks the processor to bring the cache line at an address near. Any address will do.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64, and a prefetch of any address has no effect but on caches.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Sends a packet with files, or says at once that it cannot.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    if files.len() > MOST_FILES {
        return Err(io::Error::other("more files than a message can have"));
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
    // SAFETY: all that the header points to outlives the call, which only reads it. The control's length is at most
    // its size, which is a multiple of a word's.
    let sent = unsafe { sendmsg(socket.as_raw_fd(), &raw const header, MSG_NOSIGNAL | MSG_DONTWAIT) };
    match sent {
        -1 => Err(io::Error::last_os_error()),
        sent if sent as usize == bytes.len() => Ok(()),
        _ => Err(io::Error::other("a message was cut")),
    }
}

/// Waits for a packet: how many of the bytes it has, and the files that came with it.
///
/// # Errors
/// What the system says; what came does not fit.
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
        // SAFETY: room of the lengths that are told, which outlives the call.
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
    // SAFETY: zero at first, of which all bytes are a value; the kernel wrote numbers.
    let control = unsafe { control.assume_init() };
    let is_files = header.control_length >= CONTROL_HEADER && (control.level, control.kind) == (SOL_SOCKET, SCM_RIGHTS);
    let count = match is_files {
        true => control.length.saturating_sub(CONTROL_HEADER) / size_of::<RawFd>(),
        false => 0,
    };
    let descriptors = control.descriptors.into_iter().take(count);
    // SAFETY: the kernel has just made these descriptors for this message, and nobody else has them.
    let files = descriptors.map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) });
    // Files of a message that is refused are closed with the list.
    let files: Vec<OwnedFd> = files.collect();
    match header.flags & (MSG_TRUNC | MSG_CTRUNC) {
        0 => Ok((received, files)),
        _ => Err(io::Error::other("a message that is too long")),
    }
}
