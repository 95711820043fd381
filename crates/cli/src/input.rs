//! Traffic by name: a capture file or a preset, read into memory and timed.

use crate::args::LoadArgs;
use crate::error::CliError;
use crate::matching::Matching;
use crate::text::{short, thousands};
use crate::values::LONGEST;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use tailwater_functions::spec::Match;
use tailwater_net::Nanos;
use tailwater_traffic::bursts::{Arrivals, PacketArrivals};
use tailwater_traffic::generate::{Preset, preset};
use tailwater_traffic::{CaptureReader, LoadOptions, PacketSource, ReadOptions, Trace, TrafficError};

/// How long presets and saturation run unless told otherwise.
pub const DEFAULT_DURATION: Nanos = Nanos::from_secs(3);

/// The most of a preset that is held in memory (about 1 GB at its own rate); a longer run
/// starts over with its flows renumbered.
const MOST_GENERATED: Nanos = Nanos::from_secs(5);

/// What saturation has of a preset: enough that it does not fit a cache.
const SATURATION_GENERATED: Nanos = Nanos::from_secs(1);

/// The most packets a second at which a trace is repeated. A worker of the trace NIC looks at every
/// packet that arrives; beyond this it would do nothing else.
const FASTEST_PPS: f64 = 100e6;

/// Where packets come from.
#[derive(Debug)]
pub enum Traffic {
    /// A preset's configuration.
    Preset(Box<Preset>),
    /// A capture file.
    File(PathBuf),
}

