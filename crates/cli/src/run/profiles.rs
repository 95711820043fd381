//! Capacity profile of a run: the named one, the one beside the chain, or one that is measured now.

use crate::error::CliError;
use crate::output::complain;
use crate::profile::{beside, train, usual_traffic};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use tailwater_baselines::catalog::{Policy, epoch};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{CapacityProfile, MAX_BYTES};
use tailwater_profile::{Depth, TrainOptions, fingerprint, machine};
use tailwater_traffic::Trace;

/// Reads the named profile. Uses it if at all possible, with a notice of any mismatch. `policy` is the policy that uses
/// its rates, if it does.
///
/// # Errors
/// The profile cannot be read, was measured for another objective, or lacks rates.
pub fn named(path: &Path, spec: &ChainSpec, policy: Option<Policy>) -> Result<CapacityProfile, CliError> {
    let profile = read(path)?;
    if Ok(profile.epoch) != epoch(spec.slo.budget()) {
        return Err(CliError::Input(format!(
            "{}: measured for a latency objective of {} with epochs of {}; the chain's objective is {}",
            path.display(),
            profile.slo,
            profile.epoch,
            spec.slo.budget()
        )));
    }
    if let Some(missing) = missing_rates(&profile, policy) {
        return Err(CliError::Input(format!("{}: {missing}", path.display())));
    }
    let misfits = misfits(&profile, spec);
    if !misfits.is_empty() {
        let text = format!(
            "{}: measured with another {}; used anyway",
            path.display(),
            misfits.join(", ")
        );
        complain("notice", &text);
    }
    Ok(profile)
}

/// Returns the profile beside the chain, if there is a matching one. `policy` is the policy that uses its rates, if it
/// does.
pub fn found(chain: &Path, spec: &ChainSpec, policy: Option<Policy>) -> Option<CapacityProfile> {
    let path = beside(chain);
    if let Err(error) = fs::metadata(&path)
        && error.kind() == io::ErrorKind::NotFound
    {
        return None;
    }
    let profile = read(&path).inspect_err(|error| complain("notice", &error.to_string()));
    let profile = profile.ok()?;
    let misfits = misfits(&profile, spec);
    let unfit = if !misfits.is_empty() {
        format!("measured for another {}", misfits.join(", "))
    } else if let Some(missing) = missing_rates(&profile, policy) {
        missing
    } else {
        return Some(profile);
    };
    let text = format!("{}: not used: {unfit}", path.display());
    complain("notice", &text);
    None
}

/// Measures a profile on `core` in a few seconds, with its rates if they are needed.
///
/// # Errors
/// Training fails or is stopped.
pub fn quick(
    chain: &Path,
    spec: &ChainSpec,
    core: usize,
    depth: Depth,
    traffic: Option<&Trace>,
    stop: &AtomicBool,
) -> Result<CapacityProfile, CliError> {
    let options = TrainOptions { core, depth, seed: 1 };
    let start = Instant::now();
    let profile = match traffic {
        Some(traffic) => train(spec, traffic, &options, stop)?,
        // The traffic of ports is unknown.
        None => train(spec, &usual_traffic(options.seed)?, &options, stop)?,
    };
    let took = Nanos::from_millis(start.elapsed().as_millis() as u64);
    let text = format!(
        "no capacity profile of the chain: measured an approximate one in {:.1} s; `tailwater profile capacity \
         {}` measures a precise one",
        took.as_secs_f64(),
        chain.display()
    );
    complain("notice", &text);
    Ok(profile)
}

/// Returns the reason for which the profile lacks rates that the policy uses.
fn missing_rates(profile: &CapacityProfile, policy: Option<Policy>) -> Option<String> {
    policy?
        .server_mappers(profile.slo, profile, false)
        .err()
        .map(|error| error.to_string())
}

/// Reads the profile in a file.
fn read(path: &Path) -> Result<CapacityProfile, CliError> {
    let name = path.display().to_string();
    let text = tailwater_files::read(path, MAX_BYTES as u64)
        .map_err(|error| CliError::Input(format!("{name}: cannot be read: {error}")))?;
    CapacityProfile::parse(&text, &name).map_err(|error| CliError::Input(error.to_string()))
}

/// Returns the mismatches of a profile with this chain on this machine.
fn misfits(profile: &CapacityProfile, spec: &ChainSpec) -> Vec<&'static str> {
    let fits = [
        ("chain", profile.chain == spec.name),
        ("configuration of the chain", profile.configuration == fingerprint(spec)),
        ("machine", profile.machine == machine()),
        ("latency objective", profile.slo == spec.slo.budget()),
    ];
    let misfits = fits.into_iter().filter(|(_, fits)| !fits);
    misfits.map(|(what, _)| what).collect()
}
