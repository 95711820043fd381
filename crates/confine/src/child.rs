//! What the child does between `clone3` and `execve`: its plan, made beforehand, step by step.

use std::ffi::{CStr, CString};
use std::os::fd::RawFd;

use crate::filter::Instruction;
use crate::sys::{self, Errno};

/// A step of a start. The child tells by its number where it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// Telling the agent how far it is.
    Report,
    /// Putting descriptors where they belong, closing others.
    Descriptors,
    /// Ordinary scheduling.
    Scheduling,
    /// A name of the machine of its own.
    HostName,
    /// Its own view of the file system.
    Mounts,
    /// Its root.
    Root,
    /// Resource limits.
    Limits,
    /// Its own user.
    User,
    /// No capabilities.
    Capabilities,
    /// Ending when the agent ends.
    DieWithParent,
    /// No new privileges.
    NoNewPrivileges,
    /// The system call filter.
    Filter,
    /// Becoming the program.
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

/// A change of the child's view of the file system, in its own mount namespace.
#[derive(Debug)]
pub(crate) enum Mount {
    /// Nothing that is mounted here is seen outside, or the other way round.
    Private,
    /// The file or directory at another place, for reading only.
    ReadOnly { source: CString, target: CString },
    /// The processes of its own namespace.
    Processes { target: CString },
    /// Takes away what is mounted there.
    Detach { target: CString },
    /// Makes the directory, which is a mount, the root, and takes away everything else.
    Root { directory: CString },
}

/// Strings as `execve` wants them.
#[derive(Debug)]
pub(crate) struct Strings {
    pointers: Vec<*const libc::c_char>,
    /// What the pointers point to.
    _strings: Vec<CString>,
}

// SAFETY: the pointers point to strings on the heap that it owns and never changes.
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

/// Everything that the child does, in the order of [`run`].
#[derive(Debug)]
pub(crate) struct Plan {
    /// Where the child reports and is told to go on.
    pub status: RawFd,
    /// The agent's end of that, of which the child has a copy.
    pub agent: RawFd,
    /// What its descriptors 0, 1, ... are. They and `status` have numbers above those that they get.
    pub descriptors: Vec<RawFd>,
    /// Whether all others are closed.
    pub close_others: bool,
    pub host_name: Option<CString>,
    pub mounts: Vec<Mount>,
    /// Resources and their limits.
    pub limits: Vec<(u32, u64)>,
    pub user: Option<(u32, u32)>,
    /// The kernel's last capability, if all are dropped.
    pub drop_capabilities: Option<u32>,
    pub die_with_parent: bool,
    pub no_new_privileges: bool,
    pub filter: Option<Vec<Instruction>>,
    pub program: CString,
    pub arguments: Strings,
    pub environment: Strings,
}

/// What the child says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The descriptor where its calls are put comes with this.
    Listener,
    /// All is done but the last step. If it says no more, it has become the program.
    Executing,
    /// It could not do a step.
    Failed { step: Step, errno: Errno },
}

impl Report {
    /// Bytes of a report.
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

/// Carries out the plan. It ends as another program, or not at all.
///
/// # Safety
/// Only in a child of [`sys::clone`]: it takes the process apart.
pub(crate) unsafe fn run(plan: &Plan) -> ! {
    let mut status = plan.status;
    // SAFETY: the caller's promise.
    let Err((step, errno)) = unsafe { steps(plan, &mut status) };
    let _ = sys::send(status, &Report::Failed { step, errno }.encode(), None);
    sys::exit(127)
}

/// The number of steps never comes to an end well: the program has taken over by then.
enum Never {}

/// # Safety
/// As [`run`].
unsafe fn steps(plan: &Plan, status: &mut RawFd) -> Result<Never, (Step, Errno)> {
    let at = |step: Step| move |errno: Errno| (step, errno);

    // With a copy of its own of the agent's end, it would never hear that the agent is gone.
    sys::close(plan.agent).map_err(at(Step::Report))?;
    // The agent puts us into our groups and maps our user; if it is gone, so are we.
    let mut go = [0u8; 1];
    match sys::receive(*status, &mut go) {
        Ok(1) => {}
        Ok(_) => sys::exit(127),
        Err(errno) => return Err((Step::Report, errno)),
    }
    sys::default_signals();
    // A new session has no terminal. One that leads its own already keeps it.
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
    // Without that promise only a privileged process may set a filter, so it comes first then.
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
        // A change of user takes this back, so it comes after.
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
    // SAFETY: `Strings` ends with a null pointer and holds what it points to.
    let errno = unsafe {
        sys::execute(
            &plan.program,
            plan.arguments.pointers.as_ptr(),
            plan.environment.pointers.as_ptr(),
        )
    };
    Err((Step::Execute, errno))
}

/// Descriptors 0, 1, ... as planned, then the way back to the agent, which `execve` closes. All of them
/// have higher numbers before, so that none is overwritten that is still to be placed.
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
                // The old root lies on top now.
                .and_then(|()| sys::detach_mount(c"."))
                .and_then(|()| sys::change_directory(c"/"))
                .map_err(at(Step::Root));
        }
    }
    .map_err(at(Step::Mounts))
}

fn set_filter(plan: &Plan, status: RawFd) -> Result<(), Errno> {
    let Some(filter) = &plan.filter else {
        return Ok(());
    };
    let listener = sys::filter(filter)?;
    sys::send(status, &Report::Listener.encode(), Some(listener))
}
