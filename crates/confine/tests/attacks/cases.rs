//! Attacks, and the defences that stop each.

use std::fs;
use std::path::Path;

use tailwater_confine::{Confinement, FIRST_USER, Limit, Stopped};

use crate::scene::Scene;
use crate::start_mode::{Outcome, StartMode};

/// Defence that can be switched off on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layer {
    Filter,
    OwnUser,
    Capabilities,
    NoNewPrivileges,
    Root,
    Processes,
    Network,
    Ipc,
    Users,
    Descriptors,
    ProcessLimit,
    AddressSpaceLimit,
    FileSizeLimit,
    RealTimeLimit,
    LockedLimit,
    MemoryGroup,
    ProcessGroup,
    CoreGroup,
}

impl Layer {
    pub(crate) fn switch_off(self, confinement: &mut Confinement) {
        let it = confinement;
        match self {
            Layer::Filter => it.filter = false,
            Layer::OwnUser => {
                it.own_user = false;
                // The limit counts a user's processes: without a user of its own, root's.
                it.limits.processes = None;
            }
            Layer::Capabilities => it.drop_capabilities = false,
            Layer::NoNewPrivileges => it.no_new_privileges = false,
            Layer::Root => it.root = None,
            Layer::Processes => it.namespaces.processes = false,
            Layer::Network => it.namespaces.network = false,
            Layer::Ipc => it.namespaces.ipc = false,
            Layer::Users => it.namespaces.users = false,
            Layer::Descriptors => it.close_descriptors = false,
            Layer::ProcessLimit => it.limits.processes = None,
            Layer::AddressSpaceLimit => it.limits.address_space = None,
            Layer::FileSizeLimit => it.limits.file_size = None,
            Layer::RealTimeLimit => it.limits.real_time = Some(99),
            Layer::LockedLimit => it.limits.locked = None,
            Layer::MemoryGroup => it.groups.memory = None,
            Layer::ProcessGroup => it.groups.processes = None,
            Layer::CoreGroup => it.groups.cores = false,
        }
    }
}

/// Effect of a defence on an attack.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By {
    /// The filter stops the program at this call.
    Call(&'static str),
    /// The kernel refuses with one of these errors.
    Error(&'static [i32]),
    /// The program is stopped for this reason.
    Stop(Stopped),
    /// The attack succeeds but gains nothing: the program keeps its user.
    GainsNothing,
}

impl By {
    pub(crate) fn fits(&self, outcome: &Outcome) -> bool {
        match (self, outcome) {
            (By::Call(name), Outcome::Stopped(Stopped::Seccomp(call))) => call.to_string() == *name,
            (By::Error(errors), Outcome::Refused(errno)) => errors.contains(errno),
            (By::GainsNothing, Outcome::Done(user)) => user.parse().is_ok_and(|user: u32| user >= FIRST_USER),
            (By::Stop(expected), Outcome::Stopped(stopped)) => expected == stopped,
            _ => false,
        }
    }
}

pub(crate) struct Case {
    pub name: &'static str,
    pub arguments: fn(&Scene) -> Vec<String>,
    /// Defences that stop it, in the order in which the attack meets them.
    pub layers: Vec<(Layer, By)>,
    /// `true`: it is granted real-time priority before the attack.
    pub lent: bool,
    /// Changes of the full confinement for this case.
    prepare: fn(&mut Confinement),
    /// Returns `true` if the attack obtained what it was after.
    success: fn(&Scene, &str) -> bool,
}

impl Case {
    fn new(name: &'static str, layers: &[(Layer, By)]) -> Case {
        Case {
            name,
            arguments: |_| Vec::new(),
            layers: layers.to_vec(),
            lent: false,
            prepare: |_| (),
            success: |_, _| true,
        }
    }

    fn lent(mut self) -> Case {
        self.lent = true;
        self
    }

    fn told(mut self, arguments: fn(&Scene) -> Vec<String>) -> Case {
        self.arguments = arguments;
        self
    }

    fn prepared(mut self, prepare: fn(&mut Confinement)) -> Case {
        self.prepare = prepare;
        self
    }

    fn succeeds_if(mut self, success: fn(&Scene, &str) -> bool) -> Case {
        self.success = success;
        self
    }

    fn steals(self) -> Case {
        self.succeeds_if(|scene, loot| loot == scene.secret)
    }

    pub(crate) fn base(&self) -> Confinement {
        let mut confinement = Confinement::full();
        (self.prepare)(&mut confinement);
        confinement
    }

    pub(crate) fn succeeded(&self, scene: &Scene, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Done(loot) => (self.success)(scene, loot),
            _ => false,
        }
    }

    /// Returns the reason why the case cannot run on this machine, or in this mode.
    pub(crate) fn impossible(&self, way: &StartMode) -> Option<&'static str> {
        let layers = |wanted| self.layers.iter().any(|(layer, _)| *layer == wanted);
        match self.name {
            "priority" if layers(Layer::RealTimeLimit) && !may_raise_limits() => {
                Some("raising a limit, so that it does not stop anything, needs CAP_SYS_RESOURCE")
            }
            "inherited" if matches!(way, StartMode::Container(_)) => {
                Some("the runtime closes descriptors by itself, and cannot be told not to")
            }
            "leave-core" if std::thread::available_parallelism().is_ok_and(|n| n.get() < 2) => {
                Some("there is one core")
            }
            "netlink" if Scene::interface().is_none() => Some("there is no network interface"),
            "bpf" if !Path::new("/proc/sys/kernel/unprivileged_bpf_disabled").exists() => Some("the kernel has no bpf"),
            "perf" if !Path::new("/proc/sys/kernel/perf_event_paranoid").exists() => Some("the kernel has no perf"),
            "userfaultfd" if !Path::new("/proc/sys/vm/unprivileged_userfaultfd").exists() => {
                Some("the kernel has no userfaultfd")
            }
            "io-uring" if forbidden("/proc/sys/kernel/io_uring_disabled") => {
                Some("the kernel has no io_uring, or it is switched off")
            }
            "user-namespace" if !Path::new("/proc/self/ns/user").exists() => Some("the kernel has no user namespaces"),
            _ => None,
        }
    }
}

