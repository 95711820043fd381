//! From a confinement and a program to a child.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::Pid;

use crate::cgroup::{Group, Hierarchies};
use crate::child::{Mount, Plan, Strings};
use crate::confinement::{Confinement, Groups, Limits, Program};
use crate::container::{ContainerRuntime, RUNTIME_PROCESSES};
use crate::error::Error;
use crate::filter::Filter;
use crate::instance::Instance;
use crate::keeper::{self, Order, Started};
use crate::root::{self, Skeleton, c_path, c_text, inside};
use crate::schedule;
use crate::shared::Shared;
use crate::stopped::{End, Stopped};

/// A confined program. Dropped, it is killed, and what was made for it is removed.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    pidfd: OwnedFd,
    shared: Arc<Shared>,
    keeper: Option<JoinHandle<()>>,
}

impl Child {
    fn new((started, keeper): (Started, JoinHandle<()>)) -> Child {
        Child {
            pid: started.pid,
            pidfd: started.process,
            shared: started.shared,
            keeper: Some(keeper),
        }
    }

    /// Its number, as the agent sees it. For files in `/proc`; a number may become another's when it has ended.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// It has loaded: from now on it may only work. Without a filter, this changes nothing.
    pub fn seal(&self) {
        self.shared.seal();
    }

    /// Moves it to another core, where it stays.
    ///
    /// # Errors
    /// If the core is not there or not the agent's.
    pub fn pin(&self, core: usize) -> Result<(), Error> {
        self.shared.while_there(|group| {
            if let Some(group) = group {
                group.pin(core)?;
            }
            schedule::set_core(self.pid, core)
        })
    }

    /// Lends it real-time priority (`SCHED_FIFO`) `priority`, 1 to 99; 0 takes it back. If it is sealed, its keeper has
    /// the next higher one meanwhile.
    ///
    /// # Errors
    /// If that is not permitted, with what to do.
    pub fn lend(&self, priority: u8) -> Result<(), Error> {
        self.shared.while_there(|_| {
            schedule::lend(self.pid, priority)?;
            self.shared.keep_ahead_of(priority);
            Ok(())
        })
    }

    /// Ends it, and all its processes, at once. `why` is told by its [`End`], unless something else stopped it before.
    pub fn kill(&self, why: Stopped) {
        self.shared.stop(why);
    }

    /// How it ended, once no process of it is left. What was made for it is removed meanwhile, which takes longer:
    /// [`wait`](Child::wait) for that.
    pub fn ended(&self) -> Option<End> {
        self.shared.ended()
    }

    /// Waits for its end. Nothing of it is left then.
    pub fn wait(&self) -> End {
        loop {
            if let Some(end) = self.shared.end(None) {
                return end;
            }
        }
    }

    /// Waits for its end, but no longer than that.
    pub fn wait_for(&self, time: Duration) -> Option<End> {
        self.shared.end(Some(Instant::now() + time))
    }

    /// Its processes, by the numbers that the agent sees, as its control groups know them; none without groups.
    pub fn processes(&self) -> Vec<i32> {
        self.shared
            .with_group(|group| group.map_or(Vec::new(), Group::processes))
    }
}

/// Readable when it has ended.
impl AsFd for Child {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.shared.stop(Stopped::Agent);
        if let Some(keeper) = self.keeper.take() {
            // It ends when the program has; a panic of its own has been printed.
            let _ = keeper.join();
        }
    }
}

