//! Finds or mounts the `resctrl` file system. If Tailwater mounted it, the last process unmounts it.
//!
//! The file `mounted` in the state directory marks a mount by Tailwater and contains the mount's number. Every process
//! that uses `resctrl` holds a shared lock on the file `users`. The process that can lock it exclusively is the last.

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::error::Error;
use crate::tree;

/// Paths and options of the mount. The default is correct on every Linux; tests use other paths.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Mount point.
    pub mount_point: PathBuf,
    /// `true` to mount the file system if it is not mounted.
    pub mount: bool,
    /// Mount options if Tailwater mounts it: `cdp`, `cdpl2`, `mba_MBps`, separated by commas.
    pub options: String,
    /// The kernel's list of mounts.
    pub mounts: PathBuf,
    /// Type of the file system. At the mount point, a FUSE file system of this subtype (`fuse.resctrl`) is accepted as
    /// well.
    pub file_system: String,
    /// State directory shared by Tailwater's processes. It need not survive a reboot.
    pub state: PathBuf,
    /// The kernel's directory of cores and their caches.
    pub cores: PathBuf,
    /// Maximum time to wait for another program's lock.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            mount_point: "/sys/fs/resctrl".into(),
            mount: true,
            options: String::new(),
            // A thread can have other mounts than its process.
            mounts: "/proc/thread-self/mountinfo".into(),
            file_system: "resctrl".to_owned(),
            state: "/run/tailwater/resctrl".into(),
            cores: "/sys/devices/system/cpu".into(),
            patience: Duration::from_secs(10),
        }
    }
}

/// Number and mount point of a mount.
type Mount = (String, PathBuf);

/// Finds the file system in the kernel's list: the first mount that shows its root. A FUSE substitute is accepted only
/// at the mount point, where only root can have put it.
fn find(mounts: &str, settings: &Settings) -> Option<Mount> {
    mounts.lines().find_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        let mut fields = front.split(' ');
        let (number, root, at) = (fields.next()?, fields.nth(2)?, fields.next()?);
        let (type_, at) = (back.split(' ').next()?, PathBuf::from(unescape(at)));
        let stands_for = || type_.strip_prefix("fuse.") == Some(settings.file_system.as_str());
        let matches = type_ == settings.file_system || at == settings.mount_point && stands_for();
        (matches && root == "/").then(|| (number.to_owned(), at))
    })
}

/// Decodes the kernel's octal escapes of blanks and backslashes.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|code| u8::from_str_radix(code, 8).ok());
        match code {
            Some(code) if code.is_ascii() => {
                plain.push(char::from(code));
                plain += &part[3..];
            }
            _ => {
                plain.push('\\');
                plain += part;
            }
        }
    }
    plain
}

fn file(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
    |error| match error.kind() {
        io::ErrorKind::PermissionDenied => Error::Denied {
            path: path.to_owned(),
            error,
        },
        _ => Error::File {
            path: path.to_owned(),
            error,
        },
    }
}

/// Opens a file of the state directory, creating it if necessary. Any user who may open a file may lock it, so only
/// this process's user may enter the directory.
fn state_file(settings: &Settings, name: &str) -> Result<File, Error> {
    let directory = &settings.state;
    if let Some(above) = directory.parent() {
        fs::create_dir_all(above).map_err(file(above))?;
    }
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(file(directory)(error)),
        _ => {}
    }
    let data = fs::symlink_metadata(directory).map_err(file(directory))?;
    let ours = rustix::process::geteuid().as_raw();
    if !data.is_dir() || data.uid() != ours {
        return Err(Error::Busy {
            what: directory.display().to_string(),
            why: format!("expected a directory of user {ours}, found something else: remove it"),
        });
    }
    if data.mode() & 0o077 != 0 {
        fs::set_permissions(directory, Permissions::from_mode(0o700)).map_err(file(directory))?;
    }
    let path = directory.join(name);
    let opened = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(&path);
    opened.map_err(file(&path))
}

/// Takes an exclusive lock, or fails after `patience`.
fn lock(locked: &File, what: &Path, patience: Duration) -> Result<(), Error> {
    lock_by(|| locked.try_lock(), what, patience)
}

