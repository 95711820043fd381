//! Document of `tailwater profile latency`, `cache` and `all`.

use crate::text::one_line;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;
use tailwater_profile::cache::Method;
use tailwater_profile::curve::{Measured, Point};
use tailwater_profile::profiles::{
    CacheProfile, ChainProfile, CostProfile, Doubts, FunctionCost, LatencyProfile, MOST_LATENCY_NOISE,
    MOST_THROUGHPUT_NOISE, Machine, Profiles,
};

/// Document of `--output json`. Field names are stable.
#[derive(Debug, Serialize)]
pub struct Document {
    chain: String,
    configuration: String,
    traffic: String,
    machine: MachineDocument,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache: Option<CacheDocument>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency: Option<LatencyDocument>,
    #[serde(skip_serializing_if = "Option::is_none")]
    costs: Option<CostDocument>,
    doubts: DoubtsDocument,
    file: String,
}

/// Numbers of values that should not be relied on. The exit code is 4 if one is above 0.
#[derive(Debug, Serialize)]
struct DoubtsDocument {
    unrepeatable_values: usize,
    disturbed_values: usize,
    disturbed_runs: u64,
    disturbed_trials: u64,
    hidden_bends: usize,
}

#[derive(Debug, Serialize)]
struct MachineDocument {
    processor: String,
    megahertz: u32,
    cache_bytes: u64,
    cache_ways: u32,
    private_bytes: u64,
}

#[derive(Debug, Serialize)]
struct CacheDocument {
    method: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    because: Option<String>,
    usable_bytes: u64,
    /// State of the pirate during all points. Absent for other methods, and in files of version 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pirate: Option<&'static str>,
    points: Vec<CachePoint>,
    not_held: Vec<NotHeldPoint>,
}

#[derive(Debug, Serialize)]
struct CachePoint {
    bytes: u64,
    pps: f64,
    noise_pps: f64,
    runs: u32,
    /// Number of these runs with CPU interference.
    disturbed_runs: u32,
    /// `false` if the value is not used for placement.
    repeatable: bool,
    /// `true` if noise hides whether the curve bends here.
    bend_hidden: bool,
    /// Highest share of the pirate's accesses that missed, or of occupancy beyond the share, in these runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    verified_misses: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    occupied_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct NotHeldPoint {
    bytes: u64,
    misses: f64,
    pps: f64,
}

#[derive(Debug, Serialize)]
struct LatencyDocument {
    throughput_pps: f64,
    throughput_noise_pps: f64,
    throughput_disturbed_runs: u32,
    throughput_repeatable: bool,
    percentile: f64,
    points: Vec<LoadPoint>,
    objective_us: f64,
    objective_percentile: f64,
    non_drop_pps: Option<f64>,
    partial_drop_pps: Option<f64>,
    objective_pps: Option<f64>,
    /// `true` if the rate is the highest that was tried.
    non_drop_at_least: bool,
    partial_drop_at_least: bool,
    objective_at_least: bool,
    /// Trials of these rates with CPU interference.
    disturbed_trials: u32,
}

#[derive(Debug, Serialize)]
struct LoadPoint {
    load: f64,
    us: f64,
    noise_us: f64,
    runs: u32,
    /// Number of these runs with CPU interference.
    disturbed_runs: u32,
    /// `false` if the value is not used for placement.
    repeatable: bool,
    /// `true` if noise hides whether the curve bends here.
    bend_hidden: bool,
}

#[derive(Debug, Serialize)]
struct CostDocument {
    packet_ns: f64,
    packet_noise_ns: f64,
    rest_ns: f64,
    runs: u32,
    disturbed_runs: u32,
    functions: Vec<FunctionDocument>,
}

#[derive(Debug, Serialize)]
struct FunctionDocument {
    function: String,
    packet_ns: f64,
    packet_noise_ns: f64,
    /// Cycles at the machine's maximum clock, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    packet_cycles: Option<f64>,
    share: f64,
    runs: u32,
    disturbed_runs: u32,
}

impl Document {
    /// Creates the document of a profile in a file. `because` is the reason for the method of dividing the cache, if it
    /// was just measured.
    pub fn new(profile: &ChainProfile, because: Option<String>, file: &Path) -> Document {
        let key = &profile.key;
        let machine = &key.machine;
        let bytes = |kibibytes: u32| u64::from(kibibytes) * 1024;
        Document {
            chain: key.chain.clone(),
            configuration: key.configuration.clone(),
            traffic: key.traffic.clone(),
            machine: MachineDocument {
                processor: machine.processor.clone(),
                megahertz: machine.megahertz,
                cache_bytes: bytes(machine.cache_kibibytes),
                cache_ways: machine.cache_ways,
                private_bytes: bytes(machine.private_kibibytes),
            },
            cache: profile.cache.as_ref().map(|cache| cache_document(cache, because)),
            latency: profile.latency.as_ref().map(latency_document),
            costs: profile.costs.as_ref().map(|costs| cost_document(costs, machine)),
            doubts: doubts_document(&profile.doubts()),
            file: file.display().to_string(),
        }
    }
}

