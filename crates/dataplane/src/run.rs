//! Run of a plan, from the first packet to the report.

use crate::clock::Clock;
use crate::core_host::CoreHost;
use crate::cores::AvoidCores;
use crate::external::kernel::KernelPorts;
use crate::external::with_externals::WithExternals;
use crate::port::{Port, RetaError, round_robin};
use crate::reload_watcher::News;
use crate::report::RunReport;
use crate::shared_port::ChainPort;
use crate::trace_nic::{TraceNic, TraceNicConfig};
use setup::set_up;
use std::sync::atomic::Ordering;
use tailwater_isolation::server::limit_server;
use tailwater_policy::turns::TurnShare;
use tailwater_traffic::Trace;
use threads::OnHost;

mod chains;
mod control;
pub(crate) mod error;
mod packets;
pub(crate) mod plan;
pub(crate) mod progress;
mod run_recorder;
mod setup;
mod threads;

pub use control::{ReconfigureCell, RunControl};
pub use error::{RunError, Unrecorded};
pub use packets::Packets;
pub use plan::{RunConfig, RunPlan};
pub use progress::{FunctionProgress, LastWindow, Progress, RunWork};
pub use tailwater_chain::chain::FunctionTotals;

/// Executes a plan on `packets`: a trace, or a port on which RSS buckets are initially assigned to queues round-robin.
/// Returns when the traffic has ended, or once `control` stops the run.
///
/// # Errors
/// If the run cannot be set up, a thread panics, or not everything can be recorded. In the last two cases the error has
/// the report.
pub fn run<'p>(
    plan: &RunPlan,
    packets: impl Into<Packets<'p>>,
    control: RunControl<'_>,
) -> Result<RunReport, RunError> {
    match packets.into() {
        Packets::Trace(trace) => {
            let clock = control.clock.clone().unwrap_or_else(Clock::start);
            let mut nic = trace_nic(plan, trace, &clock)?;
            on_port(plan, &mut nic, clock, control, None)
        }
        Packets::TraceWithExternals { trace, functions } => {
            let clock = control.clock.clone().unwrap_or_else(Clock::start);
            let nic = trace_nic(plan, trace, &clock)?;
            on_port(plan, &mut WithExternals::new(nic, functions), clock, control, None)
        }
        Packets::Port { port, clock } => on_port(plan, port, clock, control, None),
    }
}

/// Executes a plan on a chain's share of a port and of cores, beside other chains. The plan's cores are among those of
/// the host, and its auxiliary cores, if it has any, are all of those. External functions have kernel interfaces, which
/// are opened here. Packets arrive until `control` stops the run, after which the port still has to be
/// [withdrawn](crate::shared_port::Withdrawal).
///
/// # Errors
/// Same as [`run`].
pub fn run_hosted(
    plan: &RunPlan,
    (port, host): (&mut ChainPort, &CoreHost),
    share: TurnShare,
    control: RunControl<'_>,
) -> Result<RunReport, RunError> {
    let config = plan.config();
    // Packets, and nothing else, give such a worker work. One that waits for auxiliary cores says so.
    let external = plan.spec().externals().next();
    let only_fed = config.cores.len() == 1 && plan.spec().state.is_none() && external.is_none();
    if only_fed && config.scaling.is_none() && config.isolation.is_none() {
        // A batch, and what it releases.
        port.limit_held(2 * u32::from(plan.spec().packets.batch));
    }
    if let Some((function, _)) = external {
        let ports = KernelPorts::find(plan.spec(), config.cores.len() as u16);
        port.attach(ports.map_err(|source| RunError::Interface {
            function: function.to_owned(),
            source,
        })?);
    }
    // Until all processes of the functions have ended, which is before this returns.
    let real_time = match (&config.isolation, &config.cores[..]) {
        (Some(_), [_]) => {
            let auxiliary = config.scaling.as_ref().map_or(&[][..], |scaling| &scaling.auxiliary);
            let cores = config.cores.iter().chain(auxiliary);
            let raised = cores.map(|core| host.real_time(*core).ok_or(RunError::NoAnswer { core: *core }));
            raised.collect::<Result<Vec<_>, _>>()?
        }
        (Some(_), _) => return Err(RunError::IsolatedOnSeveralCores),
        (None, _) => Vec::new(),
    };
    let on_host = OnHost {
        host,
        share,
        chain: port.slot(),
        is_only_source: only_fed,
        ends: port.ends().clone(),
        succession: port.succession().cloned(),
        real_time: &real_time,
    };
    on_port(plan, port, host.clock().clone(), control, Some(on_host))
}

/// Creates the trace NIC of a run.
fn trace_nic(plan: &RunPlan, trace: Trace, clock: &Clock) -> Result<TraceNic, RetaError> {
    let config = plan.config();
    let queues = config.cores.len() as u16;
    let nic_config = TraceNicConfig {
        // The core that processes an offloaded packet copies its payload.
        in_parts: config.nic.in_parts || config.scaling.is_some(),
        ..config.nic.clone()
    };
    let reta = round_robin(queues);
    TraceNic::new(trace, plan.spec().rss(), queues, &reta, nic_config, clock.clone())
}

/// Executes a plan on the packets of `port`, whose times are on `clock`.
fn on_port(
    plan: &RunPlan,
    port: &mut dyn Port,
    clock: Clock,
    control: RunControl<'_>,
    on_host: Option<OnHost<'_>>,
) -> Result<RunReport, RunError> {
    let RunControl {
        stop,
        batches,
        reconfigure,
        traces,
        mut progress,
        clock: _,
    } = control;
    let config = plan.config();
    // Reporting and recording threads get the other cores, if there are any.
    let _elsewhere = AvoidCores::new(&config.cores);
    let (threads, mut recorder) = set_up(
        plan.spec(),
        (&mut *port, clock),
        (config, on_host.as_ref()),
        batches,
        (reconfigure, traces),
    )?;
    let port = &*port;
    let start = recorder.start;
    let look = |news: &News| recorder.on_timer(port, news, &mut progress);
    if threads.limits_workers {
        limit_server()?;
    }
    let ended = threads.run(port, start, stop, on_host, look)?;
    recorder.close(ended, port, stop.load(Ordering::Relaxed))
}
