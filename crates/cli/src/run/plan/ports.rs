//! Ports of a run: those of the arguments or the spec, and their conflicts.

use crate::error::CliError;
use crate::run::args::RunArgs;
use tailwater_api::{PortName, PortSetup, PortsSpec, two_kinds};
use tailwater_functions::spec::{ChainSpec, Match};
use tailwater_net::Nanos;

/// Ports of a run.
#[derive(Debug)]
pub struct PortPlan {
    /// Ports and their set-up.
    pub ports: PortsSpec,
    /// Descriptors of each queue; `None`: as many as fit the cache.
    pub ring: Option<u16>,
    /// Time for which packets are received; `None`: until the run is stopped.
    pub duration: Option<Nanos>,
    /// Idle time after which a core sleeps, and the time it sleeps; `None`: never.
    pub nap: Option<Nanos>,
}

impl PortPlan {
    /// Returns the chain's own ports.
    pub fn names(&self) -> impl Iterator<Item = &PortName> {
        [Some(&self.ports.entry), self.ports.exit.as_ref()]
            .into_iter()
            .flatten()
    }

    /// The ports are kernel interfaces without DPDK.
    pub fn are_kernel(&self) -> bool {
        self.ports.entry.is_kernel()
    }
}

/// Returns the ports named on the command line, or else in the spec, if no traffic is named. Only makes quick checks.
///
/// # Errors
/// Flags contradict each other or the spec, or this program was built without ports.
pub fn wanted(args: &RunArgs, spec: &ChainSpec) -> Result<Option<PortPlan>, CliError> {
    let wrong = |message: &str| Err(CliError::Input(message.to_owned()));
    let ports = match &args.ports[..] {
        [] if args.traffic.is_some() || args.saturate => None,
        [] => spec.ports.clone(),
        [entry, rest @ ..] => Some(PortsSpec {
            entry: entry.clone(),
            exit: rest.first().cloned(),
            set_up: PortSetup {
                both_ways: args.both_ways,
                ..spec.ports.as_ref().map(|ports| ports.set_up).unwrap_or_default()
            },
        }),
    };
    let Some(mut ports) = ports else {
        let flag = match args {
            RunArgs {
                no_promiscuous: true, ..
            } => "--no-promiscuous",
            RunArgs { nap: Some(_), .. } => "--nap",
            _ => return Ok(None),
        };
        return wrong(&format!(
            "{flag} applies to ports only: set one with --port or in the spec"
        ));
    };
    if args.no_promiscuous {
        ports.set_up.promiscuous = false;
    }
    if args.ports.len() > 2 {
        return wrong("--port: expected one port, or an entry port and an exit port");
    }
    if ports.exit.as_ref().is_some_and(|exit| exit.conflicts(&ports.entry)) {
        return wrong(
            "--port: expected two different devices, found the same one twice; with one --port, packets leave \
             through the port they arrived at",
        );
    }
    if let Some(exit) = ports
        .exit
        .as_ref()
        .filter(|exit| exit.is_kernel() != ports.entry.is_kernel())
    {
        return wrong(&format!("--port: {}", two_kinds(&ports.entry, exit)));
    }
    if args.load.rate.is_some() || args.load.rate_scale.is_some() {
        return wrong("--rate and --rate-scale apply to traffic from a file or preset, not from ports");
    }
    if spec.match_ != Match::default() {
        return wrong(
            "spec.match: not supported on ports, where a chain processes all received packets; remove it, and filter \
             in the NIC or switch",
        );
    }
    if cfg!(not(feature = "dpdk")) && !ports.entry.is_kernel() {
        return wrong(WITHOUT);
    }
    let ring = args.ring.map(|ring| {
        u16::try_from(ring).map_err(|_| {
            let most = u16::MAX;
            CliError::Input(format!(
                "--ring: expected at most {most} descriptors for ports, found {ring}"
            ))
        })
    });
    Ok(Some(PortPlan {
        ports,
        ring: ring.transpose()?,
        duration: args.duration,
        nap: args.nap,
    }))
}

/// Message of a program built without the feature.
const WITHOUT: &str = "this program was built without DPDK ports: cargo build --release --features dpdk (which needs \
                       DPDK: make deps); for a kernel interface write interface=NAME";

/// Checks early that external functions are possible in this run. `own` are the chain's ports.
///
/// # Errors
/// Cores would share a port, a flag does not apply, a device is used twice, ports are of different kinds, or this
/// program was built without the ports.
pub fn check_external(args: &RunArgs, spec: &ChainSpec, own: Option<&PortPlan>) -> Result<(), CliError> {
    let Some((function, _)) = spec.externals().next() else {
        return Ok(());
    };
    let wrong = |message: String| Err(CliError::Input(message));
    if args.auxiliary.is_some() {
        return wrong(format!(
            "function {function} is external: its packets cannot be offloaded; remove --auxiliary"
        ));
    }
    check_cores(args, spec)?;
    if args.nap.is_some() {
        return wrong(format!(
            "--nap: not supported with external function {function}, whose packets are polled for"
        ));
    }
    for port in own.iter().flat_map(|own| own.names()) {
        if let Some(user) = spec.external_at(port) {
            return wrong(format!(
                "--port {port}: device or interface already used by function {user}; give devices of one driver \
                 different numbers"
            ));
        }
    }
    let kernel = spec.externals().find(|(_, external)| external.port.is_kernel());
    let dpdk = spec.externals().find(|(_, external)| !external.port.is_kernel());
    match (kernel, dpdk) {
        (Some((kernel, _)), Some((dpdk, _))) => wrong(format!(
            "function {dpdk} has DPDK ports and function {kernel} kernel interfaces: expected ports of one kind for \
             all external functions of a chain"
        )),
        (Some((function, external)), None) if own.is_some_and(|own| !own.are_kernel()) => wrong(format!(
            "function {function} has port {}, and the chain has DPDK ports: expected DPDK ports for both, such as \
             net_af_packet2,iface={}",
            external.port,
            external.port.interface().unwrap_or_default()
        )),
        (None, Some((function, external))) if own.is_some_and(PortPlan::are_kernel) => wrong(format!(
            "function {function} has port {}, and the chain has kernel interfaces: expected interface=NAME for both",
            external.port
        )),
        (None, Some((function, _))) if cfg!(not(feature = "dpdk")) => {
            wrong(format!("function {function} is external: {WITHOUT}"))
        }
        _ => Ok(()),
    }
}

/// Checks that each core has its own ports of external functions, and that flows stay on their cores.
fn check_cores(args: &RunArgs, spec: &ChainSpec) -> Result<(), CliError> {
    let cores = args.cores.as_ref().map_or(1, |cores| cores.0.len());
    let Some((function, external)) = spec.externals().find(|(_, external)| !external.port.is_numbered()) else {
        let Some((function, _)) = spec.externals().next().filter(|_| cores > 1) else {
            return Ok(());
        };
        return match args.policy {
            Some(policy) if policy.moves_buckets() => Err(CliError::Input(format!(
                "--policy {}: the flows of external function {function} cannot move between cores; use --policy static",
                policy.name()
            ))),
            _ => Ok(()),
        };
    };
    let example = match external.port.interface() {
        Some(name) => format!("interface={name}%d"),
        None => "interface=NAME%d".to_owned(),
    };
    match cores {
        1 => Ok(()),
        _ => Err(CliError::Input(format!(
            "function {function} is external, and {cores} cores cannot share port {}: set one core with --cores, or \
             give each core an interface: port: {example}, where %d is 0, 1, ...",
            external.port
        ))),
    }
}
