//! FUSE mount of the model, visible only to the mounting thread and the threads it starts.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request, SessionACL, TimeOrNow, WriteFlags,
};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::UnshareFlags;

use super::kernel::{Kernel, Machine, Node};

/// Fault injected before the kernel model executes a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The command fails.
    Errno(i32),
    /// Another program removes the group.
    Vanish(String),
    /// The process that issues the command is killed.
    Kill,
}

/// Returns the fault for each command, by its path.
type Faults = Box<dyn FnMut(&str) -> Option<Fault> + Send>;

struct State {
    kernel: Kernel,
    /// Paths by inode number. A group that is created again gets new numbers.
    paths: HashMap<u64, String>,
    numbers: HashMap<String, u64>,
    next: u64,
    faults: Option<Faults>,
    commands: u32,
}

#[derive(Clone)]
struct Shared(Arc<Mutex<State>>);

impl State {
    fn number(&mut self, path: &str) -> u64 {
        if let Some(number) = self.numbers.get(path) {
            return *number;
        }
        self.next += 1;
        self.numbers.insert(path.to_owned(), self.next);
        self.paths.insert(self.next, path.to_owned());
        self.next
    }

    fn forget(&mut self, path: &str) {
        let below = format!("{path}/");
        let is_gone = |known: &String| known == path || known.starts_with(&below);
        self.numbers.retain(|known, _| !is_gone(known));
        self.paths.retain(|_, known| !is_gone(known));
    }

    fn path(&self, number: INodeNo) -> Option<String> {
        self.paths.get(&number.0).cloned()
    }

    fn child(&self, parent: INodeNo, name: &OsStr) -> Option<String> {
        let (parent, name) = (self.path(parent)?, name.to_str()?);
        Some(if parent.is_empty() {
            name.to_owned()
        } else {
            format!("{parent}/{name}")
        })
    }

    fn attributes(&mut self, path: &str) -> Option<FileAttr> {
        let (kind, perm) = match self.kernel.node(path)? {
            Node::Directory(_) => (FileType::Directory, 0o755),
            Node::File(true) => (FileType::RegularFile, 0o644),
            Node::File(false) => (FileType::RegularFile, 0o444),
        };
        Some(FileAttr {
            ino: INodeNo(self.number(path)),
            size: 0,
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        })
    }

    /// Counts a command and injects the fault that the test requested.
    fn command(&mut self, path: &str, by: u32) -> Result<(), i32> {
        self.commands += 1;
        let Some(faults) = &mut self.faults else {
            return Ok(());
        };
        match faults(path) {
            None => Ok(()),
            Some(Fault::Errno(errno)) => Err(errno),
            Some(Fault::Vanish(group)) => {
                let _ = self.kernel.rmdir(&group);
                self.forget(&group);
                Ok(())
            }
            Some(Fault::Kill) => {
                // `by` may be a thread's number. Its process is killed.
                let status = fs::read_to_string(format!("/proc/{by}/status")).unwrap_or_default();
                let process = status
                    .lines()
                    .find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
                if let Some(process) = process.and_then(rustix::process::Pid::from_raw) {
                    assert_ne!(process, rustix::process::getpid(), "the test itself");
                    let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
                }
                Err(libc::EINTR)
            }
        }
    }
}

/// Disables the kernel's caching, because the tree changes on its own.
const TTL: Duration = Duration::ZERO;

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Filesystem for Shared {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut state = self.lock();
        let found = state.child(parent, name).and_then(|path| state.attributes(&path));
        match found {
            Some(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let mut state = self.lock();
        match state.path(number).and_then(|path| state.attributes(&path)) {
            Some(attributes) => reply.attr(&TTL, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<std::time::SystemTime>,
        handle: Option<FileHandle>,
        _: Option<std::time::SystemTime>,
        _: Option<std::time::SystemTime>,
        _: Option<std::time::SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // Truncation by a shell's ">".
        self.getattr(request, number, handle, reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let mut state = self.lock();
        let Some(path) = state.child(parent, name) else {
            return reply.error(Errno::ENOENT);
        };
        let made = state
            .command(&path, request.pid())
            .and_then(|()| state.kernel.mkdir(&path));
        match made.map(|()| state.attributes(&path)) {
            Ok(Some(attributes)) => reply.entry(&TTL, &attributes, Generation(0)),
            Ok(None) => reply.error(Errno::ENOENT),
            Err(errno) => reply.error(Errno::from_i32(errno)),
        }
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut state = self.lock();
        let Some(path) = state.child(parent, name) else {
            return reply.error(Errno::ENOENT);
        };
        match state
            .command(&path, request.pid())
            .and_then(|()| state.kernel.rmdir(&path))
        {
            Ok(()) => {
                state.forget(&path);
                reply.ok();
            }
            Err(errno) => reply.error(Errno::from_i32(errno)),
        }
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // Files have no size, so every read must reach the model.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let state = self.lock();
        let text = state
            .path(number)
            .ok_or(libc::ENODEV)
            .and_then(|path| state.kernel.read(&path));
        match text {
            Ok(text) => {
                let start = (offset as usize).min(text.len());
                let end = (start + size as usize).min(text.len());
                reply.data(&text.as_bytes()[start..end]);
            }
            Err(errno) => reply.error(Errno::from_i32(errno)),
        }
    }

    fn write(
        &self,
        request: &Request,
        number: INodeNo,
        _: FileHandle,
        _: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut state = self.lock();
        let Some(path) = state.path(number) else {
            return reply.error(Errno::ENODEV);
        };
        let text = String::from_utf8_lossy(data).into_owned();
        let (by, count) = (request.pid(), data.len() as u32);
        let done = state
            .command(&path, by)
            .and_then(|()| state.kernel.write(&path, &text, by as i32));
        match done {
            Ok(()) => reply.written(count),
            Err(errno) => reply.error(Errno::from_i32(errno)),
        }
    }

    fn readdir(&self, _: &Request, number: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let mut state = self.lock();
        let path = state.path(number);
        let Some((path, Node::Directory(names))) =
            path.and_then(|path| Some((path.clone(), state.kernel.node(&path)?)))
        else {
            return reply.error(Errno::ENOENT);
        };
        for (index, name) in names.iter().enumerate().skip(offset as usize) {
            let below = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}/{name}")
            };
            let Some(attributes) = state.attributes(&below) else {
                continue;
            };
            if reply.add(attributes.ino, index as u64 + 1, attributes.kind, name) {
                break;
            }
        }
        reply.ok();
    }
}

/// Mounted model. It is unmounted when dropped. If the test is killed, its mount namespace vanishes with it.
pub struct Mounted {
    shared: Shared,
    session: Option<BackgroundSession>,
    /// Folder of the test. `resctrl` is the mount point unless the model is mounted in place; the rest is free for the
    /// test.
    pub folder: PathBuf,
    root: PathBuf,
}

/// Returns the reason why FUSE is not available, for the message of a skipped test.
fn unusable() -> Option<&'static str> {
    if !Path::new("/dev/fuse").exists() {
        return Some("there is no /dev/fuse");
    }
    (!rustix::process::geteuid().is_root()).then_some("mounting needs root")
}

/// Gives this thread, and those it starts from now on, a private mount namespace.
///
/// # Errors
/// The reason if the namespace cannot be created.
pub fn own_mounts() -> Result<(), &'static str> {
    // SAFETY: no file descriptors are unshared. Nothing relies on this thread sharing its mounts and working directory
    // with the process.
    #[allow(unsafe_code)]
    let unshared = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) };
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    unshared
        .and_then(|()| mount_change("/", private))
        .map_err(|_| "mount namespaces need root")
}

