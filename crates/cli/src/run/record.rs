//! Record of a run's decisions, for `tailwater explain`.

use super::plan::Mapping;
use crate::error::CliError;
use crate::output::complain;
use std::path::Path;
use tailwater_baselines::catalog::epoch;
use tailwater_dataplane::scaling::record::{Header, RecordError, Recorded, Recorder};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_policy::capacity::CapacityProfile;

/// Creates a file for the decisions of a run, and a thread that writes it. Each dedicated core has that many auxiliary
/// cores, and can be helped by that many dedicated ones.
///
/// # Errors
/// The file cannot be created.
pub fn recorder(
    path: &Path,
    spec: &ChainSpec,
    mapping: &Mapping,
    dedicated: usize,
    profile: Option<&CapacityProfile>,
) -> Result<Recorder, CliError> {
    let cpus = |cores: &[usize]| cores.iter().map(|&core| core as u32).collect();
    let header = Header {
        chain: spec.name.clone(),
        policy: mapping.policy.name().to_owned(),
        slo: spec.slo.budget(),
        epoch: epoch(spec.slo.budget()).unwrap_or(Nanos::ZERO),
        auxiliary: mapping.auxiliary.len() + dedicated,
        dedicated,
        started: Nanos::ZERO,
        profile: profile.map_or_else(String::new, CapacityProfile::to_string),
        dedicated_cpus: cpus(&mapping.dedicated),
        auxiliary_cpus: cpus(&mapping.auxiliary),
    };
    Recorder::create(path, &header.now()).map_err(not_written)
}

/// Waits until the file of a finished run is written.
///
/// # Errors
/// The file could not be written.
pub fn finish(recorder: &Recorder) -> Result<(), CliError> {
    let recorded = recorder.finish().map_err(not_written)?;
    if let Some(Recorded { decisions, lost }) = recorded
        && lost > 0
    {
        let text = format!(
            "--record: {lost} of {} decisions are missing: the file could not be written in time",
            decisions + lost
        );
        complain("notice", &text);
    }
    Ok(())
}

fn not_written(RecordError { file, source }: RecordError) -> CliError {
    CliError::Report {
        file: file.display().to_string(),
        source,
    }
}
