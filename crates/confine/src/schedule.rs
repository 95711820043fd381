//! Core affinity and real-time priority, set by the agent.

use std::fs;
use std::io;
use std::path::Path;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::cgroup::{self, Hierarchies};
use crate::error::Error;
use crate::sys;

/// The highest real-time priority.
const HIGHEST: u8 = 99;

/// Pins a process to one core.
pub(crate) fn set_core(pid: Pid, core: usize) -> Result<(), Error> {
    let mut cores = CpuSet::new();
    if core >= CpuSet::MAX_CPU {
        let error = io::ErrorKind::InvalidInput.into();
        return Err(Error::Core { core, error });
    }
    cores.set(core);
    sched_setaffinity(Some(pid), &cores).map_err(|errno| Error::Core {
        core,
        error: errno.into(),
    })
}

/// Gives a process real-time priority `priority` (`SCHED_FIFO`), or ordinary scheduling with 0. Its children have none.
pub(crate) fn grant_priority(pid: Pid, priority: u8) -> Result<(), Error> {
    let raw = pid.as_raw_nonzero().get();
    let refused = |errno, advice: &str| Error::Priority {
        priority,
        error: io::Error::from_raw_os_error(errno),
        advice: advice.to_owned(),
    };
    if priority > HIGHEST {
        return Err(refused(libc::EINVAL, "; expected 1 to 99"));
    }
    let give = || match priority {
        0 => sys::schedule(raw, libc::SCHED_OTHER, 0),
        _ => sys::schedule(raw, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, priority.into()),
    };
    if priority > 0 {
        // In version 1 a container's group has no real-time budget, but the agent's group has. Without budgets, the
        // kernel would queue processes of different groups by their groups' positions instead of their own.
        let _ = join_our_group(raw);
    }
    give().map_err(|errno| match errno {
        libc::EPERM => refused(
            errno,
            "; requires root (CAP_SYS_NICE), and in a control group of version 1 a cpu.rt_runtime_us above 0, raised \
             from the top down, or sysctl kernel.sched_rt_runtime_us=-1",
        ),
        _ => refused(errno, ""),
    })
}

/// Gives a thread of the agent the next higher priority, or ordinary scheduling with 0.
pub(crate) fn raise_above(thread: Pid, priority: u8) -> Result<(), sys::Errno> {
    let thread = thread.as_raw_nonzero().get();
    match priority {
        0 => sys::schedule(thread, libc::SCHED_OTHER, 0),
        _ => {
            let next = priority.saturating_add(1).min(HIGHEST);
            sys::schedule(thread, libc::SCHED_FIFO, next.into())
        }
    }
}

/// Moves a process that this crate did not start to this process's `cpu` group of version 1, which may have a real-time
/// budget where that of the process has none. No effect with version 2, which has no such budgets.
///
/// # Errors
/// The groups cannot be read or written.
pub fn join_priority_group(process: u32) -> Result<(), Error> {
    join_our_group(process.cast_signed())
}

/// Moves a process to the agent's `cpu` group, which has a real-time budget.
fn join_our_group(pid: i32) -> Result<(), Error> {
    let hierarchies = Hierarchies::find()?;
    let Some(root) = hierarchies.first.get("cpu") else {
        // Version 2 has no real-time budgets.
        return Ok(());
    };
    let groups = Path::new("/proc/self/cgroup");
    let text = fs::read_to_string(groups).map_err(|error| Error::File {
        path: groups.to_owned(),
        error,
    })?;
    let ours = text.lines().find_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        let is_cpu = controllers.split(',').any(|name| name == "cpu");
        is_cpu.then(|| group.trim_start_matches('/'))
    });
    let directory = root.join(ours.unwrap_or_default());
    cgroup::write(&directory.join("cgroup.procs"), &pid.to_string())
}
