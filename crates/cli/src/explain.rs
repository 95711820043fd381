//! `tailwater explain`: what a recorded run's mapper saw and did.

use crate::args::{ExplainArgs, ReportOutput};
use crate::error::CliError;
use crate::run::json;
use crate::{complain, print, table};
use serde::Serialize;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;
use tailwater_dataplane::scaling::record::{
    Explainer, Explanation, Header, Problem, Reader, RecordError, Recorded, Recorder, Replay,
    Replayer,
};
use tailwater_net::Nanos;
use tailwater_nf::spec::ChainSpec;
use tailwater_policy::capacity::CapacityProfile;
use tailwater_policy::catalog::{MakeMapper, Policy, epoch};

/// Differences of a replay that are told.
const MOST_DIFFERENCES: usize = 10;

/// What `--output json` prints. Field names are stable.
#[derive(Debug, Serialize)]
pub struct Document {
    /// What the record comes to.
    #[serde(flatten)]
    pub explanation: Explanation,
    /// Whether the file ends before the run did.
    pub cut_short: bool,
    /// Decisions that found no room on their way to the file; `None` if it was cut short.
    pub lost: Option<u64>,
    /// What another policy would have said.
    pub replay: Option<Replayed>,
}

/// What another policy would have said.
#[derive(Debug, Serialize)]
pub struct Replayed {
    /// Its name.
    pub policy: &'static str,
    /// In what it differs.
    #[serde(flatten)]
    pub outcome: Replay,
}

/// Explains a file.
pub fn explain(args: &ExplainArgs) -> Result<ExitCode, CliError> {
    let name = args.file.display();
    let wrong = |error: &dyn std::fmt::Display| CliError::Input(format!("{name}: {error}"));
    let file =
        File::open(&args.file).map_err(|error| wrong(&format!("cannot be read: {error}")))?;
    let mut reader = Reader::new(BufReader::new(file)).map_err(|error| wrong(&error))?;
    let profile = profile(reader.header(), &args.file)?;
    let mut replayer = None;
    if let Some(policy) = args.policy {
        let make = mappers(policy, reader.header(), profile.as_ref());
        let make = make.map_err(|error| wrong(&error))?;
        replayer = Some((policy, Replayer::new(make, MOST_DIFFERENCES)));
    }
    let frontier = profile.map(|profile| profile.frontier).unwrap_or_default();
    let mut explainer = Explainer::new(reader.header(), frontier, usize::from(args.late));
    let cut_short = loop {
        match reader.next_decision() {
            Ok(Some(decision)) => {
                explainer.add(decision);
                if let Some((_, replayer)) = &mut replayer {
                    replayer.add(decision);
                }
            }
            Ok(None) => break false,
            // A run that was killed: what there is can be told.
            Err(error) if matches!(error.problem, Problem::Cut) => {
                complain("notice", &format!("{name}: {error}: told is what is there"));
                break true;
            }
            Err(error) => return Err(wrong(&error)),
        }
    };
    let document = Document {
        explanation: explainer.finish(),
        cut_short,
        lost: reader.lost(),
        replay: replayer.map(|(policy, replayer)| Replayed {
            policy: policy.name(),
            outcome: replayer.finish(),
        }),
    };
    print(&match args.output {
        ReportOutput::Table => table::explanation(&document),
        ReportOutput::Json => json(&document)?,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A file for the decisions of a run, and a thread that writes it.
pub fn recorder(
    path: &Path,
    spec: &ChainSpec,
    (policy, helpers): (Policy, usize),
    profile: &CapacityProfile,
) -> Result<Recorder, CliError> {
    let header = Header {
        chain: spec.name.clone(),
        policy: policy.name().to_owned(),
        slo: spec.slo.budget(),
        epoch: epoch(spec.slo.budget()).unwrap_or(Nanos::ZERO),
        helpers,
        started: Nanos::ZERO,
        profile: profile.to_string(),
    };
    Recorder::create(path, &header.now()).map_err(not_written)
}

/// Waits for the file of a run that is over.
pub fn finish(recorder: &Recorder) -> Result<(), CliError> {
    let recorded = recorder.finish().map_err(not_written)?;
    if let Some(Recorded { decisions, lost }) = recorded
        && lost > 0
    {
        let text = format!(
            "--record: {lost} of {} decisions came faster than they could be written",
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

/// The profile that the recorded policy went by.
fn profile(header: &Header, file: &Path) -> Result<Option<CapacityProfile>, CliError> {
    if header.profile.is_empty() {
        return Ok(None);
    }
    let name = format!("{}: the profile in it", file.display());
    let profile = CapacityProfile::parse(header.profile.as_bytes(), &name);
    profile
        .map(Some)
        .map_err(|error| CliError::Input(error.to_string()))
}

/// Mappers of another policy, for the recorded objective and profile.
fn mappers(
    policy: Policy,
    header: &Header,
    profile: Option<&CapacityProfile>,
) -> Result<MakeMapper, String> {
    let empty = CapacityProfile::default();
    let mappers = policy.mappers(header.slo, profile.unwrap_or(&empty));
    let nothing = || format!("--policy {} never decides anything", policy.name());
    let mappers = mappers.map_err(|error| error.to_string())?;
    mappers.filter(|_| policy.scales()).ok_or_else(nothing)
}
