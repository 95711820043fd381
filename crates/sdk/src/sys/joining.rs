//! System calls of a program that joins a server by a socket: children, and the connection.
//!
//! One of the few modules with `unsafe` code.

use std::ffi::{c_char, c_int, c_uint};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const AF_UNIX: c_int = 1;
const SOCK_SEQPACKET: c_int = 5;
const SOCK_CLOEXEC: c_int = 0o2_000_000;
const WNOHANG: c_int = 1;
const F_SETFL: c_int = 4;
const F_SETOWN: c_int = 8;
const O_ASYNC: c_int = 0o20_000;
/// Bytes of a path in an address, its final zero included.
const PATH: usize = 108;

/// `struct sockaddr_un`.
#[repr(C)]
struct Address {
    family: u16,
    path: [c_char; PATH],
}

unsafe extern "C" {
    #[link_name = "fork"]
    fn libc_fork() -> c_int;
    fn waitpid(process: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn getpid() -> c_int;
    fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int;
    #[link_name = "connect"]
    fn libc_connect(socket: c_int, address: *const Address, length: c_uint) -> c_int;
    fn fcntl(descriptor: c_int, command: c_int, ...) -> c_int;
}

/// Starts a child that goes on with a copy of this process. Returns its number, or `None` in the child.
///
/// # Panics
/// If this process has other threads, whose locks the child's copy could hold.
pub(crate) fn fork() -> io::Result<Option<c_int>> {
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    assert_eq!(threads, 1, "a process that starts children has one thread");
    // SAFETY: this process has one thread, so no lock is held in the child, which may do all that its parent may.
    match unsafe { libc_fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        child => Ok(Some(child)),
    }
}

/// Returns the number of a child that has ended, if there is one.
pub(crate) fn reap() -> Option<c_int> {
    let mut status = 0;
    // SAFETY: the call writes the status, which outlives it.
    let ended = unsafe { waitpid(-1, &raw mut status, WNOHANG) };
    (ended > 0).then_some(ended)
}

/// Connects to a socket of type `SOCK_SEQPACKET`.
pub(crate) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let name = path.as_os_str().as_bytes();
    if name.len() >= PATH {
        return Err(io::Error::other("the path of the socket is too long"));
    }
    let mut address = Address {
        family: AF_UNIX as u16,
        path: [0; PATH],
    };
    for (to, byte) in address.path.iter_mut().zip(name) {
        *to = *byte as c_char;
    }
    // SAFETY: the call has plain arguments.
    let descriptor = unsafe { socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nothing else owns it.
    let connection = unsafe { OwnedFd::from_raw_fd(descriptor) };
    // SAFETY: the address outlives the call, and has this length.
    match unsafe { libc_connect(descriptor, &raw const address, size_of::<Address>() as c_uint) } {
        0 => Ok(connection),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets the kernel end this process, by SIGIO, when the other end of a connection is closed.
pub(crate) fn end_with_peer(connection: BorrowedFd<'_>) -> io::Result<()> {
    let descriptor = connection.as_raw_fd();
    // SAFETY: system calls on an open descriptor, with numbers as arguments.
    let set = unsafe { fcntl(descriptor, F_SETOWN, getpid()) == 0 && fcntl(descriptor, F_SETFL, O_ASYNC) == 0 };
    match set {
        true => Ok(()),
        false => Err(io::Error::last_os_error()),
    }
}
