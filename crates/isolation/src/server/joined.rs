//! Processes that somebody else started, such as the container runtime of a pod, and that join by a socket.
//!
//! The kernel reports who connects: the process, its user, and by the process its control group. A process that joins
//! gets its configuration and memory as one that was started here, its core and its priority; and it is ended as one.
//! Its other defences are those of what started it.

use super::schedule;
use crate::socket::Socket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, chmod, chown};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};
use rustix::process::{Pid, PidfdFlags, Signal, getuid, pidfd_open, pidfd_send_signal};
use rustix::thread::{Gid, Uid};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use tailwater_confine::join_priority_group;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;
/// Longest wait for a process that joins. Other changes of a server wait, too.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// Interval at which the end of the run is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// File beside a socket: a part of the control group's path that processes must be in, such as a pod's identifier.
const GROUP_FILE: &str = "group";

/// Socket by which processes of a function join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joins {
    /// Path of the socket.
    pub path: PathBuf,
    /// Number of the user that the processes must have.
    pub user: u32,
}

impl Joins {
    /// Joining by the socket of this path, as this user or, without one, that of this program.
    pub fn by(path: &Path, user: Option<u32>) -> Joins {
        Joins {
            path: path.to_owned(),
            user: user.unwrap_or_else(|| getuid().as_raw()),
        }
    }
}

/// Open sockets of this process. The successor of a chain uses the socket of its predecessor.
static OPEN: LazyLock<Mutex<HashMap<PathBuf, Weak<JoinSocket>>>> = LazyLock::new(Mutex::default);

/// Open socket. It is removed when it is dropped.
#[derive(Debug)]
pub(super) struct JoinSocket {
    joins: Joins,
    listener: OwnedFd,
    /// Number of the file.
    file: u64,
}

impl JoinSocket {
    /// Creates a socket in the place of one that another process left, or returns the one that is open.
    ///
    /// # Errors
    /// The socket cannot be created, or another user's processes are to join by it.
    pub(super) fn open(joins: &Joins) -> io::Result<Arc<JoinSocket>> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, socket| socket.strong_count() > 0);
        if let Some(socket) = open.get(&joins.path).and_then(Weak::upgrade) {
            // It may be the last one, whose end takes the lock, too.
            drop(open);
            return match socket.joins == *joins {
                true => Ok(socket),
                false => Err(io::Error::other("processes of another user join by its socket")),
            };
        }
        let socket = Arc::new(JoinSocket::create(joins)?);
        open.insert(joins.path.clone(), Arc::downgrade(&socket));
        Ok(socket)
    }

    fn create(joins: &Joins) -> io::Result<JoinSocket> {
        // Only who may connect sees it under its name.
        let mut unnamed = joins.path.clone().into_os_string();
        unnamed.push(format!(".{}", std::process::id()));
        let unnamed = PathBuf::from(unnamed);
        match fs::symlink_metadata(&joins.path) {
            Ok(file) if !is_socket(&file) => {
                return Err(io::Error::other(
                    "expected a socket or nothing in its place, found another file",
                ));
            }
            Ok(_) if is_in_use(&joins.path) => return Err(io::Error::other("its socket is in use by another program")),
            _ => {}
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let _ = fs::remove_file(&unnamed);
        bind(&listener, &SocketAddrUnix::new(&unnamed)?)?;
        let named = (|| {
            chmod(&unnamed, Mode::RUSR | Mode::WUSR)?;
            if joins.user != getuid().as_raw() {
                chown(&unnamed, Some(Uid::from_raw(joins.user)), None::<Gid>)?;
            }
            listen(&listener, BACKLOG)?;
            let file = fs::symlink_metadata(&unnamed)?.ino();
            fs::rename(&unnamed, &joins.path)?;
            Ok(file)
        })();
        let file = named.inspect_err(|_: &io::Error| drop(fs::remove_file(&unnamed)))?;
        Ok(JoinSocket {
            joins: joins.clone(),
            listener,
            file,
        })
    }

    /// Waits until a process joins, and returns it with its connection.
    ///
    /// # Errors
    /// None has joined by `until`, or before the flag was set. The error names who was refused last.
    pub(super) fn accept(&self, until: Instant, over: &AtomicBool) -> io::Result<(JoinedProcess, Socket)> {
        let began = Instant::now();
        let until = until.min(began + LONGEST_WAIT);
        let mut refused = None;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if is_readable(&self.listener, left.min(POLL_INTERVAL))
                && let Ok(connection) = accept_with(&self.listener, SocketFlags::CLOEXEC)
            {
                match self.check(&connection) {
                    Ok(process) => return Ok((process, Socket(connection))),
                    Err(reason) => refused = Some(reason),
                }
            }
            if over.load(Ordering::Relaxed) || left.is_zero() {
                let waited = began.elapsed().as_secs_f64();
                let told = refused.map_or(String::new(), |reason| format!("; refused: {reason}"));
                return Err(io::Error::other(format!(
                    "no process of user {} has joined by the socket within {waited:.1} s{told}",
                    self.joins.user
                )));
            }
        }
    }

    /// Checks who is at the other end of a connection.
    fn check(&self, connection: &OwnedFd) -> Result<JoinedProcess, String> {
        let peer = socket_peercred(connection).map_err(|error| error.to_string())?;
        let (pid, user) = (peer.pid, peer.uid.as_raw());
        if user != self.joins.user {
            return Err(format!("process {} has user {user}", pid.as_raw_pid()));
        }
        // A process of another process namespace has the number 0.
        let process = pidfd_open(pid, PidfdFlags::empty());
        let process = process.map_err(|error| format!("process {}: {error}", pid.as_raw_pid()))?;
        if let Ok(group) = fs::read_to_string(self.joins.path.with_file_name(GROUP_FILE)) {
            let groups = fs::read_to_string(format!("/proc/{}/cgroup", pid.as_raw_pid())).unwrap_or_default();
            if !is_in(&groups, group.trim()) {
                return Err(format!(
                    "process {} is not in a control group of {group}",
                    pid.as_raw_pid()
                ));
            }
        }
        Ok(JoinedProcess { pid, process })
    }
}

