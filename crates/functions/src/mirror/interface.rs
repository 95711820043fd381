//! Sends copies out of a kernel network interface through a packet socket.

use super::cells::Copied;
use std::ffi::CString;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Frames per system call.
const TOGETHER: usize = 64;
/// Time the kernel may refuse frames before they are given up.
const GRACE: Duration = Duration::from_secs(1);
/// Sleep between attempts.
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// Network interface open for sending.
#[derive(Debug)]
pub(super) struct Interface {
    socket: OwnedFd,
    /// Frames back to back; `ends` holds the end of each.
    frames: Vec<u8>,
    ends: Vec<usize>,
    pub(super) written: u64,
    pub(super) failed: u64,
    /// First error.
    pub(super) error: Option<io::Error>,
}

impl Interface {
    /// Opens the named interface for sending.
    ///
    /// # Errors
    /// The interface does not exist, or `CAP_NET_RAW` is missing.
    pub(super) fn open(name: &str) -> io::Result<Interface> {
        let name = CString::new(name)?;
        // SAFETY: the string ends with a zero byte.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            return Err(io::Error::last_os_error());
        }
        // With protocol 0 the socket receives nothing.
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: the call passes no memory.
        let socket = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        // SAFETY: the structure holds only integers, for which all zeros is valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = index as i32;
        let size = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address has this size and outlives the call.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) };
        if bound != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Interface {
            socket,
            frames: Vec::new(),
            ends: Vec::with_capacity(TOGETHER),
            written: 0,
            failed: 0,
            error: None,
        })
    }

    /// Queues a copy.
    pub(super) fn put(&mut self, copied: &Copied<'_>) {
        self.frames.extend_from_slice(copied.frame);
        self.ends.push(self.frames.len());
        if self.ends.len() == TOGETHER {
            self.write_out();
        }
    }

    /// Sends all queued frames. A frame the kernel rejects is skipped and counted.
    pub(super) fn write_out(&mut self) {
        let mut at = 0;
        let mut waiting: Option<Instant> = None;
        while at < self.ends.len() {
            let error = match self.send(at) {
                Ok(sent) => {
                    at += sent;
                    self.written += sent as u64;
                    waiting = None;
                    continue;
                }
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::Interrupted => continue,
                ErrorKind::WouldBlock if waiting.get_or_insert_with(Instant::now).elapsed() < GRACE => {
                    std::thread::sleep(MAX_SLEEP);
                    continue;
                }
                // No room for one second: the remaining frames are given up, too.
                ErrorKind::WouldBlock => {
                    self.failed += (self.ends.len() - at) as u64;
                    at = self.ends.len();
                }
                _ => {
                    self.failed += 1;
                    at += 1;
                }
            }
            self.error.get_or_insert(error);
        }
        self.frames.clear();
        self.ends.clear();
    }

    /// Sends frames from index `at` on, and returns the number sent, at least one.
    fn send(&self, at: usize) -> io::Result<usize> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        let frames = begins.zip(&self.ends).skip(at);
        let mut pieces = frames
            .map(|(from, to)| libc::iovec {
                iov_base: self.frames[from..*to].as_ptr().cast_mut().cast(),
                iov_len: to - from,
            })
            .collect::<Vec<_>>();
        let messages = pieces.iter_mut().map(|piece| {
            // SAFETY: the structure holds only integers and pointers, for which all zeros is valid.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = piece;
            message.msg_hdr.msg_iovlen = 1;
            message
        });
        let mut messages: Vec<_> = messages.collect();
        let count = messages.len() as libc::c_uint;
        // SAFETY: `messages` has `count` elements, each with one iovec that points into `frames`. All outlive the call,
        // which only reads the frames.
        let sent = unsafe { libc::sendmmsg(self.socket.as_raw_fd(), messages.as_mut_ptr(), count, 0) };
        match usize::try_from(sent) {
            Ok(0) => Err(ErrorKind::WouldBlock.into()),
            Ok(sent) => Ok(sent),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}
