//! Credentials of the process at the other end of a Unix socket, as the kernel recorded them when it connected.

use super::access::Peer;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use tokio::net::UnixStream;

/// Maximum number of supplementary groups that are read; Linux allows 65,536.
const MOST_GROUPS: usize = 65_536;

/// Returns the peer of a connection.
///
/// # Errors
/// The kernel does not tell.
pub(super) fn of(stream: &UnixStream) -> io::Result<Peer> {
    let credentials = stream.peer_cred()?;
    Ok(Peer {
        user: credentials.uid(),
        group: credentials.gid(),
        groups: groups(stream.as_raw_fd())?,
    })
}

/// Supplementary groups of the peer.
#[expect(unsafe_code, reason = "neither std, rustix nor tokio reads SO_PEERGROUPS")]
fn groups(socket: RawFd) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut bytes = size_of_val(&groups[..]) as libc::socklen_t;
        // SAFETY: `groups` has `bytes` writable bytes, any of which make valid numbers, and `bytes` is writable; both
        // outlive the call. The kernel writes at most `bytes` bytes, and then the number of bytes that it has.
        let result = unsafe {
            libc::getsockopt(
                socket,
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<libc::gid_t>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // The buffer is too small, and `bytes` is the size that is needed.
            Some(libc::ERANGE) if count > groups.len() && count <= MOST_GROUPS => groups.resize(count, 0),
            _ => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn the_kernel_reports_this_process() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .unwrap();
        let _inside = runtime.enter();
        let (one, _two) = UnixStream::pair().unwrap();
        let peer = of(&one).unwrap();
        assert_eq!(peer.user, rustix::process::geteuid().as_raw());
        assert_eq!(peer.group, rustix::process::getegid().as_raw());
        let own: Vec<u32> = rustix::process::getgroups()
            .unwrap()
            .iter()
            .map(|group| group.as_raw())
            .collect();
        let sorted = |mut groups: Vec<u32>| {
            groups.sort_unstable();
            groups
        };
        assert_eq!(sorted(peer.groups), sorted(own));
        // Not a socket.
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(groups(file.as_fd().as_raw_fd()).is_err());
    }
}
