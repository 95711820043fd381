//! Traffic by name.

use tailwater_net::Nanos;

use super::{BurstyConfig, HeavyTail, SizeRange};
use crate::TrafficError;

/// The presets: name and what it is.
pub const PRESETS: &[(&str, &str)] = &[(
    "bursty",
    "an aggregate of short and a few huge flows in trains, 200 kpps and 1.6 Gbit/s on average",
)];

/// The configuration that a preset stands for, one second long and with seed 1: change what
/// you need.
///
/// # Errors
/// [`TrafficError::UnknownPreset`], with the nearest name.
pub fn preset(name: &str) -> Result<BurstyConfig, TrafficError> {
    match name {
        "bursty" => Ok(bursty()),
        _ => Err(unknown(name)),
    }
}

/// Like an Internet backbone link scaled to one server: about 30,000 new flows a second, of
/// which half have a single packet and one in 50,000 ten thousand, and a mean packet of 988
/// bytes (these two as in the backbone trace of NetBlaze §6).
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

/// The error for a name that is none, with the nearest one if it is near.
fn unknown(name: &str) -> TrafficError {
    let nearest = PRESETS
        .iter()
        .map(|(known, _)| (strsim::jaro_winkler(name, known), known))
        .filter(|(similarity, _)| *similarity > 0.7)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let known: Vec<&str> = PRESETS.iter().map(|(known, _)| *known).collect();
    TrafficError::UnknownPreset {
        // An argument of any length makes no error of any length.
        name: name.chars().take(64).collect(),
        suggestion: nearest.map_or_else(String::new, |(_, n)| format!(", did you mean \"{n}\"?")),
        known: known.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_valid() {
        for (name, about) in PRESETS {
            preset(name).unwrap().validate().unwrap();
            assert!(!about.is_empty());
        }
    }

    #[test]
    fn an_unknown_name_gets_the_nearest() {
        assert_eq!(
            preset("burtsy").unwrap_err().to_string(),
            "no traffic preset is called \"burtsy\", did you mean \"bursty\"?; \
             the presets are: bursty"
        );
        assert_eq!(
            preset("quux").unwrap_err().to_string(),
            "no traffic preset is called \"quux\"; the presets are: bursty"
        );
    }
}
