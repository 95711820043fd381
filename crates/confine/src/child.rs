//! Steps of the child between `clone3` and `execve`: the plan, prepared in advance, and its execution.

use std::ffi::{CStr, CString};
use std::os::fd::RawFd;

use crate::filter::Instruction;
use crate::sys::{self, Errno};

/// Step of a start. The child reports the number of the step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// Reporting progress to the agent.
    Report,
    /// Moving descriptors to their numbers, closing others.
    Descriptors,
    /// Setting ordinary scheduling.
    Scheduling,
    /// Setting the host name of its UTS namespace.
    HostName,
    /// Mounting its own view of the file system.
    Mounts,
    /// Changing the root directory.
    Root,
    /// Setting resource limits.
    Limits,
    /// Changing to its own user.
    User,
    /// Dropping capabilities.
    Capabilities,
    /// Setting the parent-death signal.
    DieWithParent,
    /// Setting `no_new_privs`.
    NoNewPrivileges,
    /// Installing the system call filter.
    Filter,
    /// Executing the program.
    Execute,
}

impl Step {
    const ALL: [Step; 13] = [
        Step::Report,
        Step::Descriptors,
        Step::Scheduling,
        Step::HostName,
        Step::Mounts,
        Step::Root,
        Step::Limits,
        Step::User,
        Step::Capabilities,
        Step::DieWithParent,
        Step::NoNewPrivileges,
        Step::Filter,
        Step::Execute,
    ];

    fn from_number(number: u8) -> Option<Step> {
        Step::ALL.get(usize::from(number)).copied()
    }
}

/// Change of the child's view of the file system, in its own mount namespace.
#[derive(Debug)]
pub(crate) enum Mount {
    /// Makes all mounts private: mounts propagate neither out of the namespace nor into it.
    Private,
    /// Bind-mounts a file or directory at another path, read-only.
    ReadOnly { source: CString, target: CString },
    /// Mounts `/proc` of its own process namespace.
    Processes { target: CString },
    /// Detaches the mount at `target`.
    Detach { target: CString },
    /// Makes the directory, which is a mount, the root, and detaches everything else.
    Root { directory: CString },
}

/// Null-terminated array of strings for `execve`.
#[derive(Debug)]
pub(crate) struct Strings {
    pointers: Vec<*const libc::c_char>,
    /// Owners of the strings the pointers refer to.
    _strings: Vec<CString>,
}

// SAFETY: the pointers refer to heap strings that `Strings` owns and never changes.
unsafe impl Send for Strings {}

impl Strings {
    pub(crate) fn new(strings: Vec<CString>) -> Strings {
        let pointers = strings
            .iter()
            .map(|string| string.as_ptr())
            .chain([std::ptr::null()])
            .collect();
        Strings {
            pointers,
            _strings: strings,
        }
    }
}

/// All actions of the child, in the order in which [`run`] performs them.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Socket on which the child reports and waits for permission to continue.
    pub status: RawFd,
    /// The agent's end of that socket, which the child inherits a copy of.
    pub agent: RawFd,
    /// Sources of the descriptors 0, 1, ... All of them, and `status`, have numbers above the targets.
    pub descriptors: Vec<RawFd>,
    /// `true`: all other descriptors are closed.
    pub close_others: bool,
    pub host_name: Option<CString>,
    pub mounts: Vec<Mount>,
    /// Resources and their limits.
    pub limits: Vec<(u32, u64)>,
    pub user: Option<(u32, u32)>,
    /// Number of the kernel's last capability, if all are dropped.
    pub drop_capabilities: Option<u32>,
    pub die_with_parent: bool,
    pub no_new_privileges: bool,
    /// `true`: the kernel refuses memory that is writable and executable, or becomes executable, if it can (Linux 6.3).
    pub deny_new_code: bool,
    pub filter: Option<Vec<Instruction>>,
    pub program: CString,
    pub arguments: Strings,
    pub environment: Strings,
}

/// Report of the child to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The descriptor for seccomp notifications comes with this report.
    Listener,
    /// All steps but `execve` are done. If no further report follows, `execve` succeeded.
    Executing,
    /// A step failed.
    Failed { step: Step, errno: Errno },
}

impl Report {
    /// Size of an encoded report, in bytes.
    pub(crate) const SIZE: usize = 8;

