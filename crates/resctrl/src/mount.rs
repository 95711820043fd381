//! Where `resctrl` is mounted; mounting it, and unmounting what Tailwater mounted, when its last process goes.
//!
//! In the directory of state, `mounted` says that Tailwater mounted it: the number of the mount. Every process that
//! uses `resctrl` holds a shared lock on `users`: who can have it alone is the last.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::error::Error;
use crate::tree;

/// What to mount, and where things are. The default is right on every Linux; tests have other places.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where to mount it.
    pub mount_point: PathBuf,
    /// Whether to mount it if it is not mounted.
    pub mount: bool,
    /// Options of a mount of ours: `cdp`, `cdpl2`, `mba_MBps`, separated by commas.
    pub options: String,
    /// The kernel's list of mounts.
    pub mounts: PathBuf,
    /// The type of the file system. At the mount point one in user space of this subtype (`fuse.resctrl`) will do.
    pub file_system: String,
    /// What Tailwater's processes remember together; it does not outlive the machine's start.
    pub state: PathBuf,
    /// The kernel's directory of cores and their caches.
    pub cores: PathBuf,
    /// How long to wait for another program that is changing something.
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

/// A mount: its number, and where it is.
type Mount = (String, PathBuf);

/// Finds the file system in the kernel's list: the first of its mounts that shows all of it. One in user space that
/// stands for it counts where root alone can have put it.
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

/// Blanks and backslashes are three octal digits in the kernel's lists.
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

/// Opens a file of the state, making it if need be.
fn state_file(settings: &Settings, name: &str) -> Result<File, Error> {
    fs::create_dir_all(&settings.state).map_err(file(&settings.state))?;
    let path = settings.state.join(name);
    let opened = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path);
    opened.map_err(file(&path))
}

/// Takes a lock alone, or gives up.
fn lock(locked: &File, what: &Path, patience: Duration) -> Result<(), Error> {
    let deadline = Instant::now() + patience;
    loop {
        match locked.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Busy {
                    what: what.display().to_string(),
                    why: format!("another program has had it locked for {} s", patience.as_secs_f32()),
                });
            }
            Err(TryLockError::Error(error)) => return Err(file(what)(error)),
        }
    }
}

/// Only one of Tailwater's processes changes something at a time.
pub(crate) fn lock_state(settings: &Settings) -> Result<File, Error> {
    let locked = state_file(settings, "lock")?;
    lock(&locked, &settings.state.join("lock"), settings.patience)?;
    Ok(locked)
}

/// Nor does any other program that does as the kernel's documentation asks ("Locking between applications").
pub(crate) fn lock_tree(root: &Path, settings: &Settings) -> Result<File, Error> {
    let locked = File::open(root).map_err(file(root))?;
    lock(&locked, root, settings.patience)?;
    Ok(locked)
}

/// Whether it is mounted, or could be: asked before anything is written anywhere.
///
/// # Errors
/// [`Error::Absent`], if not.
pub(crate) fn could_be(settings: &Settings) -> Result<(), Error> {
    let mounts = tree::read(&settings.mounts).map_err(file(&settings.mounts))?;
    // Where the kernel does not list what it has, mounting shows.
    let listed = fs::read_to_string("/proc/filesystems").map_or(true, |list| {
        let mut names = list.lines().filter_map(|line| line.split_whitespace().last());
        names.any(|name| name == settings.file_system)
    });
    if find(&mounts, settings).is_some() || listed || !settings.mount {
        return Ok(());
    }
    Err(Error::Absent {
        why: "the kernel has none, or the processor has neither CAT nor CMT nor MBA; tailwater doctor says what the \
              processor has"
            .to_owned(),
    })
}

/// Where it is; mounts it if need be. The state is locked.
pub(crate) fn find_or_mount(settings: &Settings) -> Result<PathBuf, Error> {
    let mark = settings.state.join("mounted");
    let mounts = || tree::read(&settings.mounts).map_err(file(&settings.mounts));
    let marked = fs::read_to_string(&mark).ok();
    if let Some((number, at)) = find(&mounts()?, settings) {
        // One that was made between a mount and its number stands in the mark as nothing.
        if marked.is_some_and(|marked| !marked.is_empty() && marked != number) {
            fs::remove_file(&mark).map_err(file(&mark))?;
        }
        return Ok(at);
    }
    if !settings.mount {
        let at = settings.mount_point.display();
        let why = format!("it is not mounted: mount -t {} resctrl {at}", settings.file_system);
        return Err(Error::Absent { why });
    }
    // Before the mount: what is killed in between leaves a mark without a mount, never the other way round.
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
        why: format!("{why} ({errno}); tailwater doctor says what the processor has"),
    };
    Err(match errno {
        Errno::NODEV => absent("the kernel has none, or the processor has neither CAT nor CMT nor MBA"),
        Errno::NOENT => absent(&format!("there is no {}", at.display())),
        Errno::OPNOTSUPP | Errno::INVAL => absent(&format!("the processor cannot do {:?}", settings.options)),
        Errno::PERM | Errno::ACCESS => Error::Denied {
            path: at.clone(),
            error: errno.into(),
        },
        Errno::BUSY => Error::Busy {
            what: at.display().to_string(),
            why: "resctrl is mounted already, where this process does not see it: it can be mounted once".to_owned(),
        },
        _ => file(at)(errno.into()),
    })
}

/// Held while a process uses `resctrl`.
#[derive(Debug)]
pub(crate) struct User(File);

impl User {
    /// The state is locked.
    pub(crate) fn new(settings: &Settings) -> Result<User, Error> {
        let users = state_file(settings, "users")?;
        let path = settings.state.join("users");
        users.lock_shared().map_err(file(&path))?;
        Ok(User(users))
    }

    /// Whether nobody else uses it. The state is locked: nobody comes meanwhile.
    fn is_last(&self) -> bool {
        self.0.try_lock().is_ok()
    }
}

/// Unmounts what Tailwater mounted, if this was its last process and nobody has groups there. The state is locked.
pub(crate) fn unmount(settings: &Settings, root: &Path, user: &User) -> Result<(), Error> {
    let mark = settings.state.join("mounted");
    let Ok(marked) = fs::read_to_string(&mark) else {
        return Ok(());
    };
    let tree = tree::Tree { root: root.to_owned() };
    // Unmounting removes all groups, and others' would go with ours.
    if !user.is_last() || !tree.groups()?.is_empty() || !tree.watches("")?.is_empty() {
        return Ok(());
    }
    let mounts = tree::read(&settings.mounts).map_err(file(&settings.mounts))?;
    let is_ours = |mount: &Mount| marked.is_empty() || mount.0 == marked;
    if find(&mounts, settings).as_ref().is_some_and(is_ours) {
        match rustix::mount::unmount(root, UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // Somebody looks at it. The next process that goes tries again.
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
        // One in user space counts at the mount point only: elsewhere anybody can have put it.
        let user = "43 25 0:40 / /home/a rw - fuse.resctrl x rw\n\
                    44 25 0:41 / /sys/fs/resctrl rw - fuse.other x rw\n";
        assert_eq!(find(user, &settings("resctrl")), None);
        let (number, at) = find(user, &settings("other")).unwrap();
        assert_eq!((number.as_str(), at), ("44", "/sys/fs/resctrl".into()));
        assert_eq!(unescape("a\\134b\\9\\"), "a\\b\\9\\");
    }
}
