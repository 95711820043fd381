//! Opening of a run's ports, and of those of its external functions.

use super::plan::PortPlan;
use crate::error::CliError;
#[cfg(feature = "dpdk")]
use tailwater_api::PortName;
use tailwater_dataplane::RunPlan;
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::external::kernel::KernelPorts;
use tailwater_dataplane::external::{Functions, WithExternals};
use tailwater_dataplane::interfaces::{InterfaceConfig, InterfacePorts};
use tailwater_dataplane::packet_socket::InterfaceError;
use tailwater_dataplane::port::Port;
use tailwater_dataplane::trace_nic::TraceNic;
#[cfg(feature = "dpdk")]
use tailwater_functions::spec::ChainSpec;

/// Opens the ports of external functions for a run on a trace; `None` if there are none.
///
/// # Errors
/// A port cannot be opened.
pub fn open_externals(run: &RunPlan) -> Result<Option<Box<dyn Functions<TraceNic>>>, CliError> {
    let Some((_, external)) = run.spec().externals().next() else {
        return Ok(None);
    };
    if external.port.is_kernel() {
        let workers = run.config().cores.len() as u16;
        let ports = KernelPorts::find(run.spec(), workers);
        return Ok(Some(Box::new(
            ports.map_err(|error| CliError::Input(error.to_string()))?,
        )));
    }
    #[cfg(feature = "dpdk")]
    return Ok(Some(Box::new(external_ports(run.spec(), &[], &run.config().cores)?)));
    #[cfg(not(feature = "dpdk"))]
    unreachable!("DPDK ports are refused before they are looked for")
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
/// A port cannot be opened.
pub fn open(ports: &PortPlan, run: &RunPlan, clock: &Clock) -> Result<Box<dyn Port>, CliError> {
    match ports.are_kernel() {
        true => interfaces(ports, run, clock),
        false => devices(ports, run, clock),
    }
}

/// Opens kernel interfaces.
fn interfaces(ports: &PortPlan, run: &RunPlan, clock: &Clock) -> Result<Box<dyn Port>, CliError> {
    let config = InterfaceConfig {
        ports: ports.ports.clone(),
        ring: ports.ring,
        duration: ports.duration,
        naps: ports.nap,
    };
    let failed = |error: InterfaceError| CliError::Input(error.to_string());
    let ports = InterfacePorts::find(config, clock.clone()).map_err(failed)?;
    if run.spec().externals().next().is_none() {
        return Ok(Box::new(ports));
    }
    let functions = KernelPorts::find(run.spec(), run.config().cores.len() as u16).map_err(failed)?;
    Ok(Box::new(WithExternals::new(ports, functions)))
}

/// Opens DPDK devices.
#[cfg(feature = "dpdk")]
fn devices(ports: &PortPlan, run: &RunPlan, clock: &Clock) -> Result<Box<dyn Port>, CliError> {
    use tailwater_api::PacketAction;
    use tailwater_dataplane::dpdk::{DpdkConfig, DpdkPorts, HugePages};
    let (spec, cores) = (run.spec(), &run.config().cores);
    let functions = match spec.externals().next() {
        // First, since it starts DPDK with the options of all ports.
        Some(_) => {
            let own: Vec<PortName> = ports.names().cloned().collect();
            Some(external_ports(spec, &own, cores)?)
        }
        None => None,
    };
    let config = DpdkConfig {
        ports: ports.ports.clone(),
        ring: ports.ring,
        duration: ports.duration,
        huge_pages: HugePages::IfThere,
        cores: cores.clone(),
        naps: ports.nap,
        checksums: spec.packets.malformed == PacketAction::Drop,
    };
    let ports = DpdkPorts::find(config, clock.clone());
    let ports = ports.map_err(|error| CliError::Input(error.to_string()))?;
    Ok(match functions {
        Some(functions) => Box::new(WithExternals::new(ports, functions)),
        None => Box::new(ports),
    })
}

/// Unreachable: the plan refuses devices in this build.
#[cfg(not(feature = "dpdk"))]
fn devices(_: &PortPlan, _: &RunPlan, _: &Clock) -> Result<Box<dyn Port>, CliError> {
    unreachable!("devices are refused before they are looked for")
}
