//! Curves of a chain as text.

use super::{Table, count};
use crate::text::{fixed, one_line, percent, short};
use std::path::Path;
use tailwater_net::Nanos;
use tailwater_profile::cache::Method;
use tailwater_profile::curve::Measured;
use tailwater_profile::profiles::{
    CacheProfile, ChainProfile, CostProfile, Doubts, FunctionCost, LatencyProfile, MOST_COST_NOISE, MOST_LATENCY_NOISE,
    MOST_THROUGHPUT_NOISE, Machine, RATE_WIDTH,
};

/// Formats the curves as text of at most 90 columns (machines and reasons may be longer). `because` is the reason for
/// the method of dividing the cache.
pub fn profile(profile: &ChainProfile, because: Option<&str>, file: &Path) -> String {
    let mut table = Table(String::new());
    table.line("chain", &profile.key.chain);
    table.line("traffic", &one_line(&profile.key.traffic));
    table.line("machine", &one_line(&profile.key.machine.to_string()));
    table.line("profiles", &one_line(&file.display().to_string()));
    if let Some(latency) = &profile.latency {
        self::latency(&mut table, latency);
    }
    if let Some(costs) = &profile.costs {
        self::costs(&mut table, costs, &profile.key.machine);
    }
    if let Some(cache) = &profile.cache {
        self::cache(&mut table, cache, because);
    }
    doubts(&mut table, &profile.doubts());
    table.0
}

/// States what should not be relied on, and the consequence.
fn doubts(table: &mut Table, doubts: &Doubts) {
    if doubts.is_none() {
        return;
    }
    table.gap();
    let mut heading = "in doubt";
    let mut line = |words: &str| {
        table.line(heading, words);
        heading = "";
    };
    if doubts.unrepeatable > 0 {
        let values = count(doubts.unrepeatable as u64, "value");
        line(&format!(
            "{values} NOT REPEATABLE: `tailwater place` refuses this profile"
        ));
    }
    if doubts.disturbed() > 0 {
        line(&format!("CPU interference disturbed {doubts}"));
    }
    if doubts.hidden_bends > 0 {
        let points = count(doubts.hidden_bends as u64, "point");
        line(&format!("noise hides whether curves bend at {points} (BEND?)"));
    }
    line("measure again on a quiet machine, or with a longer --run-time");
}

fn latency(table: &mut Table, latency: &LatencyProfile) {
    table.gap();
    let title = format!("p{}, us", latency.percentile);
    table.figure(&title, "", "at load; load 1 is the chain's throughput");
    for point in &latency.points {
        let load = f64::from(point.at) / 100.0;
        let mut words = format!("{load:.2} {}", noise(&point.measured, MOST_LATENCY_NOISE));
        words += hidden(&latency.hidden_bends, point.at);
        table.figure("", &fixed(point.measured.value), &words);
    }
    table.gap();
    table.figure("rates", "packets/s", "evenly spaced");
    let most = format!(
        "saturated, load 1 {}",
        noise(&latency.throughput, MOST_THROUGHPUT_NOISE)
    );
    table.figure("  throughput", &short(latency.throughput.value), &most);
    let objective = Nanos((latency.objective_us * 1e3).round() as u64);
    let met = format!("{} % within {objective}", latency.objective_percentile);
    for (name, rate, words) in [
        ("  objective met", latency.objective_rate, met.as_str()),
        ("  NDR", latency.ndr, "no packet lost"),
        ("  PDR", latency.pdr, "at most 0.5 % lost"),
    ] {
        match rate {
            Some(rate) if latency.is_at_least(rate) => {
                table.figure(name, &short(rate), &format!("at least, highest tried: {words}"));
            }
            Some(rate) => {
                let words = format!("highest kept, to {}: {words}", percent(RATE_WIDTH));
                table.figure(name, &short(rate), &words);
            }
            None => table.figure(name, "none", &format!("{words}: missed at 5 % of the load, too")),
        }
    }
}

fn costs(table: &mut Table, costs: &CostProfile, machine: &Machine) {
    table.gap();
    table.figure("costs", "ns/packet", "under saturation");
    let words = |measured: &Measured, more: &str| {
        let cycles = machine.cycles(measured.value);
        let cycles = cycles.map_or(String::new(), |cycles| format!("{cycles:.0} cycles "));
        format!("{cycles}{}{more}", noise(measured, MOST_COST_NOISE))
    };
    for FunctionCost { function, cost, share } in &costs.functions {
        let reached = match *share < 1.0 {
            true => format!(", {} of packets", percent(*share)),
            false => String::new(),
        };
        let name = format!("  {}", one_line(function));
        table.figure(&name, &fixed(cost.value), &words(cost, &reached));
    }
    table.figure(
        "  framework overhead",
        &fixed(costs.rest()),
        "receiving, flow lookup, sending",
    );
    table.figure("  all", &fixed(costs.whole.value), &words(&costs.whole, ""));
}

fn cache(table: &mut Table, cache: &CacheProfile, because: Option<&str>) {
    table.gap();
    if let Some(because) = because {
        let words = format!("by {}: {because}", cache.method);
        table.line("cache divided", &one_line(&words));
    }
    if cache.method == Method::Pirate && !cache.verified.is_empty() {
        table.line(
            "",
            "the pirate was awake at all points; its own misses verify each share",
        );
    }
    let whole = cache.bytes(cache.most_units) >> 10;
    let words = format!(
        "with MiB of cache, of {:.1} available ({})",
        mebibytes(whole),
        cache.method
    );
    table.figure("throughput", "packets/s", &words);
    for point in &cache.points {
        let size = mebibytes(cache.bytes(point.at) >> 10);
        let mut words = format!("{size:.1} {}", noise(&point.measured, MOST_THROUGHPUT_NOISE));
        if let Some(bytes) = cache.occupied(point.at) {
            words += &format!(", {:.1} filled", mebibytes(bytes >> 10));
        }
        if let (Method::Pirate, Some(misses)) = (cache.method, cache.verified(point.at)) {
            words += &format!(", missed {}", percent(misses));
        }
        words += hidden(&cache.hidden_bends, point.at);
        table.figure("", &short(point.measured.value), &words);
    }
    for point in &cache.not_held {
        let size = mebibytes(cache.bytes(point.at) >> 10);
        let share = percent(point.misses);
        let why = match cache.method {
            Method::Pirate => format!("{share} of the pirate's accesses missed"),
            Method::Resctrl => format!("{share} of its lines lay beyond"),
        };
        let words = format!("{size:.1} not reached: {why}");
        table.figure("", &short(point.measured.value), &words);
    }
}

/// Marks a point at which noise hides whether the curve bends.
fn hidden(bends: &[u32], at: u32) -> &'static str {
    match bends.contains(&at) {
        true => " BEND?",
        false => "",
    }
}

fn mebibytes(kibibytes: u64) -> f64 {
    kibibytes as f64 / 1024.0
}

/// Formats the noise of a value. Up to `most`, as a share of the value, it is repeatable.
fn noise(measured: &Measured, most: f64) -> String {
    let noise = measured.relative_noise() * 100.0;
    let mark = match measured.is_repeatable(most) {
        true => "",
        false => " NOT REPEATABLE",
    };
    let disturbed = match measured.disturbed {
        0 => String::new(),
        runs => format!(", {runs} DISTURBED"),
    };
    format!("(± {noise:.1} %, {} runs{disturbed}){mark}", measured.runs)
}
