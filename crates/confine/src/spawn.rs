//! Start of a program: builds the child's plan from a [`Confinement`] and a [`Program`].

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
use crate::confinement::{Confinement, Groups, Program};
use crate::container::{ContainerRuntime, RUNTIME_PROCESSES};
use crate::error::Error;
use crate::filter::Filter;
use crate::instance::Instance;
use crate::limits::limits;
use crate::root::{self, Skeleton, c_path, c_text, inside};
use crate::schedule;
use crate::shared::Shared;
use crate::stopped::{End, Stopped};
use crate::supervisor::{self, StartRequest, Started};

/// Confined program. Dropping it kills the program, and removes everything created for it.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    pidfd: OwnedFd,
    shared: Arc<Shared>,
    supervisor: Option<JoinHandle<()>>,
}

impl Child {
    fn new(started: Started, supervisor: JoinHandle<()>) -> Child {
        Child {
            pid: started.pid,
            pidfd: started.process,
            shared: started.shared,
            supervisor: Some(supervisor),
        }
    }

    /// Returns the process number in the agent's namespace, for files in `/proc`. It may be reused once the program has
    /// ended.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Ends the loading phase: from now on only the calls of a working function are allowed. No effect without a
    /// filter.
    pub fn seal(&self) {
        self.shared.seal();
    }

    /// Ends the mapping of code: from now on the program is killed for it, while it may still open and read files. To
    /// be called before the program gets memory that it may write and other processes map: mapped a second time, as
    /// code, that memory would be writable and executable. No effect without a filter.
    pub fn refuse_code(&self) {
        self.shared.refuse_code();
    }

    /// Moves the program to another core and pins it there.
    ///
    /// # Errors
    /// If the core does not exist, or the agent may not use it.
    pub fn pin(&self, core: usize) -> Result<(), Error> {
        self.shared.while_there(|group| {
            if let Some(group) = group {
                group.pin(core)?;
            }
            schedule::set_core(self.pid, core)
        })
    }

    /// Grants the program real-time priority (`SCHED_FIFO`) `priority`, 1 to 99; 0 revokes it. Once the program is
    /// sealed, its supervisor runs at the next higher priority.
    ///
    /// # Errors
    /// If the priority is not permitted, with advice.
    pub fn grant_priority(&self, priority: u8) -> Result<(), Error> {
        self.shared.while_there(|_| {
            schedule::grant_priority(self.pid, priority)?;
            self.shared.raise_above(priority);
            Ok(())
        })
    }

    /// Kills the program and all its processes at once. Its [`End`] reports `why`, unless something else stopped it
    /// before.
    pub fn kill(&self, why: Stopped) {
        self.shared.stop(why);
    }

    /// Returns how the program ended, once no process of it is left. Removing what was created for it takes longer:
    /// [`wait`](Child::wait) for that.
    pub fn ended(&self) -> Option<End> {
        self.shared.ended()
    }

    /// Waits for the end of the program, and until everything created for it is removed.
    pub fn wait(&self) -> End {
        loop {
            if let Some(end) = self.shared.end(None) {
                return end;
            }
        }
    }

    /// As [`wait`](Child::wait), for at most `time`; `None` afterwards.
    pub fn wait_for(&self, time: Duration) -> Option<End> {
        self.shared.end(Some(Instant::now() + time))
    }

    /// Returns the processes in its control groups, by their numbers in the agent's namespace. Empty without groups.
    pub fn processes(&self) -> Vec<i32> {
        self.shared
            .with_group(|group| group.map_or(Vec::new(), Group::processes))
    }
}

/// Descriptor that becomes readable when the program has ended.
impl AsFd for Child {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.shared.stop(Stopped::Agent);
        if let Some(supervisor) = self.supervisor.take() {
            // The supervisor ends when the program has ended. If it panicked, the message has been printed.
            let _ = supervisor.join();
        }
    }
}

