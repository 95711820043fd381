//! Result of `tailwater simulate --find`.

use crate::simulate::args::Find;
use crate::simulate::find::{Answer, Answers, OfSeed, Tried};
use crate::table::comparison::loss;
use crate::table::too_few;
use std::fmt::Write as _;
use tailwater_net::Nanos;
use tailwater_sim::report::PERCENTILE;

/// Formats a row per policy and objective, and a line per seed that needs a remark.
pub fn found(answers: &Answers) -> String {
    let what = match answers.find {
        Find::Servers => "the fewest servers",
        Find::Rate => "the highest scale of the traffic's rate",
        Find::Slo => "the tightest objective",
    };
    let mut text = format!(
        "rack {}: {what} with which every chain has 99 % of its packets in time\n\n",
        answers.rack
    );
    let _ = writeln!(
        text,
        "{:<30}{:>9}{:>12}{:>22}  {:<16} seed: found",
        "policy", "SLO", "answer", "range", "seeds that hold"
    );
    for search in &answers.searches {
        row(&mut text, answers, search);
    }
    let remarks = answers.searches.iter().flat_map(|search| {
        let seeds = search.seeds.iter();
        seeds.filter_map(move |seed| Some((search, seed, remark(answers, seed)?)))
    });
    for (number, (search, seed, remark)) in remarks.enumerate() {
        if number == 0 {
            text.push('\n');
        }
        let slo = match search.slo_us {
            Some(_) => format!(", {}", objective(search)),
            None => String::new(),
        };
        let _ = writeln!(text, "{}{slo}, seed {}: {remark}", search.policy, seed.seed);
    }
    text
}

fn objective(search: &Answer) -> String {
    let slo = |us: f64| Nanos((us * 1e3).round() as u64).to_string();
    search.slo_us.map_or_else(|| "-".to_owned(), slo)
}

/// Formats a value with its unit.
fn value(find: Find, value: f64) -> String {
    match find {
        Find::Servers => value.to_string(),
        Find::Rate => format!("{value}x"),
        Find::Slo => Nanos((value * 1e3).round() as u64).to_string(),
    }
}

fn row(text: &mut String, answers: &Answers, search: &Answer) {
    let text_of = |found: Option<f64>| found.map_or_else(|| "none".to_owned(), |found| value(answers.find, found));
    let range = match (search.hardest, search.easiest) {
        (Some(hardest), Some(easiest)) if hardest != easiest => {
            format!("{} - {}", text_of(Some(hardest)), text_of(Some(easiest)))
        }
        (found, _) => text_of(found),
    };
    let seeds = search.seeds.iter().map(|seed| {
        let found = match (seed.value, seed.complete) {
            (None, false) => "?".to_owned(),
            (found, _) => text_of(found),
        };
        format!("{}: {found}", seed.seed)
    });
    let complete = search.seeds.iter().all(|seed| seed.complete);
    let answer = match (search.answer, complete) {
        (None, false) => "?".to_owned(),
        (answer, _) => text_of(answer),
    };
    let holding = format!("{} of {}", search.seeds_holding, search.seeds.len());
    let _ = writeln!(
        text,
        "{:<30}{:>9}{answer:>12}{range:>22}  {holding:<16} {}",
        search.policy,
        objective(search),
        seeds.collect::<Vec<_>>().join(", "),
    );
}

/// Returns a remark on a seed, if the table does not cover it.
fn remark(answers: &Answers, seed: &OfSeed) -> Option<String> {
    let text = |tried: &Tried| value(answers.find, tried.value);
    let mut held = seed.tried.iter().filter(|tried| tried.holds);
    let mut failed = seed.tried.iter().rev().filter(|tried| !tried.holds);
    let (held, failed) = (held.next(), failed.next());
    if !seed.complete {
        let known = match (held, failed) {
            (None, None) => "no result".to_owned(),
            (Some(held), None) => format!("{} holds", text(held)),
            (None, Some(failed)) => format!("{} does not hold", text(failed)),
            (Some(held), Some(failed)) => {
                format!("{} holds, {} does not", text(held), text(failed))
            }
        };
        return Some(format!("interrupted: {known}"));
    }
    if seed.value.is_none() {
        return failed.map(|easiest| infeasible(answers, seed, easiest));
    }
    if !seed.monotone {
        let (held, failed) = held.zip(failed)?;
        return Some(format!(
            "not monotone: {} does not hold, though {} does",
            text(failed),
            text(held)
        ));
    }
    None
}

/// Describes an infeasible search: the result of the easiest value, and the lowest latencies.
fn infeasible(answers: &Answers, seed: &OfSeed, easiest: &Tried) -> String {
    let bound = value(answers.find, easiest.value);
    let what = match answers.find {
        Find::Servers => format!("no number of servers up to {bound} holds"),
        Find::Rate => format!("no scale of the rate down to {bound} holds"),
        Find::Slo => format!("no objective up to {bound} holds"),
    };
    let late = easiest.chains.iter().filter(|chain| chain.slo_met != Some(true));
    let late = late.map(|chain| {
        if chain.slo_met.is_none() {
            let packets = too_few(chain.offered, PERCENTILE);
            return format!("with {bound}, chain {} has NO VERDICT: {packets}", chain.chain);
        }
        let complete = seed.tried.iter().filter(|tried| tried.complete);
        let all = complete.flat_map(|tried| &tried.chains);
        let same = all.filter(|other| other.chain == chain.chain);
        let least = same.map(|other| other.p99_us).fold(f64::INFINITY, f64::min);
        let lost = match chain.loss_rate {
            0.0 => "0".to_owned(),
            rate => loss(1, rate),
        };
        format!(
            "with {bound}, chain {} has p99 {:.2} us and loss {lost} for an SLO of {} us; the lowest p99 of \
             all whole runs is {least:.2} us",
            chain.chain, chain.p99_us, chain.slo_us
        )
    });
    let late: Vec<String> = late.collect();
    match late.is_empty() {
        true => what,
        false => format!("{what}: {}", late.join("; ")),
    }
}
