//! A single simulation: built from the rack spec and the arguments, and run.

use super::args::SimulateArgs;
use super::resume::Finished;
use super::traffic::{InUse, PacketCache, Source};
use crate::error::CliError;
use crate::values::LONGEST;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tailwater_files::InputFile;
use tailwater_net::Nanos;
use tailwater_policy::capacity::CapacityProfile;
use tailwater_profile::Fnv;
use tailwater_sim::policies::ORACLE;
use tailwater_sim::rack::{MOST_CORES, MOST_SERVERS};
use tailwater_sim::spec::{RackChain, RackSpec};
use tailwater_sim::{
    BoundedChain, ChainRun, Objective, OracleReport, Rack, RackPolicy, RunOptions, Server, SimError, SimReport,
    oracle_with, simulate_with,
};

/// Parameters of a run. All others are the same for all runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub policy: &'static str,
    /// Objective of all chains; `None` if each has its own.
    pub slo: Option<Nanos>,
    pub seed: u64,
    /// Number of servers; `None` for the rack's. Additional servers are copies of the last.
    pub servers: Option<usize>,
    /// Factor of the rack's packet rates.
    pub rate: f64,
    /// `true` if the run may end as soon as a chain certainly misses its objective.
    pub until_missed: bool,
    /// One core is dedicated and the others are auxiliary, as in `tailwater run` with one core in `--cores`.
    pub one_dedicated_core: bool,
}

/// Returns the maximum number of servers of a rack whose additional servers are copies of the last.
pub fn most_servers(rack: &Rack) -> usize {
    let last = rack.servers.last();
    let each = last.map_or(1, |server| usize::from(server.cores).max(1));
    let more = MOST_CORES.saturating_sub(rack.cores()) / each;
    (rack.servers.len() + more).min(MOST_SERVERS)
}

impl Job {
    /// Creates a job on the unmodified rack.
    pub fn new(policy: &'static str, slo: Option<Nanos>, seed: u64) -> Job {
        Job {
            policy,
            slo,
            seed,
            servers: None,
            rate: 1.0,
            until_missed: false,
            one_dedicated_core: false,
        }
    }

    /// Returns `true` if the job is the lower bound for all policies, rather than a run of a policy.
    pub fn is_bound(&self) -> bool {
        self.policy == ORACLE
    }
}

/// Result of a job.
#[derive(Debug)]
pub enum JobResult {
    Run(SimReport),
    Bound(OracleReport),
}

/// Parameters common to all simulations.
pub struct Runner {
    spec: RackSpec,
    /// Traffic that replaces that of all chains.
    instead: Option<OsString>,
    packets: PacketCache,
    /// `true` if reports must contain bursts.
    bursts: bool,
    /// Completed runs that are skipped.
    finished: Option<Identified>,
    stop: Arc<AtomicBool>,
    /// Progress over all runs so far, in millionths of a run.
    parts: AtomicU64,
}

/// File of runs, and the hashes that distinguish them from runs of other programs and captures.
struct Identified {
    runs: Finished,
    /// Hash of this program.
    program: Fnv,
    /// Hashes of captures.
    captures: Mutex<HashMap<PathBuf, Fnv>>,
}

impl Identified {
    fn open(path: &Path) -> Result<Identified, CliError> {
        let program = std::env::current_exe().and_then(|program| content(&program));
        Ok(Identified {
            runs: Finished::open(path)?,
            program: program.map_err(|source| CliError::System {
                what: "this program cannot be read",
                source,
            })?,
            captures: Mutex::default(),
        })
    }

    /// Returns a capture's hash.
    fn capture(&self, path: &Path) -> Result<Fnv, CliError> {
        let known = self.captures.lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        if let Some(hash) = known.get(path) {
            return Ok(*hash);
        }
        let wrong = |what: String| CliError::Input(format!("{}: {what}", path.display()));
        // A pipe can be read only once.
        if path.metadata().is_ok_and(|file| !file.is_file()) {
            return Err(wrong("expected a capture in a file with --resume".to_owned()));
        }
        let hash = content(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        known.insert(path.to_owned(), hash);
        Ok(hash)
    }

    /// Returns a hash of everything that determines a run. `missed` marks a run that ended before all packets had
    /// arrived.
    fn key(
        &self,
        job: &Job,
        spec: &RackSpec,
        sources: &[Source],
        (bursts, missed): (bool, bool),
    ) -> Result<String, CliError> {
        let mut hash = self.program;
        // Writing into a hash cannot fail.
        let _ = write!(hash, "{}\n{bursts}\n{spec:?}\n", job.policy);
        for source in sources {
            let _ = writeln!(hash, "{}", source.key());
            if let Some(path) = source.capture() {
                let _ = writeln!(hash, "{}", self.capture(path)?);
            }
        }
        if missed {
            let _ = writeln!(hash, "until missed");
        }
        if job.one_dedicated_core {
            let _ = writeln!(hash, "one dedicated core");
        }
        Ok(hash.to_string())
    }
}

/// Returns a hash of a file's content.
fn content(path: &Path) -> io::Result<Fnv> {
    let mut file = InputFile::open(path)?;
    let (mut hash, mut buffer) = (Fnv::default(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash),
            count => hash.bytes(&buffer[..count]),
        }
    }
}