impl Confinement {
    /// Starts the program as a process. On return the program is executing, with all defences.
    ///
    /// Call it from a thread that runs on ordinary cores. The supervisor thread, which sleeps, inherits that affinity.
    ///
    /// # Errors
    /// If the path is not a program, or a defence is not available on this machine, with advice. Nothing is left
    /// behind.
    pub fn spawn(&self, program: &Program) -> Result<Child, Error> {
        self.check(program)?;
        let instance = Instance::take()?;
        let filter = self.filter.then(|| {
            // The child reports over the descriptor after those it is given, until it executes the program.
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
            descriptors: supervisor::raw(&prepared.descriptors),
            close_others: self.close_descriptors,
            host_name: self.namespaces.host_name.then(|| c"function".to_owned()),
            mounts,
            limits: limits(&self.limits).collect(),
            user: user.map(|user| (user, user)),
            drop_capabilities: self.drop_capabilities.then(last_capability).transpose()?,
            die_with_parent: self.die_with_parent,
            no_new_privileges: self.no_new_privileges,
            deny_new_code: self.filter,
            filter: filter.as_ref().map(Filter::program),
            program: path,
            arguments: arguments(&program.path, &program.arguments)?,
            environment: environment(&program.environment)?,
        };
        let users = self.namespaces.users;
        supervisor::start(StartRequest {
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
        .map(|(started, supervisor)| Child::new(started, supervisor))
    }

    /// Starts the program in a container of its own. On return the program is executing, with all defences.
    ///
    /// There is no container image: its root directory consists of the machine's files, as [`Confinement::root`] says.
    /// The runtime runs in a process namespace that ends with the agent.
    ///
    /// # Errors
    /// As [`Confinement::spawn`], or if the runtime fails.
    pub fn spawn_in(&self, runtime: &ContainerRuntime, program: &Program) -> Result<Child, Error> {
        self.check(program)?;
        let instance = Instance::take()?;
        let hierarchies = Hierarchies::find()?;
        // The runtime creates its own groups below, and leaves them behind if it is killed. So there is always a group
        // of ours.
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
            // crun takes a machine with both versions for one with version 2 only.
            mounts.push(Mount::Detach {
                target: c_path(second)?,
            });
        }
        let prepared = Prepared::new(program)?;
        let plan = Plan {
            status: prepared.status.1.as_raw_fd(),
            agent: prepared.status.0.as_raw_fd(),
            descriptors: supervisor::raw(&prepared.descriptors),
            close_others: true,
            host_name: None,
            mounts,
            limits: Vec::new(),
            user: None,
            drop_capabilities: None,
            die_with_parent: self.die_with_parent,
            no_new_privileges: false,
            // The runtime maps code of its own, and its program inherits the setting.
            deny_new_code: self.filter,
            filter: None,
            program: c_path(runtime.path())?,
            arguments: arguments(runtime.path(), &bundle.arguments)?,
            environment: environment(&[("PATH".into(), "/usr/sbin:/usr/bin:/sbin:/bin".into())])?,
        };
        let mut flags = libc::CLONE_NEWNS;
        if self.namespaces.processes {
            flags |= libc::CLONE_NEWPID;
        }
        supervisor::start(StartRequest {
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
        .map(|(started, supervisor)| Child::new(started, supervisor))
    }

    /// Rejects contradicting settings, and files that are not programs.
    fn check(&self, program: &Program) -> Result<(), Error> {
        let file = root::examine(&program.path)?;
        if self.filter && file.has_writable_code {
            return Err(Error::Program {
                path: program.path.clone(),
                reason: "a segment or the stack is writable and executable: link it without -z execstack and without \
                         --omagic"
                    .into(),
            });
        }
        if self.limits.processes.is_some() && !self.own_user {
            return Err(Error::Settings(
                "a process limit counts all processes of a user: it requires a separate user (`own_user`)",
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

/// Returns the mount steps for a program's root.
fn root_mounts(skeleton: &Skeleton) -> Result<Vec<Mount>, Error> {
    let directory = c_path(&skeleton.directory)?;
    // `pivot_root` requires a mount, so the directory is bind-mounted on itself.
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

/// Returns the kernel's last capability.
fn last_capability() -> Result<u32, Error> {
    let path = PathBuf::from("/proc/sys/kernel/cap_last_cap");
    let text = std::fs::read_to_string(&path);
    let number = text.and_then(|text| {
        let number = text.trim().parse();
        number.map_err(|_| std::io::ErrorKind::InvalidData.into())
    });
    number.map_err(|error| Error::File { path, error })
}

/// Descriptors duplicated to numbers that are free in the child.
struct Prepared {
    descriptors: Vec<OwnedFd>,
    /// Status socket: our end and the child's.
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
        // The child's descriptors, and its status socket.
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
