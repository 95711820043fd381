//! `tailwater profile diff`.

use super::args::ProfileDiffArgs;
use crate::error::CliError;
use crate::output::{complain, print};
use crate::text::{one_line, percent, short};
use std::fmt::Write as _;
use std::process::ExitCode;
use tailwater_profile::profiles::{Change, Curve, Difference, Profiles, compare};

/// Exit code if there are differences, as for `diff`.
const DIFFERENT: u8 = 1;

/// Prints the differences between two files of profiles.
///
/// # Errors
/// A file is invalid, the machines differ, or the result cannot be printed.
pub fn diff(args: &ProfileDiffArgs) -> Result<ExitCode, CliError> {
    let first = Profiles::read(&args.first)?;
    let second = Profiles::read(&args.second)?;
    let changes = compare(&first, &second).map_err(|machines| {
        let [a, b] = *machines;
        CliError::Input(format!(
            "{} and {} were measured on different machines, and cannot be compared: {a}; and {b}",
            args.first.display(),
            args.second.display()
        ))
    })?;
    // Hardly any difference is beyond such a noise, and interference is a difference of its own.
    for (path, profiles) in [(&args.first, &first), (&args.second, &second)] {
        for profile in &profiles.list {
            let doubts = profile.doubts();
            if doubts.disturbed() > 0 {
                let file = one_line(&path.display().to_string());
                let chain = &profile.key.chain;
                complain(
                    "notice",
                    &format!("{file}: {chain}: measured with CPU interference: {doubts}"),
                );
            }
            for value in profile.unrepeatable() {
                let file = one_line(&path.display().to_string());
                let chain = &profile.key.chain;
                complain(
                    "notice",
                    &format!("{file}: {chain}: not repeatable, so not compared: {value}"),
                );
            }
        }
    }
    let mut text = String::new();
    for change in &changes {
        // Writing into a string cannot fail.
        let traffic = one_line(&change.traffic);
        let _ = writeln!(text, "{} ({traffic}): {}", change.chain, words(change));
    }
    print(&text)?;
    Ok(match changes.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(DIFFERENT),
    })
}

fn words(change: &Change) -> String {
    let file = |first: bool| if first { "first" } else { "second" };
    match &change.difference {
        Difference::Only { first } => format!("only in the {} file", file(*first)),
        Difference::Configuration => "another configuration or version of Tailwater".to_owned(),
        Difference::Units => "measured with another unit of cache or percentile: curves cannot be compared".to_owned(),
        Difference::Method { was, is } => {
            format!("measured with another method (cache by {was}, then by {is}): curves cannot be compared")
        }
        Difference::Missing { curve, first } => {
            let curve = match curve {
                Curve::Cache => "throughput over cache",
                Curve::Latency | Curve::Throughput => "latency over load",
            };
            format!("{curve} only in the {} file", file(*first))
        }
        Difference::Cost { function, was, is } => {
            let function = function.as_deref().map(one_line);
            let of = function.map_or("all of the chain".to_owned(), |name| format!("function {name}"));
            format!(
                "{of}: {:.1} ns ± {:.1} a packet, then {:.1} ns ± {:.1} ({})",
                was.value,
                was.noise,
                is.value,
                is.noise,
                more(was.value, is.value)
            )
        }
        Difference::Point { curve, at, was, is } => {
            let (place, unit) = match curve {
                Curve::Cache => (format!("throughput with {at} units of cache"), "pps"),
                Curve::Throughput => ("throughput".to_owned(), "pps"),
                Curve::Latency => (format!("latency at load {}", f64::from(*at) / 100.0), " us"),
            };
            let figure = |value: f64| match curve {
                Curve::Latency => format!("{value:.1}"),
                _ => short(value),
            };
            format!(
                "{place}: {}{unit} ± {}, then {}{unit} ± {} ({})",
                figure(was.value),
                figure(was.noise),
                figure(is.value),
                figure(is.noise),
                more(was.value, is.value)
            )
        }
    }
}

/// Formats the relative change between two figures.
fn more(was: f64, is: f64) -> String {
    let sign = if is < was { '-' } else { '+' };
    let share = match was {
        0.0 => 1.0,
        was => ((is - was).abs() / was).min(1.0),
    };
    format!("{sign}{}", percent(share))
}
