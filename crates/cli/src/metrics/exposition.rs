//! Figures of a run as OpenMetrics text. Sources are the run's constants ([`Chain`]) and its
//! [`Progress`]. `docs/reference/metrics.md` lists all metrics, which `tests/metrics.rs` and `tests/state.rs` check.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use tailwater_api::Slo;
use tailwater_dataplane::durable::StateProgress;
use tailwater_dataplane::histogram::LatencyHistogram;
use tailwater_dataplane::report::ReloadCounters;
use tailwater_dataplane::run::Progress;
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

/// Figures of a run, for scraping.
#[derive(Debug)]
pub struct Exposition {
    registry: Registry,
    latest: Arc<Mutex<Option<Progress>>>,
}

impl Exposition {
    /// Creates an exposition without figures.
    pub fn new(chain: Chain) -> Exposition {
        let latest = Arc::new(Mutex::new(None));
        let mut registry = Registry::with_prefix("tailwater");
        registry.register_collector(Box::new(Run {
            chain,
            latest: Arc::clone(&latest),
        }));
        Exposition { registry, latest }
    }

    /// Replaces the figures.
    pub fn update(&self, progress: &Progress) {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        *latest = Some(progress.clone());
    }

    /// Returns the OpenMetrics text.
    ///
    /// # Errors
    /// The encoder fails.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut page = String::new();
        text::encode(&mut page, &self.registry)?;
        Ok(page)
    }
}

/// Collector that derives all metrics from the latest progress. There is no second set of counters.
#[derive(Debug)]
struct Run {
    chain: Chain,
    latest: Arc<Mutex<Option<Progress>>>,
}

impl Collector for Run {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        self.about(&mut encoder)?;
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        match &*latest {
            Some(progress) => figures(progress, &mut encoder),
            None => Ok(()),
        }
    }
}

impl Run {
    fn about(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let Chain { name, traffic, slo } = &self.chain;
        let version = env!("CARGO_PKG_VERSION");
        encoder
            .encode_descriptor("chain", "Chain that is running", None, MetricType::Info)?
            .encode_info(&[("chain", name.as_str()), ("traffic", traffic), ("version", version)])?;
        let help = "Latency objective";
        encoder
            .encode_descriptor("slo_latency", help, Some(&Unit::Seconds), MetricType::Gauge)?
            .encode_gauge(&slo.budget().as_secs_f64())?;
        let help = "Share of packets that must meet the latency objective";
        encoder
            .encode_descriptor("slo_share", help, Some(&Unit::Ratios), MetricType::Gauge)?
            .encode_gauge(&(slo.percentile / 100.0))
    }
}

