//! Copies out of a network interface of the kernel's, by a packet socket.

use super::cells::Copied;
use std::ffi::CString;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Frames that are sent together.
const TOGETHER: usize = 64;
/// How long the kernel may take none before they are given up.
const GRACE: Duration = Duration::from_secs(1);
/// How long it is left alone in between.
const NAP: Duration = Duration::from_millis(1);

/// An interface that frames are sent out of.
#[derive(Debug)]
pub(super) struct Interface {
    socket: OwnedFd,
    /// Frames one after the other, and where each ends.
    frames: Vec<u8>,
    ends: Vec<usize>,
    pub(super) written: u64,
    pub(super) failed: u64,
    /// The first error.
    pub(super) error: Option<io::Error>,
}

impl Interface {
    /// Opens the interface of that name, for frames out of it only.
    ///
    /// # Errors
    /// There is none, or it may not be opened: that takes `CAP_NET_RAW`.
    pub(super) fn open(name: &str) -> io::Result<Interface> {
        let name = CString::new(name)?;
        // SAFETY: a string that ends with 0.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            return Err(io::Error::last_os_error());
        }
        // Protocol 0: nothing that comes in is given to it.
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no memory is passed.
        let socket = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was opened just now, and nobody else has it.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        // SAFETY: a plain structure of numbers, for which all 0 is a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = index as i32;
        let size = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address is of this size, and lives until the call is over.
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

    /// Takes a copy.
    pub(super) fn put(&mut self, copied: &Copied<'_>) {
        self.frames.extend_from_slice(copied.frame);
        self.ends.push(self.frames.len());
        if self.ends.len() == TOGETHER {
            self.write_out();
        }
    }

    /// Sends what has been taken. A frame that the kernel does not want is left out.
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
                    std::thread::sleep(NAP);
                    continue;
                }
                // No room for a second: the others have none either.
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

    /// Sends frames from number `at` on, and says how many went: at least one.
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
            // SAFETY: a plain structure of numbers and addresses, for which all 0 is a value.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = piece;
            message.msg_hdr.msg_iovlen = 1;
            message
        });
        let mut messages: Vec<_> = messages.collect();
        let count = messages.len() as libc::c_uint;
        // SAFETY: so many messages, each of one piece, which is a part of `frames`. All outlive the call, which only reads the
        // frames.
        let sent = unsafe { libc::sendmmsg(self.socket.as_raw_fd(), messages.as_mut_ptr(), count, 0) };
        match usize::try_from(sent) {
            Ok(0) => Err(ErrorKind::WouldBlock.into()),
            Ok(sent) => Ok(sent),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}
