//! `tailwater profile contention`: a campaign of co-runs on this machine.

mod args;
pub mod document;

pub use args::{CONTENTION_EXAMPLES, ContentionArgs};
pub use document::Document;

use crate::curves::TrafficChoice;
use crate::error::{CliError, DOUBTFUL};
use crate::files::{Lock, ReportFile, check_output, same_place, write_result};
use crate::html;
use crate::input::Traffic;
use crate::output::{ReportOutput, complain, json, print};
use crate::profile::output_of;
use crate::progress::Lasting;
use crate::signals::stop_on_signals;
use crate::text::one_line;
use args::MetricsBy;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;
use tailwater_dataplane::cores::{AvoidCores, default_core};
use tailwater_functions::spec::ChainSpec;
use tailwater_predict::{Campaign, CampaignPlan, Goal, Key, Next, PlanOptions, Sensitivity};
use tailwater_profile::cache::{Caches, sharing};
use tailwater_profile::contention::{
    ContentionError, MetricSource, Probes, Server, SessionEnd, SourceError, counters, load_space, measure_campaign,
};
use tailwater_profile::{SweepOptions, fingerprint, machine};

/// Co-runs before the model is checked for the first time, and between two checks.
const FIRST: u32 = 20;
const EVERY: u32 = 10;
/// Measurements of a disturbed point, each of several attempts: if both are disturbed, waiting would not help.
const ATTEMPTS: u32 = 2;
/// Default limit of competitors: SLOMO's.
const MOST_COMPETITORS: usize = 10;

/// Measures the points that a campaign lacks, and writes its file after each of them.
///
/// # Errors
/// The input is invalid, a measurement fails or is stopped, or the result cannot be written.
pub fn contention(args: &ContentionArgs) -> Result<ExitCode, CliError> {
    // Quick checks come before slow ones.
    let spec = ChainSpec::read(&args.chain)?;
    let traffic = match args.flows {
        Some(_) => None,
        None => Some(Traffic::named(args.traffic.as_deref().unwrap_or("backbone".as_ref()))?),
    };
    let file = output_of(args.file.as_deref(), &args.chain, beside)?;
    check_output("--file", &file, &args.chain, traffic.as_ref())?;
    if file == Path::new("-") || fs::metadata(&file).is_ok_and(|found| !found.is_file()) {
        let found = one_line(&file.display().to_string());
        return Err(CliError::Input(format!(
            "--file: expected a file, which is continued, found {found}"
        )));
    }
    let report = match &args.report {
        Some(path) if same_place(path, &file) => {
            return Err(CliError::Input(
                "--report: expected another file than the campaign's".to_owned(),
            ));
        }
        Some(path) => {
            check_output("--report", path, &args.chain, traffic.as_ref())?;
            Some(ReportFile::open("--report", path)?)
        }
        None => None,
    };
    let _lock = Lock::new("--file", &file, "profile contention")?;
    let before = match fs::metadata(&file) {
        Ok(found) if found.len() > 0 => Some(Campaign::read(&file)?),
        _ => None,
    };
    let core = args.core.unwrap_or_else(default_core);
    let others = others(core, args)?;
    let caches = Caches::of(core).ok_or(ContentionError::from(SourceError::Caches { core }))?;
    let source: Box<dyn MetricSource> = match args.metrics {
        MetricsBy::Counters => counters().map_err(ContentionError::from)?,
        MetricsBy::Probes => Box::new(Probes::new(core).map_err(ContentionError::from)?),
    };
    let choice = TrafficChoice {
        flows: args.flows,
        frame: args.frame,
        seed: args.seed,
        skip_bad_packets: args.skip_bad_packets,
    };
    let (trace, name) = choice.load(traffic, &spec)?;
    let key = Key {
        function: spec.name.clone(),
        configuration: fingerprint(&spec),
        traffic: name,
        machine: machine(),
    };
    let mut campaign = Campaign::new(key, source.schema().clone());
    if let Some(before) = before {
        check_same(&file, &before, &campaign)?;
        let is_kept = |at: &usize| !args.retry || !before.observations()[*at].flagged;
        let kept: Vec<usize> = (0..before.observations().len()).filter(is_kept).collect();
        campaign = before.subset(&kept);
    }
    let space = load_space(caches.private_bytes, caches.last_bytes, others.len() as u32, args.seed);
    let plan_options = PlanOptions {
        first: FIRST,
        every: EVERY,
        most: args.points,
        error: args.error,
        attempts: ATTEMPTS,
        ..PlanOptions::default()
    };
    let mut plan = CampaignPlan::new(space, plan_options).map_err(ContentionError::from)?;
    let stop = stop_on_signals()?;
    let options = SweepOptions {
        core,
        seed: args.seed,
        run_time: args.run_time,
    };
    let mut disturbances: BTreeMap<String, u32> = BTreeMap::new();
    let end = {
        let mut measuring = Lasting::new();
        let _elsewhere = AvoidCores::new(&[core]);
        let server = Server::new(&spec, &trace, &options, Some(&others), source, &stop);
        let measured = server.map_err(CliError::from).and_then(|mut server| {
            measure_campaign(&mut server, &mut plan, &mut campaign, |campaign, progress| {
                if let Some(disturbance) = progress.flagged {
                    *disturbances.entry(disturbance.to_string()).or_default() += 1;
                }
                let share = f64::from(progress.done) / f64::from(progress.of);
                let again = if progress.flagged.is_some() { ", disturbed" } else { "" };
                measuring.show(&format!("point {} of {}{again}", progress.done, progress.of), share);
                write_result(&file, &campaign.to_string())
            })
        });
        match measured {
            Err(CliError::Contention(error)) if error.is_stopped() => SessionEnd::Stopped,
            other => other?,
        }
    };
    for (disturbance, count) in &disturbances {
        complain(
            "notice",
            &format!("measured again or flagged, {count} times: {disturbance}"),
        );
    }
    let SessionEnd::Complete(end) = end else {
        let message = match campaign.observations().len() {
            0 => "stopped before the first point; nothing is written".to_owned(),
            _ => format!(
                "stopped with {} of at most {} points in {}; the same command continues",
                match plan.next(&campaign).map_err(ContentionError::from)? {
                    Next::Measure(point) => point.number,
                    Next::Done(_) => plan.most_points(),
                },
                plan.most_points(),
                one_line(&file.display().to_string())
            ),
        };
        return Err(CliError::Stopped(message));
    };
    let solo = campaign.solo().map(|solo| solo.throughput);
    // Disturbed points can leave too few for a model.
    let evaluation =
        solo.and_then(|solo| Sensitivity::evaluated(&campaign, Goal::Throughput, solo, &plan_options.train).ok());
    let document = Document::new(&campaign, evaluation.as_ref(), end, &file);
    if document.unusable_points > 0 {
        let count = document.unusable_points;
        complain(
            "notice",
            &format!("{count} points stayed disturbed: on a quieter machine, --retry measures them again"),
        );
    }
    if let Some(report) = report {
        report.write(&html::contention(
            &document,
            &campaign,
            evaluation.as_ref(),
            SystemTime::now(),
        )?)?;
    }
    print(&match args.output {
        ReportOutput::Table => document.table(),
        ReportOutput::Json => json(&document)?,
    })?;
    Ok(match document.unusable_points {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(DOUBTFUL),
    })
}

