//! Confinement by an OCI container runtime: `config.json` generated from a [`Confinement`].

use std::ffi::OsString;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cgroup;
use crate::confinement::{Confinement, Program};
use crate::error::Error;
use crate::filter::Filter;
use crate::instance::Instance;
use crate::limits::limits;
use crate::root::{PROGRAM, Skeleton};
use crate::supervisor::Runtime;

/// Container runtime on this machine: `crun`.
///
/// `runc` is not supported: it rejects filters that forward unknown calls to an agent, and without them a program
/// cannot be sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRuntime {
    path: PathBuf,
}

/// Arguments and files of a runtime call.
pub(crate) struct Bundle {
    pub arguments: Vec<OsString>,
    pub filter: Option<Filter>,
    pub runtime: Runtime,
}

/// Name of the container, and of its group within the program's.
const NAME: &str = "c";

impl ContainerRuntime {
    /// Finds `crun` in the system's program directories; none if it is not installed.
    pub fn find() -> Option<ContainerRuntime> {
        ["/usr/local/bin", "/usr/bin", "/usr/local/sbin", "/usr/sbin"]
            .into_iter()
            .map(|directory| Path::new(directory).join("crun"))
            .find(|path| path.is_file())
            .map(|path| ContainerRuntime { path })
    }

    /// Runtime at `path`, which accepts the arguments of `crun`.
    pub fn at(path: impl Into<PathBuf>) -> ContainerRuntime {
        ContainerRuntime { path: path.into() }
    }

    /// Path of the runtime.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the bundle into the instance's directory.
    pub(crate) fn bundle(
        &self,
        confinement: &Confinement,
        program: &Program,
        instance: &Instance,
    ) -> Result<Bundle, Error> {
        let directory = &instance.directory;
        let path = |name: &str| directory.join(name);
        let (root, socket, log) = (path("root"), path("seccomp"), path("log"));
        let skeleton = match &confinement.root {
            Some(wanted) => {
                let user = confinement.own_user.then(|| instance.user());
                Skeleton::make(&root, &program.path, wanted, user)?
            }
            None => Skeleton::whole(&root, &program.path)?,
        };
        let devices = root.join("dev");
        if confinement.root.is_some() {
            fs::create_dir_all(&devices).map_err(|error| Error::File { path: devices, error })?;
        }
        let descriptors = program.descriptors.len() as u32;
        let filter = confinement.filter.then(|| Filter::function(&program.talks_over()));
        let listener = UnixListener::bind(&socket).map_err(|error| Error::File {
            path: socket.clone(),
            error,
        })?;
        let at = text(&socket, "the path of a socket")?;
        let seccomp = match &filter {
            Some(filter) => filter.oci(&at),
            None => Filter::oci_open(&at),
        };
        let config = config(confinement, program, instance, &skeleton, seccomp)?;
        cgroup::write(&path("config.json"), &config.to_string())?;
        let mut arguments: Vec<OsString> = vec!["--root".into(), path("state").into()];
        arguments.extend(["--log".into(), log.clone().into()]);
        arguments.extend(["--cgroup-manager", "cgroupfs", "run"].map(OsString::from));
        arguments.extend(["--bundle".into(), directory.into()]);
        arguments.push(format!("--preserve-fds={descriptors}").into());
        arguments.push(NAME.into());
        Ok(Bundle {
            arguments,
            filter,
            runtime: Runtime {
                path: self.path.clone(),
                socket: listener,
                log,
                processes: confinement.groups.processes,
            },
        })
    }
}

/// Additional processes of the runtime, which runs as the program's user and in its groups before the program starts.
/// For a moment it needs one more process, which passes on the notification descriptor.
pub(crate) const RUNTIME_PROCESSES: u32 = 1;

/// Converts a path or argument to UTF-8, which JSON requires.
fn text(value: impl AsRef<std::ffi::OsStr>, what: &'static str) -> Result<String, Error> {
    let text = value.as_ref().to_str();
    text.map(str::to_owned).ok_or_else(|| Error::Program {
        path: value.as_ref().into(),
        reason: format!("expected UTF-8 as {what} of a container"),
    })
}