impl Drop for JoinSocket {
    fn drop(&mut self) {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let path = &self.joins.path;
        // A successor may have put its own there.
        if open.get(path).is_some_and(|socket| socket.strong_count() > 0) {
            return;
        }
        open.remove(path);
        if fs::symlink_metadata(path).is_ok_and(|file| file.ino() == self.file) {
            // A file that stays disturbs nobody.
            let _ = fs::remove_file(path);
        }
    }
}

fn is_socket(file: &fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    file.file_type().is_socket()
}

/// Returns `true` if a program listens at a socket, of any type.
fn is_in_use(path: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connected = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .and_then(|socket| connect(&socket, &SocketAddrUnix::new(path)?));
    !matches!(connected, Err(Errno::CONNREFUSED | Errno::NOENT))
}

/// Returns `true` if one of a process's control groups is that of a pod with this identifier, in whose name the runtime
/// may have replaced hyphens.
fn is_in(groups: &str, pod: &str) -> bool {
    let parts = groups.lines().flat_map(|line| line.split('/'));
    let plain = parts.map(|part| part.replace('_', "-"));
    !pod.is_empty() && plain.into_iter().any(|part| part.contains(&pod.replace('_', "-")))
}

fn is_readable(socket: &OwnedFd, bound: Duration) -> bool {
    let bound = Timespec {
        tv_sec: bound.as_secs() as i64,
        tv_nsec: bound.subsec_nanos().into(),
    };
    poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&bound)).is_ok_and(|ready| ready > 0)
}

/// Process that has joined.
#[derive(Debug)]
pub(super) struct JoinedProcess {
    pid: Pid,
    /// The process itself, also once another one has its number.
    process: OwnedFd,
}

impl JoinedProcess {
    pub(super) fn id(&self) -> u32 {
        self.pid.as_raw_pid().cast_unsigned()
    }

