//! Traffic presets by name.

use tailwater_net::Nanos;

use super::{
    Aggregate, AggregateConfig, Bursty, BurstyConfig, FlowArrivals, HeavyTail, MinnowBursts, Mixture, Part, SizeRange,
    Stay, TrainClass,
};
use crate::bursts::{Arrivals, PacketArrivals};
use crate::{PacketSource, TrafficError};

/// Presets: name and description.
pub const PRESETS: &[(&str, &str)] = &[
    (
        "bursty",
        "an aggregate of short and a few huge flows in trains, 200 kpps and 1.6 Gbit/s on average",
    ),
    (
        "backbone",
        "a city's backbone link: 31,200 new flows a second, bursts of one flow (whales) and of many (minnows) as in \
         NetBlaze's trace",
    ),
    (
        "as",
        "a large autonomous system: 10,100 new flows a second, four times as many in bursts",
    ),
    ("smooth", "as many flows as backbone, without bursts"),
];

/// Preset with a duration of one second and seed 1, both of which can be changed.
#[derive(Clone, Debug, PartialEq)]
pub enum Preset {
    /// Preset of [`Bursty`].
    Bursty(BurstyConfig),
    /// Preset of [`Aggregate`].
    Aggregate {
        /// Name of the preset.
        name: &'static str,
        /// Configuration of the traffic.
        config: AggregateConfig,
        /// Approximate packets per second over long times, as measured.
        mean_rate_pps: f64,
    },
}

/// Returns the preset of a name.
///
/// # Errors
/// [`TrafficError::UnknownPreset`], with the most similar name.
pub fn preset(name: &str) -> Result<Preset, TrafficError> {
    let aggregate = |name, (config, mean_rate_pps)| Preset::Aggregate {
        name,
        config,
        mean_rate_pps,
    };
    match name {
        "bursty" => Ok(Preset::Bursty(BurstyConfig::preset())),
        "backbone" => Ok(aggregate("backbone", backbone())),
        "as" => Ok(aggregate("as", autonomous_system())),
        "smooth" => Ok(aggregate("smooth", smooth())),
        _ => Err(unknown(name)),
    }
}

impl Preset {
    /// Sets seed and duration.
    #[must_use]
    pub fn with(mut self, seed: u64, duration: Nanos) -> Self {
        let (own_seed, own_duration) = match &mut self {
            Preset::Bursty(config) => (&mut config.seed, &mut config.duration),
            Preset::Aggregate { config, .. } => (&mut config.seed, &mut config.duration),
        };
        (*own_seed, *own_duration) = (seed, duration);
        self
    }

    /// Multiplies the packets per second by `factor`, with more flows. Each flow and each of its trains is unchanged.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        match self {
            Preset::Bursty(mut config) => {
                config.mean_rate_pps *= factor;
                Preset::Bursty(config)
            }
            Preset::Aggregate {
                name,
                config,
                mean_rate_pps,
            } => Preset::Aggregate {
                name,
                config: config.scaled(factor),
                mean_rate_pps: mean_rate_pps * factor,
            },
        }
    }

    /// Returns the approximate packets per second over long times.
    pub fn mean_rate_pps(&self) -> f64 {
        match self {
            Preset::Bursty(config) => config.mean_rate_pps,
            Preset::Aggregate { mean_rate_pps, .. } => *mean_rate_pps,
        }
    }

    /// Opens it as a source of packets.
    ///
    /// # Errors
    /// [`TrafficError::Setting`] for a setting out of range.
    pub fn open(&self) -> Result<Box<dyn PacketSource>, TrafficError> {
        Ok(match self {
            Preset::Bursty(config) => Box::new(Bursty::new(config.clone())?),
            Preset::Aggregate { name, config, .. } => Box::new(Aggregate::new(config.clone(), name)?),
        })
    }

    /// Opens it as a source of arrival times and flows, without building packets where possible.
    ///
    /// # Errors
    /// As [`Preset::open`].
    pub fn arrivals(&self) -> Result<Box<dyn Arrivals>, TrafficError> {
        Ok(match self {
            Preset::Bursty(config) => Box::new(PacketArrivals::new(Bursty::new(config.clone())?)),
            Preset::Aggregate { name, config, .. } => Box::new(Aggregate::new(config.clone(), name)?),
        })
    }
}

