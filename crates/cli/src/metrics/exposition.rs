//! Figures of chains as OpenMetrics text. Sources are the chains' constants ([`Chain`]) and their
//! [`Progress`]. `docs/reference/metrics.md` lists all metrics, which `tests/metrics.rs` and `tests/state.rs` check.

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use std::fmt;
use tailwater_api::Slo;
use tailwater_dataplane::durable::StateProgress;
use tailwater_dataplane::histogram::LatencyHistogram;
use tailwater_dataplane::run::{FunctionProgress, LastWindow, Progress};
use tailwater_net::Nanos;

/// Upper bounds of the latency buckets, in microseconds.
const BUCKETS_US: [u64; 16] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000,
];

/// Constants of a run.
#[derive(Clone, Debug)]
pub struct Chain {
    /// The chain's name.
    pub name: String,
    /// The traffic's name.
    pub traffic: String,
    /// The objective.
    pub slo: Slo,
}

/// Figures of one chain.
#[derive(Clone, Copy, Debug)]
pub struct ChainFigures<'p> {
    /// Value of the label `chain`, on a page of several chains.
    pub label: Option<&'p str>,
    /// The figures.
    pub progress: &'p Progress,
}

/// Counter: its name, its help, and its value.
type Counter = (&'static str, &'static str, fn(&Progress) -> u64);

/// Counters that each chain has.
const COUNTERS: [Counter; 6] = [
    ("packets_offered", "Packets that arrived for the chain", |progress| {
        progress.packets.offered
    }),
    (
        "packets_not_matched",
        "Packets of the traffic that do not match the chain",
        |progress| progress.packets.not_matched,
    ),
    ("descheduling_gaps", "Times a worker was preempted", |progress| {
        progress.gaps
    }),
    (
        "buckets_moved",
        "RSS buckets moved from one dedicated core to another",
        |progress| progress.buckets.moved,
    ),
    (
        "packets_kept_back",
        "Packets buffered during migration of their RSS bucket",
        |progress| progress.buckets.buffered,
    ),
    (
        "dedicated_activations",
        "Times a dedicated core was activated to help another",
        |progress| progress.scaling.dedicated_activated,
    ),
];

/// Family of counters: its name, its help, the name of its label, and the values by label.
type Family = (
    &'static str,
    &'static str,
    &'static str,
    fn(&Progress) -> Vec<(&str, u64)>,
);

/// Families of counters that each chain has.
const FAMILIES: [Family; 5] = [
    ("packets", "Packets by outcome", "outcome", |progress| {
        let packets = &progress.packets;
        vec![
            ("delivered", packets.delivered),
            ("dropped_by_nf", packets.dropped_by_nf),
            ("lost", packets.lost),
        ]
    }),
    (
        "packet_reasons",
        "Packets dropped, lost or passed as unusual, by reason",
        "reason",
        |progress| {
            let reasons = progress.packets.reasons.iter();
            reasons.map(|(reason, count)| (reason.as_str(), *count)).collect()
        },
    ),
    ("late_packets", "Packets late or lost, by cause", "cause", |progress| {
        let causes = progress.late_by_cause.iter();
        causes.map(|(cause, count)| (*cause, *count)).collect()
    }),
    (
        "packets_offloaded",
        "Packets offloaded to other cores",
        "to",
        |progress| {
            let scaling = &progress.scaling;
            vec![
                ("auxiliary", scaling.packets_offloaded - scaling.packets_to_dedicated),
                ("dedicated", scaling.packets_to_dedicated),
            ]
        },
    ),
    (
        "reloads",
        "Reloads of the chain's files, by outcome",
        "outcome",
        |progress| {
            let reloads = &progress.reloads;
            vec![
                ("applied", reloads.applied),
                ("rejected", reloads.rejected),
                ("unchanged", reloads.unchanged),
            ]
        },
    ),
];

/// Counter of each function: its name, its help, and its value.
type FunctionCounter = (&'static str, &'static str, fn(&FunctionProgress) -> u64);

const FUNCTION_COUNTERS: [FunctionCounter; 3] = [
    ("function_packets", "Packets that reached the function", |function| {
        function.totals.packets
    }),
    (
        "function_packets_dropped",
        "Packets that the function dropped or lost",
        |function| function.dropped,
    ),
    (
        "function_timed_packets",
        "Packets of the batches that were timed, one in 64",
        |function| function.totals.timed,
    ),
];

/// Gauge: its name, its help, its unit, and its value.
type Gauge = (&'static str, &'static str, Option<Unit>, fn(&Progress) -> f64);

