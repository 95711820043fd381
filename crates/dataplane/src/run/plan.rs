//! Plan of a run: a chain and a configuration that do not contradict each other.

use crate::kept_packets::KeptConfig;
use crate::run::error::RunError;
use crate::scaling::ScalingConfig;
use crate::scaling::server::ServerConfig;
use crate::trace_nic::TraceNicConfig;
use std::path::PathBuf;
use tailwater_functions::spec::ChainSpec;
use tailwater_isolation::server::IsolationConfig;
use tailwater_net::Nanos;

/// Default length of a measurement window.
const WINDOW: Nanos = Nanos::from_millis(300);

/// Configuration of a run.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// Cores to run on, one worker each.
    pub cores: Vec<usize>,
    /// Trace NIC, for a run on a trace.
    pub nic: TraceNicConfig,
    /// Length of a measurement window.
    pub window: Nanos,
    /// File to record sent packets to.
    pub capture_out: Option<PathBuf>,
    /// Directory to keep late, lost and dropped packets in.
    pub keep_packets: Option<KeptConfig>,
    /// Packets of the traffic excluded by `spec.match`.
    pub not_matched: u64,
    /// Seed of the flow table's hash.
    pub seed: u64,
    /// Offloading of flows to auxiliary cores. Without it every packet is processed where it is received.
    pub scaling: Option<ScalingConfig>,
    /// Migration of RSS buckets between `cores`. With one core there is no destination, and without pacing no time at
    /// which to move: buckets stay.
    pub server: Option<ServerConfig>,
    /// Isolation of functions in separate processes, on dedicated and auxiliary cores. `None` runs them in this one.
    pub isolation: Option<IsolationConfig>,
}

impl RunConfig {
    /// Configuration of a plain run on these cores: in this process, without offloading or migration.
    pub fn new(cores: Vec<usize>) -> RunConfig {
        RunConfig {
            cores,
            nic: TraceNicConfig::default(),
            window: WINDOW,
            capture_out: None,
            keep_packets: None,
            not_matched: 0,
            seed: 0,
            scaling: None,
            server: None,
            isolation: None,
        }
    }
}

/// Plan of a run. Chain and configuration are checked against each other. A run of the plan can still fail when its
/// functions are built, or by the machine. The plan is plain data: it holds no thread, process, port or memory for
/// packets, and can be executed repeatedly.
#[derive(Clone, Debug)]
pub struct RunPlan {
    spec: ChainSpec,
    config: RunConfig,
}

impl RunPlan {
    /// Plans a run of a chain.
    ///
    /// # Errors
    /// The configuration and the chain exclude each other.
    pub fn new(spec: ChainSpec, config: RunConfig) -> Result<RunPlan, RunError> {
        check(&spec, &config)?;
        Ok(RunPlan { spec, config })
    }

    /// The chain.
    pub fn spec(&self) -> &ChainSpec {
        &self.spec
    }

    /// The configuration.
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// Replaces the mappers, which may depend on a profile that was measured after the rest was planned.
    ///
    /// # Errors
    /// The chain or the rest of the configuration excludes them.
    pub fn with_mappers(
        self,
        scaling: Option<ScalingConfig>,
        server: Option<ServerConfig>,
    ) -> Result<RunPlan, RunError> {
        let config = RunConfig {
            scaling,
            server,
            ..self.config
        };
        RunPlan::new(self.spec, config)
    }

    /// Sets the figures of loaded traffic: the time for which it arrives (`None`: the trace once), and the packets that
    /// `spec.match` excluded from it.
    #[must_use]
    pub fn with_traffic(mut self, duration: Option<Nanos>, not_matched: u64) -> RunPlan {
        self.config.nic.duration = duration;
        self.config.not_matched = not_matched;
        self
    }
}

/// Rejects configurations that exclude each other.
fn check(spec: &ChainSpec, config: &RunConfig) -> Result<(), RunError> {
    check_external(spec, config)?;
    check_bound_to_core(spec, config)?;
    if let (Some(_), Some(scaling)) = (&spec.state, &config.scaling) {
        check_state(scaling, config.isolation.is_some())?;
    }
    let is_offloading = config.scaling.as_ref().is_some_and(|it| !it.auxiliary.is_empty());
    let isolation = config.isolation.as_ref().filter(|_| is_offloading);
    match isolation.and_then(|isolation| isolation.bound_to_one_core(spec)) {
        Some((function, reason)) => Err(RunError::IsolatedOnOneCore {
            function: function.to_owned(),
            reason,
        }),
        None => Ok(()),
    }
}

/// Rejects ways of offloading that external flow state excludes. Policies that offload flows are rejected by the run,
/// which creates the mappers.
fn check_state(scaling: &ScalingConfig, is_isolated: bool) -> Result<(), RunError> {
    if scaling.dedicated_help {
        return Err(RunError::STATE_WITH_HELP);
    }
    if is_isolated {
        return Err(RunError::STATE_OF_ISOLATED);
    }
    Ok(())
}