impl Confinement {
    /// Starts the program as a process. When this returns, it is the program, with all defences.
    ///
    /// Call it from a thread that may run on ordinary cores: the program's keeper, a thread that sleeps, inherits that.
    ///
    /// # Errors
    /// If the program is none, or a defence cannot be had on this machine, with what to do about it. Nothing is left then.
    pub fn spawn(&self, program: &Program) -> Result<Child, Error> {
        self.check(program)?;
        let instance = Instance::take()?;
        let filter = self.filter.then(|| {
            // The child's own words before it is the program, over the descriptor behind those that it is given.
            let behind = 3 + program.descriptors.len() as u32;
            Filter::function(&program.talks_over()).and_on_descriptor(libc::SYS_sendmsg, behind)
        });
        let user = self.own_user.then(|| instance.user());
        let mut mounts = Vec::new();
        let mut path = c_path(&program.path)?;
        if let Some(root) = &self.root {
            let directory = instance.directory.join("root");
            let skeleton = Skeleton::make(&directory, &program.path, root, user)?;
            mounts = root_mounts(&skeleton)?;
            path = c_path(Path::new(root::PROGRAM))?;
        }
        let group = Group::make(Hierarchies::find()?, instance.group(), &self.groups, program.core)?;
        let prepared = Prepared::new(program)?;
        let plan = Plan {
            status: prepared.status.1.as_raw_fd(),
            agent: prepared.status.0.as_raw_fd(),
            descriptors: keeper::raw(&prepared.descriptors),
            close_others: self.close_descriptors,
            host_name: self.namespaces.host_name.then(|| c"function".to_owned()),
            mounts,
            limits: limits(&self.limits).collect(),
            user: user.map(|user| (user, user)),
            drop_capabilities: self.drop_capabilities.then(last_capability).transpose()?,
            die_with_parent: self.die_with_parent,
            no_new_privileges: self.no_new_privileges,
            filter: filter.as_ref().map(Filter::program),
            program: path,
            arguments: arguments(&program.path, &program.arguments)?,
            environment: environment(&program.environment)?,
        };
        let users = self.namespaces.users;
        keeper::start(Order {
            plan,
            flags: self.namespace_flags(),
            filter,
            status: prepared.status,
            given: prepared.descriptors,
            group,
            map_user: users.then(|| user.unwrap_or(0)),
            core: program.core,
            container: None,
            instance,
        })
        .map(Child::new)
    }

    /// Starts the program in a container of its own. When this returns, it is the program, with all defences.
    ///
    /// There is no image: its root directory is made of the machine's files as [`Confinement::root`] says. The runtime
    /// itself lives in a process namespace that ends with the agent.
    ///
    /// # Errors
    /// As [`Confinement::spawn`]; or what the runtime says.
    pub fn spawn_in(&self, runtime: &ContainerRuntime, program: &Program) -> Result<Child, Error> {
        self.check(program)?;
        let instance = Instance::take()?;
        let hierarchies = Hierarchies::find()?;
        // The runtime makes its own groups below, and leaves them if it is killed: so there is always one of ours.
        let groups = Groups {
            processes: self.groups.processes.map(|limit| limit + RUNTIME_PROCESSES),
            ..self.groups
        };
        let group = Group::make(hierarchies.clone(), instance.group(), &groups, program.core)?;
        let bundle = runtime.bundle(self, program, &instance)?;
        let mut mounts = vec![Mount::Private];
        if self.namespaces.processes {
            mounts.push(Mount::Processes {
                target: c"/proc".to_owned(),
            });
        }
        if let Some(second) = hierarchies.hybrid() {
            // crun takes a machine with both versions for one with the second alone.
            mounts.push(Mount::Detach {
                target: c_path(second)?,
            });
        }
        let prepared = Prepared::new(program)?;
        let plan = Plan {
            status: prepared.status.1.as_raw_fd(),
            agent: prepared.status.0.as_raw_fd(),
            descriptors: keeper::raw(&prepared.descriptors),
            close_others: true,
            host_name: None,
            mounts,
            limits: Vec::new(),
            user: None,
            drop_capabilities: None,
            die_with_parent: self.die_with_parent,
            no_new_privileges: false,
            filter: None,
            program: c_path(runtime.path())?,
            arguments: arguments(runtime.path(), &bundle.arguments)?,
            environment: environment(&[("PATH".into(), "/usr/sbin:/usr/bin:/sbin:/bin".into())])?,
        };
        let mut flags = libc::CLONE_NEWNS;
        if self.namespaces.processes {
            flags |= libc::CLONE_NEWPID;
        }
        keeper::start(Order {
            plan,
            flags: flags as u64,
            filter: bundle.filter,
            status: prepared.status,
            given: prepared.descriptors,
            group,
            map_user: None,
            core: program.core,
            container: Some(bundle.runtime),
            instance,
        })
        .map(Child::new)
    }

    /// Settings that contradict each other, and programs that are none.
    fn check(&self, program: &Program) -> Result<(), Error> {
        root::wants_libraries(&program.path)?;
        if self.limits.processes.is_some() && !self.own_user {
            return Err(Error::Settings(
                "a limit of processes counts all of its user's: it needs a user of its own (`own_user`)",
            ));
        }
        Ok(())
    }

