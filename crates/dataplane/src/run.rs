//! A run: a chain on a trace or a port, from the first packet to the report.

use crate::batches::BatchNotes;
use crate::clock::Clock;
use crate::cores::KeepOff;
use crate::external::{Beside, Functions};
use crate::port::{Port, RetaError, round_robin};
use crate::report::RunReport;
use crate::scaling::ScalingConfig;
use crate::scaling::server::ServerConfig;
use crate::trace_nic::{TraceNic, TraceNicConfig};
use crate::watch::News;
use setup::{check, ready};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use tailwater_functions::spec::ChainSpec;
use tailwater_isolation::server::IsolationConfig;
use tailwater_net::Nanos;
use tailwater_traffic::Trace;

mod chains;
mod error;
mod ledger;
mod progress;
mod setup;
mod threads;

pub use error::{RunError, Unrecorded};
pub use progress::Progress;

/// How to run.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// The cores to run on, a worker each.
    pub cores: Vec<usize>,
    /// The NIC of a run on a trace.
    pub nic: TraceNicConfig,
    /// The length of a measurement window.
    pub window: Nanos,
    /// Where to record what is sent.
    pub capture_out: Option<PathBuf>,
    /// Packets of the traffic that were left out because `spec.match` does not want them.
    pub not_matched: u64,
    /// Keys the flow table's hash.
    pub seed: u64,
    /// How flows are handed to auxiliary cores; without it every packet is processed where it is
    /// received.
    pub scaling: Option<ScalingConfig>,
    /// How RSS buckets move between `cores`. With one core or without pace they have nowhere to go or
    /// no time at which to move, and stay.
    pub server: Option<ServerConfig>,
    /// How functions run in processes of their own; without it they run in this one. Not with `scaling`.
    pub isolation: Option<IsolationConfig>,
}

/// Runs the chain of `spec` on `trace` until the traffic ends or `stop` is set. `progress` is
/// called a few times a second, from the calling thread.
///
/// # Errors
/// If the run cannot be set up, or its capture not be written.
pub fn run(
    spec: &ChainSpec,
    trace: Trace,
    config: &RunConfig,
    stop: &AtomicBool,
    progress: impl FnMut(&Progress),
) -> Result<RunReport, RunError> {
    run_noted(spec, trace, config, stop, None, progress)
}

/// As [`run`]; also notes what single batches take, if somebody wants to know.
///
/// # Errors
/// As [`run`].
pub fn run_noted(
    spec: &ChainSpec,
    trace: Trace,
    config: &RunConfig,
    stop: &AtomicBool,
    notes: Option<&BatchNotes>,
    progress: impl FnMut(&Progress),
) -> Result<RunReport, RunError> {
    let clock = Clock::start();
    let mut nic = trace_nic(spec, trace, config, &clock)?;
    on_port(spec, (&mut nic, clock), config, stop, notes, progress)
}

/// As [`run`], for a chain with external functions, which are attached so.
///
/// # Errors
/// As [`run`].
pub fn run_attached(
    spec: &ChainSpec,
    trace: Trace,
    functions: impl Functions<TraceNic>,
    config: &RunConfig,
    stop: &AtomicBool,
    progress: impl FnMut(&Progress),
) -> Result<RunReport, RunError> {
    let clock = Clock::start();
    let nic = trace_nic(spec, trace, config, &clock)?;
    let mut port = Beside::new(nic, functions);
    on_port(spec, (&mut port, clock), config, stop, None, progress)
}

/// The trace NIC of a run.
fn trace_nic(spec: &ChainSpec, trace: Trace, config: &RunConfig, clock: &Clock) -> Result<TraceNic, RetaError> {
    let queues = config.cores.len() as u16;
    let nic_config = TraceNicConfig {
        // What is handed over is copied by who processes it.
        in_parts: config.nic.in_parts || config.scaling.is_some(),
        ..config.nic.clone()
    };
    let reta = round_robin(queues);
    TraceNic::new(trace, spec.rss(), queues, &reta, nic_config, clock.clone())
}

/// Runs the chain of `spec` on what comes from `port`, whose times are on `clock`, as [`run`] does on
/// a trace. Buckets are dealt out to queues in turn at first.
///
/// # Errors
/// As [`run`].
pub fn run_on(
    spec: &ChainSpec,
    port: &mut dyn Port,
    clock: Clock,
    config: &RunConfig,
    stop: &AtomicBool,
    progress: impl FnMut(&Progress),
) -> Result<RunReport, RunError> {
    on_port(spec, (port, clock), config, stop, None, progress)
}

/// See [`run_on`] and [`run_noted`].
fn on_port(
    spec: &ChainSpec,
    (port, clock): (&mut dyn Port, Clock),
    config: &RunConfig,
    stop: &AtomicBool,
    notes: Option<&BatchNotes>,
    mut progress: impl FnMut(&Progress),
) -> Result<RunReport, RunError> {
    check(spec, config)?;
    // The threads that report and record get the other cores, if there are any.
    let _elsewhere = KeepOff::new(&config.cores);
    let (crew, mut ledger) = ready(spec, (&mut *port, clock), config, notes)?;
    let port = &*port;
    let start = ledger.start;
    let look = |news: &News| ledger.look(port, news, &mut progress);
    let ended = crew.run(port, start, stop, look)?;
    ledger.close(ended, port, stop.load(Ordering::Relaxed))
}