/// Progress of a complete run.
const WHOLE: u64 = 1_000_000;

impl Runner {
    /// Creates a runner for a rack with the arguments of the command.
    ///
    /// # Errors
    /// The file of completed runs cannot be used.
    pub fn new(spec: &RackSpec, args: &SimulateArgs, stop: &Arc<AtomicBool>) -> Result<Runner, CliError> {
        let mut spec = spec.clone();
        spec.duration = args.duration.or(spec.duration);
        // The other policies of a comparison do not affect a run, so they must not affect its key.
        spec.policies.clear();
        Ok(Runner {
            spec,
            instead: args.traffic.clone(),
            packets: PacketCache::default(),
            bursts: args.report.is_some(),
            finished: args.resume.as_deref().map(Identified::open).transpose()?,
            stop: Arc::clone(stop),
            parts: AtomicU64::new(0),
        })
    }

    /// Returns the number of these jobs in the file of completed runs; `None` if that is new, or none was named.
    ///
    /// # Errors
    /// Traffic is invalid, or a capture cannot be read.
    pub fn finished(&self, jobs: &[Job]) -> Result<Option<usize>, CliError> {
        let Some(finished) = self.finished.as_ref().filter(|f| !f.runs.is_empty()) else {
            return Ok(None);
        };
        let mut count = 0;
        for job in jobs.iter().filter(|job| !job.is_bound()) {
            let spec = self.rack(job);
            let key = finished.key(job, &spec, &self.sources(&spec)?, (self.bursts, false))?;
            count += usize::from(finished.runs.has(&key));
        }
        Ok(Some(count))
    }

    /// Returns the number of completed runs, with fractions of those in progress.
    pub fn runs(&self) -> f64 {
        self.parts.load(Ordering::Relaxed) as f64 / WHOLE as f64
    }

    /// Returns the rack of a run.
    fn rack(&self, job: &Job) -> RackSpec {
        let mut spec = self.spec.clone();
        spec.seed = job.seed;
        for chain in &mut spec.chains {
            chain.slo = job.slo.unwrap_or(chain.slo);
            chain.traffic.rate_scale *= job.rate;
        }
        if let (Some(servers), Some(last)) = (job.servers, spec.rack.servers.last().cloned()) {
            // Only the servers that the spec names fail.
            let last = Server { fails_at: None, ..last };
            spec.rack.servers.resize(servers, last);
        }
        spec
    }

    /// Checks that a run is possible, before any slow step.
    ///
    /// # Errors
    /// A policy cannot be created for a chain, or traffic is invalid.
    pub fn check(&self, job: &Job) -> Result<(), CliError> {
        // Mean packet length; it does not affect the check.
        const BYTES: f64 = 1000.0;
        let spec = self.rack(job);
        if !job.is_bound() {
            for chain in &spec.chains {
                policy(chain, job, BYTES)?;
            }
        }
        self.sources(&spec).map(drop)
    }

    /// Returns the source of each chain's packets.
    fn sources(&self, spec: &RackSpec) -> Result<Vec<Source>, CliError> {
        let source = |number| Source::new(spec, number, self.instead.as_deref(), &self.stop);
        (0..spec.chains.len()).map(source).collect()
    }

    /// Runs a job unless it is already in the file; `None` if it was stopped.
    ///
    /// # Errors
    /// Traffic cannot be loaded, the simulation fails, or the file of completed runs cannot be read or written.
    pub fn run(&self, job: &Job) -> Result<Option<JobResult>, CliError> {
        let spec = self.rack(job);
        let sources = self.sources(&spec)?;
        if job.is_bound() {
            // Computing a bound is faster than a look-up in the file.
            let report = self.bound(&spec, sources)?;
            return Ok(report.map(JobResult::Bound));
        }
        let Some(finished) = &self.finished else {
            let report = self.simulate(job, &spec, sources)?;
            return Ok(report.map(JobResult::Run));
        };
        let key = |missed| finished.key(job, &spec, &sources, (self.bursts, missed));
        // A complete run also covers one that may end early.
        let keys = [key(false)?, key(true)?];
        for key in &keys[..1 + usize::from(job.until_missed)] {
            if let Some(report) = finished.runs.get(key)? {
                self.parts.fetch_add(WHOLE, Ordering::Relaxed);
                return Ok(Some(JobResult::Run(report)));
            }
        }
        let report = self.simulate(job, &spec, sources)?;
        if let Some(report) = &report {
            finished.runs.add(&keys[usize::from(report.missed)], report)?;
        }
        Ok(report.map(JobResult::Run))
    }

