//! Traffic by name: a capture file or a preset, loaded into memory and timed.

use crate::error::CliError;
use crate::headings;
use crate::matching::Matching;
use crate::text::{short, thousands};
use crate::values::{self, LONGEST};
use clap::Args;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use tailwater_files::is_stdin;
use tailwater_functions::spec::Match;
use tailwater_net::Nanos;
use tailwater_traffic::bursts::{Arrivals, PacketArrivals};
use tailwater_traffic::generate::{Preset, preset};
use tailwater_traffic::{CaptureReader, LoadOptions, PacketSource, ReadOptions, Trace, TrafficError};

/// Default duration of presets and of saturated runs.
pub const DEFAULT_DURATION: Nanos = Nanos::from_secs(3);

/// Maximum length of a preset in memory (about 1 GB at its own rate). A longer run repeats it with renumbered flows.
const MOST_GENERATED: Nanos = Nanos::from_secs(5);

/// Length of a preset for a saturated run; long enough to exceed the caches.
const SATURATION_GENERATED: Nanos = Nanos::from_secs(1);

/// Maximum packets per second at which a trace is repeated. A worker of the trace NIC examines every arriving packet;
/// beyond this rate it would do nothing else.
const FASTEST_PPS: f64 = 100e6;

/// Loading, generation and timing of traffic.
#[derive(Clone, Debug, Args)]
pub struct LoadArgs {
    /// Factor of the replay rate
    #[arg(long, value_name = "X", value_parser = values::scale, allow_negative_numbers = true)]
    #[arg(help_heading = headings::TRAFFIC)]
    pub rate_scale: Option<f64>,
    /// Ignore timestamps, and send packets evenly at this rate
    #[arg(long, value_name = "PPS", value_parser = values::rate, allow_negative_numbers = true)]
    #[arg(help_heading = headings::TRAFFIC)]
    pub rate: Option<f64>,
    /// Seed of a preset's packets
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(help_heading = headings::TRAFFIC)]
    pub seed: u64,
    /// Skip empty and oversized packets instead of refusing the capture
    #[arg(long)]
    #[arg(help_heading = headings::TRAFFIC, hide_short_help = true)]
    pub skip_bad_packets: bool,
    /// Memory limit for packets
    #[arg(long, value_name = "BYTES", default_value = "4G", value_parser = values::bytes)]
    #[arg(help_heading = headings::TRAFFIC, hide_short_help = true)]
    pub memory_limit: u64,
}

/// Source of packets.
#[derive(Debug)]
pub enum Traffic {
    /// A preset's configuration.
    Preset(Box<Preset>),
    /// A capture file.
    File(PathBuf),
}

impl Traffic {
    /// Resolves a name. A preset's name means the preset, even if such a file exists; `./name` means the file. `-` is a
    /// capture on standard input.
    ///
    /// # Errors
    /// There is neither a preset nor a file of this name.
    pub fn named(name: &OsStr) -> Result<Traffic, CliError> {
        let path = Path::new(name);
        if is_stdin(path) {
            return Ok(Traffic::File(path.to_owned()));
        }
        let text = name.to_string_lossy();
        match preset(&text) {
            Ok(config) => Ok(Traffic::Preset(Box::new(config))),
            // A file that exists but is not accessible causes an error when it is opened.
            Err(_) if !matches!(path.try_exists(), Ok(false)) => Ok(Traffic::File(path.to_owned())),
            Err(TrafficError::UnknownPreset { suggestion, known, .. }) => Err(CliError::Input(format!(
                "\"{text}\" is neither a capture file nor a traffic preset; the presets are: \
                 {known}{suggestion}"
            ))),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the source. `generated` is the length of a preset's traffic before rates are scaled.
    ///
    /// # Errors
    /// The preset's options or the capture file are invalid.
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

    /// Returns the arrivals; of a preset with this seed and length.
    ///
    /// # Errors
    /// As [`open`](Traffic::open).
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

    /// Returns the length of a preset that lasts `wanted` after its rate is changed.
    pub fn generated(&self, load: &LoadArgs, wanted: Nanos) -> Nanos {
        let Traffic::Preset(preset) = self else {
            return wanted;
        };
        let rate = load.rate.map_or(1.0, |rate| rate / preset.mean_rate_pps());
        let seconds = wanted.as_secs_f64() * rate * load.rate_scale.unwrap_or(1.0);
        // Lower bound, since a preset takes some time until its first packets.
        Nanos::from_secs_f64(seconds).max(Nanos::from_micros(100))
    }
}

/// A loaded trace.
pub struct Loaded {
    /// The packets.
    pub trace: Trace,
    /// Time for which packets arrive, with the trace repeated as necessary; `None`: the trace once.
    pub duration: Option<Nanos>,
    /// Packets excluded by `spec.match`.
    pub not_matched: u64,
    /// Notices for the user.
    pub notices: Vec<String>,
}

/// Loads traffic for a run of `duration`, or of the default length.
///
/// # Errors
/// The traffic cannot be loaded, exceeds the memory limit, or would be repeated too fast.
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

/// Loads a source into memory and times it.
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

/// Checks that a trace is not repeated at a rate that no NIC could have.
fn check_pace(trace: &Trace, duration: Option<Nanos>) -> Result<(), CliError> {
    let rate = 1.0 / trace.mean_gap().as_secs_f64();
    if duration.is_some_and(|duration| duration > trace.duration()) && rate > FASTEST_PPS * 1.01 {
        return Err(CliError::Input(format!(
            "{}: repeated for the duration, the rate is {}pps, above the {}pps that can be paced; set --rate, or use \
             --saturate",
            trace.name(),
            short(rate),
            short(FASTEST_PPS),
        )));
    }
    Ok(())
}

/// Returns a notice if a run will be long, or repeats its trace.
fn pace_notice(trace: &Trace, duration: Option<Nanos>) -> Option<String> {
    let lap = trace.duration();
    match duration {
        Some(duration) if duration > lap => Some(format!(
            "{}: lasts {lap}; repeated up to {duration}, with flows renumbered in each repetition",
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