impl Mounted {
    /// Mounts a model. Returns `None` and prints the reason if that is impossible.
    pub fn new(machine: Machine, read_only: bool) -> Option<Mounted> {
        Mounted::mount(machine, read_only, None)
    }

    /// Mounts a model at the default path of `resctrl`, as its substitute. In the test's mount namespace `/sys/fs` and
    /// `/run` contain nothing else.
    pub fn in_place(machine: Machine) -> Option<Mounted> {
        Mounted::mount(machine, false, Some(Path::new("/sys/fs/resctrl")))
    }

    fn mount(machine: Machine, read_only: bool, place: Option<&Path>) -> Option<Mounted> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let skip = |why: &str| {
            println!("skipped: {why}");
            None
        };
        if let Some(why) = unusable() {
            return skip(why);
        }
        if let Err(why) = own_mounts() {
            return skip(why);
        }
        let turn = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("tailwater-resctrl-{}-{turn}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("resctrl")).unwrap();
        let root = match place {
            Some(place) => place.to_owned(),
            None => folder.join("resctrl"),
        };
        if place.is_some() {
            let hidden = ["/sys/fs", "/run"].into_iter();
            let mut hidden = hidden.map(|at| mount("hidden", at, "tmpfs", MountFlags::empty(), None));
            if let Err(error) = hidden.try_for_each(|hidden| hidden) {
                let _ = fs::remove_dir_all(&folder);
                return skip(&format!("nothing can be mounted: {error}"));
            }
            fs::create_dir_all(&root).unwrap();
        }
        let state = State {
            kernel: Kernel::new(machine),
            paths: [(1, String::new())].into(),
            numbers: [(String::new(), 1)].into(),
            next: 1,
            faults: None,
            commands: 0,
        };
        let shared = Shared(Arc::new(Mutex::new(state)));
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName("resctrl".into()),
            MountOption::Subtype("resctrl".into()),
        ];
        config.mount_options.extend(read_only.then_some(MountOption::RO));
        // The kernel shows it in the type: "fuse.resctrl".
        let subtype = MountOption::CUSTOM("subtype=resctrl".into());
        config.mount_options.extend(place.map(|_| subtype));
        config.acl = SessionACL::Owner;
        match fuser::spawn_mount(shared.clone(), &root, &config) {
            Ok(session) => Some(Mounted {
                shared,
                session: Some(session),
                folder,
                root,
            }),
            Err(error) => {
                let _ = fs::remove_dir_all(&folder);
                skip(&format!("FUSE cannot be mounted: {error}"))
            }
        }
    }

    pub fn root(&self) -> PathBuf {
        self.root.clone()
    }

    /// Gives access to the kernel model.
    pub fn kernel<T>(&self, look: impl FnOnce(&mut Kernel) -> T) -> T {
        look(&mut self.shared.lock().kernel)
    }

    pub fn snapshot(&self) -> String {
        self.kernel(|kernel| kernel.snapshot())
    }

    /// Returns the number of commands so far.
    pub fn commands(&self) -> u32 {
        self.shared.lock().commands
    }

    /// Injects a fault into the command number `at` from now on, counted from zero.
    pub fn fault(&self, at: u32, fault: Fault) {
        let mut turn = 0;
        self.faults(move |_| {
            turn += 1;
            (turn == at + 1).then(|| fault.clone())
        });
    }

    pub fn faults(&self, faults: impl FnMut(&str) -> Option<Fault> + Send + 'static) {
        self.shared.lock().faults = Some(Box::new(faults));
    }

    pub fn no_faults(&self) {
        self.shared.lock().faults = None;
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            let _ = session.umount_and_join();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}
