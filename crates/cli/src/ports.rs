//! Ports of a run whose packets do not come from a trace.

use crate::args::RunArgs;
use crate::error::CliError;
use tailwater_api::{PortName, PortSetup, PortsSpec};
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::external::Functions;
use tailwater_dataplane::port::Port;
use tailwater_dataplane::trace_nic::TraceNic;
use tailwater_functions::spec::{ChainSpec, Match};

/// Returns the ports named on the command line, or else in the spec, if no traffic is named. Only makes quick checks.
///
/// # Errors
/// Flags contradict each other or the spec, or this program was built without ports.
pub fn wanted(args: &RunArgs, spec: &ChainSpec) -> Result<Option<PortsSpec>, CliError> {
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
    if args.load.rate.is_some() || args.load.rate_scale.is_some() {
        return wrong("--rate and --rate-scale apply to traffic from a file or preset, not from ports");
    }
    if spec.match_ != Match::default() {
        return wrong(
            "spec.match: not supported on ports, where a chain processes all received packets; remove it, and filter \
             in the NIC or switch",
        );
    }
    if cfg!(not(feature = "dpdk")) {
        return wrong(WITHOUT);
    }
    Ok(Some(ports))
}

/// Message of a program built without the feature.
const WITHOUT: &str = "this program was built without ports: cargo build --release --features dpdk (which needs \
                       DPDK: make deps)";

/// Checks early that external functions are possible in this run. `own` are the chain's ports.
///
/// # Errors
/// There are several cores, a flag does not apply, a device is used twice, or this program was built without ports.
pub fn check_external(args: &RunArgs, spec: &ChainSpec, own: Option<&PortsSpec>) -> Result<(), CliError> {
    let Some((function, _)) = spec.externals().next() else {
        return Ok(());
    };
    let wrong = |message: String| Err(CliError::Input(message));
    if args.auxiliary.is_some() || args.cores.as_ref().is_some_and(|cores| cores.0.len() > 1) {
        return wrong(format!(
            "function {function} is external: such a chain runs on one core; set one with --cores, and remove \
             --auxiliary"
        ));
    }
    if args.nap.is_some() {
        return wrong(format!(
            "--nap: not supported with external function {function}, whose packets are polled for"
        ));
    }
    for port in own.iter().flat_map(|own| names(own)) {
        if let Some(user) = spec.external_at(port) {
            return wrong(format!(
                "--port {port}: device or interface already used by function {user}; give devices of one driver \
                 different numbers"
            ));
        }
    }
    match cfg!(feature = "dpdk") {
        true => Ok(()),
        false => wrong(format!("function {function} is external: {WITHOUT}")),
    }
}

/// Returns the chain's own ports.
fn names(ports: &PortsSpec) -> impl Iterator<Item = &PortName> {
    [Some(&ports.entry), ports.exit.as_ref()].into_iter().flatten()
}

/// Opens the ports of external functions for a run on a trace; `None` if there are none.
///
/// # Errors
/// A port cannot be opened.
#[cfg_attr(not(feature = "dpdk"), expect(unused_variables))]
pub fn find_external(spec: &ChainSpec, cores: &[usize]) -> Result<Option<Box<dyn Functions<TraceNic>>>, CliError> {
    if spec.externals().next().is_none() {
        return Ok(None);
    }
    #[cfg(feature = "dpdk")]
    return Ok(Some(Box::new(external_ports(spec, &[], cores)?)));
    #[cfg(not(feature = "dpdk"))]
    unreachable!("external functions are refused before they are looked for")
}

#[cfg(feature = "dpdk")]
fn external_ports(
    spec: &ChainSpec,
    own: &[PortName],
    cores: &[usize],
) -> Result<tailwater_dataplane::dpdk::ExternalPorts, CliError> {
    use tailwater_dataplane::dpdk::{ExternalPorts, HugePages};
    // DPDK's own threads are started here, and inherit this affinity.
    let _elsewhere = tailwater_dataplane::cores::AvoidCores::new(cores);
    let ports = ExternalPorts::find(spec, own, HugePages::IfThere);
    ports.map_err(|error| CliError::Input(error.to_string()))
}

/// Opens the ports, and those of external functions.
///
/// # Errors
/// `--ring` is too large, or a port cannot be opened.
#[cfg(feature = "dpdk")]
pub fn find(
    ports: PortsSpec,
    args: &RunArgs,
    (spec, cores): (&ChainSpec, &[usize]),
    clock: &Clock,
) -> Result<Box<dyn Port>, CliError> {
    use tailwater_api::PacketAction;
    use tailwater_dataplane::dpdk::{DpdkConfig, DpdkPorts, HugePages};
    use tailwater_dataplane::external::WithExternals;
    let ring = args.ring.map(|ring| {
        u16::try_from(ring).map_err(|_| {
            let most = u16::MAX;
            CliError::Input(format!(
                "--ring: expected at most {most} descriptors for ports, found {ring}"
            ))
        })
    });
    let functions = match spec.externals().next() {
        // First, since it starts DPDK with the options of all ports.
        Some(_) => {
            let own: Vec<PortName> = names(&ports).cloned().collect();
            Some(external_ports(spec, &own, cores)?)
        }
        None => None,
    };
    let config = DpdkConfig {
        ports,
        ring: ring.transpose()?,
        duration: args.duration,
        huge_pages: HugePages::IfThere,
        cores: cores.to_vec(),
        naps: args.nap,
        checksums: spec.packets.malformed == PacketAction::Drop,
    };
    let ports = DpdkPorts::find(config, clock.clone());
    let ports = ports.map_err(|error| CliError::Input(error.to_string()))?;
    Ok(match functions {
        Some(functions) => Box::new(WithExternals::new(ports, functions)),
        None => Box::new(ports),
    })
}

/// Unreachable: [`wanted`] refuses ports in this build.
///
/// # Errors
/// Never.
#[cfg(not(feature = "dpdk"))]
pub fn find(_: PortsSpec, _: &RunArgs, _: (&ChainSpec, &[usize]), _: &Clock) -> Result<Box<dyn Port>, CliError> {
    unreachable!("ports are refused before they are looked for")
}