/// Gauges that each chain has.
const GAUGES: [Gauge; 6] = [
    ("flows", "Flows of the chain", None, |progress| progress.flows as f64),
    (
        "last_reload_rejected",
        "1 if the last reload was rejected: the files differ from the configuration in force",
        None,
        |progress| f64::from(u8::from(progress.reloads.last_rejected)),
    ),
    (
        "dedicated_cores",
        "Dedicated cores in use so far, on average",
        None,
        |progress| progress.cores.dedicated_avg,
    ),
    (
        "auxiliary_cores",
        "Auxiliary cores activated so far, on average",
        None,
        |progress| progress.cores.auxiliary_avg,
    ),
    (
        "latency_p50",
        "Median latency so far",
        Some(Unit::Seconds),
        |progress| progress.p50.as_secs_f64(),
    ),
    (
        "latency_p99",
        "99th percentile of latency so far",
        Some(Unit::Seconds),
        |progress| progress.p99.as_secs_f64(),
    ),
];

/// Same, of a window.
type WindowGauge = (&'static str, &'static str, Option<Unit>, fn(&LastWindow) -> f64);

/// Gauges of the last window that has ended.
const WINDOW_GAUGES: [WindowGauge; 4] = [
    (
        "window_latency_p50",
        "Median latency in the last window",
        Some(Unit::Seconds),
        |window| window.p50.as_secs_f64(),
    ),
    (
        "window_latency_p99",
        "99th percentile of latency in the last window",
        Some(Unit::Seconds),
        |window| window.p99.as_secs_f64(),
    ),
    (
        "window_packets_offered_per_second",
        "Rate of packets that arrived in the last window",
        None,
        |window| rate(window.offered, window),
    ),
    (
        "window_packets_delivered_per_second",
        "Rate of packets sent in the last window",
        None,
        |window| rate(window.delivered, window),
    ),
];

fn rate(count: u64, window: &LastWindow) -> f64 {
    count as f64 / window.length.as_secs_f64().max(1e-9)
}

/// Encodes what is constant of chains, each with its label.
///
/// # Errors
/// The encoder fails.
pub fn about(chains: &[(&Chain, Option<&str>)], encoder: &mut DescriptorEncoder) -> fmt::Result {
    let mut family = encoder.encode_descriptor("chain", "Chain that is running", None, MetricType::Info)?;
    for (Chain { name, traffic, .. }, _) in chains {
        let version = env!("CARGO_PKG_VERSION");
        family.encode_info(&[("chain", name.as_str()), ("traffic", traffic), ("version", version)])?;
    }
    let help = "Latency objective";
    let mut family = encoder.encode_descriptor("slo_latency", help, Some(&Unit::Seconds), MetricType::Gauge)?;
    for (Chain { slo, .. }, label) in chains {
        labelled(&mut family, *label, None, |metric| {
            metric.encode_gauge(&slo.budget().as_secs_f64())
        })?;
    }
    let help = "Share of packets that must meet the latency objective";
    let mut family = encoder.encode_descriptor("slo_share", help, Some(&Unit::Ratios), MetricType::Gauge)?;
    for (Chain { slo, .. }, label) in chains {
        labelled(&mut family, *label, None, |metric| {
            metric.encode_gauge(&(slo.percentile / 100.0))
        })?;
    }
    Ok(())
}

