//! Comparison of runs as text.

use crate::text::{fixed, one_line, short};
use std::fmt::Write as _;
use tailwater_dataplane::comparison::{
    ChainComparison, ChangeVerdict, Figure, FigureChange, Method, RUNS_FOR_WELCH, STEPS_FOR_BOOTSTRAP,
};

/// Formats the chains, each with a row for each figure, then the result.
pub fn table(chains: &[ChainComparison], confidence: f64) -> String {
    let mut text = String::new();
    for chain in chains {
        heading(&mut text, chain);
        let interval = format!("{} % interval", short_percent(confidence));
        // Writing into a string cannot fail.
        let _ = writeln!(
            text,
            "  {:<28} {:>10} {:>10} {:>10}  {interval}",
            "", "before", "after", "change"
        );
        for change in &chain.changes {
            row(&mut text, change);
        }
        text.push('\n');
    }
    let different: Vec<String> = chains.iter().filter_map(differences).collect();
    match different.is_empty() {
        true => text.push_str("no difference that these runs can show\n"),
        false => {
            let _ = writeln!(text, "different: {}", different.join("; "));
        }
    }
    text
}

fn heading(text: &mut String, chain: &ChainComparison) {
    let (before, after) = chain.runs;
    let how = match chain.method {
        Method::Runs => "the runs are the sample".to_owned(),
        Method::BlockBootstrap => {
            let pairs = match chain.paired {
                true => ", in pairs since the traffic is the same",
                false => "",
            };
            format!("within these runs, by blocks of {} steps{pairs}", chain.block)
        }
        Method::None => format!(
            "no intervals: {STEPS_FOR_BOOTSTRAP} windows of each run are needed, or {RUNS_FOR_WELCH} runs a side"
        ),
    };
    let name = one_line(&chain.chain);
    let _ = writeln!(text, "chain {name}: {before} before, {after} after; {how}");
}

fn row(text: &mut String, change: &FigureChange) {
    let figure = &change.figure;
    let value = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| shown(figure, value));
    let (before, after) = (value(change.before), value(change.after));
    let by = change
        .change
        .map_or_else(String::new, |change| relative(figure, change));
    let interval = change.interval.map_or_else(String::new, |(low, high)| {
        format!("{} to {}", relative(figure, low), relative(figure, high))
    });
    let name = one_line(&figure.name());
    let line = format!(
        "  {name:<28} {before:>10} {after:>10} {by:>10}  {interval:<24}  {}",
        words(change)
    );
    text.push_str(line.trim_end());
    text.push('\n');
}

fn words(change: &FigureChange) -> &'static str {
    match change.verdict {
        ChangeVerdict::Higher => "HIGHER",
        ChangeVerdict::Lower => "LOWER",
        ChangeVerdict::NoDifferenceShown => "no difference shown",
        ChangeVerdict::WithinTolerance => "within the tolerance",
        ChangeVerdict::NotJudged => match change.figure {
            Figure::Cores | Figure::External(_) if change.change.is_some() => "one figure a run: needs 3 runs a side",
            _ => "not judged",
        },
    }
}

/// Formats a figure of a run.
fn shown(figure: &Figure, value: f64) -> String {
    match figure {
        Figure::Throughput => short(value),
        Figure::Cores => format!("{value:.2}"),
        figure if figure.is_share() => format!("{} %", short_percent(value)),
        _ => fixed(value),
    }
}

/// Formats a change: relative, or of a share in percentage points.
fn relative(figure: &Figure, change: f64) -> String {
    let number = short_percent(change.abs());
    let sign = match change {
        _ if number == "0" => "",
        change if change < 0.0 => "-",
        _ => "+",
    };
    match figure.is_share() {
        true => format!("{sign}{number} pp"),
        false => format!("{sign}{number} %"),
    }
}

/// Formats a share in percent with about three digits.
fn short_percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent >= 1000.0 {
        return short(percent);
    }
    let text = match percent {
        _ if percent >= 100.0 => format!("{percent:.0}"),
        _ if percent >= 10.0 => format!("{percent:.1}"),
        _ if percent >= 0.1 => format!("{percent:.2}"),
        _ => format!("{percent:.3}"),
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

fn differences(chain: &ChainComparison) -> Option<String> {
    let names = chain.differences().map(|change| {
        let verdict = match change.verdict {
            ChangeVerdict::Lower => "lower",
            _ => "higher",
        };
        format!("{} {verdict}", one_line(&change.figure.name()))
    });
    let names: Vec<String> = names.collect();
    (!names.is_empty()).then(|| format!("chain {}: {}", one_line(&chain.chain), names.join(", ")))
}