/// Returns `true` if a setting does not exist or is not 0.
fn forbidden(path: &str) -> bool {
    fs::read_to_string(path).map_or(true, |text| text.trim() != "0")
}

/// Returns `true` if root on this machine may set limits above its own.
fn may_raise_limits() -> bool {
    const SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = u64::from_str_radix(effective.unwrap().trim(), 16).unwrap();
    bits >> SYS_RESOURCE & 1 != 0
}

const NOT_PERMITTED: By = By::Error(&[libc::EPERM]);
const DENIED: By = By::Error(&[libc::EACCES, libc::EPERM]);
const NO_SUCH_PROCESS: By = By::Error(&[libc::ESRCH]);
const NO_SUCH_FILE: By = By::Error(&[libc::ENOENT]);
const TRY_AGAIN: By = By::Error(&[libc::EAGAIN]);

fn pid(scene: &Scene) -> String {
    scene.victim.id().to_string()
}

fn path(scene: &Scene, name: &str) -> Vec<String> {
    vec![scene.directory.join(name).display().to_string()]
}

pub(crate) fn all() -> Vec<Case> {
    use Layer::*;
    let neighbour = |call: &'static str| {
        [
            (Filter, By::Call(call)),
            (Processes, NO_SUCH_PROCESS),
            (Users, NOT_PERMITTED),
            (OwnUser, NOT_PERMITTED),
            (Capabilities, NOT_PERMITTED),
        ]
    };
    let through_proc = [
        (Filter, By::Call("openat")),
        (Root, NO_SUCH_FILE),
        (Users, DENIED),
        (OwnUser, DENIED),
        (Capabilities, DENIED),
    ];
    let privileged = |call: &'static str| {
        [
            (Filter, By::Call(call)),
            (Users, DENIED),
            (OwnUser, DENIED),
            (Capabilities, DENIED),
        ]
    };
    let host_proc: fn(&mut Confinement) = |it| it.namespaces.processes = false;
    vec![
        Case::new("read-memory", &neighbour("process_vm_readv"))
            .told(|scene| vec![pid(scene), scene.addresses.0.to_string()])
            .steals(),
        Case::new("write-memory", &neighbour("process_vm_writev"))
            .told(|scene| vec![pid(scene), scene.addresses.1.to_string()])
            .succeeds_if(|scene, loot| scene.overwritten() == loot),
        Case::new("trace", &neighbour("ptrace")).told(|scene| vec![pid(scene)]),
        // The neighbour's memory, through its file in /proc. (In a process namespace, a container has its own /proc.)
        Case::new("read-file-at", &through_proc)
            .prepared(host_proc)
            .told(|scene| {
                let memory = format!("/proc/{}/mem", scene.victim.id());
                vec![memory, scene.addresses.0.to_string()]
            })
            .steals(),
        // The neighbour's shared memory, through its descriptor.
        Case::new("read-file-at", &through_proc)
            .prepared(host_proc)
            .told(|scene| {
                let memory = format!("/proc/{}/fd/{}", scene.victim.id(), scene.memfd);
                vec![memory, "0".into()]
            })
            .steals(),
        Case::new(
            "read-file",
            &[(Filter, By::Call("openat")), (Root, NO_SUCH_FILE), (OwnUser, DENIED)],
        )
        .told(|scene| path(scene, "secret"))
        .steals(),
        Case::new(
            "write-file",
            &[
                (Filter, By::Call("openat")),
                (Root, By::Error(&[libc::ENOENT, libc::EROFS])),
                (OwnUser, DENIED),
                // The first process of a namespace survives the signal that comes with the error.
                (FileSizeLimit, By::Error(&[libc::EFBIG])),
            ],
        )
        .told(|scene| path(scene, "written"))
        .succeeds_if(|scene, _| fs::read(scene.directory.join("written")).is_ok_and(|it| it == b"x")),
        Case::new(
            "fork",
            &[
                (Filter, By::Call("clone")),
                (ProcessGroup, TRY_AGAIN),
                (ProcessLimit, TRY_AGAIN),
            ],
        ),
        Case::new(
            "thread",
            &[
                (Filter, By::Call("clone3")),
                (ProcessGroup, TRY_AGAIN),
                (ProcessLimit, TRY_AGAIN),
            ],
        ),
        Case::new(
            "allocate",
            &[
                (AddressSpaceLimit, By::Error(&[libc::ENOMEM])),
                (MemoryGroup, By::Stop(Stopped::Limit(Limit::Memory))),
            ],
        )
        .prepared(|it| {
            it.groups.memory = Some(32 << 20);
            it.limits.address_space = Some(64 << 20);
        })
        .told(|_| vec![(96 << 20).to_string()]),
        Case::new("priority", &privileged("sched_setscheduler")).lent(),
        // Without capabilities, but with a resource limit that allows it.
        Case::new(
            "priority",
            &[(Filter, By::Call("sched_setscheduler")), (RealTimeLimit, NOT_PERMITTED)],
        )
        .lent()
        .prepared(|it| it.namespaces.users = false),
        Case::new(
            "leave-core",
            &[
                (Filter, By::Call("sched_setaffinity")),
                (CoreGroup, By::Error(&[libc::EINVAL])),
            ],
        )
        .told(|scene| vec![scene.other_core.unwrap().to_string()])
        .succeeds_if(|scene, loot| loot == scene.other_core.unwrap().to_string()),
        Case::new(
            "kill",
            &[
                (Filter, By::Call("kill")),
                (Processes, NO_SUCH_PROCESS),
                (OwnUser, NOT_PERMITTED),
            ],
        )
        .told(|scene| vec![pid(scene)])
        .succeeds_if(|scene, _| scene.victim_is_dead()),
        Case::new(
            "internet",
            &[
                (Filter, By::Call("socket")),
                (Network, By::Error(&[libc::ENETUNREACH, libc::ECONNREFUSED])),
            ],
        )
        .told(|scene| vec![scene.port.to_string()])
        .steals(),
        Case::new(
            "abstract-socket",
            &[
                (Filter, By::Call("socket")),
                (Network, By::Error(&[libc::ECONNREFUSED])),
            ],
        )
        .told(|scene| vec![scene.abstract_name.clone()])
        .steals(),
        Case::new(
            "netlink",
            &[(Filter, By::Call("socket")), (Network, By::Error(&[libc::ENODEV]))],
        )
        .told(|_| vec![Scene::interface().unwrap()]),
        // In its own user namespace it may mount, in its own view of the file system, which nobody else sees.
        Case::new(
            "mount",
            &[
                (Filter, By::Call("mount")),
                (OwnUser, NOT_PERMITTED),
                (Capabilities, NOT_PERMITTED),
            ],
        ),
        Case::new("bpf", &privileged("bpf")),
        Case::new("perf", &privileged("perf_event_open")),
        Case::new("userfaultfd", &privileged("userfaultfd")),
        Case::new(
            "io-uring",
            &[
                (Filter, By::Call("io_uring_setup")),
                (LockedLimit, By::Error(&[libc::ENOMEM])),
            ],
        ),
        Case::new("user-namespace", &[(Filter, By::Call("unshare"))]),
        Case::new("write-code", &[(Filter, By::Call("mmap"))]).succeeds_if(|_, loot| loot == "42"),
        Case::new(
            "inherited",
            &[(Filter, By::Call("pread64")), (Descriptors, By::Error(&[libc::EBADF]))],
        )
        // Or the secret of another scene, because it inherits all open descriptors.
        .succeeds_if(|_, loot| loot.starts_with("tailwater-attacks-")),
        Case::new(
            "set-user-id",
            &[
                (Filter, By::Call("execve")),
                (Root, NO_SUCH_FILE),
                (NoNewPrivileges, By::GainsNothing),
                (Users, By::GainsNothing),
            ],
        )
        .told(|scene| path(scene, "set-user-id"))
        .succeeds_if(|_, user| user == "0"),
        Case::new(
            "shared-memory",
            &[(Filter, By::Call("shmget")), (Ipc, NO_SUCH_FILE), (OwnUser, DENIED)],
        )
        .told(|scene| vec![scene.key.to_string()])
        .steals(),
        Case::new("foreign-call", &[(Filter, By::Stop(Stopped::ForeignCall))]),
    ]
}