/// Encodes the figures of chains: each metric once, with a sample for each chain.
///
/// # Errors
/// The encoder fails.
pub fn encode(chains: &[ChainFigures<'_>], encoder: &mut DescriptorEncoder) -> fmt::Result {
    for (name, help, value) in COUNTERS {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for chain in chains {
            counter(&mut family, chain.label, None, value(chain.progress))?;
        }
    }
    for (name, help, label, values) in FAMILIES {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for chain in chains {
            for (value, count) in values(chain.progress) {
                counter(&mut family, chain.label, Some((label, value)), count)?;
            }
        }
    }
    functions(chains, encoder)?;
    flow_state(chains, encoder)?;
    for (name, help, unit, value) in GAUGES {
        let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for chain in chains {
            let value = value(chain.progress);
            labelled(&mut family, chain.label, None, |metric| metric.encode_gauge(&value))?;
        }
    }
    windows(chains, encoder)?;
    let help = "Latency of every packet from arrival to departure";
    let mut family = encoder.encode_descriptor("latency", help, Some(&Unit::Seconds), MetricType::Histogram)?;
    for chain in chains {
        let latency = &chain.progress.latency;
        let (sum, buckets) = (latency.sum().as_secs_f64(), buckets(latency));
        labelled(&mut family, chain.label, None, |metric| {
            metric.encode_histogram::<NoLabelSet>(sum, latency.total(), &buckets, None)
        })?;
    }
    Ok(())
}

/// Encodes the figures of each function.
fn functions(chains: &[ChainFigures<'_>], encoder: &mut DescriptorEncoder) -> fmt::Result {
    for (name, help, value) in FUNCTION_COUNTERS {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for chain in chains {
            for function in &chain.progress.functions {
                let label = Some(("function", function.name.as_str()));
                counter(&mut family, chain.label, label, value(function))?;
            }
        }
    }
    let help = "Time spent on packets that were timed";
    let unit = Some(&Unit::Seconds);
    let mut family = encoder.encode_descriptor("function_timed", help, unit, MetricType::Counter)?;
    for chain in chains {
        for function in &chain.progress.functions {
            let seconds = Nanos(function.totals.nanos).as_secs_f64();
            let label = Some(("function", function.name.as_str()));
            labelled(&mut family, chain.label, label, |metric| {
                metric.encode_counter::<NoLabelSet, _, u64>(&seconds, None)
            })?;
        }
    }
    Ok(())
}

/// Encodes the figures of the last window of chains that have had one.
fn windows(chains: &[ChainFigures<'_>], encoder: &mut DescriptorEncoder) -> fmt::Result {
    for (name, help, unit, value) in WINDOW_GAUGES {
        let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for chain in chains {
            if let Some(window) = &chain.progress.window {
                let value = value(window);
                labelled(&mut family, chain.label, None, |metric| metric.encode_gauge(&value))?;
            }
        }
    }
    Ok(())
}

/// Metric of external flow state: its name, its help, its type, and its value.
type StateMetric = (&'static str, &'static str, MetricType, fn(&StateProgress) -> u64);

const STATE_METRICS: [StateMetric; 6] = [
    (
        "state_available",
        "1 if the store of flow state is available, otherwise 0",
        MetricType::Gauge,
        |state| u64::from(state.available),
    ),
    (
        "state_waiting_packets",
        "Packets waiting for the store",
        MetricType::Gauge,
        |state| state.waiting,
    ),
    (
        "state_reads",
        "Flows read from the store",
        MetricType::Counter,
        |state| state.reads,
    ),
    (
        "state_hits",
        "Flows read for which the store had state",
        MetricType::Counter,
        |state| state.hits,
    ),
    (
        "state_updates",
        "Flow state updates written to the store",
        MetricType::Counter,
        |state| state.updates,
    ),
    (
        "state_failures",
        "Failures of the store",
        MetricType::Counter,
        |state| state.failures,
    ),
];

/// Encodes the counters of external flow state, of chains that have some.
fn flow_state(chains: &[ChainFigures<'_>], encoder: &mut DescriptorEncoder) -> fmt::Result {
    let states = || {
        let states = chains.iter();
        states.filter_map(|chain| Some((chain.label, chain.progress.state.as_ref()?)))
    };
    if states().next().is_none() {
        return Ok(());
    }
    for (name, help, kind, value) in STATE_METRICS {
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (label, state) in states() {
            labelled(&mut family, label, None, |metric| match kind {
                MetricType::Gauge => metric.encode_gauge(&value(state)),
                _ => metric.encode_counter::<NoLabelSet, _, u64>(&value(state), None),
            })?;
        }
    }
    let help = "Packets whose flow state did not arrive, by outcome";
    let mut family = encoder.encode_descriptor("state_packets", help, None, MetricType::Counter)?;
    for (label, state) in states() {
        counter(&mut family, label, Some(("outcome", "passed")), state.passed)?;
        counter(&mut family, label, Some(("outcome", "dropped")), state.dropped)?;
    }
    Ok(())
}

/// Encodes a sample of a counter.
///
/// # Errors
/// The encoder fails.
pub fn counter(
    family: &mut MetricEncoder,
    chain: Option<&str>,
    label: Option<(&str, &str)>,
    count: u64,
) -> fmt::Result {
    labelled(family, chain, label, |metric| {
        metric.encode_counter::<NoLabelSet, _, u64>(&count, None)
    })
}

/// Encodes a sample with the label `chain` and another one, as far as there are some.
///
/// # Errors
/// The encoder fails.
pub fn labelled(
    family: &mut MetricEncoder,
    chain: Option<&str>,
    label: Option<(&str, &str)>,
    encode: impl FnOnce(&mut MetricEncoder) -> fmt::Result,
) -> fmt::Result {
    let chain = chain.map(|chain| ("chain", chain));
    let labels: Vec<(&str, &str)> = chain.into_iter().chain(label).collect();
    match labels.is_empty() {
        // No braces.
        true => encode(family),
        false => encode(&mut family.encode_family(&labels)?),
    }
}

/// Returns the packets of each bucket, not cumulative: the encoder accumulates them.
fn buckets(latency: &LatencyHistogram) -> Vec<(f64, u64)> {
    let steps: Vec<(Nanos, u64)> = latency.cumulative().collect();
    let mut below = 0;
    let mut buckets: Vec<(f64, u64)> = BUCKETS_US
        .iter()
        .map(|&us| {
            let bound = Nanos::from_micros(us);
            let upto = steps.partition_point(|(upper, _)| *upper <= bound);
            let seen = upto.checked_sub(1).map_or(0, |last| steps[last].1);
            let bucket = (bound.as_secs_f64(), seen - below);
            below = seen;
            bucket
        })
        .collect();
    buckets.push((f64::INFINITY, latency.total() - below));
    buckets
}
