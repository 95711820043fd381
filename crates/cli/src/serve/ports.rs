//! Ports of a server: traffic is loaded, devices are found.

use crate::error::CliError;
use crate::input::{LoadArgs, Traffic, load};
use crate::output::complain;
use tailwater_api::chain::Match;
use tailwater_api::server::{self, PortSource, ServerPort, ServerSpec, TrafficSpec};
use tailwater_api::{PortsSpec, Throughput};
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::interfaces::{InterfaceConfig, InterfacePorts};
use tailwater_dataplane::port::{PassedSockets, Port, round_robin};
use tailwater_dataplane::shared_port::{MOST_BUFFERS, SharedPortConfig, Unmatched};
use tailwater_dataplane::trace_nic::{TraceNic, TraceNicConfig};
use tailwater_net::Nanos;
use tailwater_net::toeplitz::RssHasher;
use tailwater_server::live;

/// Duration of traffic that is repeated until the server ends.
const FOREVER: Nanos = Nanos::from_secs(10 * 365 * 86_400);

/// Packet buffers of a port, unless the spec says how much memory they take.
const BUFFERS: u32 = 32 << 10;

/// Bytes of a buffer for a frame of 1,514 bytes, with headroom.
const BUFFER_BYTES: u64 = 1728;

/// Packets in a chain's ring, as in that of a NIC.
const RING: usize = 1024;

/// Workers that may send at a time: those of all chains.
const SENDERS: u16 = 128;

/// Opens the ports of a server for pollers on these cores. `passed` returns the sockets of a port that another process
/// has passed; `None` if there is no such process.
///
/// # Errors
/// Traffic cannot be loaded, or a device or interface is not there.
pub fn open(
    spec: &ServerSpec,
    cores: &[usize],
    clock: &Clock,
    mut passed: impl FnMut(&str) -> Result<Option<PassedSockets>, CliError>,
) -> Result<Vec<live::ServerPort>, CliError> {
    let open = |port: &ServerPort| {
        let rss = RssHasher::default();
        let pollers = cores.len() as u16;
        let buffers = spec.packet_buffers.map(|bytes| bytes / BUFFER_BYTES);
        let buffers = buffers.map_or(BUFFERS, |count| count.min(u64::from(MOST_BUFFERS)) as u32);
        let config = SharedPortConfig {
            name: port.name.clone(),
            pollers,
            senders: SENDERS,
            buffers,
            ring: RING,
            unmatched: match spec.unmatched {
                server::Unmatched::Forward => Unmatched::Forward,
                server::Unmatched::Drop => Unmatched::Drop,
            },
            rss_key: *rss.key(),
        };
        let port = match &port.source {
            PortSource::Traffic(traffic) => of_traffic(traffic, rss, pollers, clock)?,
            PortSource::Devices(devices) if devices.entry.is_kernel() => {
                of_interfaces(devices, clock, (&port.name, passed(&port.name)?))?
            }
            PortSource::Devices(devices) => of_devices(devices, cores, clock)?,
        };
        Ok(live::ServerPort { port, config })
    };
    spec.ports.iter().map(open).collect()
}

/// Port of a capture or preset.
fn of_traffic(traffic: &TrafficSpec, rss: RssHasher, pollers: u16, clock: &Clock) -> Result<Box<dyn Port>, CliError> {
    // A preset by its name, or a file relative to the spec.
    let source = match Traffic::named(traffic.name.as_ref()) {
        Ok(Traffic::Preset(preset)) => Traffic::Preset(preset),
        _ if traffic.file.exists() => Traffic::File(traffic.file.clone()),
        Ok(file) => file,
        Err(error) => return Err(error),
    };
    let arguments = LoadArgs {
        rate_scale: None,
        rate: match traffic.rate {
            Some(Throughput::PacketsPerSecond(rate)) => Some(rate as f64),
            _ => None,
        },
        seed: 1,
        skip_bad_packets: false,
        memory_limit: 4 << 30,
    };
    let wanted = Match::default();
    let duration = match (traffic.duration, traffic.repeat) {
        (Some(duration), _) => Some(duration),
        (None, true) => Some(FOREVER),
        (None, false) => None,
    };
    let mut loaded = load(source, &arguments, duration, false, &wanted)?;
    let wordy = |notice: &&String| traffic.duration.is_some() || !notice.contains("repeated up to");
    loaded
        .notices
        .iter()
        .filter(wordy)
        .for_each(|notice| complain("notice", notice));
    if let Some(Throughput::BitsPerSecond(rate)) = traffic.rate {
        let seconds = (loaded.trace.mean_gap().as_secs_f64() * loaded.trace.len() as f64).max(1e-9);
        let own = loaded.trace.bytes() as f64 * 8.0 / seconds;
        loaded.trace.scale_rate(rate as f64 / own)?;
    }
    let config = TraceNicConfig {
        duration: loaded.duration,
        renumber_bits: traffic.renumber_bits,
        ..TraceNicConfig::default()
    };
    let nic = TraceNic::new(loaded.trace, rss, pollers, &round_robin(pollers), config, clock.clone());
    Ok(Box::new(nic.map_err(|error| CliError::Input(error.to_string()))?))
}

/// Port of kernel interfaces. Sockets that another process has passed are taken over.
fn of_interfaces(
    interfaces: &PortsSpec,
    clock: &Clock,
    (name, passed): (&str, Option<PassedSockets>),
) -> Result<Box<dyn Port>, CliError> {
    let config = InterfaceConfig {
        ports: interfaces.clone(),
        ring: None,
        duration: None,
        naps: None,
    };
    let (ports, refusal) = match passed {
        None => (InterfacePorts::find(config, clock.clone()), ""),
        Some(passed) => (
            InterfacePorts::adopt(config, passed, clock.clone()),
            "take-over refused, the running server goes on: ",
        ),
    };
    match ports {
        Ok(ports) => Ok(Box::new(ports)),
        Err(error) => Err(CliError::Input(format!("{refusal}port {name}: {error}"))),
    }
}

/// Port of devices.
#[cfg(feature = "dpdk")]
fn of_devices(devices: &PortsSpec, cores: &[usize], clock: &Clock) -> Result<Box<dyn Port>, CliError> {
    use tailwater_dataplane::dpdk::{DpdkConfig, DpdkPorts, HugePages};
    let config = DpdkConfig {
        ports: devices.clone(),
        ring: None,
        duration: None,
        huge_pages: HugePages::IfThere,
        cores: cores.to_vec(),
        naps: None,
        checksums: true,
    };
    let ports = DpdkPorts::find(config, clock.clone());
    Ok(Box::new(ports.map_err(|error| CliError::Input(error.to_string()))?))
}

/// Port of devices, in a program without them.
#[cfg(not(feature = "dpdk"))]
fn of_devices(devices: &PortsSpec, _: &[usize], _: &Clock) -> Result<Box<dyn Port>, CliError> {
    Err(CliError::Input(format!(
        "port {} is a DPDK device: expected a program built with --features dpdk (docs/how-to/use-ports.md), a kernel \
         interface (interface=NAME), or traffic",
        devices.entry
    )))
}
