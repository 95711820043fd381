//! Raw system calls.
//!
//! Between `clone3` and `execve` a child of a threaded program may do nothing else. Locks of the allocator or the C
//! library may be held for ever by threads that the child does not have. This module neither allocates nor locks.

use std::ffi::CStr;
use std::os::fd::RawFd;

use libc::{c_int, c_long, c_ulong};

/// Error number of the kernel.
pub(crate) type Errno = c_int;

/// Makes one system call.
///
/// # Safety
/// The arguments meet the call's requirements: pointers among them are valid for its accesses.
unsafe fn call(number: c_long, arguments: [usize; 6]) -> Result<usize, Errno> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: guaranteed by the caller.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result < 0 {
        // SAFETY: `errno` is thread-local, in the one thread of a child too.
        return Err(unsafe { *libc::__errno_location() });
    }
    Ok(result as usize)
}

fn text(text: &CStr) -> usize {
    text.as_ptr() as usize
}

fn fd(fd: RawFd) -> usize {
    fd as usize
}

/// Arguments of `clone3`, up to version 2 of the structure (`CLONE_ARGS_SIZE_VER2`).
#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Side of a clone.
pub(crate) enum Side {
    Child,
    Parent { pid: i32, pidfd: RawFd },
}

/// Copies this process with this thread alone, into new namespaces given by `flags`. The child's end sends no signal,
/// so other code that waits for any child of this process does not reap it.
///
/// # Safety
/// The child calls only functions of this module, and ends by [`execute`] or [`exit`].
pub(crate) unsafe fn clone(flags: u64) -> Result<Side, Errno> {
    let mut pidfd: RawFd = -1;
    let arguments = CloneArguments {
        flags: flags | libc::CLONE_PIDFD as u64,
        pidfd: &raw mut pidfd as u64,
        ..CloneArguments::default()
    };
    let size = size_of::<CloneArguments>();
    // SAFETY: the arguments live until the call returns; without a stack, the child continues on a copy of this one.
    let pid = unsafe { call(libc::SYS_clone3, [&raw const arguments as usize, size, 0, 0, 0, 0])? };
    Ok(match pid {
        0 => Side::Child,
        pid => Side::Parent { pid: pid as i32, pidfd },
    })
}

/// Executes another program. Returns only on failure, with the error.
///
/// # Safety
/// Both arrays end with a null pointer, and their other pointers are valid strings.
pub(crate) unsafe fn execute(
    program: &CStr,
    arguments: *const *const libc::c_char,
    environment: *const *const libc::c_char,
) -> Errno {
    let given = [text(program), arguments as usize, environment as usize, 0, 0, 0];
    // SAFETY: guaranteed by the caller.
    match unsafe { call(libc::SYS_execve, given) } {
        Ok(_) => 0,
        Err(errno) => errno,
    }
}