/// Takes a lock by `attempt`, or fails after `patience`.
fn lock_by(attempt: impl Fn() -> Result<(), TryLockError>, what: &Path, patience: Duration) -> Result<(), Error> {
    let deadline = Instant::now() + patience;
    loop {
        match attempt() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Busy {
                    what: what.display().to_string(),
                    why: format!("locked by another program for {} s", patience.as_secs_f32()),
                });
            }
            Err(TryLockError::Error(error)) => return Err(file(what)(error)),
        }
    }
}

/// Locks the state: only one of Tailwater's processes makes changes at a time.
pub(crate) fn lock_state(settings: &Settings) -> Result<File, Error> {
    let locked = state_file(settings, "lock")?;
    lock(&locked, &settings.state.join("lock"), settings.patience)?;
    Ok(locked)
}

/// Locks the tree against other programs that follow the kernel's documentation ("Locking between applications").
pub(crate) fn lock_tree(root: &Path, settings: &Settings) -> Result<File, Error> {
    let locked = File::open(root).map_err(file(root))?;
    lock(&locked, root, settings.patience)?;
    Ok(locked)
}

/// Checks that the file system is mounted or can be mounted, before anything is written.
///
/// # Errors
/// [`Error::Absent`] if neither is the case.
pub(crate) fn check_available(settings: &Settings) -> Result<(), Error> {
    let mounts = tree::read(&settings.mounts).map_err(file(&settings.mounts))?;
    // If the kernel's list is unreadable, only mounting can tell.
    let listed = fs::read_to_string("/proc/filesystems").map_or(true, |list| {
        let mut names = list.lines().filter_map(|line| line.split_whitespace().last());
        names.any(|name| name == settings.file_system)
    });
    if find(&mounts, settings).is_some() || listed || !settings.mount {
        return Ok(());
    }
    Err(Error::Absent {
        why: "not supported by the kernel, or the processor has neither CAT nor CMT nor MBA; tailwater doctor lists \
             its features"
            .to_owned(),
    })
}

/// Returns the mount point; mounts the file system if necessary. The state must be locked.
pub(crate) fn find_or_mount(settings: &Settings) -> Result<PathBuf, Error> {
    let mark = settings.state.join("mounted");
    let mounts = || tree::read(&settings.mounts).map_err(file(&settings.mounts));
    let marked = fs::read_to_string(&mark).ok();
    if let Some((number, at)) = find(&mounts()?, settings) {
        // If the process was killed between the mount and writing its number, the mark is empty.
        if marked.is_some_and(|marked| !marked.is_empty() && marked != number) {
            fs::remove_file(&mark).map_err(file(&mark))?;
        }
        return Ok(at);
    }
    if !settings.mount {
        let at = settings.mount_point.display();
        let why = format!("not mounted: mount -t {} resctrl {at}", settings.file_system);
        return Err(Error::Absent { why });
    }
    // Written before the mount: a killed process can leave a mark without a mount, but never the reverse.
    fs::write(&mark, "").map_err(file(&mark))?;
    if let Err(error) = mount(settings) {
        let _ = fs::remove_file(&mark);
        return Err(error);
    }
    let made = find(&mounts()?, settings);
    let (number, at) = made.ok_or_else(|| Error::Absent {
        why: format!(
            "{} was mounted, and is not in {}",
            settings.file_system,
            settings.mounts.display()
        ),
    })?;
    fs::write(&mark, number).map_err(file(&mark))?;
    Ok(at)
}

fn mount(settings: &Settings) -> Result<(), Error> {
    let at = &settings.mount_point;
    let options = std::ffi::CString::new(settings.options.as_str()).unwrap_or_default();
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let type_ = settings.file_system.as_str();
    let Err(errno) = rustix::mount::mount("resctrl", at, type_, flags, Some(options.as_c_str())) else {
        return Ok(());
    };
    let absent = |why: &str| Error::Absent {
        why: format!("{why} ({errno}); tailwater doctor lists the processor's features"),
    };
    Err(match errno {
        Errno::NODEV => absent("not supported by the kernel, or the processor has neither CAT nor CMT nor MBA"),
        Errno::NOENT => absent(&format!("there is no {}", at.display())),
        Errno::OPNOTSUPP | Errno::INVAL => absent(&format!("the processor does not support {:?}", settings.options)),
        Errno::PERM | Errno::ACCESS => Error::Denied {
            path: at.clone(),
            error: errno.into(),
        },
        Errno::BUSY => Error::Busy {
            what: at.display().to_string(),
            why: "resctrl is already mounted where this process cannot see it, and supports one mount only".to_owned(),
        },
        _ => file(at)(errno.into()),
    })
}

