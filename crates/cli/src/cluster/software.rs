//! The ingress as a software data plane.

use super::args::{IngressArgs, UnmatchedPackets};
use crate::error::CliError;
use crate::metrics::{Endpoint, IngressPage, Serving};
use crate::output::complain;
use tailwater_cluster::Notices;
use tailwater_cluster::ingress::{SoftwareConfig, SoftwareError, SoftwareSwitch};
use tailwater_dataplane::cores;

/// Checks options that the parser cannot.
///
/// # Errors
/// An option has a value that the software data plane does not have.
pub fn check(args: &IngressArgs) -> Result<(), CliError> {
    let own = &args.software;
    if !own.port.is_empty() {
        return match args.unmatched {
            UnmatchedPackets::Leave => Err(CliError::Input(
                "--unmatched leave: expected drop or normal with --port, where nobody else has rules".to_owned(),
            )),
            _ => Ok(()),
        };
    }
    // The parser does not require `--port` for them where there is `--switch`.
    let options = [
        ("--state", own.state.is_some()),
        ("--cores", own.cores.is_some()),
        ("--nap", own.nap.is_some()),
        ("--metrics", own.metrics.is_some()),
    ];
    match options.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(CliError::Input(format!(
            "{option}: expected --port in place of --switch"
        ))),
        None => Ok(()),
    }
}

/// Starts the data plane, and serves its metrics if that is wanted.
///
/// # Errors
/// A port, the file of the rules or the address of the metrics cannot be used.
pub fn start(args: &IngressArgs, notices: Notices) -> Result<(SoftwareSwitch, Option<Serving<IngressPage>>), CliError> {
    let own = &args.software;
    let bind = |address| Endpoint::bind("--metrics", address);
    let endpoint = own.metrics.map(bind).transpose()?;
    let cores = own
        .cores
        .as_ref()
        .map_or_else(|| vec![cores::default_core()], |cores| cores.0.clone());
    let config = SoftwareConfig {
        ports: own.port.clone(),
        cores,
        nap: own.nap,
        state: own.state.clone(),
        max_rules: u32::try_from(args.table).unwrap_or(u32::MAX),
    };
    let names: Vec<String> = own.port.iter().map(ToString::to_string).collect();
    let switch = SoftwareSwitch::start(config, notices).map_err(|error| match error {
        SoftwareError::Threads(source) => CliError::System {
            what: "threads cannot be started",
            source,
        },
        SoftwareError::State { .. } => CliError::Input(format!("--state {error}")),
        error => CliError::Input(error.to_string()),
    })?;
    complain("notice", &format!("ingress between the ports {}", names.join(", ")));
    let page = endpoint.map(|endpoint| endpoint.serve(IngressPage::new(switch.figures())));
    Ok((switch, page.transpose()?))
}