/// Returns the default path of a chain's campaign: `edge.contention.yaml` for `edge.yaml`.
fn beside(chain: &Path) -> PathBuf {
    chain.with_extension("contention.yaml")
}

/// Returns the cores of competitors.
fn others(core: usize, args: &ContentionArgs) -> Result<Vec<usize>, CliError> {
    let mut others = sharing(core);
    if let Some(beside) = &args.beside {
        if let Some(wrong) = beside.0.iter().find(|other| !others.contains(other)) {
            return Err(CliError::Input(format!(
                "--beside: expected other cores that share the last-level cache of core {core}, found {wrong}"
            )));
        }
        others.retain(|other| beside.0.contains(other));
    } else {
        others.truncate(MOST_COMPETITORS);
    }
    match others.is_empty() {
        true => Err(ContentionError::Alone { core }.into()),
        false => Ok(others),
    }
}

/// Checks that a campaign in a file is the one that would be measured now.
fn check_same(file: &Path, before: &Campaign, now: &Campaign) -> Result<(), CliError> {
    let (old, new) = (before.key(), now.key());
    let pairs = [
        ("function", &old.function, &new.function),
        ("configuration", &old.configuration, &new.configuration),
        ("traffic", &old.traffic, &new.traffic),
        ("machine", &old.machine, &new.machine),
    ];
    let file = one_line(&file.display().to_string());
    let hint = "the campaign is of something else; -o selects another file";
    if let Some((name, found, expected)) = pairs.into_iter().find(|(_, old, new)| old != new) {
        return Err(CliError::Input(format!(
            "{file}: {name}: expected {:?}, found {:?}: {hint}",
            one_line(expected),
            one_line(found)
        )));
    }
    if before.schema() != now.schema() {
        let difference = now.schema().positions_in(before.schema()).err();
        let difference = difference.map_or_else(|| "other metrics".to_owned(), |error| error.to_string());
        return Err(CliError::Input(format!("{file}: {difference}: {hint}")));
    }
    Ok(())
}