/// Shared lock held while a process uses `resctrl`.
#[derive(Debug)]
pub(crate) struct User(File);

impl User {
    /// Takes the lock. The state must be locked.
    pub(crate) fn new(settings: &Settings) -> Result<User, Error> {
        let users = state_file(settings, "users")?;
        let path = settings.state.join("users");
        lock_by(|| users.try_lock_shared(), &path, settings.patience)?;
        Ok(User(users))
    }

    /// Returns `true` if no other process uses `resctrl`. The state must be locked, so that none can join meanwhile.
    fn is_last(&self) -> bool {
        self.0.try_lock().is_ok()
    }
}

/// Unmounts the file system if Tailwater mounted it, this is its last process, and no groups exist. The state must be
/// locked.
pub(crate) fn unmount(settings: &Settings, root: &Path, user: &User) -> Result<(), Error> {
    let mark = settings.state.join("mounted");
    let Ok(marked) = fs::read_to_string(&mark) else {
        return Ok(());
    };
    let tree = tree::Tree { root: root.to_owned() };
    // Unmounting removes all groups, including those of other programs.
    if !user.is_last() || !tree.groups()?.is_empty() || !tree.watches("")?.is_empty() {
        return Ok(());
    }
    let mounts = tree::read(&settings.mounts).map_err(file(&settings.mounts))?;
    let is_ours = |mount: &Mount| marked.is_empty() || mount.0 == marked;
    if find(&mounts, settings).as_ref().is_some_and(is_ours) {
        match rustix::mount::unmount(root, UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // Another program accesses it. The next process that exits tries again.
            Err(Errno::BUSY) => return Ok(()),
            Err(errno) => return Err(file(root)(errno.into())),
        }
    }
    fs::remove_file(&mark).map_err(file(&mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
25 30 0:23 / /sys rw,nosuid shared:7 - sysfs sysfs rw
40 25 0:35 /p0 /mnt/part rw - resctrl resctrl rw
41 25 0:35 / /sys/fs/my\\040resctrl rw,relatime shared:9 master:1 - resctrl resctrl rw,cdp
42 25 0:36 / /resctrl rw - tmpfs resctrl rw
";

    /// A user who locked the file `users` held up every run that measures the cache.
    #[test]
    fn a_lock_of_the_users_file_ends_the_wait() {
        let name = format!("tailwater-resctrl-users-{}", std::process::id());
        let state = std::env::temp_dir().join(name);
        let settings = Settings {
            state: state.clone(),
            patience: Duration::from_millis(20),
            ..Settings::default()
        };
        let others = state_file(&settings, "users").unwrap();
        let mode = fs::metadata(&state).unwrap().mode();
        assert_eq!(mode & 0o777, 0o700, "another user cannot open it");
        others.lock().unwrap();
        let error = User::new(&settings).unwrap_err().to_string();
        assert!(error.contains("locked by another program"), "{error}");
        others.unlock().unwrap();
        User::new(&settings).unwrap();
        fs::remove_dir_all(&state).unwrap();
    }

    #[test]
    fn a_mount_is_found_by_its_type() {
        let settings = |type_: &str| Settings {
            file_system: type_.to_owned(),
            ..Settings::default()
        };
        let found = find(MOUNTS, &settings("resctrl")).unwrap();
        assert_eq!(found, ("41".to_owned(), PathBuf::from("/sys/fs/my resctrl")));
        assert_eq!(find(MOUNTS, &settings("cgroup2")), None);
        assert_eq!(find("a b\n1 - resctrl\n\n - ", &settings("resctrl")), None);
        // A FUSE substitute is accepted at the mount point only: anywhere else, any user can have mounted it.
        let user = "43 25 0:40 / /home/a rw - fuse.resctrl x rw\n\
                    44 25 0:41 / /sys/fs/resctrl rw - fuse.other x rw\n";
        assert_eq!(find(user, &settings("resctrl")), None);
        let (number, at) = find(user, &settings("other")).unwrap();
        assert_eq!((number.as_str(), at), ("44", "/sys/fs/resctrl".into()));
        assert_eq!(unescape("a\\134b\\9\\"), "a\\b\\9\\");
    }
}
