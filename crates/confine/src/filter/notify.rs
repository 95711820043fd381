//! System calls that the kernel reports to the agent.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Descriptor for the seccomp notifications of one program (see `seccomp_unotify(2)`).
///
/// Once it is closed, calls that would be reported fail with `ENOSYS`.
#[derive(Debug)]
pub(crate) struct Listener(OwnedFd);

/// System call that waits for a response.
#[derive(Debug)]
pub(crate) struct Notified {
    id: u64,
    /// Caller, by its number in the agent's process namespace.
    pub pid: u32,
    pub call: u32,
    pub arguments: [u64; 6],
}

// From linux/seccomp.h: _IOWR('!', 0, struct seccomp_notif) and _IOWR('!', 1, struct seccomp_notif_resp).
const RECEIVE: libc::c_ulong = 0xc050_2100;
const SEND: libc::c_ulong = 0xc018_2101;
/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE`: the kernel makes the call as if there were no filter.
const CONTINUE: u32 = 1;

const _: () = assert!(size_of::<libc::seccomp_notif>() == 0x50);
const _: () = assert!(size_of::<libc::seccomp_notif_resp>() == 0x18);

impl Listener {
    pub(crate) fn new(descriptor: OwnedFd) -> Listener {
        Listener(descriptor)
    }

    /// Waits for the next call; `None` if its caller was killed meanwhile.
    pub(crate) fn receive(&self) -> io::Result<Option<Notified>> {
        // SAFETY: plain numbers, for all of which zero is valid; the kernel requires a zeroed structure.
        let mut asked: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open, and the operation writes one `seccomp_notif`.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), RECEIVE, &mut asked) };
        if result < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::ENOENT | libc::EINTR) => Ok(None),
                _ => Err(error),
            };
        }
        Ok(Some(Notified {
            id: asked.id,
            pid: asked.pid,
            call: asked.data.nr as u32,
            arguments: asked.data.args,
        }))
    }

    /// Allows a call. Ignores the error if the caller was killed meanwhile.
    pub(crate) fn let_pass(&self, notified: &Notified) {
        let answer = libc::seccomp_notif_resp {
            id: notified.id,
            val: 0,
            error: 0,
            flags: CONTINUE,
        };
        // SAFETY: the descriptor is open, and the operation reads one `seccomp_notif_resp`.
        unsafe { libc::ioctl(self.0.as_raw_fd(), SEND, &answer) };
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