/// Builds the runtime's configuration (OCI runtime specification, 1.0).
fn config(
    confinement: &Confinement,
    program: &Program,
    instance: &Instance,
    skeleton: &Skeleton,
    seccomp: Value,
) -> Result<Value, Error> {
    // The program has a fixed path in its root, whatever its name.
    let mut arguments = vec![PROGRAM.to_owned()];
    for argument in &program.arguments {
        arguments.push(text(argument, "an argument")?);
    }
    let mut environment = Vec::new();
    for (name, value) in &program.environment {
        let (name, value) = (text(name, "a variable")?, text(value, "a variable")?);
        environment.push(format!("{name}={value}"));
    }
    let user = match confinement.own_user {
        true => instance.user(),
        false => 0,
    };
    let capabilities = match confinement.drop_capabilities {
        true => Vec::new(),
        false => our_capabilities()?,
    };
    // The runtime sets limits on itself, and still writes files of its own before the program starts. The program has
    // no writable file, so the file size limit is left out.
    let rlimits: Vec<Value> = limits(&confinement.limits)
        .filter(|(resource, _)| *resource != libc::RLIMIT_FSIZE)
        .map(|(resource, value)| {
            let value = match resource {
                libc::RLIMIT_NPROC => value + u64::from(RUNTIME_PROCESSES),
                _ => value,
            };
            json!({"type": limit_name(resource), "soft": value, "hard": value})
        })
        .collect();
    let mut mounts = Vec::new();
    if confinement.root.is_some() {
        // The runtime always creates a few devices (null, zero, random); they go here.
        mounts.push(json!({
            "destination": "/dev",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "noexec", "mode=755", "size=64k"],
        }));
    }
    for (source, at) in &skeleton.seen {
        let options: &[&str] = match confinement.root {
            Some(_) => &["bind", "ro", "nosuid", "nodev"],
            None => &["rbind"],
        };
        let (source, at) = (text(source, "a path")?, text(at, "a path")?);
        mounts.push(json!({"destination": at, "source": source, "options": options}));
    }
    let own = &confinement.namespaces;
    let namespaces: Vec<Value> = [
        ("mount", true),
        ("pid", own.processes),
        ("network", own.network),
        ("ipc", own.ipc),
        ("uts", own.host_name),
        ("cgroup", confinement.root.is_some()),
    ]
    .into_iter()
    .filter(|(_, own)| *own)
    .map(|(kind, _)| json!({"type": kind}))
    .collect();
    let host_name = own.host_name.then_some("function");
    Ok(json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": {"uid": user, "gid": user},
            "args": arguments,
            "env": environment,
            "cwd": "/",
            "capabilities": {
                "bounding": capabilities,
                "effective": capabilities,
                "permitted": capabilities,
                "inheritable": [],
                "ambient": [],
            },
            "rlimits": rlimits,
            "noNewPrivileges": confinement.no_new_privileges,
        },
        "root": {"path": "root", "readonly": confinement.root.is_some()},
        "hostname": host_name,
        "mounts": mounts,
        "linux": {
            "namespaces": namespaces,
            "cgroupsPath": format!("/{}/{NAME}", instance.group()),
            "seccomp": seccomp,
            "rootfsPropagation": "rprivate",
        },
    }))
}

/// Returns the name of a limit in the configuration.
fn limit_name(resource: u32) -> &'static str {
    match resource {
        libc::RLIMIT_NPROC => "RLIMIT_NPROC",
        libc::RLIMIT_AS => "RLIMIT_AS",
        libc::RLIMIT_NOFILE => "RLIMIT_NOFILE",
        libc::RLIMIT_CORE => "RLIMIT_CORE",
        libc::RLIMIT_MEMLOCK => "RLIMIT_MEMLOCK",
        // The only other limit that is set.
        _ => "RLIMIT_RTPRIO",
    }
}

/// Returns the agent's capabilities, the most it can grant.
fn our_capabilities() -> Result<Vec<&'static str>, Error> {
    let path = Path::new("/proc/self/status");
    let status = fs::read_to_string(path).map_err(|error| Error::File {
        path: path.to_owned(),
        error,
    })?;
    let permitted = status.lines().find_map(|line| line.strip_prefix("CapPrm:"));
    let bits = permitted.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    let ours = ALL.iter().enumerate();
    let ours = ours.filter(|(at, _)| bits.unwrap_or(0) >> at & 1 != 0);
    Ok(ours.map(|(_, name)| *name).collect())
}

/// Capability names that runtimes accept, by number (linux/capability.h).
const ALL: [&str; 36] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
];
