//! `tailwater profile latency`, `cache` and `all`, which measure curves of a chain, and `diff` and `curves`, which
//! process them.

mod args;
mod diff;
mod division;
pub(crate) mod document;

pub use args::{CURVES_EXAMPLES, CurvesArgs, MEASURE_EXAMPLES, MeasureArgs, PROFILE_DIFF_EXAMPLES, ProfileDiffArgs};
pub use diff::diff;

use crate::error::{CliError, DOUBTFUL};
use crate::files::{ReportFile, check_output, check_writable, write_result};
use crate::input::{self, LoadArgs, Traffic};
use crate::output::{ReportOutput, complain, json, print};
use crate::profile::{GENERATED, as_it_is, output_of, set_objective};
use crate::progress::Measuring;
use crate::signals::{end_with_parent, stop_on_signals};
use crate::text::one_line;
use crate::{html, table};
use division::Division;
use document::Document;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;
use tailwater_dataplane::cores::{AvoidCores, default_core};
use tailwater_functions::spec::{ChainSpec, Match};
use tailwater_profile::profiles::{ChainProfile, CurvesError, Key, MAX_TEXT, Machine, Profiles, placement};
use tailwater_profile::{Fnv, SweepError, SweepOptions, cache_curve, fingerprint, function_costs, load_curve, uniform};
use tailwater_traffic::Trace;

/// Curves to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CurveSelection {
    /// Latency over load.
    Latency,
    /// Throughput over cache.
    Cache,
    /// Both.
    All,
}

/// Default frame length of uniform traffic, bytes: the shortest.
const FRAME: u16 = 60;

/// Measures curves of a chain, prints them and adds them to a file.
///
/// # Errors
/// The input is invalid, the cache cannot be divided, a measurement fails or is stopped, or the result cannot be
/// written.
pub fn measure(part: CurveSelection, args: &MeasureArgs) -> Result<ExitCode, CliError> {
    if args.with_parent {
        end_with_parent()?;
    }
    // Quick checks come before slow ones.
    let mut spec = ChainSpec::read(&args.chain)?;
    set_objective(&mut spec, args.slo)?;
    if args.all_packets {
        spec.match_ = Match::default();
    }
    let traffic = match args.flows {
        Some(_) => None,
        None => {
            let name = args.traffic.as_deref().unwrap_or("backbone".as_ref());
            Some(Traffic::named(name)?)
        }
    };
    let file = output_of(args.file.as_deref(), &args.chain, beside)?;
    // An existing file is extended; one that is not a file of profiles is refused before any measurement.
    let mut profiles = match fs::metadata(&file) {
        Ok(found) if found.len() > 0 => Profiles::read(&file)?,
        _ => Profiles::default(),
    };
    check_output("--file", &file, &args.chain, traffic.as_ref())?;
    if let Some(report) = &args.report {
        check_output("--report", report, &args.chain, traffic.as_ref())?;
        check_writable("--report", report, std::iter::once(&*file))?;
    }
    let report = args.report.as_ref().map(|path| ReportFile::open("--report", path));
    let report = report.transpose()?;
    let core = args.core.unwrap_or_else(default_core);
    // Reserves the means of dividing the cache; nothing changes until it begins.
    let mut division = match part {
        CurveSelection::Latency => None,
        CurveSelection::Cache | CurveSelection::All => Some(Division::choose(core, args)?),
    };
    let because = division.as_mut().map(|division| std::mem::take(&mut division.because));
    let choice = TrafficChoice {
        flows: args.flows,
        frame: args.frame,
        seed: args.seed,
        skip_bad_packets: args.skip_bad_packets,
    };
    let (trace, name) = choice.load(traffic, &spec)?;
    let stop = stop_on_signals()?;
    let options = SweepOptions {
        core,
        seed: args.seed,
        run_time: args.run_time,
    };
    let mut profile = ChainProfile {
        key: Key {
            chain: spec.name.clone(),
            configuration: fingerprint(&spec),
            traffic: name,
            machine: Machine::of(core),
        },
        cache: None,
        latency: None,
        costs: None,
    };
    {
        let mut measuring = Measuring::new();
        let _elsewhere = AvoidCores::new(&[core]);
        if part != CurveSelection::Cache {
            let curve = load_curve(&spec, &trace, &options, &stop, |step| measuring.show(step));
            profile.latency = Some(curve.map_err(CliError::Sweep)?);
        }
        let costs = function_costs(&spec, &trace, &options, &stop, |step| measuring.show(step));
        profile.costs = Some(costs.map_err(CliError::Sweep)?);
        if let Some(division) = division {
            let control = division.begin(core, args.pirate_core, &stop);
            let mut control = control.map_err(|error| CliError::Sweep(SweepError::Cache(error)))?;
            let curve = cache_curve(&spec, &trace, &options, &mut *control, &stop, |step| {
                measuring.show(step);
            });
            profile.cache = Some(curve.map_err(CliError::Sweep)?);
        }
    }
    profiles.merge(profile.clone());
    write_result(&file, &profiles.to_string())?;
    if let Some(report) = report {
        report.write(&html::profiles(&profiles, &file, SystemTime::now())?)?;
    }
    for value in profile.unrepeatable() {
        complain("notice", &format!("not repeatable: {value}"));
    }
    let doubts = profile.doubts();
    if doubts.disturbed() > 0 {
        complain("notice", &format!("measured with CPU interference: {doubts}"));
    }
    print(&match args.output {
        ReportOutput::Table => table::profile(&profile, because.as_deref(), &file),
        ReportOutput::Json => json(&Document::new(&profile, because, &file))?,
    })?;
    Ok(match doubts.is_none() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(DOUBTFUL),
    })
}