    fn namespace_flags(&self) -> u64 {
        let namespaces = &self.namespaces;
        [
            (self.root.is_some(), libc::CLONE_NEWNS),
            (namespaces.processes, libc::CLONE_NEWPID),
            (namespaces.network, libc::CLONE_NEWNET),
            (namespaces.ipc, libc::CLONE_NEWIPC),
            (namespaces.host_name, libc::CLONE_NEWUTS),
            (namespaces.users, libc::CLONE_NEWUSER),
        ]
        .into_iter()
        .filter(|(own, _)| *own)
        .fold(0, |flags, (_, flag)| flags | flag as u64)
    }
}

/// A program's root, as steps of its child.
fn root_mounts(skeleton: &Skeleton) -> Result<Vec<Mount>, Error> {
    let directory = c_path(&skeleton.directory)?;
    // A root must be a mount: the directory is mounted on itself.
    let mut mounts = vec![
        Mount::Private,
        Mount::ReadOnly {
            source: directory.clone(),
            target: directory.clone(),
        },
    ];
    for (source, at) in &skeleton.seen {
        mounts.push(Mount::ReadOnly {
            source: c_path(source)?,
            target: c_path(&inside(&skeleton.directory, at))?,
        });
    }
    mounts.push(Mount::Root { directory });
    Ok(mounts)
}

/// The limits that are set, as the kernel knows them.
pub(crate) fn limits(limits: &Limits) -> impl Iterator<Item = (u32, u64)> {
    [
        (libc::RLIMIT_NPROC, limits.processes),
        (libc::RLIMIT_AS, limits.address_space),
        (libc::RLIMIT_NOFILE, limits.descriptors),
        (libc::RLIMIT_FSIZE, limits.file_size),
        (libc::RLIMIT_CORE, limits.core),
        (libc::RLIMIT_MEMLOCK, limits.locked),
        (libc::RLIMIT_RTPRIO, limits.real_time),
    ]
    .into_iter()
    .filter_map(|(resource, value)| Some((resource, value?)))
}

/// The kernel's last capability.
fn last_capability() -> Result<u32, Error> {
    let path = PathBuf::from("/proc/sys/kernel/cap_last_cap");
    let text = std::fs::read_to_string(&path);
    let number = text.and_then(|text| {
        let number = text.trim().parse();
        number.map_err(|_| std::io::ErrorKind::InvalidData.into())
    });
    number.map_err(|error| Error::File { path, error })
}

/// Descriptors with numbers that are free in the child.
struct Prepared {
    descriptors: Vec<OwnedFd>,
    /// Ours, and the child's.
    status: (OwnedFd, OwnedFd),
}

impl Prepared {
    fn new(program: &Program) -> Result<Prepared, Error> {
        let null = Path::new("/dev/null");
        let nothing = File::options()
            .read(true)
            .write(true)
            .open(null)
            .map_err(|error| Error::File {
                path: null.to_owned(),
                error,
            })?;
        let wanted: Vec<BorrowedFd> = [
            program.input.unwrap_or(nothing.as_fd()),
            program.output.unwrap_or(nothing.as_fd()),
            program.errors.unwrap_or(nothing.as_fd()),
        ]
        .into_iter()
        .chain(program.descriptors.iter().copied())
        .collect();
        // Those that the child will have, and the way back to us.
        let free = wanted.len() as i32 + 1;
        let above = |descriptor: BorrowedFd| fcntl_dupfd_cloexec(descriptor, free);
        let (ours, childs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok(Prepared {
            descriptors: wanted.into_iter().map(above).collect::<Result<_, _>>()?,
            status: (above(ours.as_fd())?, above(childs.as_fd())?),
        })
    }
}

fn arguments(path: &Path, rest: &[OsString]) -> Result<Strings, Error> {
    let name = [c_path(path)];
    let rest = rest.iter().map(|argument| c_text(argument, "an argument"));
    Ok(Strings::new(name.into_iter().chain(rest).collect::<Result<_, _>>()?))
}

fn environment(variables: &[(OsString, OsString)]) -> Result<Strings, Error> {
    let text = |(name, value): &(OsString, OsString)| -> Result<CString, Error> {
        let mut text = name.clone();
        text.push("=");
        text.push(value);
        c_text(&text, "the environment")
    };
    Ok(Strings::new(variables.iter().map(text).collect::<Result<_, _>>()?))
}