fn figures(progress: &Progress, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let packets = &progress.packets;
    count(
        encoder,
        "packets_offered",
        "Packets that arrived for the chain",
        packets.offered,
    )?;
    let help = "Packets by outcome";
    let mut family = encoder.encode_descriptor("packets", help, None, MetricType::Counter)?;
    for (outcome, packets) in [
        ("delivered", packets.delivered),
        ("dropped_by_nf", packets.dropped_by_nf),
        ("lost", packets.lost),
    ] {
        labelled(&mut family, "outcome", outcome, packets)?;
    }
    let help = "Packets dropped, lost or passed as unusual, by reason";
    let mut family = encoder.encode_descriptor("packet_reasons", help, None, MetricType::Counter)?;
    for (reason, packets) in &packets.reasons {
        labelled(&mut family, "reason", reason, *packets)?;
    }
    let help = "Packets of the traffic that do not match the chain";
    count(encoder, "packets_not_matched", help, packets.not_matched)?;
    let help = "Packets late or lost, by cause";
    let mut family = encoder.encode_descriptor("late_packets", help, None, MetricType::Counter)?;
    for (cause, packets) in &progress.late_by_cause {
        labelled(&mut family, "cause", cause, *packets)?;
    }
    let help = "Times a worker was preempted";
    count(encoder, "descheduling_gaps", help, progress.gaps)?;
    let moves = &progress.buckets;
    let help = "RSS buckets moved from one dedicated core to another";
    count(encoder, "buckets_moved", help, moves.moved)?;
    let help = "Packets buffered during migration of their RSS bucket";
    count(encoder, "packets_kept_back", help, moves.buffered)?;
    let scaling = &progress.scaling;
    let help = "Packets offloaded to other cores";
    let mut family = encoder.encode_descriptor("packets_offloaded", help, None, MetricType::Counter)?;
    let auxiliary = scaling.packets_offloaded - scaling.packets_to_dedicated;
    labelled(&mut family, "to", "auxiliary", auxiliary)?;
    labelled(&mut family, "to", "dedicated", scaling.packets_to_dedicated)?;
    let help = "Times a dedicated core was activated to help another";
    count(encoder, "dedicated_activations", help, scaling.dedicated_activated)?;
    reloads(&progress.reloads, encoder)?;
    if let Some(state) = &progress.state {
        flow_state(state, encoder)?;
    }
    for (name, help, value) in [
        (
            "dedicated_cores",
            "Dedicated cores in use so far, on average",
            progress.cores.dedicated_avg,
        ),
        (
            "auxiliary_cores",
            "Auxiliary cores activated so far, on average",
            progress.cores.auxiliary_avg,
        ),
    ] {
        encoder
            .encode_descriptor(name, help, None, MetricType::Gauge)?
            .encode_gauge(&value)?;
    }
    let help = "Latency of every packet from arrival to departure";
    let latency = &progress.latency;
    encoder
        .encode_descriptor("latency", help, Some(&Unit::Seconds), MetricType::Histogram)?
        .encode_histogram::<NoLabelSet>(latency.sum().as_secs_f64(), latency.total(), &buckets(latency), None)?;
    for (name, help, value) in [
        ("latency_p50", "Median latency so far", progress.p50),
        ("latency_p99", "99th percentile of latency so far", progress.p99),
    ] {
        encoder
            .encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?
            .encode_gauge(&value.as_secs_f64())?;
    }
    Ok(())
}

/// Encodes the counters of reloads.
fn reloads(reloads: &ReloadCounters, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let help = "Reloads of the chain's files, by outcome";
    let mut family = encoder.encode_descriptor("reloads", help, None, MetricType::Counter)?;
    for (outcome, count) in [
        ("applied", reloads.applied),
        ("rejected", reloads.rejected),
        ("unchanged", reloads.unchanged),
    ] {
        labelled(&mut family, "outcome", outcome, count)?;
    }
    let help = "1 if the last reload was rejected: the files differ from the configuration in force";
    encoder
        .encode_descriptor("last_reload_rejected", help, None, MetricType::Gauge)?
        .encode_gauge(&u64::from(reloads.last_rejected))
}

/// Encodes the counters of external flow state.
fn flow_state(state: &StateProgress, encoder: &mut DescriptorEncoder) -> fmt::Result {
    for (name, help, value) in [
        (
            "state_available",
            "1 if the store of flow state is available, otherwise 0",
            u64::from(state.available),
        ),
        ("state_waiting_packets", "Packets waiting for the store", state.waiting),
    ] {
        encoder
            .encode_descriptor(name, help, None, MetricType::Gauge)?
            .encode_gauge(&value)?;
    }
    for (name, help, value) in [
        ("state_reads", "Flows read from the store", state.reads),
        ("state_hits", "Flows read for which the store had state", state.hits),
        (
            "state_updates",
            "Flow state updates written to the store",
            state.updates,
        ),
        ("state_failures", "Failures of the store", state.failures),
    ] {
        count(encoder, name, help, value)?;
    }
    let help = "Packets whose flow state did not arrive, by outcome";
    let mut family = encoder.encode_descriptor("state_packets", help, None, MetricType::Counter)?;
    labelled(&mut family, "outcome", "passed", state.passed)?;
    labelled(&mut family, "outcome", "dropped", state.dropped)
}

fn count(encoder: &mut DescriptorEncoder, name: &str, help: &str, count: u64) -> fmt::Result {
    encoder
        .encode_descriptor(name, help, None, MetricType::Counter)?
        .encode_counter::<NoLabelSet, _, u64>(&count, None)
}