/// Traffic with which a chain is measured, as of the command line.
#[derive(Clone, Copy, Debug)]
pub struct TrafficChoice {
    /// Uniform traffic of so many flows.
    pub flows: Option<u32>,
    /// Length of its frames.
    pub frame: Option<u16>,
    /// Seed of generated packets.
    pub seed: u64,
    /// Skips packets of captures that cannot be replayed.
    pub skip_bad_packets: bool,
}

impl TrafficChoice {
    /// Returns the traffic, and its name in profiles. Equal names mean equal traffic. Without `traffic` it is uniform.
    ///
    /// # Errors
    /// The traffic cannot be read or generated.
    pub fn load(&self, traffic: Option<Traffic>, spec: &ChainSpec) -> Result<(Trace, String), CliError> {
        let Some(traffic) = traffic else {
            let (flows, frame) = (self.flows.unwrap_or(1), self.frame.unwrap_or(FRAME));
            let name = format!("{flows} flows, frames of {frame} bytes, seed {}", self.seed);
            return Ok((uniform(flows, frame, self.seed)?, name));
        };
        let load = LoadArgs {
            skip_bad_packets: self.skip_bad_packets,
            ..as_it_is(self.seed)
        };
        let untimed = matches!(traffic, Traffic::File(_));
        let loaded = input::load(traffic, &load, Some(GENERATED), untimed, &spec.match_)?;
        let told = loaded.notices.iter();
        told.for_each(|notice| complain("notice", notice));
        let trace = loaded.trace;
        let name = match untimed {
            false => format!("{}, seed {}", trace.name(), self.seed),
            true => {
                let mut contents = Fnv::default();
                (0..trace.len()).for_each(|packet| contents.bytes(trace.packet(packet)));
                let name = Path::new(trace.name()).file_name().unwrap_or_default();
                let name = name.to_string_lossy().replace(char::is_control, "?");
                let most = MAX_TEXT - 32;
                let end = (0..=name.len().min(most)).rev();
                let end = end.into_iter().find(|end| name.is_char_boundary(*end));
                format!("{}, contents {contents}", &name[..end.unwrap_or(0)])
            }
        };
        Ok((trace, name))
    }
}

/// Returns the default path of a chain's curves: `edge.curves.yaml` for `edge.yaml`.
pub(crate) fn beside(chain: &Path) -> PathBuf {
    chain.with_extension("curves.yaml")
}

/// Prints profiles in the input format of `tailwater place`.
///
/// # Errors
/// The file is invalid, a profile does not fit, or the result cannot be printed.
pub fn curves(args: &CurvesArgs) -> Result<ExitCode, CliError> {
    let mut profiles = Profiles::read(&args.file)?;
    if let Some(traffic) = &args.traffic {
        profiles.list.retain(|profile| profile.key.traffic == *traffic);
    }
    let file = one_line(&args.file.display().to_string());
    if profiles.list.is_empty() {
        return Err(CliError::Input(format!(
            "{file}: no profile has this traffic (--traffic)"
        )));
    }
    let here = Machine::of(default_core());
    let (machine, label) = match &args.machine {
        Some(label) => (None, label.clone()),
        None => (Some(&here), here.label()),
    };
    let text = placement(&profiles, machine, &label).map_err(|error| {
        let hint = match error {
            CurvesError::OtherMachine { .. } => "; --machine sets its name in the cluster",
            _ => "",
        };
        CliError::Input(format!("{file}: {error}{hint}"))
    })?;
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
