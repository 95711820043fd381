//! Settings of a confinement: plain data, one field for each defence.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

/// Defences around a program. Each can be switched off on its own, for machines that lack it and for tests that measure
/// what it stops.
///
/// [`Confinement::full`] is meant for untrusted functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// A user and group of its own, which owns no files and no other processes. Needs root.
    pub own_user: bool,
    /// Drops all capabilities, from the bounding set too.
    pub drop_capabilities: bool,
    /// Sets `no_new_privs`: executing a set-user-ID program gains nothing.
    pub no_new_privileges: bool,
    /// System call filter that allows only what a function needs; see [the list](crate#system-calls).
    pub filter: bool,
    /// Root directory with the program, its libraries and these files only, read-only; none: the machine's root
    /// directory. Needs the mount namespace that comes with it.
    pub root: Option<Root>,
    /// Namespaces of the program.
    pub namespaces: Namespaces,
    /// Resource limits of each process.
    pub limits: Limits,
    /// Control group limits.
    pub groups: Groups,
    /// Closes all descriptors that were not passed to the program.
    pub close_descriptors: bool,
    /// The kernel kills the program when the agent ends, for any reason. With a process namespace, all its other
    /// processes end too.
    pub die_with_parent: bool,
}

/// Contents of a program's root directory, in addition to the program and its libraries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Root {
    /// Files and directories of the machine, readable at the same paths. A file that the program's user could not read,
    /// such as a key, is copied for it when the program starts.
    pub files: Vec<PathBuf>,
}

/// Namespaces that are unshared for the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespaces {
    /// Process (PID) namespace: the program can neither see nor signal other processes, and its own end with it.
    pub processes: bool,
    /// Network namespace: only a loopback interface that is down, and no abstract sockets of others.
    pub network: bool,
    /// IPC namespace: System V and POSIX shared memory, queues and semaphores.
    pub ipc: bool,
    /// UTS namespace: host name.
    pub host_name: bool,
    /// User namespace: rights gained inside do not count outside. Containers do without, because they have a user of
    /// their own anyway.
    pub users: bool,
}

/// Limits of one process (`setrlimit(2)`); none: the agent's limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Processes and threads of the user, the program included. Needs [`Confinement::own_user`].
    pub processes: Option<u64>,
    /// Address space in bytes, mapped packet memory included.
    pub address_space: Option<u64>,
    /// Open descriptors.
    pub descriptors: Option<u64>,
    /// Size of a written file in bytes. Not applied in containers, which have no writable file. With 0, output to a
    /// file fails too: use a pipe for it.
    pub file_size: Option<u64>,
    /// Size of a core dump in bytes.
    pub core: Option<u64>,
    /// Locked memory in bytes.
    pub locked: Option<u64>,
    /// Highest real-time priority the program may set for itself. Priority that the agent grants is not limited by it.
    pub real_time: Option<u64>,
}

/// Limits of control groups, version 1 or 2; none: no group for that resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// Memory in bytes, including pages of files and shared memory that the program touched first.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u32>,
    /// Pins the program to the core set by [`Program::core`] or [`Child::pin`](crate::Child::pin).
    pub cores: bool,
}

/// Default memory limit of a function: 1 GiB, enough for large route and rule tables.
pub const DEFAULT_MEMORY: u64 = 1 << 30;

impl Confinement {
    /// All defences, as for an untrusted function: 1 GiB of memory, one process, 64 descriptors.
    pub fn full() -> Confinement {
        Confinement {
            own_user: true,
            drop_capabilities: true,
            no_new_privileges: true,
            filter: true,
            root: Some(Root::default()),
            namespaces: Namespaces {
                processes: true,
                network: true,
                ipc: true,
                host_name: true,
                users: true,
            },
            limits: Limits {
                processes: Some(1),
                // The control group limits memory. An address-space limit would also count mapped packet memory of
                // others.
                address_space: None,
                descriptors: Some(64),
                file_size: Some(0),
                core: Some(0),
                locked: Some(0),
                real_time: Some(0),
            },
            groups: Groups {
                memory: Some(DEFAULT_MEMORY),
                processes: Some(1),
                cores: true,
            },
            close_descriptors: true,
            die_with_parent: true,
        }
    }