impl Traffic {
    /// Finds out what a name stands for. A preset's name means the preset, whatever files there
    /// are; `./name` means the file.
    pub fn named(name: &OsStr) -> Result<Traffic, CliError> {
        let path = Path::new(name);
        let text = name.to_string_lossy();
        match preset(&text) {
            Ok(config) => Ok(Traffic::Preset(Box::new(config))),
            // A file that is there but cannot be reached says so when it is opened.
            Err(_) if !matches!(path.try_exists(), Ok(false)) => Ok(Traffic::File(path.to_owned())),
            Err(TrafficError::UnknownPreset { suggestion, known, .. }) => Err(CliError::Input(format!(
                "\"{text}\" is neither a capture file nor a traffic preset{suggestion}; \
                     the presets are: {known}"
            ))),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens it. `generated` is how much of a preset to make, before rates are scaled.
    pub fn open(self, load: &LoadArgs, generated: Nanos) -> Result<Box<dyn PacketSource>, CliError> {
        Ok(match self {
            Traffic::Preset(preset) => preset.with(load.seed, generated).open()?,
            Traffic::File(path) => {
                let options = ReadOptions {
                    skip_bad_packets: load.skip_bad_packets,
                };
                Box::new(CaptureReader::open(path, &options)?)
            }
        })
    }

    /// Its arrivals; of a preset by its seed and for how long.
    pub fn arrivals(
        &self,
        (seed, generated): (u64, Nanos),
        skip_bad_packets: bool,
    ) -> Result<Box<dyn Arrivals>, TrafficError> {
        match self {
            Traffic::Preset(preset) => preset.as_ref().clone().with(seed, generated).arrivals(),
            Traffic::File(path) => {
                let options = ReadOptions { skip_bad_packets };
                let reader = CaptureReader::open(path, &options)?;
                Ok(Box::new(PacketArrivals::new(reader)))
            }
        }
    }

    /// How much of a preset makes `wanted` after its rate is changed.
    pub fn generated(&self, load: &LoadArgs, wanted: Nanos) -> Nanos {
        let Traffic::Preset(preset) = self else {
            return wanted;
        };
        let rate = load.rate.map_or(1.0, |rate| rate / preset.mean_rate_pps());
        let seconds = wanted.as_secs_f64() * rate * load.rate_scale.unwrap_or(1.0);
        // A preset needs some time for its first packets.
        Nanos::from_secs_f64(seconds).max(Nanos::from_micros(100))
    }
}

/// A trace, ready to run.
pub struct Loaded {
    /// The packets.
    pub trace: Trace,
    /// For how long packets arrive, starting over if need be; `None`: the trace once.
    pub duration: Option<Nanos>,
    /// Packets left out because of `spec.match`.
    pub not_matched: u64,
    /// What a person should know.
    pub notices: Vec<String>,
}

/// Loads traffic for a run of `duration`, or of the default length.
pub fn load(
    traffic: Traffic,
    load: &LoadArgs,
    duration: Option<Nanos>,
    saturate: bool,
    wanted: &Match,
) -> Result<Loaded, CliError> {
    let length = duration.unwrap_or(DEFAULT_DURATION);
    let is_preset = matches!(traffic, Traffic::Preset(_));
    let (generated, whole) = match saturate {
        true => (SATURATION_GENERATED, false),
        false => {
            let needed = traffic.generated(load, length);
            (needed.min(MOST_GENERATED), needed <= MOST_GENERATED)
        }
    };
    let (trace, not_matched) = read(traffic.open(load, generated)?, load, wanted)?;
    let duration = match is_preset {
        true => (!whole).then_some(length),
        false if saturate => Some(length),
        false => duration,
    };
    let mut notices: Vec<String> = trace.notices().iter().map(ToString::to_string).collect();
    if !saturate {
        check_pace(&trace, duration)?;
        notices.extend(pace_notice(&trace, duration));
    }
    Ok(Loaded {
        trace,
        duration,
        not_matched,
        notices,
    })
}

/// Reads a source into memory and times it.
fn read(source: Box<dyn PacketSource>, load: &LoadArgs, wanted: &Match) -> Result<(Trace, u64), CliError> {
    let mut source = Matching::new(source, wanted);
    let options = LoadOptions {
        memory_limit_bytes: load.memory_limit,
        rate_pps: load.rate,
    };
    let loaded = Trace::load(&mut source, &options);
    let not_matched = source.not_matched;
    let mut trace = match loaded {
        Err(TrafficError::NoPackets { file, .. }) if not_matched > 0 => {
            return Err(CliError::Input(format!(
                "{file}: none of its {} packets match spec.match of the chain",
                thousands(not_matched)
            )));
        }
        loaded => loaded?,
    };
    if let Some(scale) = load.rate_scale {
        trace.scale_rate(scale)?;
    }
    if trace.duration() > LONGEST {
        return Err(CliError::Input(format!(
            "{}: lasts {} days at this rate; timestamps may be wrong: give a rate with --rate, or \
             a larger --rate-scale",
            trace.name(),
            thousands((trace.duration().as_secs_f64() / 86_400.0) as u64),
        )));
    }
    Ok((trace, not_matched))
}

/// Refuses to repeat a trace faster than a NIC could be.
fn check_pace(trace: &Trace, duration: Option<Nanos>) -> Result<(), CliError> {
    let rate = 1.0 / trace.mean_gap().as_secs_f64();
    if duration.is_some_and(|duration| duration > trace.duration()) && rate > FASTEST_PPS * 1.01 {
        return Err(CliError::Input(format!(
            "{}: repeated for the duration it makes {}pps, more than the {}pps that can be paced; \
             give a rate with --rate, or use --saturate",
            trace.name(),
            short(rate),
            short(FASTEST_PPS),
        )));
    }
    Ok(())
}

/// That a run will be long, or repeats its trace.
fn pace_notice(trace: &Trace, duration: Option<Nanos>) -> Option<String> {
    let lap = trace.duration();
    match duration {
        Some(duration) if duration > lap => Some(format!(
            "{}: lasts {lap}, so it is repeated until {duration} are over, each time with its \
             flows renumbered",
            trace.name()
        )),
        None if lap > Nanos::from_secs(60) => Some(format!(
            "{}: lasts {} s; --duration or --rate-scale makes the run shorter",
            trace.name(),
            thousands(lap.as_secs_f64() as u64)
        )),
        _ => None,
    }
}
