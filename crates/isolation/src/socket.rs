//! Messages over a socket, with files.

use crate::message::MOST_BYTES;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The most files that come with a message.
const MOST_FILES: usize = 5;

/// A connection whose packets are messages.
#[derive(Debug)]
pub(crate) struct Socket(pub(crate) OwnedFd);

impl Socket {
    /// Two ends of one.
    pub(crate) fn pair() -> io::Result<(Socket, Socket)> {
        let (one, other) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Socket(one), Socket(other)))
    }

    /// Has [`receive`](Socket::receive) wait no longer than this.
    pub(crate) fn wait_at_most(&self, bound: Duration) -> io::Result<()> {
        use rustix::net::sockopt::{Timeout, set_socket_timeout};
        Ok(set_socket_timeout(&self.0, Timeout::Recv, Some(bound))?)
    }

    /// Sends a message, or says at once that it cannot: a program that does not listen holds nobody up.
    pub(crate) fn send(&self, bytes: &[u8], files: &[&File]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&files)) {
            return Err(io::Error::other("more files than a message can have"));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, flags)?;
        match sent == bytes.len() {
            true => Ok(()),
            false => Err(io::Error::other("a message was cut")),
        }
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// The other side has gone, or said nothing for so long, or what came is too long.
    pub(crate) fn receive(&self) -> io::Result<(Vec<u8>, Vec<File>)> {
        let mut bytes = vec![0; MOST_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut room = [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.0, &mut room, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => {}
                received => break received?,
            }
        };
        let files = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        // Files that nobody asked for are closed with the list.
        let files: Vec<File> = files.flatten().map(File::from).collect();
        let cut = ReturnFlags::TRUNC | ReturnFlags::CTRUNC;
        if received.flags.intersects(cut) {
            return Err(io::Error::other("a message that is too long"));
        }
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.truncate(received.bytes);
        Ok((bytes, files))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_whole_with_their_files() {
        let (one, other) = Socket::pair().unwrap();
        let file = crate::memory::file("test", 4096).unwrap();
        one.send(b"first", &[&file, &file]).unwrap();
        one.send(b"second", &[]).unwrap();
        let (bytes, files) = other.receive().unwrap();
        assert_eq!((&*bytes, files.len()), (&b"first"[..], 2));
        assert_eq!(files[1].metadata().unwrap().len(), 4096);
        assert_eq!(other.receive().unwrap().0, b"second");
        drop(one);
        let gone = other.receive().unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn who_does_not_listen_holds_nobody_up() {
        let (one, other) = Socket::pair().unwrap();
        other.wait_at_most(Duration::from_millis(1)).unwrap();
        assert!(other.receive().is_err());
        let sent = (0..100_000).take_while(|_| one.send(&[0; 1000], &[]).is_ok());
        assert!(sent.count() < 100_000);
    }

    #[test]
    fn messages_that_are_too_long_are_refused() {
        let (one, other) = Socket::pair().unwrap();
        one.send(&vec![1; MOST_BYTES + 1], &[]).unwrap();
        assert!(other.receive().is_err());
    }
}
