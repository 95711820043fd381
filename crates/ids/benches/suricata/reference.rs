//! Suricata's side of the comparison.

use super::captures::{Timed, capture_at, write};
use crate::{Hit, processor_seconds};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use tailwater_net::Nanos;

/// Suricata, installed or in a folder with a system of its own.
pub struct Suricata {
    /// Folder to change the root to.
    root: Option<PathBuf>,
}

/// Result of a run.
pub struct Run {
    pub hits: BTreeSet<Hit>,
    /// Processor seconds of the whole process, with loading.
    pub seconds: f64,
}

/// Folder of a run, as the program sees it.
const FOLDER: &str = "/tmp/tailwater-bench";

impl Suricata {
    /// Returns the program, if it is there.
    pub fn find() -> Option<Suricata> {
        let root = std::env::var_os("SURICATA_ROOT").map(PathBuf::from);
        let suricata = Suricata { root };
        let version = suricata.command("suricata").arg("-V").output().ok()?;
        let text = String::from_utf8_lossy(&version.stdout).into_owned();
        eprintln!("{}", text.trim());
        version.status.success().then_some(suricata)
    }

    fn command(&self, program: &str) -> Command {
        match &self.root {
            None => Command::new(program),
            Some(root) => {
                let mut command = Command::new("chroot");
                command.arg(root).arg(program);
                command
            }
        }
    }

    /// Returns a path within the root.
    fn inside(&self, path: &str) -> PathBuf {
        match &self.root {
            None => PathBuf::from(path),
            Some(root) => root.join(path.trim_start_matches('/')),
        }
    }

    /// Runs the program on packets: one core, alerts as its only output, the other settings as packaged.
    pub fn run(&self, packets: &[Timed], rules: &Path, folder: &Path) -> Run {
        let inside = self.inside(FOLDER);
        let _ = std::fs::remove_dir_all(&inside);
        std::fs::create_dir_all(&inside).expect("a writable folder");
        write(packets, &inside.join("packets.pcap"));
        std::fs::copy(rules, inside.join("all.rules")).expect("rules");
        let packaged = self.inside("/etc/suricata/suricata.yaml");
        let packaged = std::fs::read_to_string(&packaged).expect("the packaged configuration");
        std::fs::write(inside.join("suricata.yaml"), configuration(&packaged)).expect("a writable folder");
        let mut command = self.command("suricata");
        command
            .args(
                [
                    "-c",
                    "suricata.yaml",
                    "-S",
                    "all.rules",
                    "-r",
                    "packets.pcap",
                    "-l",
                    ".",
                ]
                .map(|argument| match argument.contains('.') {
                    true => format!("{FOLDER}/{argument}"),
                    false => argument.to_owned(),
                }),
            )
            .args(["-k", "none", "--runmode", "single"]);
        for variable in ["HOME_NET", "EXTERNAL_NET"] {
            command.args(["--set", &format!("vars.address-groups.{variable}=any")]);
        }
        let [_, before] = processor_seconds();
        let output = command.output().expect("Suricata runs");
        let seconds = processor_seconds()[1] - before;
        let log = [output.stdout, output.stderr].concat();
        std::fs::write(folder.join("suricata.log"), &log).expect("a writable folder");
        assert!(
            output.status.success(),
            "Suricata failed: see {}",
            folder.join("suricata.log").display()
        );
        let alerts = std::fs::read_to_string(inside.join("eve.json")).unwrap_or_default();
        std::fs::write(folder.join("eve.json"), &alerts).expect("a writable folder");
        Run {
            hits: alerts.lines().filter_map(hit).collect(),
            seconds,
        }
    }
}

/// Returns the packaged configuration with alerts as its only output.
fn configuration(packaged: &str) -> String {
    let mut text = String::new();
    let mut in_outputs = false;
    for line in packaged.lines() {
        if line.starts_with(|first: char| first.is_ascii_alphabetic()) {
            in_outputs = line.starts_with("outputs:");
        }
        if !in_outputs {
            text.push_str(line);
            text.push('\n');
        }
    }
    text.push_str("outputs:\n  - eve-log:\n      enabled: yes\n      filetype: regular\n      filename: eve.json\n");
    text.push_str("      types: [alert]\n");
    text
}

/// Reads an alert of EVE JSON.
fn hit(line: &str) -> Option<Hit> {
    let event: serde_json::Value = serde_json::from_str(line).ok()?;
    let sid = event.pointer("/alert/signature_id")?.as_u64()? as u32;
    let ports = matches!(event["proto"].as_str(), Some("TCP" | "UDP"));
    let end = |address: &str, port: &str| -> Option<(IpAddr, u16)> {
        let port = if ports {
            event[port].as_u64().unwrap_or(0) as u16
        } else {
            0
        };
        Some((event[address].as_str()?.parse().ok()?, port))
    };
    let ends = [end("src_ip", "src_port")?, end("dest_ip", "dest_port")?];
    // An alert at a connection's end has the time of the packet that showed it, which may be of another capture.
    let start = event.pointer("/flow/start").or(event.get("timestamp"))?;
    Some(Hit::new(capture_at(time(start.as_str()?)?), ends, sid))
}

/// Reads a time such as `2020-09-13T12:26:40.000001+0000`.
fn time(text: &str) -> Option<Nanos> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    // Days since 1970, counted from March.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    Some(Nanos(seconds as u64 * 1_000_000_000))
}
