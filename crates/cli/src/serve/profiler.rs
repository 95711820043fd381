//! Profiles that a server measures itself: `tailwater profile latency` in a process of its own, beside the chains.
//!
//! The profile has no curve of throughput over cache: dividing the cache would take it from the chains that run. The
//! throughput measured beside them holds for any part of the cache.

use super::profiles::ServerProfiles;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf, absolute};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use tailwater_api::server::{AdmissionSpec, PortSource, ServerSpec};
use tailwater_dataplane::cores;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_profile::fingerprint;
use tailwater_server::AppliedChain;
use tailwater_server::live::Profiler;

/// Interval at which the end of the process is looked for.
const TICK: Duration = Duration::from_millis(10);
/// Runs of a measurement for which its time suffices: a curve has about a hundred, and some are repeated.
const RUNS: u64 = 400;
/// Shortest and longest run.
const RUN: [Nanos; 2] = [Nanos::from_millis(20), Nanos::from_millis(250)];
/// Traffic for chains whose port is a device.
const UNKNOWN: &str = "backbone";
/// Part of the names of files that a measurement writes before it has ended.
const UNFINISHED: &str = ".measuring";
/// Maximum bytes of a process's standard error that are read.
const MOST_ERRORS: u64 = 64 << 10;
/// Exit code of a profile with doubts, which is written all the same.
const DOUBTFUL: i32 = crate::error::DOUBTFUL as i32;

/// Measures profiles into the folder `spec.admission.profiles`.
#[derive(Debug)]
pub struct ChildProfiler {
    program: PathBuf,
    folder: PathBuf,
    profiles: Arc<ServerProfiles>,
    /// Captures and presets of the ports that have some.
    traffic: BTreeMap<String, OsString>,
    time: Nanos,
    core: Option<usize>,
    running: Option<Measurement>,
}

/// Measurement that runs.
#[derive(Debug)]
struct Measurement {
    cancel: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), String>>,
}

/// Everything that a measurement needs.
struct Job {
    program: PathBuf,
    arguments: Vec<OsString>,
    /// Text of the chain, for standard input, and the folder that its files are relative to.
    yaml: String,
    base_dir: PathBuf,
    core: usize,
    time: Nanos,
    /// File that the process writes, and the one that it becomes.
    written: PathBuf,
    file: PathBuf,
    profiles: Arc<ServerProfiles>,
    spec: ChainSpec,
}

impl ChildProfiler {
    /// Profiler of a server; nothing is started. Files of measurements that did not end are removed from the folder.
    ///
    /// # Errors
    /// This program's file is not known.
    pub fn new(spec: &ServerSpec, admission: &AdmissionSpec, profiles: Arc<ServerProfiles>) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| format!("this program's file is not known: {error}"))?;
        let of_port = |port: &tailwater_api::server::ServerPort| match &port.source {
            PortSource::Traffic(traffic) if traffic.file.exists() => {
                let file = absolute(&traffic.file).unwrap_or_else(|_| traffic.file.clone());
                Some((port.name.clone(), file.into_os_string()))
            }
            PortSource::Traffic(traffic) => Some((port.name.clone(), OsString::from(&traffic.name))),
            PortSource::Devices(_) => None,
        };
        let folder = absolute(&admission.profiles).unwrap_or_else(|_| admission.profiles.clone());
        remove_unfinished(&folder);
        Ok(ChildProfiler {
            program,
            folder,
            profiles,
            traffic: spec.ports.iter().filter_map(of_port).collect(),
            time: admission.measure.time,
            core: admission.measure.core.map(|core| core as usize),
            running: None,
        })
    }

    fn arguments(&self, port: &str, core: usize, written: &Path) -> Vec<OsString> {
        let run = Nanos(self.time.0 / RUNS).clamp(RUN[0], RUN[1]);
        let mut arguments: Vec<OsString> = ["profile", "latency", "-", "--with-parent", "--core"]
            .map(Into::into)
            .into();
        arguments.push(core.to_string().into());
        arguments.extend(["--run-time".into(), format!("{}us", run.0 / 1000).into()]);
        match self.traffic.get(port) {
            Some(traffic) => arguments.extend(["--traffic".into(), traffic.clone()]),
            // Packets of a preset need not match: they stand for those of the port that do.
            None => arguments.extend(["--all-packets", "--traffic", UNKNOWN].map(Into::into)),
        }
        arguments.extend(["--file".into(), written.into()]);
        arguments
    }
}

impl Profiler for ChildProfiler {
    fn core(&self) -> Option<usize> {
        self.core
    }

