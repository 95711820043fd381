//! `tailwater profile contention`: a campaign of co-runs on this machine.

mod args;

pub use args::{CONTENTION_EXAMPLES, ContentionArgs};

use crate::curves::TrafficChoice;
use crate::error::{CliError, DOUBTFUL};
use crate::files::{check_output, write_result};
use crate::input::Traffic;
use crate::output::{ReportOutput, complain, json, print};
use crate::profile::output_of;
use crate::progress::Lasting;
use crate::signals::stop_on_signals;
use crate::text::{one_line, short};
use args::MetricsBy;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tailwater_dataplane::cores::{AvoidCores, default_core};
use tailwater_functions::spec::ChainSpec;
use tailwater_predict::{Campaign, Key};
use tailwater_profile::cache::{Caches, sharing};
use tailwater_profile::contention::{
    ContentionError, EvenPoints, LoadRange, MetricSource, PointSource, Probes, Server, SessionEnd, SourceError,
    counters, measure_campaign,
};
use tailwater_profile::{SweepOptions, fingerprint, machine};

/// Points without competitors.
const ALONE: u32 = 3;
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
        campaign = before;
    }
    let range = LoadRange::of_caches(caches.private_bytes, caches.last_bytes, others.len() as u32);
    let mut points = EvenPoints::new(range, ALONE, args.points, args.seed);
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
            measure_campaign(&mut server, &mut points, &mut campaign, |campaign, progress| {
                if let Some(disturbance) = progress.flagged {
                    *disturbances.entry(disturbance.to_string()).or_default() += 1;
                }
                let share = f64::from(progress.done) / f64::from(progress.of);
                measuring.show(&format!("point {} of {}", progress.done, progress.of), share);
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
    if end == SessionEnd::Stopped {
        let count = campaign.observations().len();
        let message = match count {
            0 => "stopped before the first point; nothing is written".to_owned(),
            _ => format!(
                "stopped with {count} of {} points in {}; the same command continues",
                points.most(),
                one_line(&file.display().to_string())
            ),
        };
        return Err(CliError::Stopped(message));
    }
    let document = document(&campaign, &file);
    print(&match args.output {
        ReportOutput::Table => table(&document),
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

/// Result as JSON.
#[derive(Debug, Serialize)]
struct Document {
    chain: String,
    configuration: String,
    traffic: String,
    machine: String,
    source: String,
    /// Points with an undisturbed measurement.
    points: usize,
    /// Points without one.
    unusable_points: usize,
    solo_pps: Option<f64>,
    solo_p99_us: Option<f64>,
    /// Share of the throughput alone that the competitors cost.
    mean_loss: Option<f64>,
    largest_loss: Option<f64>,
    metrics: Vec<MetricDocument>,
    file: String,
}

#[derive(Debug, Serialize)]
struct MetricDocument {
    name: String,
    unit: String,
    /// Largest value of the competitors.
    largest: Option<f64>,
    /// Mean value of the chain's own vector.
    own: Option<f64>,
}

fn document(campaign: &Campaign, file: &Path) -> Document {
    let key = campaign.key();
    let solo = campaign.solo().filter(|solo| solo.measured);
    let mut usable: BTreeMap<u32, bool> = BTreeMap::new();
    for of in campaign.observations() {
        *usable.entry(of.group).or_default() |= !of.flagged;
    }
    let points = usable.values().filter(|usable| **usable).count();
    let beside = || campaign.usable().filter(|of| of.competitors > 0);
    let losses: Vec<f64> = solo
        .iter()
        .flat_map(|solo| beside().map(|of| 1.0 - of.throughput / solo.throughput))
        .collect();
    let metrics = campaign
        .schema()
        .metrics()
        .iter()
        .enumerate()
        .map(|(at, metric)| MetricDocument {
            name: metric.name.clone(),
            unit: metric.unit.clone(),
            largest: beside().filter_map(|of| of.competition.values()[at]).reduce(f64::max),
            own: {
                let own = campaign.usable().filter(|of| of.competitors == 0);
                mean(own.filter_map(|of| of.own.as_ref()?.values()[at]).collect())
            },
        });
    Document {
        chain: key.function.clone(),
        configuration: key.configuration.clone(),
        traffic: key.traffic.clone(),
        machine: key.machine.clone(),
        source: campaign.schema().source().to_string(),
        points,
        unusable_points: usable.len() - points,
        solo_pps: solo.map(|solo| solo.throughput),
        solo_p99_us: solo.and_then(|solo| solo.p99_us),
        largest_loss: losses.iter().copied().reduce(f64::max),
        mean_loss: mean(losses),
        metrics: metrics.collect(),
        file: file.display().to_string(),
    }
}

fn mean(values: Vec<f64>) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Formats the campaign as text.
fn table(document: &Document) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing into a string cannot fail.
        let _ = writeln!(text, "{name:<24}{value}");
    };
    let percent = |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share));
    line("chain", one_line(&document.chain));
    line("traffic", one_line(&document.traffic));
    line("machine", one_line(&document.machine));
    let points = match document.unusable_points {
        0 => document.points.to_string(),
        flagged => format!("{}, and {flagged} DISTURBED, which are not used", document.points),
    };
    line("points", points);
    let pps = |pps: f64| format!("{}pps", short(pps));
    line(
        "alone",
        document.solo_pps.map_or("NOT MEASURED undisturbed".to_owned(), pps),
    );
    if let Some(p99) = document.solo_p99_us {
        line("p99 alone", format!("{p99:.1} µs"));
    }
    line(
        "loss beside competitors",
        format!(
            "{} on average, at most {}",
            percent(document.mean_loss),
            percent(document.largest_loss)
        ),
    );
    line("campaign", one_line(&document.file));
    let _ = writeln!(
        text,
        "\n{:<24}{:>12}{:>12}  metric ({})",
        "", "competitors", "chain", document.source
    );
    for metric in &document.metrics {
        let (largest, own) = (percent(metric.largest), percent(metric.own));
        let _ = writeln!(text, "{:<24}{largest:>12}{own:>12}  {}", metric.name, metric.unit);
    }
    text
}
