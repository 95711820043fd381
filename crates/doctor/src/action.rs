//! Changes of a machine that fix findings: their commands, how to undo them, and carrying them out.
//!
//! A change is carried out by its parts, never by a shell: names of control groups and files come from the system.

use crate::System;
use std::collections::BTreeMap;
use std::io;
use std::process::{Command, Stdio};

/// A change that fixes a finding, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Writes a value into files of the kernel.
    Write {
        /// The value.
        value: String,
        /// The files.
        files: Vec<String>,
    },
    /// Sets a kernel parameter.
    Sysctl {
        /// Its name, with points.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// Mounts a file system of the kernel, in a folder that is created if missing.
    Mount {
        /// Its type.
        kind: &'static str,
        /// The folder.
        at: &'static str,
    },
    /// Loads a module of the kernel.
    Load {
        /// Its name.
        module: &'static str,
    },
    /// Disables idle states that take longer to leave.
    IdleLimit {
        /// Exit latency from which states are disabled, in microseconds.
        us: u64,
    },
    /// Moves a process with all its threads to other cores.
    Move {
        /// Its number.
        process: u32,
        /// The cores, as a list of the kernel.
        cores: String,
    },
    /// Command for the user only: it installs software, grants rights, or restarts the machine.
    ByHand(String),
}

/// How a change is undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undo {
    /// By these commands, which contain the present values.
    By(Vec<String>),
    /// Not by a command.
    Not(&'static str),
}

impl From<&str> for Action {
    fn from(command: &str) -> Action {
        Action::ByHand(command.to_owned())
    }
}

impl From<String> for Action {
    fn from(command: String) -> Action {
        Action::ByHand(command)
    }
}

impl Action {
    /// A value for one file.
    pub(crate) fn write(value: impl Into<String>, file: impl Into<String>) -> Action {
        Action::Write {
            value: value.into(),
            files: vec![file.into()],
        }
    }

    /// Returns the command for a shell.
    pub fn command(&self) -> String {
        match self {
            Action::Write { value, files } => {
                let files: Vec<String> = files.iter().map(|file| quoted(file)).collect();
                format!("echo {} | sudo tee {}", quoted(value), shortened(&files))
            }
            Action::Sysctl { name, value } => format!("sudo sysctl -w {name}={value}"),
            Action::Mount { kind: "resctrl", at } => format!("sudo mount -t resctrl resctrl {at}"),
            Action::Mount { kind, at } => format!("sudo mkdir -p {at} && sudo mount -t {kind} none {at}"),
            Action::Load { module } => format!("sudo modprobe {module}"),
            Action::IdleLimit { us } => format!("sudo cpupower idle-set -D {us}"),
            Action::Move { process, cores } => format!("sudo taskset -apc {cores} {process}"),
            Action::ByHand(command) => command.clone(),
        }
    }

    /// Returns how to undo the change, before it is made.
    pub fn undo(&self, system: &dyn System) -> Undo {
        const UNREAD: Undo = Undo::Not("the present value cannot be read");
        match self {
            Action::Write { files, .. } => {
                let mut by_value: BTreeMap<String, Vec<String>> = BTreeMap::new();
                for file in files {
                    let Some(text) = system.read(file).value() else {
                        return UNREAD;
                    };
                    // Some files list all choices, with the present one in brackets.
                    let now = crate::text::chosen(&text).unwrap_or(&text).to_owned();
                    by_value.entry(now).or_default().push(file.clone());
                }
                let writes = by_value
                    .into_iter()
                    .map(|(value, files)| Action::Write { value, files });
                Undo::By(writes.map(|write| write.command()).collect())
            }
            Action::Sysctl { name, .. } => match system.read(&sysctl_file(name)).value() {
                Some(now) => Undo::By(vec![format!("sudo sysctl -w {name}={}", quoted(&now))]),
                None => UNREAD,
            },
            Action::Mount { at, .. } => Undo::By(vec![format!("sudo umount {at}")]),
            Action::Load { module } => Undo::By(vec![format!("sudo modprobe -r {module}")]),
            Action::IdleLimit { .. } => Undo::By(vec!["sudo cpupower idle-set -E".to_owned()]),
            Action::Move { process, .. } => {
                let status = system.read(&format!("/proc/{process}/status")).value();
                let cores = status
                    .as_deref()
                    .and_then(|text| crate::text::field(text, "Cpus_allowed_list"));
                match cores {
                    Some(cores) => Undo::By(vec![format!("sudo taskset -apc {cores} {process}")]),
                    None => UNREAD,
                }
            }
            Action::ByHand(_) => Undo::Not("not made by tailwater"),
        }
    }