/// Exits, without the C library's exit handlers.
pub(crate) fn exit(code: c_int) -> ! {
    loop {
        // SAFETY: no pointers.
        let _ = unsafe { call(libc::SYS_exit_group, [code as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Makes a system call whose arguments are numbers only.
fn plain(number: c_long, arguments: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: no pointers; only the functions below call it, with such calls.
    unsafe { call(number, arguments) }
}

/// Duplicates `from` to `to`, a different number. `execve` closes it if `close` is set.
pub(crate) fn duplicate_to(from: RawFd, to: RawFd, close: bool) -> Result<(), Errno> {
    let flags = if close { libc::O_CLOEXEC } else { 0 };
    plain(libc::SYS_dup3, [fd(from), fd(to), flags as usize, 0, 0, 0]).map(|_| ())
}

pub(crate) fn close(descriptor: RawFd) -> Result<(), Errno> {
    plain(libc::SYS_close, [fd(descriptor), 0, 0, 0, 0, 0]).map(|_| ())
}

/// Closes all descriptors from `first` on.
pub(crate) fn close_from(first: RawFd) -> Result<(), Errno> {
    plain(libc::SYS_close_range, [fd(first), u32::MAX as usize, 0, 0, 0, 0]).map(|_| ())
}

pub(crate) fn new_session() -> Result<(), Errno> {
    plain(libc::SYS_setsid, [0; 6]).map(|_| ())
}

/// Calls `prctl` with numbers only.
pub(crate) fn control(option: c_int, value: c_ulong) -> Result<(), Errno> {
    let given = [option as usize, value as usize, 0, 0, 0, 0];
    plain(libc::SYS_prctl, given).map(|_| ())
}

/// Sets user and group IDs (real, effective and saved), and drops all supplementary groups.
pub(crate) fn become_user(uid: u32, gid: u32) -> Result<(), Errno> {
    let (uid, gid) = (uid as usize, gid as usize);
    plain(libc::SYS_setgroups, [0; 6])?;
    plain(libc::SYS_setresgid, [gid, gid, gid, 0, 0, 0])?;
    plain(libc::SYS_setresuid, [uid, uid, uid, 0, 0, 0]).map(|_| ())
}

/// Drops capabilities: the bounding set (`bounding`), or the other sets. `last` is the kernel's last capability.
pub(crate) fn drop_capabilities(last: u32, bounding: bool) -> Result<(), Errno> {
    if bounding {
        for capability in 0..=last {
            control(libc::PR_CAPBSET_DROP, capability.into())?;
        }
        return Ok(());
    }
    set_capabilities(0)
}

/// `_LINUX_CAPABILITY_VERSION_3`.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// Sets this thread's effective and permitted capabilities, one bit each. None is inheritable.
pub(crate) fn set_capabilities(bits: u64) -> Result<(), Errno> {
    let header = [CAPABILITY_VERSION, 0];
    let (low, high) = (bits as u32, (bits >> 32) as u32);
    // Effective, permitted and inheritable, twice for 64 capabilities.
    let sets = [low, low, 0, high, high, 0];
    let given = [header.as_ptr() as usize, sets.as_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: a header for this thread, and two sets, both live until it returns.
    unsafe { call(libc::SYS_capset, given).map(|_| ()) }
}

/// Returns this thread's permitted capabilities, one bit each.
pub(crate) fn capabilities() -> Result<u64, Errno> {
    let header = [CAPABILITY_VERSION, 0];
    let mut sets = [0u32; 6];
    let given = [header.as_ptr() as usize, sets.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: a header for this thread, and room for two sets, both live until it returns.
    unsafe { call(libc::SYS_capget, given)? };
    Ok(u64::from(sets[1]) | u64::from(sets[4]) << 32)
}

/// Sets a resource's soft and hard limit to `value`.
pub(crate) fn limit(resource: u32, value: u64) -> Result<(), Errno> {
    let new = [value, value];
    let given = [0, resource as usize, new.as_ptr() as usize, 0, 0, 0];
    // SAFETY: two numbers that live until the call returns; the pointer for the old limit is null.
    unsafe { call(libc::SYS_prlimit64, given).map(|_| ()) }
}

/// Resets all signals to their default action, and unblocks them.
pub(crate) fn default_signals() {
    /// `struct sigaction` of the kernel: handler, flags, restorer, mask.
    const DEFAULT: [usize; 4] = [0; 4];
    for signal in 1..=64 {
        let given = [signal, DEFAULT.as_ptr() as usize, 0, 8, 0, 0];
        // Signals that cannot be changed have the default action already. SAFETY: the action has the kernel's size, and
        // is only read.
        let _ = unsafe { call(libc::SYS_rt_sigaction, given) };
    }
    let none = 0u64;
    let set = libc::SIG_SETMASK as usize;
    // SAFETY: a signal set of the kernel's eight bytes, only read.
    let _ = unsafe { call(libc::SYS_rt_sigprocmask, [set, &raw const none as usize, 0, 8, 0, 0]) };
}

/// Sets the scheduling policy of a thread; 0 means the caller.
pub(crate) fn schedule(pid: i32, policy: c_int, priority: c_int) -> Result<(), Errno> {
    let given = [pid as usize, policy as usize, &raw const priority as usize, 0, 0, 0];
    // SAFETY: `sched_param` is one number, only read.
    unsafe { call(libc::SYS_sched_setscheduler, given).map(|_| ()) }
}

pub(crate) fn host_name(name: &CStr) -> Result<(), Errno> {
    let given = [text(name), name.count_bytes(), 0, 0, 0, 0];
    // SAFETY: a string and its length.
    unsafe { call(libc::SYS_sethostname, given).map(|_| ()) }
}

pub(crate) fn change_directory(path: &CStr) -> Result<(), Errno> {
    // SAFETY: a string.
    unsafe { call(libc::SYS_chdir, [text(path), 0, 0, 0, 0, 0]).map(|_| ()) }
}

pub(crate) fn mount(source: &CStr, target: &CStr, kind: &CStr, flags: c_ulong) -> Result<(), Errno> {
    let given = [text(source), text(target), text(kind), flags as usize, 0, 0];
    // SAFETY: three strings, and no data.
    unsafe { call(libc::SYS_mount, given).map(|_| ()) }
}

/// Sets attributes (`MOUNT_ATTR_*`) of a mount, and leaves its other attributes unchanged.
pub(crate) fn add_mount_attributes(target: &CStr, attributes: u64) -> Result<(), Errno> {
    // struct mount_attr: set, clear, propagation, user namespace.
    let wanted = [attributes, 0, 0, 0];
    let size = size_of_val(&wanted);
    let at = libc::AT_FDCWD as usize;
    let given = [at, text(target), 0, wanted.as_ptr() as usize, size, 0];
    // SAFETY: a string, and attributes of the size that is passed.
    unsafe { call(libc::SYS_mount_setattr, given).map(|_| ()) }
}

pub(crate) fn detach_mount(target: &CStr) -> Result<(), Errno> {
    let given = [text(target), libc::MNT_DETACH as usize, 0, 0, 0, 0];
    // SAFETY: a string.
    unsafe { call(libc::SYS_umount2, given).map(|_| ()) }
}

/// Makes the working directory the root, with the old root mounted on top of it.
pub(crate) fn pivot_here() -> Result<(), Errno> {
    let here = text(c".");
    // SAFETY: two strings.
    unsafe { call(libc::SYS_pivot_root, [here, here, 0, 0, 0, 0]).map(|_| ()) }
}

/// Installs a filter for this process's calls. Returns the descriptor for notifications.
pub(crate) fn filter(instructions: &[libc::sock_filter]) -> Result<RawFd, Errno> {
    const SET_FILTER: usize = 1;
    const NEW_LISTENER: usize = 8;
    let program = libc::sock_fprog {
        len: instructions.len() as u16,
        filter: instructions.as_ptr().cast_mut(),
    };
    let given = [SET_FILTER, NEW_LISTENER, &raw const program as usize, 0, 0, 0];
    // SAFETY: the length matches the instructions; the kernel copies them.
    unsafe { call(libc::SYS_seccomp, given).map(|fd| fd as RawFd) }
}

/// Installs a filter that only refuses calls, for this thread or for all threads of this process.
pub(crate) fn refusing_filter(instructions: &[libc::sock_filter], all_threads: bool) -> Result<(), Errno> {
    const SET_FILTER: usize = 1;
    const ALL_THREADS: usize = 1;
    /// Mitigations of speculation stay as they are: it would cost the data path.
    const ALLOW_SPECULATION: usize = 4;
    /// The error `ESRCH` instead of a positive number, if another thread has a filter of its own.
    const ALL_OR_ERROR: usize = 16;
    let flags = match all_threads {
        true => ALL_THREADS | ALL_OR_ERROR | ALLOW_SPECULATION,
        false => ALLOW_SPECULATION,
    };
    let program = libc::sock_fprog {
        len: instructions.len() as u16,
        filter: instructions.as_ptr().cast_mut(),
    };
    let given = [SET_FILTER, flags, &raw const program as usize, 0, 0, 0];
    // SAFETY: the length matches the instructions; the kernel copies them.
    unsafe { call(libc::SYS_seccomp, given).map(|_| ()) }
}

/// Sends bytes, and optionally a descriptor, over a connected socket.
pub(crate) fn send(socket: RawFd, bytes: &[u8], descriptor: Option<RawFd>) -> Result<(), Errno> {
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    /// Control message with one descriptor, padded to the kernel's alignment.
    #[repr(C, align(8))]
    struct Rights {
        header: libc::cmsghdr,
        descriptor: RawFd,
    }
    let mut rights = Rights {
        header: libc::cmsghdr {
            cmsg_len: size_of::<libc::cmsghdr>() + size_of::<RawFd>(),
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: libc::SCM_RIGHTS,
        },
        descriptor: descriptor.unwrap_or(-1),
    };
    // SAFETY: numbers and pointers, for which zero is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if descriptor.is_some() {
        message.msg_control = (&raw mut rights).cast();
        message.msg_controllen = size_of::<Rights>();
    }
    let given = [
        fd(socket),
        &raw const message as usize,
        libc::MSG_NOSIGNAL as usize,
        0,
        0,
        0,
    ];
    // SAFETY: the message and the data it refers to live until the call returns, and are only read.
    unsafe { call(libc::SYS_sendmsg, given).map(|_| ()) }
}

/// Waits for bytes from a connected socket. Returns their number, 0 if the other end is closed.
pub(crate) fn receive(socket: RawFd, bytes: &mut [u8]) -> Result<usize, Errno> {
    let given = [fd(socket), bytes.as_mut_ptr() as usize, bytes.len(), 0, 0, 0];
    // SAFETY: a writable buffer, and its length.
    unsafe { call(libc::SYS_recvfrom, given) }
}