/// Rejects external functions where flows move between cores: each core has its own ports, and packets are outside.
fn check_external(spec: &ChainSpec, config: &RunConfig) -> Result<(), RunError> {
    let Some((function, _)) = spec.externals().next() else {
        return Ok(());
    };
    let problem = if config.cores.len() > 1 && config.server.is_some() {
        "its flows cannot move between cores; use --policy static"
    } else if config.keep_packets.is_some() {
        "its packets are not kept; remove --keep-packets"
    } else if config.scaling.is_some() {
        "its packets cannot be offloaded; remove --auxiliary"
    } else if spec.state.is_some() {
        "flows behind it are unknown, so their state cannot be stored; remove spec.state"
    } else {
        return Ok(());
    };
    Err(RunError::External {
        function: function.to_owned(),
        problem,
    })
}

/// Rejects functions whose state belongs to a core where flows move between cores.
fn check_bound_to_core(spec: &ChainSpec, config: &RunConfig) -> Result<(), RunError> {
    let Some((function, reason)) = spec.bound_to_core() else {
        return Ok(());
    };
    let remedy = match &config.scaling {
        _ if config.cores.len() > 1 && config.server.is_some() => "use --policy static",
        Some(scaling) if scaling.auxiliary.is_empty() => "use --policy static",
        Some(_) => "remove --auxiliary",
        None => return Ok(()),
    };
    Err(RunError::BoundToCore {
        function: function.to_owned(),
        reason,
        remedy,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::sync::Arc;
    use tailwater_handover::park::Mode;
    use tailwater_isolation::server::{Launch, Program};
    use tailwater_policy::core::CoreMapper;
    use tailwater_policy::server::ServerMapper;

    fn spec(functions: &str, rest: &str) -> ChainSpec {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  \
             slo: {{latency: 1ms}}\n  functions: [{functions}]\n{rest}"
        );
        ChainSpec::parse(&text, "test", Path::new(".")).unwrap_or_else(|error| panic!("{error}"))
    }

    fn offloading() -> RunConfig {
        RunConfig {
            scaling: Some(ScalingConfig {
                auxiliary: vec![1],
                dedicated_help: false,
                mapper: Arc::new(|| -> Box<dyn CoreMapper> { unreachable!("nothing runs") }),
                park: Mode::Sleep,
                buffers: 64,
            }),
            ..RunConfig::new(vec![0])
        }
    }

    #[test]
    fn contradictions_are_found_before_anything_starts() {
        let external = || spec("{name: fw, external: {port: net_fw0, timeout: 1ms}}", "");
        let counter = || spec("{xdp: {file: ../../examples/programs/xdp/source_counter.o}}", "");
        let stored = || {
            let state = "  state: {redis: {socket: /redis.sock}}\n";
            spec("{nat: {external: [203.0.113.0/28]}}", state)
        };
        // Another isolated function of the chain is no obstacle.
        let guarded = || spec("{accounting: }, {dnsGuard: {limits: {responses: 20}}}", "");
        let launch = Launch {
            program: "tailwater".into(),
            arguments: Vec::new(),
        };
        let programs = Program::of_chain(&guarded(), &launch);
        let isolated = RunConfig {
            isolation: Some(IsolationConfig::new(programs, Nanos::from_millis(1))),
            ..offloading()
        };
        let helping = RunConfig {
            scaling: offloading().scaling.map(|scaling| ScalingConfig {
                dedicated_help: true,
                ..scaling
            }),
            ..offloading()
        };
        let rows = [
            (
                external(),
                RunConfig {
                    server: Some(ServerConfig {
                        mapper: Arc::new(|| -> Box<dyn ServerMapper> { unreachable!("nothing runs") }),
                    }),
                    ..RunConfig::new(vec![0, 1])
                },
                "its flows cannot move between cores; use --policy static",
            ),
            (
                external(),
                offloading(),
                "its packets cannot be offloaded; remove --auxiliary",
            ),
            (
                stored(),
                helping,
                "spec.state: dedicated cores cannot help each other with flow state in Redis",
            ),
            (
                stored(),
                isolated.clone(),
                "spec.state: isolated functions cannot keep flow state in Redis on auxiliary cores: remove \
                 --auxiliary, or set --isolation none",
            ),
            (
                counter(),
                RunConfig {
                    server: Some(ServerConfig {
                        mapper: Arc::new(|| -> Box<dyn ServerMapper> { unreachable!("nothing runs") }),
                    }),
                    ..RunConfig::new(vec![0, 1])
                },
                "its maps belong to one core, and do not move with flows; use --policy static",
            ),
            (
                counter(),
                offloading(),
                "its maps belong to one core, and do not move with flows; remove --auxiliary",
            ),
            (
                guarded(),
                isolated,
                "isolated function dnsGuard cannot run on auxiliary cores: it counts responses and queries of all \
                 cores together",
            ),
        ];
        for (spec, config, message) in rows {
            let error = RunPlan::new(spec, config).unwrap_err().to_string();
            assert!(error.ends_with(message), "{error}");
        }
    }

    #[test]
    fn mappers_are_checked_when_they_are_added() {
        let external = spec("{name: fw, external: {port: net_fw0, timeout: 1ms}}", "");
        let plan = RunPlan::new(external, RunConfig::new(vec![0])).unwrap();
        let refused = plan.clone().with_mappers(offloading().scaling, None);
        assert!(matches!(refused, Err(RunError::External { .. })), "{refused:?}");
        let plan = plan.with_mappers(None, None).unwrap();
        let plan = plan.with_traffic(Some(Nanos(5)), 3);
        assert_eq!(
            (plan.config().nic.duration, plan.config().not_matched),
            (Some(Nanos(5)), 3)
        );
    }
}
