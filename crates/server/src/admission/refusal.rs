//! Text of a refusal: what binds, and what would fit.

use std::fmt::Write as _;
use tailwater_placement::admit::{Nearest, Reason};
use tailwater_placement::check::Violation;
use tailwater_placement::core_shares::{Refused, Wanted};
use tailwater_placement::demand::Unfit;

/// One line, without the chain's name.
pub(super) fn text(refused: &Refused, wanted: Wanted<'_>) -> String {
    let Refused { share, core, free, .. } = refused;
    let claim = wanted.claim;
    let throughput = claim.map_or(0.0, |claim| claim.throughput);
    let of = match wanted.cores {
        1 => "a core".to_owned(),
        cores => format!("each of {cores} cores"),
    };
    let needs = format!("needs {share:.2} of {of} at {}", rate(throughput));
    let mut text = match (&refused.reason, &refused.violation) {
        (Reason::Unfit(Unfit::Latency { least }), _) => {
            let latency = claim.map(|claim| claim.latency).unwrap_or_default();
            format!("its profile has a latency of {least} at any load, its objective is {latency}")
        }
        (_, Some(Violation::Latency { slo, latency, target })) => {
            format!(
                "{needs}; on core {core} chain \"{slo}\" would have a latency of {latency}, its objective is {target}"
            )
        }
        (_, Some(Violation::Throughput { slo, rate: got, target })) => {
            format!(
                "{needs}; on core {core} chain \"{slo}\" would have {} of {}",
                rate(*got),
                rate(*target)
            )
        }
        _ => format!("{needs}, {free:.2} is free on core {core}"),
    };
    let fits: Vec<String> = refused.nearest.iter().map(fitting).collect();
    match fits.is_empty() {
        true => text += ": nothing less would fit",
        false => {
            // Writing into a string cannot fail.
            let _ = write!(text, ": {} would fit", fits.join(", or "));
        }
    }
    text
}

fn fitting(nearest: &Nearest) -> String {
    match nearest {
        Nearest::Throughput(most) => format!("at most {}", rate(*most)),
        Nearest::Latency(least) => format!("a latency of {least}"),
    }
}

/// Packets per second, rounded down to three digits.
pub(crate) fn rate(pps: f64) -> String {
    let (value, unit) = match pps {
        1e6.. => (pps / 1e6, "Mpps"),
        1e3.. => (pps / 1e3, "kpps"),
        _ => (pps, "pps"),
    };
    let factor = match value {
        100.0.. => 1.0,
        10.0.. => 10.0,
        _ => 100.0,
    };
    // A value that is round but for a rounding error stays so.
    format!("{}{unit}", (value * factor + 1e-6).floor() / factor)
}

#[cfg(test)]
mod tests {
    use super::rate;

    #[test]
    fn rates_have_three_digits_and_are_rounded_down() {
        for (pps, text) in [
            (1_200_000.0, "1.2Mpps"),
            (599_999.0, "599kpps"),
            (600_000.0, "600kpps"),
            (12_345_678.0, "12.3Mpps"),
            (1_999.0, "1.99kpps"),
            (7.5, "7.5pps"),
            (0.0, "0pps"),
        ] {
            assert_eq!(rate(pps), text);
        }
    }
}