/// Range of packet sizes.
const fn sizes(weight: f64, min: u16, max: u16) -> SizeRange {
    SizeRange { weight, min, max }
}

/// Heavy-tailed distribution.
const fn tail(shape: f64, min: u32, max: u32) -> HeavyTail {
    HeavyTail { shape, min, max }
}

/// Train of mixed sizes.
const fn train(weight: f64, packets: HeavyTail, line_rate_bps: f64) -> TrainClass {
    TrainClass {
        weight,
        flow_packets_min: 1,
        packets,
        line_rate_bps,
        full_size: false,
    }
}

/// Train of full-size packets, for long flows only: a whale.
const fn whale(weight: f64, packets: HeavyTail, line_rate_bps: f64) -> TrainClass {
    TrainClass {
        weight,
        flow_packets_min: 300,
        packets,
        line_rate_bps,
        full_size: true,
    }
}

/// Settings that `backbone` and `as` share.
fn internet(arrivals: FlowArrivals) -> AggregateConfig {
    AggregateConfig {
        seed: 1,
        duration: Nanos::from_secs(1),
        warm_up: Nanos::from_secs(5),
        arrivals,
        minnows: None,
        short_share: 0.6,
        short_packets: tail(2.0, 1, 3),
        flow_packets: Mixture::campus(),
        flow_bytes_max: 206_000_000,
        lifetime_max: Nanos::from_secs(52),
        trains: vec![train(1.0, tail(1.5, 1, 16), 200e6)],
        mean_gap: Nanos::from_millis(20),
        tcp_share: 0.8,
        blocked_share: 0.01,
        sizes: vec![sizes(0.26, 54, 128), sizes(0.13, 300, 1_000), sizes(0.61, 1_514, 1_514)],
        clients: 100_000,
        servers: 20_000,
        max_active_flows: 2_000_000,
    }
}

/// Backbone trace of NetBlaze §4.1: 31.2 k new flows per second on average and 51.2 k at most, flows of 54 bytes to 206
/// MB that last up to 52 s, 988 bytes per packet. Its bursts are those of NetBlaze's Tables 1 and 2. The trace's packet
/// rate is not published. Because of minnow bursts, the busiest second exceeds the crowded state's rate.
fn backbone() -> (AggregateConfig, f64) {
    let mut config = internet(FlowArrivals {
        mean_per_second: 31_200.0,
        max_per_second: 46_500.0,
        calm: Nanos::from_millis(17_700),
        crowded: Nanos::from_millis(2_300),
        stay: Stay::Steady,
    });
    config.minnows = Some(MinnowBursts {
        per_second: 15.0,
        flows: tail(1.5, 300, 4_000),
        spread: Nanos::from_millis(1),
    });
    config.flow_packets = with_pages(10.0);
    // A few bulk transfers per minute that reach the maximum size.
    config.flow_packets.0.push((
        0.000_15,
        Part::LogNormal {
            sigma: 0.05,
            median: 225_000.0,
        },
    ));
    config.trains = vec![
        train(1.0, tail(1.05, 1, 64), 300e6),
        whale(0.003, tail(1.5, 150, 500), 10e9),
        whale(0.0015, tail(1.5, 150, 500), 1.5e9),
    ];
    (config, 610e3)
}

/// Campus mixture, plus flows that resemble page loads with the given weight. These make most packets belong to flows
/// that are neither tiny nor huge.
fn with_pages(weight: f64) -> Mixture {
    let mut mixture = Mixture::campus();
    mixture.0.push((
        weight,
        Part::LogNormal {
            sigma: 1.5,
            median: 25.0,
        },
    ));
    mixture
}

