//! `tailwater profile latency`, `cache` and `all`, which measure curves of a chain, and `diff` and `curves`, which
//! process them.

mod args;
mod diff;
mod division;

pub use args::{CURVES_EXAMPLES, CurvesArgs, DIFF_EXAMPLES, DiffArgs, MEASURE_EXAMPLES, MeasureArgs};
pub use diff::diff;

use crate::args::{LoadArgs, ReportOutput};
use crate::error::CliError;
use crate::html;
use crate::input::{self, Traffic};
use crate::profile::{GENERATED, as_it_is};
use crate::progress::Measuring;
use crate::run::{check_output, check_writable, json, stop_on_signals};
use crate::table;
use crate::{complain, print};
use division::Division;
use serde::Serialize;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;
use tailwater_dataplane::cores::{AvoidCores, default_core};
use tailwater_functions::spec::ChainSpec;
use tailwater_profile::curve::{Measured, Point};
use tailwater_profile::profiles::{
    CacheProfile, ChainProfile, CostProfile, FunctionCost, Key, LatencyProfile, MAX_TEXT, Machine, Profiles, placement,
};
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
    // Quick checks come before slow ones.
    let mut spec = ChainSpec::read(&args.chain)?;
    crate::profile::set_objective(&mut spec, args.slo)?;
    let traffic = match args.flows {
        Some(_) => None,
        None => {
            let name = args.traffic.as_deref().unwrap_or("backbone".as_ref());
            Some(Traffic::named(name)?)
        }
    };
    let file = args.file.clone().unwrap_or_else(|| beside(&args.chain));
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
    let core = args.core.unwrap_or_else(default_core);
    // Reserves the means of dividing the cache; nothing changes until it begins.
    let mut division = match part {
        CurveSelection::Latency => None,
        CurveSelection::Cache | CurveSelection::All => Some(Division::choose(core, args)?),
    };
    let because = division.as_mut().map(|division| std::mem::take(&mut division.because));
    let (trace, name) = load(args, traffic, &spec)?;
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
    write(&file, &profiles.to_string())?;
    if let Some(report) = &args.report {
        write(report, &html::profiles(&profiles, &file, SystemTime::now())?)?;
    }
    print(&match args.output {
        ReportOutput::Table => table::profile(&profile, because.as_deref(), &file),
        ReportOutput::Json => json(&Document::new(&profile, because, &file))?,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the traffic, and its name in profiles. Equal names mean equal traffic.
fn load(args: &MeasureArgs, traffic: Option<Traffic>, spec: &ChainSpec) -> Result<(Trace, String), CliError> {
    let Some(traffic) = traffic else {
        let (flows, frame) = (args.flows.unwrap_or(1), args.frame.unwrap_or(FRAME));
        let name = format!("{flows} flows, frames of {frame} bytes, seed {}", args.seed);
        return Ok((uniform(flows, frame, args.seed)?, name));
    };
    let load = LoadArgs {
        skip_bad_packets: args.skip_bad_packets,
        ..as_it_is(args.seed)
    };
    let untimed = matches!(traffic, Traffic::File(_));
    let loaded = input::load(traffic, &load, Some(GENERATED), untimed, &spec.match_)?;
    let told = loaded.notices.iter();
    told.for_each(|notice| complain("notice", notice));
    let trace = loaded.trace;
    let name = match untimed {
        false => format!("{}, seed {}", trace.name(), args.seed),
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

fn write(file: &Path, text: &str) -> Result<(), CliError> {
    fs::write(file, text).map_err(|source| CliError::Report {
        file: file.display().to_string(),
        source,
    })
}

/// Returns the default path of a chain's curves: `edge.curves.yaml` for `edge.yaml`.
fn beside(chain: &Path) -> PathBuf {
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
    let file = crate::text::one_line(&args.file.display().to_string());
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
            tailwater_profile::profiles::CurvesError::OtherMachine { .. } => "; --machine sets its name in the cluster",
            _ => "",
        };
        CliError::Input(format!("{file}: {error}{hint}"))
    })?;
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Document of `--output json`. Field names are stable.
#[derive(Debug, Serialize)]
pub struct Document {
    chain: String,
    configuration: String,
    traffic: String,
    machine: MachineDocument,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache: Option<CacheDocument>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency: Option<LatencyDocument>,
    #[serde(skip_serializing_if = "Option::is_none")]
    costs: Option<CostDocument>,
    file: String,
}

#[derive(Debug, Serialize)]
struct MachineDocument {
    processor: String,
    megahertz: u32,
    cache_bytes: u64,
    cache_ways: u32,
    private_bytes: u64,
}

#[derive(Debug, Serialize)]
struct CacheDocument {
    method: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    because: Option<String>,
    usable_bytes: u64,
    points: Vec<CachePoint>,
    not_held: Vec<NotHeldPoint>,
}

#[derive(Debug, Serialize)]
struct CachePoint {
    bytes: u64,
    pps: f64,
    noise_pps: f64,
    runs: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    occupied_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct NotHeldPoint {
    bytes: u64,
    misses: f64,
    pps: f64,
}

#[derive(Debug, Serialize)]
struct LatencyDocument {
    throughput_pps: f64,
    throughput_noise_pps: f64,
    percentile: f64,
    points: Vec<LoadPoint>,
    objective_us: f64,
    objective_percentile: f64,
    non_drop_pps: Option<f64>,
    partial_drop_pps: Option<f64>,
    objective_pps: Option<f64>,
}

#[derive(Debug, Serialize)]
struct LoadPoint {
    load: f64,
    us: f64,
    noise_us: f64,
    runs: u32,
}

#[derive(Debug, Serialize)]
struct CostDocument {
    packet_ns: f64,
    packet_noise_ns: f64,
    rest_ns: f64,
    runs: u32,
    functions: Vec<FunctionDocument>,
}

#[derive(Debug, Serialize)]
struct FunctionDocument {
    function: String,
    packet_ns: f64,
    packet_noise_ns: f64,
    /// Cycles at the machine's maximum clock, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    packet_cycles: Option<f64>,
    share: f64,
    runs: u32,
}

impl Document {
    /// Creates the document of a profile in a file. `because` is the reason for the method of dividing the cache, if it
    /// was just measured.
    pub fn new(profile: &ChainProfile, because: Option<String>, file: &Path) -> Document {
        let key = &profile.key;
        let machine = &key.machine;
        let bytes = |kibibytes: u32| u64::from(kibibytes) * 1024;
        Document {
            chain: key.chain.clone(),
            configuration: key.configuration.clone(),
            traffic: key.traffic.clone(),
            machine: MachineDocument {
                processor: machine.processor.clone(),
                megahertz: machine.megahertz,
                cache_bytes: bytes(machine.cache_kibibytes),
                cache_ways: machine.cache_ways,
                private_bytes: bytes(machine.private_kibibytes),
            },
            cache: profile.cache.as_ref().map(|cache| cache_document(cache, because)),
            latency: profile.latency.as_ref().map(latency_document),
            costs: profile.costs.as_ref().map(|costs| cost_document(costs, machine)),
            file: file.display().to_string(),
        }
    }
}

fn cache_document(cache: &CacheProfile, because: Option<String>) -> CacheDocument {
    let points = cache.points.iter().map(|Point { at, measured }| CachePoint {
        bytes: cache.bytes(*at),
        pps: measured.value,
        noise_pps: measured.noise,
        runs: measured.runs,
        occupied_bytes: cache.occupied(*at),
    });
    let not_held = cache.not_held.iter().map(|point| NotHeldPoint {
        bytes: cache.bytes(point.at),
        misses: point.misses,
        pps: point.measured.value,
    });
    CacheDocument {
        method: cache.method.to_string(),
        because,
        usable_bytes: cache.bytes(cache.most_units),
        points: points.collect(),
        not_held: not_held.collect(),
    }
}

fn latency_document(latency: &LatencyProfile) -> LatencyDocument {
    let points = latency.points.iter().map(|point| {
        let Measured { value, noise, runs } = point.measured;
        LoadPoint {
            load: f64::from(point.at) / 100.0,
            us: value,
            noise_us: noise,
            runs,
        }
    });
    LatencyDocument {
        throughput_pps: latency.throughput.value,
        throughput_noise_pps: latency.throughput.noise,
        percentile: latency.percentile,
        points: points.collect(),
        objective_us: latency.objective_us,
        objective_percentile: latency.objective_percentile,
        non_drop_pps: latency.ndr,
        partial_drop_pps: latency.pdr,
        objective_pps: latency.objective_rate,
    }
}

fn cost_document(costs: &CostProfile, machine: &Machine) -> CostDocument {
    let functions = costs.functions.iter().map(|of| {
        let FunctionCost { function, cost, share } = of;
        FunctionDocument {
            function: function.clone(),
            packet_ns: cost.value,
            packet_noise_ns: cost.noise,
            packet_cycles: machine.cycles(cost.value),
            share: *share,
            runs: cost.runs,
        }
    });
    CostDocument {
        packet_ns: costs.whole.value,
        packet_noise_ns: costs.whole.noise,
        rest_ns: costs.rest(),
        runs: costs.whole.runs,
        functions: functions.collect(),
    }
}

/// Returns all profiles of a file, for its page.
pub fn documents(profiles: &Profiles, file: &Path) -> Vec<Document> {
    let all = profiles.list.iter();
    all.map(|profile| Document::new(profile, None, file)).collect()
}

/// Returns a profile's chain and traffic, for people.
pub fn title(profile: &ChainProfile) -> String {
    let mut title = profile.key.chain.clone();
    let _ = write!(title, " ({})", crate::text::one_line(&profile.key.traffic));
    title
}
