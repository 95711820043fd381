//! Messages over a socket, with files.

use super::message::MOST_BYTES;
use crate::sys;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Connection whose packets are messages: `SOCK_SEQPACKET`.
#[derive(Debug)]
pub struct Socket(pub OwnedFd);

impl Socket {
    /// Sends a message without blocking, so a program that does not read cannot stall the sender.
    ///
    /// # Errors
    /// The socket's buffer is full, the system reports another error, or there are too many files.
    pub fn send(&self, bytes: &[u8], files: &[&File]) -> io::Result<()> {
        let files: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
        sys::send(self.0.as_fd(), bytes, &files)
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// The peer has disconnected, the socket's timeout has expired, or the message is too long.
    pub fn receive(&self) -> io::Result<(Vec<u8>, Vec<File>)> {
        let mut bytes = vec![0; MOST_BYTES];
        let (length, files) = sys::receive(self.0.as_fd(), &mut bytes)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.truncate(length);
        Ok((bytes, files.into_iter().map(File::from).collect()))
    }
}