    fn begin(&mut self, chain: &AppliedChain, spec: &ChainSpec, core: usize) -> Result<(), String> {
        self.cancel();
        let name = format!("{}-{}", chain.name, fingerprint(spec));
        let written = self.folder.join(format!(".{name}{UNFINISHED}"));
        let job = Job {
            program: self.program.clone(),
            arguments: self.arguments(&chain.port, core, &written),
            yaml: chain.manifest.yaml.clone(),
            base_dir: chain.manifest.base_dir().to_owned(),
            core,
            time: self.time,
            written,
            file: self.folder.join(format!("{name}.curves.yaml")),
            profiles: Arc::clone(&self.profiles),
            spec: spec.clone(),
        };
        let cancel = Arc::<AtomicBool>::default();
        let of_thread = Arc::clone(&cancel);
        // The process ends with this thread, which lives as long as the measurement.
        let thread = Builder::new().name("profiler".into());
        let thread = thread.spawn(move || job.run(&of_thread));
        let thread = thread.map_err(|error| format!("its thread cannot be started: {error}"))?;
        self.running = Some(Measurement { cancel, thread });
        Ok(())
    }

    fn poll(&mut self) -> Option<Result<(), String>> {
        let ended = self.running.take_if(|running| running.thread.is_finished())?;
        let result = ended.thread.join();
        Some(result.unwrap_or_else(|_| Err("its thread panicked".to_owned())))
    }

    fn cancel(&mut self) {
        if let Some(Measurement { cancel, thread }) = self.running.take() {
            cancel.store(true, Ordering::Relaxed);
            // It ends within a few ticks.
            let _ = thread.join();
        }
    }
}

impl Drop for ChildProfiler {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl Job {
    fn run(&self, cancel: &AtomicBool) -> Result<(), String> {
        let result = self.measure(cancel).and_then(|()| self.keep());
        if result.is_err() {
            let _ = fs::remove_file(&self.written);
        }
        result
    }

    /// Runs the process to its end.
    fn measure(&self, cancel: &AtomicBool) -> Result<(), String> {
        let began = Instant::now();
        // The process also gets the cores that the server leaves to others, for all that is not measured.
        let mut allowed = cores::available();
        allowed.push(self.core);
        cores::restrict_to(&allowed).map_err(|error| error.to_string())?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).current_dir(&self.base_dir);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| format!("its process cannot be started: {error}"))?;
        let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // A process that does not read it says why.
                let _ = stdin.map(|mut stdin| stdin.write_all(self.yaml.as_bytes()));
            });
            let errors = scope.spawn(move || {
                let mut text = Vec::new();
                if let Some(stderr) = stderr {
                    let _ = stderr.take(MOST_ERRORS).read_to_end(&mut text);
                }
                String::from_utf8_lossy(&text).into_owned()
            });
            let ended = self.await_end(&mut child, began, cancel);
            let errors = errors.join().unwrap_or_default();
            let status = ended?;
            match status.code() {
                Some(0 | DOUBTFUL) => Ok(()),
                _ => Err(reason(&errors, status)),
            }
        })
    }

    /// Waits for the end of the process. Ends it if its time is over, or the measurement is cancelled.
    fn await_end(&self, child: &mut Child, began: Instant, cancel: &AtomicBool) -> Result<ExitStatus, String> {
        let failed = |error: std::io::Error| format!("its process is lost: {error}");
        loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                return Ok(status);
            }
            let is_late = began.elapsed() >= Duration::from_nanos(self.time.0);
            if is_late || cancel.load(Ordering::Relaxed) {
                let _ = child.kill();
                child.wait().map_err(failed)?;
                return Err(match is_late {
                    true => format!("not measured within {} (spec.admission.measure.time)", self.time),
                    false => "cancelled".to_owned(),
                });
            }
            std::thread::sleep(TICK);
        }
    }

    /// Checks the file that the process wrote, and gives it its name.
    fn keep(&self) -> Result<(), String> {
        self.profiles.check(&self.written, &self.spec)?;
        let failed = |error: std::io::Error| format!("{}: {error}", self.file.display());
        fs::rename(&self.written, &self.file).map_err(failed)?;
        let folder = self.file.parent().map(File::open);
        folder
            .transpose()
            .and_then(|folder| folder.map_or(Ok(()), |folder| folder.sync_all()))
            .map_err(failed)
    }
}

/// Reason of a process that failed: its last error.
fn reason(errors: &str, status: ExitStatus) -> String {
    let lines = errors.lines().rev();
    let error = lines.filter_map(|line| line.strip_prefix("error: ")).next();
    error.map_or_else(|| format!("its process ended with {status}"), str::to_owned)
}

/// Removes files of measurements that did not end, of a server that was killed.
fn remove_unfinished(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') && name.contains(UNFINISHED) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests;
