//! Figures as people read them in tables, and as messages have them.

use std::net::IpAddr;
use tailwater_net::Nanos;
use tailwater_policy::server::{ClassLoad, FlowClass};

/// Returns the load of a class of flows, as messages have it. `None` if the destination is no address.
pub fn class_load(destination: &[u8], source_bits: u32, packets: u32) -> Option<ClassLoad> {
    let destination = match destination.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(destination).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(destination).ok()?),
        _ => return None,
    };
    Some(ClassLoad {
        class: FlowClass::by_source_bits(u8::try_from(source_bits).ok()?, destination),
        packets,
    })
}

/// Returns a latency with three digits: `143us`, `1.25ms`.
pub fn latency_text(latency: Nanos) -> String {
    let nanos = latency.0 as f64;
    match latency.0 {
        0..1_000 => format!("{}ns", latency.0),
        1_000..1_000_000 => format!("{}us", digits(nanos / 1e3)),
        1_000_000..1_000_000_000 => format!("{}ms", digits(nanos / 1e6)),
        _ => format!("{}s", digits(nanos / 1e9)),
    }
}

/// Returns a rate with three digits: `1.20Mpps`.
pub fn rate_text(rate: f64) -> String {
    match rate {
        ..1e3 => format!("{rate:.0}pps"),
        ..1e6 => format!("{}kpps", digits(rate / 1e3)),
        _ => format!("{}Mpps", digits(rate / 1e6)),
    }
}

/// Three digits of a number from 1 on.
fn digits(value: f64) -> String {
    match value {
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Returns `true` if two figures look different to people: by more than a twentieth.
pub fn differs(one: f64, other: f64) -> bool {
    (one - other).abs() > 0.05 * one.abs().max(other.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        let latencies = [
            (950, "950ns"),
            (143_400, "143us"),
            (14_340, "14.3us"),
            (1_250_000, "1.25ms"),
        ];
        for (nanos, text) in latencies {
            assert_eq!(latency_text(Nanos(nanos)), text);
        }
        assert_eq!(latency_text(Nanos::from_secs(2)), "2.00s");
        for (rate, text) in [
            (0.0, "0pps"),
            (999.4, "999pps"),
            (15_000.0, "15.0kpps"),
            (1.2e6, "1.20Mpps"),
        ] {
            assert_eq!(rate_text(rate), text);
        }
    }

    #[test]
    fn small_changes_of_figures_are_not_told() {
        assert!(!differs(100.0, 104.0) && differs(100.0, 106.0) && differs(0.0, 1.0) && !differs(0.0, 0.0));
    }
}
