//! A rack on Kubernetes: `tailwater controller`, `agent` and `definitions`.

mod args;
mod publish;
mod reader;
mod server;
mod software;

pub use args::{
    AGENT_EXAMPLES, AgentArgs, CONTROLLER_EXAMPLES, ControllerArgs, DEFINITIONS_EXAMPLES, INGRESS_EXAMPLES,
    IngressArgs, PUBLISH_EXAMPLES, PublishArgs,
};
pub use publish::publish;

use crate::control::yaml::to_yaml;
use crate::error::CliError;
use crate::output::{complain, print};
use crate::serve::{Serving, serve_with};
use crate::signals::stop_on_signals;
use args::{SecurityArgs, UnmatchedPackets};
use reader::ProfileReader;
use server::ProfiledServer;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tailwater_cluster::agent::{self, AgentConfig, ControlSocket, ReportsConfig};
use tailwater_cluster::controller::{self, BetterPlans, ControllerConfig, ProfilingConfig};
use tailwater_cluster::ingress::{FromServers, OpenFlowSwitch, SessionConfig, SteeringConfig, Unmatched};
use tailwater_cluster::leader::ElectionConfig;
use tailwater_cluster::rack_ingress::{self, RackIngressConfig};
use tailwater_cluster::reports::{self, ReportLimits, Security};
use tailwater_cluster::resources::{self, ServerStatus};
use tailwater_cluster::{Client, Notices};
use tailwater_functions::registry::schemas;
use tailwater_net::Nanos;
use tailwater_placement::improve::Saving;
use tailwater_placement::rack::{RackOptions, TailwaterScaling};
use tailwater_policy::server::IngressConfig;
use tailwater_profile::profiles::Machine;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

/// Name of the election.
const ELECTION: &str = "tailwater-controller";
/// Interval at which a signal is looked for.
const TICK: Duration = Duration::from_millis(50);