    /// Returns the names of the defences that are switched off: `user`, `capabilities`, `no-new-privileges`, `filter`,
    /// `root`, `namespaces` (one or more of them), `limits` (all of them), `groups` (one or more), `descriptors`, `end`
    /// (with the agent).
    pub fn without(&self) -> Vec<&'static str> {
        let Namespaces {
            processes,
            network,
            ipc,
            host_name,
            users,
        } = self.namespaces;
        let namespaces = processes && network && ipc && host_name && users;
        let groups = &self.groups;
        let all = [
            ("user", self.own_user),
            ("capabilities", self.drop_capabilities),
            ("no-new-privileges", self.no_new_privileges),
            ("filter", self.filter),
            ("root", self.root.is_some()),
            ("namespaces", namespaces),
            ("limits", self.limits != Limits::default()),
            (
                "groups",
                groups.memory.is_some() && groups.processes.is_some() && groups.cores,
            ),
            ("descriptors", self.close_descriptors),
            ("end", self.die_with_parent),
        ];
        let off = all.into_iter().filter(|(_, on)| !on);
        off.map(|(name, _)| name).collect()
    }

    /// No defence, as for any child process.
    pub fn none() -> Confinement {
        Confinement {
            own_user: false,
            drop_capabilities: false,
            no_new_privileges: false,
            filter: false,
            root: None,
            namespaces: Namespaces {
                processes: false,
                network: false,
                ipc: false,
                host_name: false,
                users: false,
            },
            limits: Limits::default(),
            groups: Groups::default(),
            close_descriptors: false,
            die_with_parent: false,
        }
    }
}

impl Default for Confinement {
    /// Returns [`Confinement::full`].
    fn default() -> Confinement {
        Confinement::full()
    }
}

/// Program to start, with its arguments, environment and descriptors.
#[derive(Clone, Debug)]
pub struct Program<'a> {
    /// Path of the program. A statically linked program gets no libraries in its root directory.
    pub path: PathBuf,
    /// Arguments, without the program's name.
    pub arguments: Vec<OsString>,
    /// Environment. Nothing is inherited from the agent.
    pub environment: Vec<(OsString, OsString)>,
    /// Descriptors from 3 on. With a filter, the program can communicate only over these and standard input. Sockets
    /// among them must be connected.
    pub descriptors: Vec<BorrowedFd<'a>>,
    /// Standard input; none: empty. It can be a socket to the agent, too, which the program may duplicate once.
    pub input: Option<BorrowedFd<'a>>,
    /// Standard output; none: discarded.
    pub output: Option<BorrowedFd<'a>>,
    /// Standard error; none: discarded.
    pub errors: Option<BorrowedFd<'a>>,
    /// Core on which the program starts and stays until pinned elsewhere; none: the calling thread's cores. A start is
    /// slow on a core with real-time functions: start elsewhere, then call [`Child::pin`](crate::Child::pin).
    pub core: Option<usize>,
}

impl<'a> Program<'a> {
    /// Program at `path`, without arguments, environment or descriptors.
    pub fn new(path: impl Into<PathBuf>) -> Program<'a> {
        Program {
            path: path.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            descriptors: Vec::new(),
            input: None,
            output: None,
            errors: None,
            core: None,
        }
    }

    /// Adds an argument.
    pub fn argument(mut self, argument: impl Into<OsString>) -> Program<'a> {
        self.arguments.push(argument.into());
        self
    }

    /// Returns the descriptors it may communicate over: those passed to it, and the duplicate of its standard input,
    /// which has the next number.
    pub(crate) fn talks_over(&self) -> Vec<u32> {
        let behind = 3 + self.descriptors.len() as u32;
        match self.input {
            Some(_) => [0].into_iter().chain(3..=behind).collect(),
            None => (3..behind).collect(),
        }
    }

    /// Adds a descriptor. The first one gets number 3.
    pub fn descriptor(mut self, descriptor: BorrowedFd<'a>) -> Program<'a> {
        self.descriptors.push(descriptor);
        self
    }
}