    /// Pins the process to a core. It must have one thread: others would run outside of its turns.
    pub(super) fn put_to_work(&self, core: usize) -> io::Result<()> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.id()))?.count();
        if threads != 1 {
            return Err(io::Error::other(format!("expected one thread, found {threads}")));
        }
        // Without a real-time budget it has ordinary priority, which the report says.
        let _ = join_priority_group(self.id());
        schedule::put_on(self.id(), core).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => io::Error::other(format!("core {core} is not among those of its control group")),
            _ => error,
        })
    }

    pub(super) fn has_ended(&self) -> bool {
        is_readable(&self.process, Duration::ZERO)
    }

    pub(super) fn kill(&self) {
        // It may be exiting at the same time.
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
    }

    /// Waits for its end, for at most `bound`.
    pub(super) fn await_end(&self, bound: Duration) {
        is_readable(&self.process, bound);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(path: &Path) -> io::Result<OwnedFd> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(socket)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(50)
    }

    #[test]
    fn who_joins_is_checked_and_nothing_remains() {
        let folder = std::env::temp_dir().join(format!("tailwater-joined-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("limit.sock");
        let over = AtomicBool::new(false);
        let socket = JoinSocket::open(&Joins::by(&path, None)).unwrap();
        let nobody = socket.accept(soon(), &over).unwrap_err().to_string();
        assert!(
            nobody.contains("has joined by the socket within 0.") && !nobody.contains("refused"),
            "{nobody}"
        );
        let _joined = connection(&path).unwrap();
        let (process, _connection) = socket.accept(soon(), &over).unwrap();
        assert_eq!((process.id(), process.has_ended()), (std::process::id(), false));
        // This process has more threads than that of the test.
        assert!(
            process
                .put_to_work(0)
                .unwrap_err()
                .to_string()
                .contains("expected one thread")
        );
        // A successor has the same one; another user has none.
        let same = JoinSocket::open(&Joins::by(&path, None)).unwrap();
        assert!(Arc::ptr_eq(&socket, &same));
        let other = JoinSocket::open(&Joins::by(&path, Some(12_345))).unwrap_err();
        assert!(other.to_string().contains("another user"), "{other}");
        // A process of another pod.
        fs::write(folder.join(GROUP_FILE), "0b1c-22\n").unwrap();
        let _refused = connection(&path).unwrap();
        let refused = socket.accept(soon(), &over).unwrap_err().to_string();
        assert!(refused.contains("is not in a control group of 0b1c-22"), "{refused}");
        drop((socket, same));
        assert!(!path.exists());
        let after = connection(&path).unwrap_err();
        assert_eq!(after.kind(), io::ErrorKind::NotFound);
        fs::write(&path, "").unwrap();
        let error = JoinSocket::open(&Joins::by(&path, None)).unwrap_err();
        assert!(error.to_string().contains("found another file"), "{error}");
        fs::remove_file(&path).unwrap();
        let others = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let error = JoinSocket::open(&Joins::by(&path, None)).unwrap_err();
        assert!(error.to_string().contains("in use by another program"), "{error}");
        // One that a killed program has left is replaced.
        drop(others);
        drop(JoinSocket::open(&Joins::by(&path, None)).unwrap());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn pods_are_recognised_in_both_versions_of_control_groups() {
        let pod = "6b5f0d9e-1c2d-4a53-9d8e-0123456789ab";
        let second = "0::/kubepods.slice/kubepods-burstable.slice/\
                      kubepods-burstable-pod6b5f0d9e_1c2d_4a53_9d8e_0123456789ab.slice/cri-containerd-77.scope\n";
        let first = "4:memory:/kubepods/burstable/pod6b5f0d9e-1c2d-4a53-9d8e-0123456789ab/77\n1:name=systemd:/\n";
        assert!(is_in(second, pod) && is_in(first, pod));
        assert!(!is_in(second, "6b5f0d9e-1c2d-4a53-9d8e-0123456789ac") && !is_in(first, ""));
    }
}
