//! Sending of batches through a packet socket.

use super::socket::PacketSocket;
use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd, AsRawFd};
use tailwater_chain::batch::{Batch, MAX_BATCH, Packet};

/// Frames of a batch that the kernel may refuse one by one before the rest is not tried any more.
const MOST_REFUSED: usize = 8;

/// Memory that describes a batch to the kernel.
#[derive(Debug)]
pub(crate) struct SendList {
    /// Indexes of the packets that are described.
    places: Vec<u16>,
    pieces: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
    /// Indexes of packets that were not accepted.
    unsent: Vec<u16>,
}

// SAFETY: all pointers in the lists are written in `send_described` before they are used, and not used after it
// returns.
unsafe impl Send for SendList {}
// SAFETY: as above; `send_described` has exclusive access.
unsafe impl Sync for SendList {}

impl SendList {
    pub(crate) fn new() -> SendList {
        SendList {
            places: Vec::with_capacity(MAX_BATCH),
            pieces: Vec::with_capacity(MAX_BATCH),
            messages: Vec::with_capacity(MAX_BATCH),
            unsent: Vec::with_capacity(MAX_BATCH),
        }
    }

    /// Sends the packets of the batch with one system call, unless the kernel refuses some. These leave the batch.
    /// Returns their number.
    #[inline]
    pub(crate) fn send(&mut self, socket: &PacketSocket, batch: &mut Batch) -> usize {
        self.unsent.clear();
        self.places.clear();
        self.places.extend(0..batch.len() as u16);
        self.send_described(socket, batch);
        self.remove_unsent(batch)
    }

    /// Same by two sockets: `to_second` decides. Returns the number of packets that each has sent, and of those that it
    /// has not.
    #[inline]
    pub(crate) fn send_divided(
        &mut self,
        sockets: [&PacketSocket; 2],
        batch: &mut Batch,
        to_second: impl Fn(&Packet) -> bool,
    ) -> [[usize; 2]; 2] {
        self.unsent.clear();
        let counts = [false, true].map(|second| {
            self.places.clear();
            let places = batch.iter().enumerate();
            let places = places.filter(|(_, packet)| to_second(packet) == second);
            self.places.extend(places.map(|(place, _)| place as u16));
            let (count, before) = (self.places.len(), self.unsent.len());
            self.send_described(sockets[usize::from(second)], batch);
            let unsent = self.unsent.len() - before;
            [count - unsent, unsent]
        });
        self.unsent.sort_unstable();
        self.remove_unsent(batch);
        counts
    }

    fn remove_unsent(&self, batch: &mut Batch) -> usize {
        if !self.unsent.is_empty() {
            batch.remove_unsent(&self.unsent);
        }
        self.unsent.len()
    }

    /// Sends the packets at `places`, and notes those that are not accepted.
    #[inline]
    fn send_described(&mut self, socket: &PacketSocket, batch: &Batch) {
        let SendList {
            places,
            pieces,
            messages,
            unsent,
        } = self;
        pieces.clear();
        pieces.extend(places.iter().map(|place| {
            let frame = batch.frame(usize::from(*place));
            libc::iovec {
                iov_base: frame.as_ptr().cast_mut().cast(),
                iov_len: frame.len(),
            }
        }));
        messages.clear();
        messages.extend(pieces.iter_mut().map(|piece| {
            // SAFETY: the structure holds only integers and pointers, for which all zeros is valid.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = piece;
            message.msg_hdr.msg_iovlen = 1;
            message
        }));
        let count = places.len();
        let (mut at, mut refused, mut tried_again) = (0, 0, false);
        while at < count {
            let messages = &mut messages[at..];
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
            // Of a link that was down before: the kernel reports it once, also when the link is up again.
            if error.raw_os_error() == Some(libc::ENETDOWN) && !std::mem::replace(&mut tried_again, true) {
                continue;
            }
            // The first of the messages is refused: the frame is too long, or the receiver has no room for it.
            unsent.push(places[at]);
            at += 1;
            refused += 1;
            if !concerns_one_frame(&error) || refused == MOST_REFUSED {
                unsent.extend(&places[at..]);
                break;
            }
        }
    }
}

/// Returns `true` if the kernel may accept further frames after this error.
#[cold]
fn concerns_one_frame(error: &Error) -> bool {
    let code = error.raw_os_error();
    matches!(code, Some(libc::EMSGSIZE | libc::EINVAL | libc::ENOBUFS))
}
