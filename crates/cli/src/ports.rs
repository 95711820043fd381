//! Ports of a run, where packets do not come from a trace.

use crate::args::RunArgs;
use crate::error::CliError;
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::port::Port;
use tailwater_nf::spec::{ChainSpec, Match, PortSetup, PortsSpec};

/// The ports that the command line names, or else the spec, if no traffic is named; checked as far as that
/// takes no time.
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
                ..spec
                    .ports
                    .as_ref()
                    .map(|ports| ports.set_up)
                    .unwrap_or_default()
            },
        }),
    };
    let Some(mut ports) = ports else {
        let flag = match args {
            RunArgs {
                no_promiscuous: true,
                ..
            } => "--no-promiscuous",
            RunArgs { nap: Some(_), .. } => "--nap",
            _ => return Ok(None),
        };
        return wrong(&format!(
            "{flag} is for ports: name one with --port, or in the spec"
        ));
    };
    if args.no_promiscuous {
        ports.set_up.promiscuous = false;
    }
    if args.ports.len() > 2 {
        return wrong("--port: expected one port, or an entry port and an exit port");
    }
    if ports
        .exit
        .as_ref()
        .is_some_and(|exit| exit.conflicts(&ports.entry))
    {
        return wrong(
            "--port: both are the same device, which can be used once; name it once, and packets leave where \
             they came from",
        );
    }
    if args.load.rate.is_some() || args.load.rate_scale.is_some() {
        return wrong(
            "--rate and --rate-scale are for traffic from a file or preset, not from ports",
        );
    }
    if spec.match_ != Match::default() {
        return wrong(
            "spec.match: a chain on ports is run on everything that arrives; leave it out, and have the NIC or \
             switch send only what the chain is for",
        );
    }
    if cfg!(not(feature = "dpdk")) {
        return wrong(
            "this program was built without ports: cargo build --release --features dpdk (which needs DPDK: \
             make deps)",
        );
    }
    Ok(Some(ports))
}

/// Finds the ports.
#[cfg(feature = "dpdk")]
pub fn find(
    ports: PortsSpec,
    args: &RunArgs,
    (spec, cores): (&ChainSpec, &[usize]),
    clock: &Clock,
) -> Result<Box<dyn Port>, CliError> {
    use tailwater_dataplane::dpdk::{DpdkConfig, DpdkPorts, HugePages};
    use tailwater_nf::spec::Fate;
    let ring = args.ring.map(|ring| {
        u16::try_from(ring).map_err(|_| {
            let most = u16::MAX;
            CliError::Input(format!(
                "--ring: expected up to {most} for ports, found {ring}"
            ))
        })
    });
    let config = DpdkConfig {
        ports,
        ring: ring.transpose()?,
        duration: args.duration,
        huge_pages: HugePages::IfThere,
        cores: cores.to_vec(),
        naps: args.nap,
        checksums: spec.packets.malformed == Fate::Drop,
    };
    let ports = DpdkPorts::find(config, clock.clone());
    let ports = ports.map_err(|error| CliError::Input(error.to_string()))?;
    Ok(Box::new(ports))
}

/// There are none: [`wanted`] has said so.
#[cfg(not(feature = "dpdk"))]
pub fn find(
    _: PortsSpec,
    _: &RunArgs,
    _: (&ChainSpec, &[usize]),
    _: &Clock,
) -> Result<Box<dyn Port>, CliError> {
    unreachable!("ports are refused before they are looked for")
}