/// Prints the definitions of the custom resources.
///
/// # Errors
/// The output cannot be written.
pub fn definitions() -> Result<ExitCode, CliError> {
    for definition in resources::definitions(&schemas()) {
        let document = serde_json::to_value(&definition).expect("definitions are plain");
        print(&format!("---\n{}", to_yaml(&document)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a controller until it is stopped.
///
/// # Errors
/// There is no API server, or an argument is wrong.
pub fn controller(args: &ControllerArgs) -> Result<ExitCode, CliError> {
    let duration = duration(args.lease);
    if duration.subsec_nanos() != 0 || duration.as_secs() < 2 {
        return Err(CliError::Input(
            "--lease: expected whole seconds, at least 2".to_owned(),
        ));
    }
    if args.lost_after < Nanos::from_secs(3) {
        return Err(CliError::Input(
            "--lost-after: expected at least 3s, three times the time between signs of life of the API server"
                .to_owned(),
        ));
    }
    let stop = stop_on_signals()?;
    let runtime = runtime()?;
    let config = ControllerConfig {
        election: ElectionConfig {
            namespace: args.namespace.clone(),
            name: ELECTION.to_owned(),
            identity: args.identity.clone().unwrap_or_else(host_name),
            duration,
        },
        period: Duration::from_secs(1),
        pause: Duration::from_millis(50),
        drain: self::duration(args.drain),
        peak: self::duration(args.peak),
        better: args.consolidate.map(|period| BetterPlans {
            period,
            least: Saving::Servers(usize::from(args.saving.max(1))),
        }),
        profiling: args.profile_image.as_ref().map(|image| ProfilingConfig {
            image: image.clone(),
            namespaces: args.profile_in.clone(),
            at_a_time: args.profile_jobs.into(),
            time_limit: self::duration(args.profile_time),
            cpu: args.profile_cpu.to_string(),
            memory: args.profile_memory.clone(),
        }),
        definitions: resources::definitions(&schemas()),
        options: RackOptions {
            lost_after: args.lost_after,
            moves: args.moves.into(),
            hold: args.hold,
            ..RackOptions::default()
        },
    };
    let ended = runtime.block_on(async {
        let client = client().await?;
        complain(
            "notice",
            &format!("controller {} takes part in the election", config.election.identity),
        );
        let policy = || Box::new(TailwaterScaling::default()) as Box<_>;
        let reader = Arc::new(ProfileReader);
        until_stopped(&stop, |stop| {
            controller::run(client, config, policy, reader, warnings(), stop)
        })
        .await;
        Ok(ExitCode::SUCCESS)
    });
    // A search for a better plan may take some seconds more.
    runtime.shutdown_background();
    ended
}

/// Runs a server of a rack until it is stopped.
///
/// # Errors
/// As `tailwater serve`; or there is no API server.
pub fn agent(args: &AgentArgs) -> Result<ExitCode, CliError> {
    let reports_security = match args.report_to.is_empty() {
        true => Security::None,
        false => security(&args.security, "--report-to")?,
    };
    let runtime = runtime()?;
    let client = runtime.block_on(client())?;
    let named = args.name.clone().or_else(|| std::env::var("NODE_NAME").ok());
    let name = named.unwrap_or_else(host_name);
    serve_with(&args.serve, move |serving| {
        let config = AgentConfig {
            server: name,
            namespace: args.namespace.clone(),
            heartbeat: duration(args.heartbeat),
            period: Duration::from_millis(500),
            refresh: Duration::from_secs(30),
            reports: ReportsConfig {
                to: args.report_to.clone(),
                period: duration(args.report_every),
                security: reports_security,
            },
            pods: resources::POD_DIRECTORY.into(),
            facts: ServerStatus {
                switch_port: args.switch_port.clone(),
                ..facts(&serving)
            },
        };
        complain("notice", &format!("agent of server {}", config.server));
        let socket = serving.socket.to_owned();
        let profiles = serving
            .spec
            .admission
            .as_ref()
            .map(|admission| admission.profiles.clone());
        let connect = move || ProfiledServer::new(ControlSocket::new(socket.clone()), profiles.clone());
        let run = |stop| agent::run(client, config, connect, warnings(), stop);
        runtime.block_on(until_stopped(serving.stop, run));
        // A request that the server does not answer must not hold up the end.
        runtime.shutdown_background();
    })
}

/// Runs an ingress until it is stopped.
///
/// # Errors
/// There is no API server, or an argument is wrong.
pub fn ingress(args: &IngressArgs) -> Result<ExitCode, CliError> {
    software::check(args)?;
    let stop = stop_on_signals()?;
    let runtime = runtime()?;
    let config = RackIngressConfig {
        steering: SteeringConfig {
            owner: args.owner,
            from_servers: match args.uplinks.is_empty() {
                true => FromServers::Normal,
                false => FromServers::Ports(args.uplinks.clone()),
            },
            unmatched: match args.unmatched {
                UnmatchedPackets::Drop => Unmatched::Drop,
                UnmatchedPackets::Normal => Unmatched::Normal,
                UnmatchedPackets::Leave => Unmatched::Leave,
            },
            table: args.table,
            most_fill: args.fill,
            lost_after: args.listen.map(|_| args.lost_after),
            ..SteeringConfig::default()
        },
        mapping: IngressConfig {
            prefix_v4: args.prefix_v4,
            prefix_v6: args.prefix_v6,
            threshold: u16::MAX,
            table: args.table,
            flow_hash: true,
            rebalance: true,
            scale_in: false,
        },
    };
    let listening = match args.listen {
        Some(address) => Some((address, security(&args.security, "--listen")?)),
        None => None,
    };
    runtime.block_on(async {
        let client = client().await?;
        let (reports, received) = mpsc::channel(1024);
        if let Some((address, security)) = listening {
            let wrong = |error| CliError::Input(format!("--listen {address}: {error}"));
            let listener = TcpListener::bind(address).await.map_err(wrong)?;
            tokio::spawn(reports::serve(
                listener,
                security,
                ReportLimits::default(),
                reports,
                warnings(),
            ));
        }
        match &args.switch {
            Some(endpoint) => {
                let switch = OpenFlowSwitch::start(endpoint.clone(), SessionConfig::default());
                complain("notice", &format!("ingress of switch {endpoint}"));
                let run = |stop| rack_ingress::run(client, config, switch, received, warnings(), stop);
                until_stopped(&stop, run).await;
            }
            None => {
                let (switch, _metrics) = software::start(args, warnings())?;
                let run = |stop| rack_ingress::run(client, config, switch, received, warnings(), stop);
                until_stopped(&stop, run).await;
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Security of the connections that an option asks for.
fn security(args: &SecurityArgs, option: &str) -> Result<Security, CliError> {
    match (&args.tls, args.insecure) {
        (Some(folder), _) => Ok(Security::Mutual(folder.clone())),
        (None, true) => Ok(Security::None),
        (None, false) => Err(CliError::Input(format!(
            "{option}: expected --tls FOLDER with the rack's certificates, or --insecure on a network that is secured \
             otherwise"
        ))),
    }
}

/// Resources that a server offers.
fn facts(serving: &Serving<'_>) -> ServerStatus {
    let [dedicated, auxiliary] = serving.cores;
    let machine = Machine::of(dedicated[0]);
    ServerStatus {
        core_numbers: dedicated.iter().map(|&core| core as u32).collect(),
        cores: dedicated.len() as u32,
        auxiliary: auxiliary.len() as u32,
        cache_bytes: u64::from(machine.cache_kibibytes) * 1024,
        headroom: serving
            .spec
            .admission
            .as_ref()
            .map_or(0.0, |admission| admission.headroom),
        machine: machine.label(),
        ports: serving.spec.ports.iter().map(|port| port.name.clone()).collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..ServerStatus::default()
    }
}

fn duration(nanos: Nanos) -> Duration {
    Duration::from_nanos(nanos.0)
}

fn runtime() -> Result<Runtime, CliError> {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.map_err(|source| CliError::System {
        what: "threads cannot be started",
        source,
    })
}

async fn client() -> Result<Client, CliError> {
    let client = Client::try_default().await;
    client.map_err(|error| CliError::Input(format!("there is no API server: {error}")))
}

fn warnings() -> Notices {
    Notices::new(|line| complain("warning", line))
}

/// Runs until it has ended. When `stop` is set, by a signal or otherwise, it is told to end.
async fn until_stopped<F: Future<Output = ()>>(stop: &AtomicBool, run: impl FnOnce(watch::Receiver<bool>) -> F) {
    let (sender, receiver) = watch::channel(false);
    let mut run = pin!(run(receiver));
    loop {
        tokio::select! {
            () = &mut run => return,
            () = sleep(TICK) => {
                if stop.load(Ordering::Relaxed) {
                    sender.send_replace(true);
                }
            }
        }
    }
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "server".to_owned(),
        name => name.to_owned(),
    }
}