    fn encode(self) -> [u8; Report::SIZE] {
        let (kind, step, errno) = match self {
            Report::Listener => (0, 0, 0),
            Report::Executing => (1, 0, 0),
            Report::Failed { step, errno } => (2, step as u8, errno),
        };
        let mut bytes = [kind, step, 0, 0, 0, 0, 0, 0];
        bytes[4..].copy_from_slice(&errno.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Report> {
        let bytes: [u8; Report::SIZE] = bytes.try_into().ok()?;
        let errno = i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        match bytes[0] {
            0 => Some(Report::Listener),
            1 => Some(Report::Executing),
            2 => Some(Report::Failed {
                step: Step::from_number(bytes[1])?,
                errno,
            }),
            _ => None,
        }
    }
}

/// Carries out the plan: executes the program, or exits.
///
/// # Safety
/// Call it only in a child of [`sys::clone`]: it closes descriptors and changes mounts, user and root of the process.
pub(crate) unsafe fn run(plan: &Plan) -> ! {
    let mut status = plan.status;
    // SAFETY: guaranteed by the caller.
    let Err((step, errno)) = unsafe { steps(plan, &mut status) };
    let _ = sys::send(status, &Report::Failed { step, errno }.encode(), None);
    sys::exit(127)
}

/// Success type of [`steps`]: after a successful `execve` nothing returns.
enum Never {}

/// Performs the steps in order.
///
/// # Safety
/// As [`run`].
unsafe fn steps(plan: &Plan, status: &mut RawFd) -> Result<Never, (Step, Errno)> {
    let at = |step: Step| move |errno: Errno| (step, errno);

    // With an open copy of the agent's end, the child would never see end-of-file when the agent dies.
    sys::close(plan.agent).map_err(at(Step::Report))?;
    // The agent moves the child into its groups and maps its user. End-of-file here means that the agent is gone.
    let mut go = [0u8; 1];
    match sys::receive(*status, &mut go) {
        Ok(1) => {}
        Ok(_) => sys::exit(127),
        Err(errno) => return Err((Step::Report, errno)),
    }
    sys::default_signals();
    // A new session has no terminal. The call fails if the child leads a session already, which is as good.
    let _ = sys::new_session();
    place_descriptors(plan, status).map_err(at(Step::Descriptors))?;
    sys::schedule(0, libc::SCHED_OTHER, 0).map_err(at(Step::Scheduling))?;
    if let Some(name) = &plan.host_name {
        sys::host_name(name).map_err(at(Step::HostName))?;
    }
    for mount in &plan.mounts {
        change_mounts(mount)?;
    }
    for &(resource, value) in &plan.limits {
        sys::limit(resource, value).map_err(at(Step::Limits))?;
    }
    // Without `no_new_privs` only a privileged process may install a filter, so the filter comes before dropping
    // privileges.
    if plan.deny_new_code {
        deny_new_code();
    }
    let filter_first = !plan.no_new_privileges;
    if filter_first {
        set_filter(plan, *status).map_err(at(Step::Filter))?;
    }
    if let Some(last) = plan.drop_capabilities {
        sys::drop_capabilities(last, true).map_err(at(Step::Capabilities))?;
    }
    if let Some((uid, gid)) = plan.user {
        sys::become_user(uid, gid).map_err(at(Step::User))?;
    }
    if let Some(last) = plan.drop_capabilities {
        sys::drop_capabilities(last, false).map_err(at(Step::Capabilities))?;
    }
    if plan.die_with_parent {
        // A change of user clears the parent-death signal, so it is set afterwards.
        let kill = libc::SIGKILL as libc::c_ulong;
        sys::control(libc::PR_SET_PDEATHSIG, kill).map_err(at(Step::DieWithParent))?;
    }
    if plan.no_new_privileges {
        sys::control(libc::PR_SET_NO_NEW_PRIVS, 1).map_err(at(Step::NoNewPrivileges))?;
    }
    if !filter_first {
        set_filter(plan, *status).map_err(at(Step::Filter))?;
    }
    sys::send(*status, &Report::Executing.encode(), None).map_err(at(Step::Report))?;
    // SAFETY: `Strings` ends with a null pointer and owns the strings its pointers refer to.
    let errno = unsafe {
        sys::execute(
            &plan.program,
            plan.arguments.pointers.as_ptr(),
            plan.environment.pointers.as_ptr(),
        )
    };
    Err((Step::Execute, errno))
}

/// Places the planned descriptors at 0, 1, ..., then the status socket, which `execve` closes. Sources have higher
/// numbers than all targets, so none is overwritten before it is placed.
fn place_descriptors(plan: &Plan, status: &mut RawFd) -> Result<(), Errno> {
    let count = plan.descriptors.len() as RawFd;
    for (to, &from) in plan.descriptors.iter().enumerate() {
        sys::duplicate_to(from, to as RawFd, false)?;
    }
    sys::duplicate_to(*status, count, true)?;
    *status = count;
    match plan.close_others {
        true => sys::close_from(count + 1),
        false => Ok(()),
    }
}

fn change_mounts(mount: &Mount) -> Result<(), (Step, Errno)> {
    const NONE: &CStr = c"";
    let at = |step: Step| move |errno: Errno| (step, errno);
    let safe = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    match mount {
        Mount::Private => sys::mount(NONE, c"/", NONE, libc::MS_REC | libc::MS_PRIVATE),
        Mount::ReadOnly { source, target } => {
            sys::mount(source, target, NONE, libc::MS_BIND).and_then(|()| sys::add_mount_attributes(target, safe))
        }
        Mount::Processes { target } => {
            let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
            sys::mount(c"proc", target, c"proc", flags)
        }
        Mount::Detach { target } => sys::detach_mount(target),
        Mount::Root { directory } => {
            return sys::change_directory(directory)
                .and_then(|()| sys::pivot_here())
                // The old root is now mounted on top.
                .and_then(|()| sys::detach_mount(c"."))
                .and_then(|()| sys::change_directory(c"/"))
                .map_err(at(Step::Root));
        }
    }
    .map_err(at(Step::Mounts))
}

/// Denies new code to this process and its children: memory is never writable and executable, nor executable later
/// than it was mapped. An addition to the filter, which sees no mapping that the kernel makes for a program's file.
/// Older kernels lack it.
fn deny_new_code() {
    const PR_SET_MDWE: i32 = 65;
    const REFUSE_EXEC_GAIN: u64 = 1;
    let _ = sys::control(PR_SET_MDWE, REFUSE_EXEC_GAIN);
}

fn set_filter(plan: &Plan, status: RawFd) -> Result<(), Errno> {
    let Some(filter) = &plan.filter else {
        return Ok(());
    };
    let listener = sys::filter(filter)?;
    sys::send(status, &Report::Listener.encode(), Some(listener))
}
