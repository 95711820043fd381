//! Sending of batches through a packet socket.

use super::socket::PacketSocket;
use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd, AsRawFd};
use tailwater_chain::batch::{Batch, MAX_BATCH};

/// Frames of a batch that the kernel may refuse one by one before the rest is not tried any more.
const MOST_REFUSED: usize = 8;

/// Memory that describes a batch to the kernel.
#[derive(Debug)]
pub(super) struct SendList {
    pieces: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
    /// Indexes of packets that were not accepted.
    unsent: Vec<u16>,
}

// SAFETY: all pointers in the lists are written in `send` before they are used, and not used after it returns.
unsafe impl Send for SendList {}
// SAFETY: as above; `send` has exclusive access.
unsafe impl Sync for SendList {}

impl SendList {
    pub(super) fn new() -> SendList {
        SendList {
            pieces: Vec::with_capacity(MAX_BATCH),
            messages: Vec::with_capacity(MAX_BATCH),
            unsent: Vec::with_capacity(MAX_BATCH),
        }
    }

    /// Sends the packets of the batch with one system call, unless the kernel refuses some. These leave the batch.
    /// Returns their number.
    #[inline]
    pub(super) fn send(&mut self, socket: &PacketSocket, batch: &mut Batch) -> usize {
        let count = batch.len();
        self.pieces.clear();
        self.pieces.extend((0..count).map(|i| {
            let frame = batch.frame(i);
            libc::iovec {
                iov_base: frame.as_ptr().cast_mut().cast(),
                iov_len: frame.len(),
            }
        }));
        self.messages.clear();
        self.messages.extend(self.pieces.iter_mut().map(|piece| {
            // SAFETY: the structure holds only integers and pointers, for which all zeros is valid.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = piece;
            message.msg_hdr.msg_iovlen = 1;
            message
        }));
        self.unsent.clear();
        let mut at = 0;
        while at < count {
            let messages = &mut self.messages[at..];
            // SAFETY: `messages` has this length. Each refers to one element of `pieces`, which is not changed
            // meanwhile, and this to a frame of the batch, which is borrowed. The call only reads the frames.
            let sent = unsafe {
                let (first, length) = (messages.as_mut_ptr(), messages.len() as libc::c_uint);
                libc::sendmmsg(socket.as_fd().as_raw_fd(), first, length, libc::MSG_DONTWAIT)
            };
            if sent > 0 {
                at += sent as usize;
                continue;
            }
            let error = Error::last_os_error();
            if sent < 0 && error.kind() == ErrorKind::Interrupted {
                continue;
            }
            // The first of the messages is refused: the frame is too long, or the receiver has no room for it.
            self.unsent.push(at as u16);
            at += 1;
            if !concerns_one_frame(&error) || self.unsent.len() == MOST_REFUSED {
                self.unsent.extend(at as u16..count as u16);
                break;
            }
        }
        if !self.unsent.is_empty() {
            batch.remove_unsent(&self.unsent);
        }
        self.unsent.len()
    }
}

/// Returns `true` if the kernel may accept further frames after this error.
#[cold]
fn concerns_one_frame(error: &Error) -> bool {
    let code = error.raw_os_error();
    matches!(code, Some(libc::EMSGSIZE | libc::EINVAL | libc::ENOBUFS))
}