/// AS trace of NetBlaze §4.1: 10.1 k new flows per second on average and 39.0 k at most, flows of 54 bytes to 514 MB
/// that last up to 205 s, 976 bytes per packet.
fn autonomous_system() -> (AggregateConfig, f64) {
    let mut config = internet(FlowArrivals {
        mean_per_second: 10_100.0,
        max_per_second: 37_000.0,
        calm: Nanos::from_millis(17_700),
        crowded: Nanos::from_millis(2_300),
        stay: Stay::Steady,
    });
    config.minnows = Some(MinnowBursts {
        per_second: 0.7,
        flows: tail(1.5, 1_500, 4_000),
        spread: Nanos::from_millis(2),
    });
    config.short_share = 0.35;
    config.flow_packets = with_pages(3.0);
    // A few bulk transfers per minute that reach the maximum size.
    config.flow_packets.0.push((
        0.000_1,
        Part::LogNormal {
            sigma: 0.1,
            median: 520_000.0,
        },
    ));
    config.flow_bytes_max = 514_000_000;
    // A third of the trace's longest lifetime, so that the largest flows fit into a minute.
    config.lifetime_max = Nanos::from_secs(58);
    config.trains = vec![
        train(1.0, tail(1.1, 1, 100), 200e6),
        whale(0.006, tail(1.5, 200, 1_800), 1e9),
        whale(0.007, tail(1.5, 16, 150), 10e9),
        whale(0.003, tail(1.5, 100, 600), 2e9),
    ];
    config.sizes = vec![sizes(0.31, 54, 128), sizes(0.14, 300, 1_000), sizes(0.55, 1_514, 1_514)];
    (config, 245e3)
}

/// The same flow rate as `backbone`, without bursts: flows start as a Poisson process, and send their packets one by
/// one at random times.
fn smooth() -> (AggregateConfig, f64) {
    let mut config = internet(FlowArrivals::poisson(31_200.0));
    config.trains = vec![train(1.0, tail(1.0, 1, 1), 10e9)];
    config.flow_bytes_max = 1_000_000;
    config.lifetime_max = Nanos::from_secs(10);
    (config, 229.0e3)
}

impl BurstyConfig {
    /// Preset `bursty`: like an Internet backbone link scaled to one server. About 30,000 new flows per second, of
    /// which half have a single packet and one in 50,000 has ten thousand; a mean packet of 988 bytes (these two as in
    /// the backbone trace of NetBlaze §6). Duration one second, seed 1: both can be changed.
    pub fn preset() -> Self {
        bursty()
    }
}

fn bursty() -> BurstyConfig {
    BurstyConfig {
        seed: 1,
        duration: Nanos::from_secs(1),
        warm_up: Nanos::from_secs(2),
        mean_rate_pps: 200_000.0,
        flow_packets: HeavyTail {
            shape: 1.1,
            min: 1,
            max: 10_000,
        },
        train_packets: HeavyTail {
            shape: 1.2,
            min: 1,
            max: 2_000,
        },
        train_rate_bps: 10e9,
        mean_gap: Nanos::from_millis(2),
        tcp_share: 0.6,
        sizes: vec![
            SizeRange {
                weight: 0.19,
                min: 64,
                max: 128,
            },
            SizeRange {
                weight: 0.11,
                min: 300,
                max: 1_000,
            },
            SizeRange {
                weight: 0.70,
                min: 1_514,
                max: 1_514,
            },
        ],
        clients: 20_000,
        servers: 5_000,
        max_active_flows: 200_000,
    }
}

/// Error for an unknown name, with a similar name if there is one.
fn unknown(name: &str) -> TrafficError {
    // Truncated, so that a long argument makes neither a long comparison nor a long error.
    let short: String = name.chars().take(64).collect();
    let nearest = PRESETS
        .iter()
        .map(|(known, _)| (strsim::jaro_winkler(&short, known), known))
        .filter(|(similarity, _)| *similarity > 0.7)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let known: Vec<&str> = PRESETS.iter().map(|(known, _)| *known).collect();
    TrafficError::UnknownPreset {
        name: short,
        suggestion: nearest.map_or_else(String::new, |(_, n)| format!("; did you mean \"{n}\"?")),
        known: known.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_valid() {
        for (name, about) in PRESETS {
            preset(name).unwrap().open().unwrap();
            assert!(!about.is_empty());
        }
    }

    #[test]
    fn an_unknown_name_gets_the_nearest() {
        assert_eq!(
            preset("burtsy").unwrap_err().to_string(),
            "unknown traffic preset \"burtsy\"; the presets are: bursty, backbone, as, smooth; did you mean \
             \"bursty\"?"
        );
        assert_eq!(
            preset("quux").unwrap_err().to_string(),
            "unknown traffic preset \"quux\"; the presets are: bursty, backbone, as, smooth"
        );
    }
}
