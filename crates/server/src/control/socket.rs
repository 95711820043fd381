//! The control socket's file.

use crate::error::ServeError;
use rustix::fs::{FlockOperation, OFlags, flock};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest wait for another process that binds the same socket.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time between two attempts.
const RETRY: Duration = Duration::from_millis(5);

/// Socket file of a listener, removed when dropped: before the listener, since afterwards the file may be another
/// server's.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Number of the file, by which one that has been put in its place is known.
    inode: u64,
}

impl SocketFile {
    /// Listens on a socket that the own user and the members of `group` may connect to. The folder is created if it
    /// does not exist. The file of a server that was killed is replaced.
    ///
    /// # Errors
    /// Another server listens there, the file is something else, or the system refuses.
    pub(crate) fn bind(path: &Path, group: Option<u32>) -> Result<(SocketFile, UnixListener), ServeError> {
        let system = |source: io::Error| match source.kind() {
            ErrorKind::AddrInUse => ServeError::Running(path.to_owned()),
            _ => ServeError::Socket {
                path: path.to_owned(),
                source,
            },
        };
        bind_exclusively(path, group).map_err(system)
    }
}

/// Binds under a lock: of two servers that find the file of a killed one, one replaces it, and the other finds that.
fn bind_exclusively(path: &Path, group: Option<u32>) -> io::Result<(SocketFile, UnixListener)> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    let _lock = Lock::take(path)?;
    remove_stale(path)?;
    let listener = UnixListener::bind(path)?;
    let file = SocketFile {
        path: path.to_owned(),
        inode: fs::symlink_metadata(path)?.ino(),
    };
    // Until here, a connection is possible by the umask's rights, but its peer's credentials are checked all the same.
    fs::set_permissions(
        path,
        Permissions::from_mode(if group.is_some() { 0o660 } else { 0o600 }),
    )?;
    if group.is_some() {
        chown(path, None, group)?;
    }
    listener.set_nonblocking(true)?;
    Ok((file, listener))
}

/// Locked file beside a socket, removed when dropped. Only its owner can open it: whoever can open a file can lock it.
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Creates and locks the file.
    ///
    /// # Errors
    /// Another process holds it for [`PATIENCE`], or it cannot be created.
    fn take(socket: &Path) -> io::Result<Lock> {
        let mut name = OsString::from(".");
        name.push(socket.file_name().ok_or(ErrorKind::InvalidInput)?);
        name.push(".lock");
        let path = socket.with_file_name(name);
        let end = Instant::now() + PATIENCE;
        loop {
            let mut options = File::options();
            options
                .write(true)
                .create(true)
                .mode(0o600)
                .custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
            let file = options.open(&path)?;
            let is_locked = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
            // The process that held it may have removed it.
            let is_there = fs::symlink_metadata(&path)
                .is_ok_and(|found| file.metadata().is_ok_and(|own| own.ino() == found.ino()));
            if is_locked && is_there {
                return Ok(Lock { path, _file: file });
            }
            if Instant::now() > end {
                let message = format!("{} is locked by another process", path.display());
                return Err(io::Error::new(ErrorKind::TimedOut, message));
            }
            std::thread::sleep(RETRY);
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is locked, so that nobody else has it under this name.
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes the socket of a server that does not run any more.
///
/// # Errors
/// [`ErrorKind::AddrInUse`]: it runs. [`ErrorKind::AlreadyExists`]: it is no socket.
fn remove_stale(path: &Path) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        metadata => metadata?,
    };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(
            ErrorKind::AlreadyExists,
            "the file exists and is no socket",
        ));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        // A full queue of connections is one of a running server.
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
        _ => Err(ErrorKind::AddrInUse.into()),
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_own = fs::symlink_metadata(&self.path).is_ok_and(|metadata| metadata.ino() == self.inode);
        if is_own {
            // Nothing else can be done about it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn of_many_servers_that_find_a_stale_socket_one_has_it() {
        let folder = std::env::temp_dir().join(format!("tailwater-socket-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        let path = folder.join("a.sock");
        for _ in 0..20 {
            let start = Barrier::new(4);
            drop(UnixListener::bind(&path).unwrap());
            let bound: Vec<bool> = std::thread::scope(|scope| {
                let bind = || {
                    start.wait();
                    SocketFile::bind(&path, None)
                };
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(bind)).collect();
                let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
                assert!(UnixStream::connect(&path).is_ok());
                results
                    .iter()
                    .map(|result| match result {
                        Ok(_) => true,
                        Err(ServeError::Running(_)) => false,
                        Err(error) => panic!("{error}"),
                    })
                    .collect()
            });
            assert_eq!(bound.iter().filter(|bound| **bound).count(), 1);
            assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "everything is removed");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn another_socket_of_the_same_name_stays() {
        let folder = std::env::temp_dir().join(format!("tailwater-socket-of-another-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let path = folder.join("a.sock");
        let (first, listener) = SocketFile::bind(&path, None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(first);
        assert!(UnixStream::connect(&path).is_ok());
        drop((listener, other));
        fs::remove_dir_all(&folder).unwrap();
    }
}
