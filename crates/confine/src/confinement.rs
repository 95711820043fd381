//! What a program is confined by: plain data, each defence by itself.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

/// The defences around a program. Each can be switched off by itself, for machines that lack it and for tests that
/// show what it is good for.
///
/// [`Confinement::full`] is what a stranger's function gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// A user and group of its own, which owns no file and no other process. Needs root.
    pub own_user: bool,
    /// No capabilities, and none to be had.
    pub drop_capabilities: bool,
    /// Programs that it becomes give it no rights that it does not have (set-user-ID bits).
    pub no_new_privileges: bool,
    /// Only the system calls that a function needs; see [the list](crate#system-calls).
    pub filter: bool,
    /// A root directory with its program, its libraries and these files alone, for reading; none: the machine's
    /// root directory. Needs the mount namespace that comes with it.
    pub root: Option<Root>,
    /// Namespaces of its own.
    pub namespaces: Namespaces,
    /// Limits that the kernel keeps for each process.
    pub limits: Limits,
    /// Control groups.
    pub groups: Groups,
    /// Descriptors that were not given to it are closed.
    pub close_descriptors: bool,
    /// It is killed when the agent ends, however that ends. Its other processes are too, if it has a process namespace.
    pub die_with_parent: bool,
}

/// What is in a program's root directory besides the program and its libraries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Root {
    /// Files and directories of the machine, readable at the same paths. A file that the program's own user could not read,
    /// a key for example, is copied for it as it is when the program starts.
    pub files: Vec<PathBuf>,
}

/// Which namespaces are the program's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespaces {
    /// Processes: it sees and signals no others, and all of its own end with it.
    pub processes: bool,
    /// Network: no interfaces but an unconnected loopback, no abstract sockets of others.
    pub network: bool,
    /// System V and POSIX shared memory, queues and semaphores.
    pub ipc: bool,
    /// Host name.
    pub host_name: bool,
    /// Users: its user has no rights outside, whatever it gains inside. Containers go without: their user is their own anyway.
    pub users: bool,
}

/// Limits of one process (`setrlimit(2)`); none: as the agent's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Processes and threads of its user, itself included. Needs [`Confinement::own_user`].
    pub processes: Option<u64>,
    /// Bytes of address space, mapped packet memory included.
    pub address_space: Option<u64>,
    /// Open descriptors.
    pub descriptors: Option<u64>,
    /// Bytes of a file that it writes; not in containers, which have no file to write. With 0, not even its messages can go to a file: let them go through a pipe.
    pub file_size: Option<u64>,
    /// Bytes of a core dump.
    pub core: Option<u64>,
    /// Bytes of memory that it may lock.
    pub locked: Option<u64>,
    /// The highest real-time priority that it may give itself; what the agent lends it is not bound by that.
    pub real_time: Option<u64>,
}

/// Limits of control groups, of either version; none: no group for that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// Bytes of memory, with the pages of files and shared memory that it was first to touch.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u32>,
    /// It stays on the core that [`Program::core`] and [`Child::pin`](crate::Child::pin) say.
    pub cores: bool,
}

/// Bytes of memory that a function may have unless told otherwise: 1 GiB, for large tables of routes and rules.
pub const DEFAULT_MEMORY: u64 = 1 << 30;

impl Confinement {
    /// Every defence, as for a stranger's function: 1 GiB of memory, one process, 64 descriptors.
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
                // Memory is limited by its group: packet memory that is mapped but not the function's would count here.
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

    /// Defences that are switched off: `user`, `capabilities`, `no-new-privileges`, `filter`, `root`, `namespaces` (one or
    /// more of them), `limits` (all of them), `groups` (one or more), `descriptors`, `end` (with the agent).
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

    /// No defence at all: what any child is.
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
    /// [`Confinement::full`].
    fn default() -> Confinement {
        Confinement::full()
    }
}

/// A program and what it is given.
#[derive(Clone, Debug)]
pub struct Program<'a> {
    /// The program. One that is linked statically sees no libraries.
    pub path: PathBuf,
    /// Its arguments, without its name.
    pub arguments: Vec<OsString>,
    /// Its environment: nothing of the agent's.
    pub environment: Vec<(OsString, OsString)>,
    /// Its descriptors from 3 on. With a filter it can talk over these and its standard input, and nothing else: let
    /// sockets among them be connected.
    pub descriptors: Vec<BorrowedFd<'a>>,
    /// Standard input; none: nothing comes. A socket to the agent can be this, too; the program may copy it once.
    pub input: Option<BorrowedFd<'a>>,
    /// Standard output; none: thrown away.
    pub output: Option<BorrowedFd<'a>>,
    /// Standard error; none: thrown away.
    pub errors: Option<BorrowedFd<'a>>,
    /// The core on which it starts and stays until pinned elsewhere; none: where the calling thread may run. A core where
    /// real-time functions run makes a start slow: start elsewhere, then [`Child::pin`](crate::Child::pin).
    pub core: Option<usize>,
}

impl<'a> Program<'a> {
    /// The program at `path`, with nothing.
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

    /// With one more argument.
    pub fn argument(mut self, argument: impl Into<OsString>) -> Program<'a> {
        self.arguments.push(argument.into());
        self
    }

    /// What it may talk over: what it was given, and the copy of its standard input, which is the next number.
    pub(crate) fn talks_over(&self) -> Vec<u32> {
        let behind = 3 + self.descriptors.len() as u32;
        match self.input {
            Some(_) => [0].into_iter().chain(3..=behind).collect(),
            None => (3..behind).collect(),
        }
    }

    /// With one more descriptor: the first is 3.
    pub fn descriptor(mut self, descriptor: BorrowedFd<'a>) -> Program<'a> {
        self.descriptors.push(descriptor);
        self
    }
}
