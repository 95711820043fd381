//! The packets of a chain, the same for all policies.

use crate::error::CliError;
use crate::input::Traffic;
use crate::timed::Timed;
use crate::values::LONGEST;
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tailwater_net::Nanos;
use tailwater_sim::spec::{RackSpec, TrafficSource};
use tailwater_sim::{FlowOptions, Recording, Workload};
use tailwater_traffic::TrafficError;
use tailwater_traffic::bursts::Arrivals;

/// How long presets send unless told otherwise.
const DEFAULT_DURATION: Nanos = Nanos::from_secs(1);

/// The most memory for packets of all chains: 32 million. More are made or read anew for each policy.
const MEMORY: u64 = 512 << 20;

/// Packets whose average length stands for that of all, where not all are in memory.
const SAMPLE: usize = 1 << 16;

/// The packets of a chain.
pub struct Packets {
    source: Source,
    /// They themselves, if there are not too many.
    recording: Option<Arc<Recording>>,
    /// The average length of a frame.
    pub mean_bytes: f64,
    /// From the first to the last, or nearly so.
    pub duration: Nanos,
    /// What a person should know.
    pub notices: Vec<String>,
}

/// Where packets come from, as often as they are needed.
struct Source {
    traffic: Traffic,
    seed: u64,
    /// How much of a preset is made.
    generated: Nanos,
    speed: f64,
    until: Nanos,
    stop: Arc<AtomicBool>,
}

impl Source {
    fn open(&self) -> Result<Timed, TrafficError> {
        let source = self.traffic.arrivals((self.seed, self.generated), false)?;
        Ok(Timed::new(source, self.speed).within(self.until, &self.stop))
    }
}

impl Packets {
    /// Those of a chain of a rack, by its number; `instead` replaces what they are.
    pub fn load(
        spec: &RackSpec,
        number: usize,
        instead: Option<&OsStr>,
        stop: &Arc<AtomicBool>,
    ) -> Result<Packets, CliError> {
        let chain = &spec.chains[number];
        let named = match (instead, &chain.traffic.source) {
            (Some(name), _) => Traffic::named(name)?,
            (None, TrafficSource::Preset(name)) => Traffic::named(OsStr::new(name))?,
            (None, TrafficSource::File(path)) => Traffic::File(path.clone()),
        };
        let length = spec.duration.unwrap_or(DEFAULT_DURATION);
        let speed = chain.traffic.rate_scale;
        // A preset needs some time for its first packets.
        let generated = Nanos::from_secs_f64(length.as_secs_f64() * speed);
        let generated = generated.clamp(Nanos::from_micros(100), LONGEST);
        let (traffic, until) = match named {
            Traffic::Preset(preset) => {
                let preset = preset.scaled(chain.traffic.flows_scale);
                (Traffic::Preset(Box::new(preset)), Nanos::MAX)
            }
            Traffic::File(_) if chain.traffic.flows_scale != 1.0 => {
                return Err(CliError::Input(format!(
                    "--traffic: expected a preset, since chain \"{}\" has a flowsScale",
                    chain.name
                )));
            }
            file => (file, spec.duration.unwrap_or(Nanos::MAX)),
        };
        let source = Source {
            traffic,
            // Chains of the same preset have packets of their own.
            seed: chain
                .traffic
                .seed
                .unwrap_or(spec.seed.wrapping_add(number as u64)),
            generated,
            speed,
            until,
            stop: Arc::clone(stop),
        };
        let memory = MEMORY / spec.chains.len() as u64;
        match Recording::load(Box::new(source.open()?), FlowOptions::default(), memory) {
            Ok(recording) => Packets::recorded(source, recording),
            Err(TrafficError::MemoryLimit { .. }) => Packets::streamed(source, length),
            Err(error) => Err(error.into()),
        }
    }

    fn recorded(source: Source, recording: Recording) -> Result<Packets, CliError> {
        if recording.packets() == 0 && !source.stop.load(Ordering::Relaxed) {
            let file = source.open()?.name().to_owned();
            let reason = "there is none within the duration".to_owned();
            return Err(TrafficError::NoPackets { file, reason }.into());
        }
        let notices = recording.notices().iter();
        Ok(Packets {
            mean_bytes: recording.bytes() as f64 / recording.packets().max(1) as f64,
            duration: recording.duration(),
            notices: notices.map(ToString::to_string).collect(),
            recording: Some(Arc::new(recording)),
            source,
        })
    }

    fn streamed(source: Source, length: Nanos) -> Result<Packets, CliError> {
        let mut arrivals = source.open()?.silently();
        let (mut packets, mut bytes) = (0, 0);
        while packets < SAMPLE
            && let Some(arrival) = arrivals.next_arrival()?
        {
            packets += 1;
            bytes += u64::from(arrival.bytes);
        }
        Ok(Packets {
            mean_bytes: bytes as f64 / packets.max(1) as f64,
            duration: length,
            notices: Vec::new(),
            recording: None,
            source,
        })
    }

    /// All of them, for one policy.
    pub fn workload(&self) -> Result<Workload<'static>, CliError> {
        Ok(match &self.recording {
            Some(recording) => Workload::from(Arc::clone(recording)),
            None => {
                let source = self.source.open()?.silently();
                Workload::stream(Box::new(source), FlowOptions::default())
            }
        })
    }
}
