//! The check that functions do the same in processes of their own: the chain runs as `tailwater run` runs it.

use super::compare::{FLOWS, PACKETS};
use super::frames::ordinary;
use super::outcome::Outcome;
use super::processes::{ended, read_in_thread};
use super::rig::arrival;
use super::subject::Subject;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tailwater_traffic::{CaptureReader, Packet, PacketSource, PcapWriter, ReadOptions};

/// Times that a run is repeated whose packets were lost: the machine may be busy.
const TRIES: usize = 4;
/// Longest output of a run that is read, in bytes.
const MOST_BYTES: u64 = 4 << 20;
/// Factor of the packets' distances over those of other checks: a preempted worker has time to recover before its run
/// ends.
const SLOWER: u64 = 10;
/// Longest time of a run.
const LONGEST: Duration = Duration::from_secs(10);

/// Packets leave isolated functions as they leave those in this process.
pub fn isolation(subject: &Subject) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Outcome::Skipped("run it as root: processes are confined".to_owned());
    }
    let compared = Folder::new().and_then(|folder| compare(subject, &folder));
    compared.unwrap_or_else(Outcome::Failed)
}

/// Result of a run.
enum Ran {
    /// Packets as they left the chain, and the number of lost ones with what happened to the functions' processes.
    Done(Vec<Vec<u8>>, (u64, String)),
    /// It did not begin.
    Refused(String),
}

fn compare(subject: &Subject, folder: &Folder) -> Result<Outcome, String> {
    let (chain, traffic) = (folder.chain(subject)?, folder.traffic()?);
    let without_loss = |mode: &str| {
        let mut ran = folder.run(&chain, &traffic, mode)?;
        for _ in 1..TRIES {
            match ran {
                Ran::Done(_, (1.., _)) => ran = folder.run(&chain, &traffic, mode)?,
                _ => break,
            }
        }
        Ok::<_, String>(ran)
    };
    let mut alone = Vec::new();
    for _ in 0..2 {
        match without_loss("none")? {
            Ran::Done(sent, (0, _)) => alone.push(sent),
            Ran::Done(..) => return Ok(Outcome::Skipped("packets are lost also without isolation".to_owned())),
            Ran::Refused(reason) => return Ok(Outcome::Skipped(reason)),
        }
    }
    if alone[0] != alone[1] {
        let text = "two runs without isolation differ: packets depend on the time, or on chance";
        return Ok(Outcome::Skipped(text.to_owned()));
    }
    Ok(match without_loss("process")? {
        Ran::Done(sent, (0, _)) if sent == alone[0] => {
            let count = sent.len();
            Outcome::Passed(format!(
                "{count} packets leave processes of their own as they leave this one"
            ))
        }
        Ran::Done(sent, (0, _)) => {
            let first = sent.iter().zip(&alone[0]).position(|(one, other)| one != other);
            let first = first.unwrap_or_else(|| sent.len().min(alone[0].len()));
            Outcome::Failed(format!(
                "{} packets leave processes of their own, {} this one; the first that differs is packet {first}",
                sent.len(),
                alone[0].len()
            ))
        }
        Ran::Done(_, (lost, ends)) => Outcome::Failed(format!("{lost} packets lost in processes of their own{ends}")),
        Ran::Refused(reason) => Outcome::Skipped(reason),
    })
}

/// Folder of the runs' files, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder, String> {
        let path = std::env::temp_dir().join(format!("tailwater-test-function-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Folder(path))
    }

    /// The spec's file, or one for a library.
    fn chain(&self, subject: &Subject) -> Result<PathBuf, String> {
        let Some(text) = &subject.text else {
            return Ok(subject.file.clone());
        };
        let path = self.0.join("chain.yaml");
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }

    /// Capture of the packets that all checks use.
    fn traffic(&self) -> Result<PathBuf, String> {
        let path = self.0.join("in.pcap");
        let mut writer = PcapWriter::create(&path).map_err(|error| error.to_string())?;
        for (number, (_, frame)) in ordinary(PACKETS, FLOWS).iter().enumerate() {
            let packet = Packet {
                timestamp: arrival(number as u64 * SLOWER),
                data: frame,
                wire_length: frame.len() as u32,
            };
            writer.write(&packet).map_err(|error| error.to_string())?;
        }
        writer.finish().map_err(|error| error.to_string())?;
        Ok(path)
    }

    fn run(&self, chain: &Path, traffic: &Path, mode: &str) -> Result<Ran, String> {
        let out = self.0.join("out.pcap");
        let mut command = Command::new("/proc/self/exe");
        command.arg("run").arg(chain).arg("--traffic").arg(traffic);
        command.arg("--capture-out").arg(&out).args(["--isolation", mode]);
        // All packets wait in the ring, if they have to: the machine may be busy.
        command.args(["--ring", "4096", "--output", "json"]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let output = child.stdout.take().map(|pipe| read_in_thread(pipe, MOST_BYTES));
        let errors = child.stderr.take().map(|pipe| read_in_thread(pipe, MOST_BYTES));
        let status = ended(&mut child, LONGEST).map_err(|error| error.to_string())?;
        let text = |reader: Option<std::thread::JoinHandle<String>>| {
            let text = reader.map(std::thread::JoinHandle::join);
            text.and_then(Result::ok).unwrap_or_default()
        };
        let (output, errors) = (text(output), text(errors));
        let error = errors.lines().find_map(|line| line.strip_prefix("error: "));
        let error = error.unwrap_or("it did not run").to_owned();
        match status.map(|status| status.code()) {
            None => {
                return Err(format!(
                    "a run with --isolation {mode} has no end within {} s",
                    LONGEST.as_secs()
                ));
            }
            Some(Some(0)) => {}
            Some(Some(2)) => return Ok(Ran::Refused(error)),
            Some(_) => return Err(format!("a run with --isolation {mode} fails: {error}")),
        }
        let report: Value = serde_json::from_str(&output).map_err(|error| error.to_string())?;
        let lost = report["packets"]["lost"].as_u64().unwrap_or(0);
        Ok(Ran::Done(frames(&out)?, (lost, ends(&report))))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Ends of functions' processes, behind a colon.
fn ends(report: &Value) -> String {
    let functions = report["isolation"]["functions"].as_array();
    let ends = functions.into_iter().flatten().filter_map(|function| {
        let restarts = function["restarts"].as_object()?;
        let count: u64 = restarts.values().filter_map(Value::as_u64).sum();
        let first = function["ends"].as_array().and_then(|ends| ends.first());
        let first = first.map_or(String::new(), |first| {
            format!(" ({})", first.as_str().unwrap_or_default())
        });
        (count > 0).then(|| {
            format!(
                "{} was replaced {count} times{first}",
                function["name"].as_str().unwrap_or_default()
            )
        })
    });
    let ends: Vec<String> = ends.collect();
    match &ends[..] {
        [] => String::new(),
        ends => format!(": {}", ends.join(", ")),
    }
}

/// Frames of a capture.
fn frames(path: &Path) -> Result<Vec<Vec<u8>>, String> {
    let mut reader = CaptureReader::open(path, &ReadOptions::default()).map_err(|error| error.to_string())?;
    let mut frames = Vec::with_capacity(PACKETS);
    while let Some(packet) = reader.next_packet().map_err(|error| error.to_string())? {
        frames.push(packet.data.to_vec());
    }
    Ok(frames)
}