    fn bound(&self, spec: &RackSpec, sources: Vec<Source>) -> Result<Option<OracleReport>, CliError> {
        let Some(packets) = self.packets.get(sources, &self.stop)? else {
            return Ok(None);
        };
        let mut chains = Vec::new();
        for (chain, packets) in spec.chains.iter().zip(packets.iter()) {
            chains.push(BoundedChain {
                model: chain.model().clone(),
                slo: chain.slo,
                workload: packets.workload()?,
            });
        }
        let mut progress = self.progress(&packets);
        let report = oracle_with(chains, &self.options(spec), |time| {
            progress.tell(time.0);
            !self.stop.load(Ordering::Relaxed)
        });
        let report = report.map_err(failed)?;
        progress.tell(u64::MAX);
        Ok((!self.stop.load(Ordering::Relaxed)).then_some(report))
    }

    fn simulate(&self, job: &Job, spec: &RackSpec, sources: Vec<Source>) -> Result<Option<SimReport>, CliError> {
        let Some(packets) = self.packets.get(sources, &self.stop)? else {
            return Ok(None);
        };
        let mut chains = Vec::new();
        for (chain, packets) in spec.chains.iter().zip(packets.iter()) {
            chains.push(ChainRun {
                model: chain.model().clone(),
                slo: chain.slo,
                policy: policy(chain, job, packets.mean_bytes)?,
                workload: packets.workload()?,
            });
        }
        let mut progress = self.progress(&packets);
        let options = RunOptions {
            until_missed: job.until_missed,
            ..self.options(spec)
        };
        let report = simulate_with(&spec.rack, chains, &options, |time| {
            progress.tell(time.0);
            !self.stop.load(Ordering::Relaxed)
        });
        let report = report.map_err(failed)?;
        progress.tell(u64::MAX);
        Ok((!self.stop.load(Ordering::Relaxed)).then_some(report))
    }

    fn options(&self, spec: &RackSpec) -> RunOptions {
        RunOptions {
            seed: spec.seed,
            window: spec.window,
            warm_up: spec.warm_up,
            bursts: self.bursts,
            ..RunOptions::default()
        }
    }

    /// Returns the progress of a run of these packets.
    fn progress(&self, packets: &InUse<'_>) -> Progress<'_> {
        let whole = packets.iter().map(|packets| packets.duration.0).max();
        Progress {
            parts: &self.parts,
            whole: whole.unwrap_or(0).clamp(1, LONGEST.0),
            told: 0,
        }
    }
}

/// Progress of a run.
struct Progress<'r> {
    parts: &'r AtomicU64,
    whole: u64,
    told: u64,
}

impl Progress<'_> {
    /// Updates the progress to an arrival time.
    fn tell(&mut self, time: u64) {
        let time = u128::from(time.min(self.whole));
        let parts = (u128::from(WHOLE) * time / u128::from(self.whole)) as u64;
        self.parts.fetch_add(parts - self.told, Ordering::Relaxed);
        self.told = parts;
    }
}

/// Converts a simulation's error.
fn failed(error: SimError) -> CliError {
    match error {
        SimError::Traffic(error) => CliError::Traffic(error),
        SimError::Setting {
            field: "warm_up",
            expected,
        } => CliError::Input(format!("spec.warmUp: expected {expected}")),
        error => CliError::Input(error.to_string()),
    }
}

/// Creates a policy for a chain with packets of this mean length.
fn policy(chain: &RackChain, job: &Job, bytes: f64) -> Result<RackPolicy, CliError> {
    let profile: CapacityProfile = chain.profile(chain.slo, bytes);
    let objective = Objective {
        slo: chain.slo,
        profile: &profile,
        packet: Nanos(chain.model().packet_nanos(bytes).round() as u64),
        ingress: chain.ingress,
    };
    let policy = match job.one_dedicated_core {
        true => RackPolicy::with_one_dedicated_core(job.policy, &objective),
        false => RackPolicy::named(job.policy, &objective),
    };
    policy.map_err(|error| CliError::Input(format!("chain \"{}\": {error}", chain.name)))
}
