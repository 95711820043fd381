//! Page of a single run: its constants and its latest [`Progress`].

use super::Page;
use super::exposition::{Chain, ChainFigures, about, encode};
use super::protobuf::ChainLatency;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use tailwater_dataplane::run::Progress;

/// Figures of a run, for scraping.
#[derive(Debug)]
pub struct RunPage {
    registry: Registry,
    latest: Arc<Mutex<Option<Progress>>>,
}

impl RunPage {
    /// Creates a page without figures.
    pub fn new(chain: Chain) -> RunPage {
        let latest = Arc::new(Mutex::new(None));
        let mut registry = Registry::with_prefix("tailwater");
        registry.register_collector(Box::new(Run {
            chain,
            latest: Arc::clone(&latest),
        }));
        RunPage { registry, latest }
    }

    /// Replaces the figures.
    pub fn update(&self, progress: &Progress) {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        *latest = Some(progress.clone());
    }
}

impl Page for RunPage {
    fn metrics(&self) -> Result<String, fmt::Error> {
        let mut page = String::new();
        text::encode(&mut page, &self.registry)?;
        Ok(page)
    }

    fn latencies(&self) -> Vec<ChainLatency> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.iter().map(|progress| (None, progress.latency.clone())).collect()
    }

    fn is_ready(&self) -> bool {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).is_some()
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
        about(&[(&self.chain, None)], &mut encoder)?;
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        match &*latest {
            Some(progress) => encode(&[ChainFigures { label: None, progress }], &mut encoder),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_api::Slo;
    use tailwater_dataplane::histogram::LatencyHistogram;
    use tailwater_dataplane::report::{CoreReport, PacketReport, ReloadCounters};
    use tailwater_dataplane::run::FunctionProgress;
    use tailwater_dataplane::run::FunctionTotals;
    use tailwater_dataplane::scaling::ScalingCounters;
    use tailwater_dataplane::scaling::buckets::BucketCounters;
    use tailwater_net::Nanos;

    fn exposition() -> RunPage {
        RunPage::new(Chain {
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
        let page = exposition.metrics().unwrap();
        assert!(!exposition.is_ready());
        assert!(page.contains("tailwater_slo_latency_seconds 0.0002"), "{page}");
        assert!(page.ends_with("# EOF\n"), "{page}");
        assert!(page.contains(r#"traffic="a \"quoted\"\nname""#), "{page}");
        let mut latency = LatencyHistogram::default();
        for us in [0, 3, 3, 150, 250, 7_000_000] {
            latency.record(Nanos::from_micros(us));
        }
        exposition.update(&Progress {
            state: None,
            window: None,
            work: Default::default(),
            flows: 77,
            functions: vec![FunctionProgress {
                name: "acl".to_owned(),
                totals: FunctionTotals {
                    packets: 8,
                    timed: 4,
                    nanos: 250_000_000,
                },
                dropped: 2,
            }],
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
        let page = exposition.metrics().unwrap();
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
            "tailwater_last_reload_rejected 1.0",
            "tailwater_dedicated_cores 1.5",
            "tailwater_auxiliary_cores 0.25",
            "tailwater_packets_total{outcome=\"delivered\"} 6",
            "tailwater_packets_total{outcome=\"dropped_by_nf\"} 2",
            "tailwater_packets_total{outcome=\"lost\"} 1",
            "tailwater_packets_not_matched_total 4",
            "tailwater_packet_reasons_total{reason=\"acl/denied\"} 2",
            "tailwater_late_packets_total{cause=\"queued-behind-own-flow\"} 2",
            "tailwater_flows 77.0",
            "tailwater_function_packets_total{function=\"acl\"} 8",
            "tailwater_function_packets_dropped_total{function=\"acl\"} 2",
            "tailwater_function_timed_packets_total{function=\"acl\"} 4",
            "tailwater_function_timed_seconds_total{function=\"acl\"} 0.25",
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