    /// Makes the change.
    ///
    /// # Errors
    /// The kernel or a program refuses it, or the change is for the user only.
    pub fn apply(&self) -> io::Result<()> {
        match self {
            Action::Write { value, files } => files.iter().try_for_each(|file| write(file, value)),
            Action::Sysctl { name, value } => write(&sysctl_file(name), value),
            Action::Mount { kind, at } => {
                std::fs::create_dir_all(at)?;
                run(
                    "mount",
                    &["-t", kind, if *kind == "resctrl" { kind } else { "none" }, at],
                )
            }
            Action::Load { module } => run("modprobe", &[module]),
            Action::IdleLimit { us } => run("cpupower", &["idle-set", "-D", &us.to_string()]),
            Action::Move { process, cores } => run("taskset", &["-apc", cores, &process.to_string()]),
            Action::ByHand(_) => Err(io::Error::other("for the user only")),
        }
    }
}

fn sysctl_file(name: &str) -> String {
    format!("/proc/sys/{}", name.replace('.', "/"))
}

/// Writes into an existing file only: a kernel without it must not get an ordinary file instead.
fn write(file: &str, value: &str) -> io::Result<()> {
    use std::io::Write as _;
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{file}: {error}"));
    let mut open = std::fs::OpenOptions::new().write(true).open(file).map_err(named)?;
    open.write_all(value.as_bytes()).map_err(named)
}

fn run(program: &str, arguments: &[&str]) -> io::Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            let line = said.lines().next().unwrap_or("failed").trim();
            Err(io::Error::other(format!("{program}: {line}")))
        }
    }
}

/// Quotes a word for a shell, if it must be.
fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:,=@%+".contains(&byte);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.to_owned(),
        // A value of several words is one line for `echo`, too.
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// Joins names; many of the same file for different cores become a pattern.
fn shortened(files: &[String]) -> String {
    const MOST: usize = 4;
    let pattern = |file: &String| {
        let (front, rest) = file.split_once("/cpu/cpu")?;
        let (number, end) = rest.split_once('/')?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| format!("{front}/cpu/cpu*/{end}"))
    };
    let mut patterns: Vec<Option<String>> = files.iter().map(pattern).collect();
    patterns.dedup();
    match &patterns[..] {
        [Some(one)] if files.len() > MOST => one.clone(),
        _ => files.join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LiveSystem;

    #[test]
    fn a_value_is_written_into_an_existing_file_only_and_can_be_undone() {
        let folder = std::env::temp_dir().join(format!("tailwater-doctor-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("enabled");
        let file = path.to_str().unwrap();
        let change = Action::write("madvise", file);
        assert!(change.apply().unwrap_err().to_string().contains("No such file"));
        assert!(!path.exists());
        std::fs::write(&path, "[always] madvise never\n").unwrap();
        let undo = change.undo(&LiveSystem);
        assert_eq!(undo, Undo::By(vec![format!("echo always | sudo tee {file}")]));
        change.apply().unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("madvise"));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn names_of_the_system_are_quoted_in_commands() {
        let change = Action::write("max", "/sys/fs/cgroup/a b;$(reboot)/cpu.max");
        assert_eq!(
            change.command(),
            "echo max | sudo tee '/sys/fs/cgroup/a b;$(reboot)/cpu.max'"
        );
        assert_eq!(quoted("100000 100000"), "'100000 100000'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert!(Action::from("sudo reboot").apply().is_err());
    }
}
