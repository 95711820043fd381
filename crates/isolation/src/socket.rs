//! Sockets to programs.

pub(crate) use tailwater_sdk::protocol::socket::Socket;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::fs::File;
use std::io;
use std::time::Duration;

/// Returns both ends of a connected socket pair.
pub(crate) fn pair() -> io::Result<(Socket, Socket)> {
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok((Socket(one), Socket(other)))
}

/// Like [`receive`](Socket::receive), with a timeout of `bound`.
///
/// # Errors
/// `WouldBlock` on timeout; otherwise as [`receive`](Socket::receive).
pub(crate) fn receive_within(socket: &Socket, bound: Duration) -> io::Result<(Vec<u8>, Vec<File>)> {
    let bound = Timespec {
        tv_sec: bound.as_secs() as i64,
        tv_nsec: bound.subsec_nanos().into(),
    };
    let mut wanted = [PollFd::new(&socket.0, PollFlags::IN)];
    loop {
        match poll(&mut wanted, Some(&bound)) {
            Err(Errno::INTR) => {}
            Ok(0) => return Err(io::ErrorKind::WouldBlock.into()),
            Ok(_) => return socket.receive(),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_sdk::protocol::message::MOST_BYTES;

    #[test]
    fn messages_come_whole_with_their_files() {
        let (one, other) = pair().unwrap();
        let file = crate::memory::file("test", 4096).unwrap();
        one.send(b"first", &[&file, &file]).unwrap();
        one.send(b"second", &[]).unwrap();
        let (bytes, files) = other.receive().unwrap();
        assert_eq!((&*bytes, files.len()), (&b"first"[..], 2));
        assert_eq!(files[1].metadata().unwrap().len(), 4096);
        assert_eq!(other.receive().unwrap().0, b"second");
        // Exactly the maximum number of files a message can carry.
        let most = [&file; 8];
        one.send(b"third", &most).unwrap();
        assert_eq!(other.receive().unwrap().1.len(), 8);
        assert!(one.send(b"fourth", &[&file; 9]).is_err());
        drop(one);
        let gone = other.receive().unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn who_does_not_listen_holds_nobody_up() {
        let (one, other) = pair().unwrap();
        for bound in [Duration::ZERO, Duration::from_millis(1)] {
            let nothing = receive_within(&other, bound).unwrap_err();
            assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        }
        let sent = (0..100_000).take_while(|_| one.send(&[0; 1000], &[]).is_ok());
        assert!(sent.count() < 100_000);
    }

    #[test]
    fn messages_that_are_too_long_are_refused() {
        let (one, other) = pair().unwrap();
        one.send(&vec![1; MOST_BYTES + 1], &[]).unwrap();
        assert!(other.receive().is_err());
    }
}