fn doubts_document(doubts: &Doubts) -> DoubtsDocument {
    DoubtsDocument {
        unrepeatable_values: doubts.unrepeatable,
        disturbed_values: doubts.disturbed_values,
        disturbed_runs: doubts.disturbed_runs,
        disturbed_trials: doubts.disturbed_trials,
        hidden_bends: doubts.hidden_bends,
    }
}

fn cache_document(cache: &CacheProfile, because: Option<String>) -> CacheDocument {
    let points = cache.points.iter().map(|Point { at, measured }| CachePoint {
        bytes: cache.bytes(*at),
        pps: measured.value,
        noise_pps: measured.noise,
        runs: measured.runs,
        disturbed_runs: measured.disturbed,
        repeatable: measured.is_repeatable(MOST_THROUGHPUT_NOISE),
        bend_hidden: cache.hidden_bends.contains(at),
        verified_misses: cache.verified(*at),
        occupied_bytes: cache.occupied(*at),
    });
    let not_held = cache.not_held.iter().map(|point| NotHeldPoint {
        bytes: cache.bytes(point.at),
        misses: point.misses,
        pps: point.measured.value,
    });
    CacheDocument {
        method: cache.method.to_string(),
        because,
        usable_bytes: cache.bytes(cache.most_units),
        pirate: (cache.method == Method::Pirate && !cache.verified.is_empty()).then_some("awake"),
        points: points.collect(),
        not_held: not_held.collect(),
    }
}

fn latency_document(latency: &LatencyProfile) -> LatencyDocument {
    let points = latency.points.iter().map(|point| {
        let Measured {
            value,
            noise,
            runs,
            disturbed,
        } = point.measured;
        LoadPoint {
            load: f64::from(point.at) / 100.0,
            us: value,
            noise_us: noise,
            runs,
            disturbed_runs: disturbed,
            repeatable: point.measured.is_repeatable(MOST_LATENCY_NOISE),
            bend_hidden: latency.hidden_bends.contains(&point.at),
        }
    });
    let at_least = |rate: Option<f64>| rate.is_some_and(|rate| latency.is_at_least(rate));
    LatencyDocument {
        throughput_pps: latency.throughput.value,
        throughput_noise_pps: latency.throughput.noise,
        throughput_disturbed_runs: latency.throughput.disturbed,
        throughput_repeatable: latency.throughput.is_repeatable(MOST_THROUGHPUT_NOISE),
        percentile: latency.percentile,
        points: points.collect(),
        objective_us: latency.objective_us,
        objective_percentile: latency.objective_percentile,
        non_drop_pps: latency.ndr,
        partial_drop_pps: latency.pdr,
        objective_pps: latency.objective_rate,
        non_drop_at_least: at_least(latency.ndr),
        partial_drop_at_least: at_least(latency.pdr),
        objective_at_least: at_least(latency.objective_rate),
        disturbed_trials: latency.disturbed_trials,
    }
}

fn cost_document(costs: &CostProfile, machine: &Machine) -> CostDocument {
    let functions = costs.functions.iter().map(|of| {
        let FunctionCost { function, cost, share } = of;
        FunctionDocument {
            function: function.clone(),
            packet_ns: cost.value,
            packet_noise_ns: cost.noise,
            packet_cycles: machine.cycles(cost.value),
            share: *share,
            runs: cost.runs,
            disturbed_runs: cost.disturbed,
        }
    });
    CostDocument {
        packet_ns: costs.whole.value,
        packet_noise_ns: costs.whole.noise,
        rest_ns: costs.rest(),
        runs: costs.whole.runs,
        disturbed_runs: costs.whole.disturbed,
        functions: functions.collect(),
    }
}

/// Returns all profiles of a file, for its page.
pub fn documents(profiles: &Profiles, file: &Path) -> Vec<Document> {
    let all = profiles.list.iter();
    all.map(|profile| Document::new(profile, None, file)).collect()
}

/// Returns a profile's chain and traffic, for people.
pub fn title(profile: &ChainProfile) -> String {
    let mut title = profile.key.chain.clone();
    let _ = write!(title, " ({})", one_line(&profile.key.traffic));
    title
}