fn labelled(family: &mut MetricEncoder, label: &str, value: &str, count: u64) -> fmt::Result {
    family
        .encode_family(&[(label, value)])?
        .encode_counter::<NoLabelSet, _, u64>(&count, None)
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

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_dataplane::report::{CoreReport, PacketReport, ReloadCounters};
    use tailwater_dataplane::scaling::ScalingCounters;
    use tailwater_dataplane::scaling::buckets::BucketCounters;

    fn exposition() -> Exposition {
        Exposition::new(Chain {
            name: "acl-nat".to_owned(),
            traffic: "a \"quoted\"\nname".to_owned(),
            slo: Slo {
                latency: Nanos::from_micros(200),
                network: Nanos::ZERO,
                percentile: 99.0,
                throughput: None,
            },
        })
    }

    #[test]
    fn a_page_before_and_after_the_first_figures() {
        let exposition = exposition();
        let page = exposition.text().unwrap();
        assert!(page.contains("tailwater_slo_latency_seconds 0.0002"), "{page}");
        assert!(page.ends_with("# EOF\n"), "{page}");
        assert!(page.contains(r#"traffic="a \"quoted\"\nname""#), "{page}");
        let mut latency = LatencyHistogram::default();
        for us in [0, 3, 3, 150, 250, 7_000_000] {
            latency.record(Nanos::from_micros(us));
        }
        exposition.update(&Progress {
            state: None,
            news: Vec::new(),
            elapsed: Nanos::from_secs(1),
            duration: None,
            packets: PacketReport {
                offered: 9,
                delivered: 6,
                dropped_by_nf: 2,
                lost: 1,
                not_matched: 4,
                reasons: [("acl/denied".to_owned(), 2)].into(),
                ..PacketReport::default()
            },
            p99: Nanos::from_millis(7_000),
            p50: Nanos::from_micros(3),
            late_by_cause: [("queued-behind-own-flow", 2)].into(),
            latency,
            gaps: 5,
            cores: CoreReport {
                dedicated: 2,
                dedicated_avg: 1.5,
                auxiliary_avg: 0.25,
                avg: 1.75,
            },
            buckets: BucketCounters {
                moved: 7,
                buffered: 11,
                longest_move: Nanos(1),
            },
            scaling: ScalingCounters {
                packets_offloaded: 100,
                packets_to_dedicated: 40,
                dedicated_activated: 3,
                ..ScalingCounters::default()
            },
            reloads: ReloadCounters {
                applied: 3,
                rejected: 2,
                unchanged: 1,
                last_rejected: true,
            },
        });
        let page = exposition.text().unwrap();
        for line in [
            "tailwater_packets_offered_total 9",
            "tailwater_buckets_moved_total 7",
            "tailwater_packets_kept_back_total 11",
            "tailwater_packets_offloaded_total{to=\"auxiliary\"} 60",
            "tailwater_packets_offloaded_total{to=\"dedicated\"} 40",
            "tailwater_dedicated_activations_total 3",
            "tailwater_reloads_total{outcome=\"applied\"} 3",
            "tailwater_reloads_total{outcome=\"rejected\"} 2",
            "tailwater_reloads_total{outcome=\"unchanged\"} 1",
            "tailwater_last_reload_rejected 1",
            "tailwater_dedicated_cores 1.5",
            "tailwater_auxiliary_cores 0.25",
            "tailwater_packets_total{outcome=\"delivered\"} 6",
            "tailwater_packets_total{outcome=\"dropped_by_nf\"} 2",
            "tailwater_packets_total{outcome=\"lost\"} 1",
            "tailwater_packets_not_matched_total 4",
            "tailwater_packet_reasons_total{reason=\"acl/denied\"} 2",
            "tailwater_late_packets_total{cause=\"queued-behind-own-flow\"} 2",
            "tailwater_descheduling_gaps_total 5",
            "tailwater_latency_seconds_count 6",
            "tailwater_latency_seconds_bucket{le=\"0.000001\"} 1",
            "tailwater_latency_seconds_bucket{le=\"0.000005\"} 3",
            "tailwater_latency_seconds_bucket{le=\"0.0002\"} 4",
            "tailwater_latency_seconds_bucket{le=\"0.0005\"} 5",
            "tailwater_latency_seconds_bucket{le=\"0.1\"} 5",
            "tailwater_latency_seconds_bucket{le=\"+Inf\"} 6",
            "tailwater_latency_p50_seconds 0.000003",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
    }
}
