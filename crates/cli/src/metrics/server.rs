//! Page of a server: its chains, as they come and go, its ports, its cores and its configuration.

use super::exposition::{Chain, ChainFigures, about, counter, encode, labelled};
use super::protobuf::ChainLatency;
use super::{Page, exemplars};
use crate::telemetry::{Counts, DROP_REASONS, SIGNALS};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use tailwater_dataplane::core_host::CoreHost;
use tailwater_dataplane::run::Progress;
use tailwater_dataplane::shared_port::{SharedPort, SharedPortCounts};
use tailwater_server::live::Figures;
use tailwater_server::{ConditionStatus, Phase, Snapshot};

/// Latest state of a server.
pub type LatestSnapshot = Arc<Mutex<Snapshot>>;

/// Sources of a server's figures. None of them is on the data path.
#[derive(Clone, Debug)]
pub struct ServerSources {
    /// Chains that run.
    pub figures: Figures,
    /// Ports that they share.
    pub ports: Vec<Arc<SharedPort>>,
    /// Cores that they share.
    pub host: Arc<CoreHost>,
    /// Latest state of the server.
    pub snapshot: LatestSnapshot,
    /// Counts of exported records, if there is an export.
    pub exported: Option<Arc<Counts>>,
}

/// Figures of a server, for scraping.
#[derive(Debug)]
pub struct ServerPage {
    registry: Registry,
    snapshot: LatestSnapshot,
    figures: Figures,
    exported: Option<Arc<Counts>>,
}

impl ServerPage {
    /// Creates the page of a server.
    pub fn new(sources: ServerSources) -> ServerPage {
        let (snapshot, figures) = (Arc::clone(&sources.snapshot), sources.figures.clone());
        let exported = sources.exported.clone();
        let mut registry = Registry::with_prefix("tailwater");
        registry.register_collector(Box::new(Server(sources)));
        ServerPage {
            registry,
            snapshot,
            figures,
            exported,
        }
    }
}

impl Page for ServerPage {
    fn metrics(&self) -> Result<String, fmt::Error> {
        let mut page = String::new();
        text::encode(&mut page, &self.registry)?;
        let late = self.exported.as_ref().map(|counts| counts.late()).unwrap_or_default();
        Ok(match &late[..] {
            [] => page,
            late => exemplars::add(&page, late),
        })
    }

    fn latencies(&self) -> Vec<ChainLatency> {
        let chains = self.figures.chains().into_iter();
        let chains = chains.filter_map(|chain| Some((chain.progress()?.latency, chain.name)));
        chains.map(|(latency, name)| (Some(name), latency)).collect()
    }

    fn is_ready(&self) -> bool {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).is_ready()
    }
}

/// Collector that derives all metrics from the sources.
#[derive(Debug)]
struct Server(ServerSources);

impl Collector for Server {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let chains = self.0.figures.chains();
        let known: Vec<(Chain, Option<Progress>)> = chains
            .iter()
            .map(|chain| {
                let about = Chain {
                    name: chain.name.clone(),
                    traffic: chain.port.clone(),
                    slo: chain.slo,
                };
                (about, chain.progress())
            })
            .collect();
        let labels: Vec<_> = known
            .iter()
            .map(|(chain, _)| (chain, Some(chain.name.as_str())))
            .collect();
        about(&labels, &mut encoder)?;
        let figures: Vec<ChainFigures<'_>> = known
            .iter()
            .filter_map(|(chain, progress)| {
                Some(ChainFigures {
                    label: Some(&chain.name),
                    progress: progress.as_ref()?,
                })
            })
            .collect();
        encode(&figures, &mut encoder)?;
        let snapshot = self.0.snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone();
        configuration(&snapshot, &mut encoder)?;
        ports(&self.0.ports, &mut encoder)?;
        if let Some(counts) = &self.0.exported {
            exported(counts, &mut encoder)?;
        }
        let used = chains.iter().flat_map(|chain| chain.cores.iter().copied()).collect();
        cores(&self.0.host, used, &mut encoder)
    }
}

/// Phases, with their values of the label `phase`.
const PHASES: [(Phase, &str); 6] = [
    (Phase::Pending, "pending"),
    (Phase::Starting, "starting"),
    (Phase::Running, "running"),
    (Phase::Draining, "draining"),
    (Phase::Drained, "drained"),
    (Phase::Failed, "failed"),
];

/// Encodes the state of the configuration.
fn configuration(snapshot: &Snapshot, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let version = env!("CARGO_PKG_VERSION");
    encoder
        .encode_descriptor("server", "Server that is running", None, MetricType::Info)?
        .encode_info(&[("server", snapshot.server.as_str()), ("version", version)])?;
    for (name, help, value) in [
        (
            "server_ready",
            "1 if all chains of the configuration run, or are drained on request",
            u64::from(snapshot.is_ready()),
        ),
        (
            "server_generation",
            "Number of the applied generation",
            snapshot.generation,
        ),
    ] {
        encoder
            .encode_descriptor(name, help, None, MetricType::Gauge)?
            .encode_gauge(&value)?;
    }
    let mut family = encoder.encode_descriptor("server_chains", "Chains by phase", None, MetricType::Gauge)?;
    for (phase, name) in PHASES {
        let count = snapshot.count(phase) as u64;
        labelled(&mut family, None, Some(("phase", name)), |metric| {
            metric.encode_gauge(&count)
        })?;
    }
    let help = "1 while the promise to a chain is kept, 0 while it is not";
    let mut family = encoder.encode_descriptor("promise_kept", help, None, MetricType::Gauge)?;
    for (name, chain) in &snapshot.chains {
        let is_kept = match chain.promise_kept().status {
            ConditionStatus::True => 1,
            ConditionStatus::False => 0,
            ConditionStatus::Unknown => continue,
        };
        labelled(&mut family, Some(name), None, |metric| metric.encode_gauge(&is_kept))?;
    }
    let help = "1 if the last window met the chain's objective, 0 if not; absent if that is unknown";
    let mut family = encoder.encode_descriptor("objective_met", help, None, MetricType::Gauge)?;
    for (name, chain) in &snapshot.chains {
        let is_met = match chain.objective_met().status {
            ConditionStatus::True => 1,
            ConditionStatus::False => 0,
            ConditionStatus::Unknown => continue,
        };
        labelled(&mut family, Some(name), None, |metric| metric.encode_gauge(&is_met))?;
    }
    let help = "Applies, by outcome";
    let mut family = encoder.encode_descriptor("server_applies", help, None, MetricType::Counter)?;
    let applies = snapshot.applies;
    for (outcome, count) in [("accepted", applies.accepted), ("refused", applies.refused)] {
        counter(&mut family, None, Some(("outcome", outcome)), count)?;
    }
    Ok(())
}

/// Encodes the counts of exported records.
fn exported(counts: &Counts, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let help = "Records that an OpenTelemetry collector has accepted";
    let mut family = encoder.encode_descriptor("otlp_records_sent", help, None, MetricType::Counter)?;
    for (number, signal) in SIGNALS.iter().enumerate() {
        counter(&mut family, None, Some(("signal", signal)), counts.sent(number))?;
    }
    let help = "Records for an OpenTelemetry collector that were dropped";
    let mut family = encoder.encode_descriptor("otlp_records_dropped", help, None, MetricType::Counter)?;
    for (number, signal) in SIGNALS.iter().enumerate() {
        for (index, reason) in DROP_REASONS.iter().enumerate() {
            let labels = [("signal", *signal), ("reason", *reason)];
            let count = counts.dropped(number, index);
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
    }
    Ok(())
}

/// Counter of a port: its name, its help, and its value.
type PortCounter = (&'static str, &'static str, fn(&SharedPortCounts) -> u64);

const PORT_COUNTERS: [PortCounter; 5] = [
    ("port_packets_received", "Packets that arrived", |counts| {
        counts.received
    }),
    ("port_packets_delivered", "Packets that belonged to a chain", |counts| {
        counts.delivered
    }),
    ("port_packets_unmatched", "Packets that no chain matched", |counts| {
        counts.unmatched
    }),
    (
        "port_packets_lost",
        "Packets lost before their chain was known, since the port's ring was full",
        |counts| counts.lost,
    ),
    (
        "port_packets_damaged",
        "Packets dropped since their checksums were wrong",
        |counts| counts.damaged,
    ),
];

/// Encodes the counters of the ports.
fn ports(ports: &[Arc<SharedPort>], encoder: &mut DescriptorEncoder) -> fmt::Result {
    for (name, help, value) in PORT_COUNTERS {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for port in ports {
            counter(&mut family, None, Some(("port", port.name())), value(&port.counts()))?;
        }
    }
    Ok(())
}

/// Encodes the use of the cores. `used` has a core for each chain on it.
fn cores(host: &CoreHost, used: Vec<usize>, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let help = "Time for which a core worked on packets";
    let mut family = encoder.encode_descriptor("core_busy", help, Some(&Unit::Seconds), MetricType::Counter)?;
    for (core, busy) in host.busy() {
        labelled(&mut family, None, Some(("core", &core.to_string())), |metric| {
            metric.encode_counter::<NoLabelSet, _, u64>(&busy.as_secs_f64(), None)
        })?;
    }
    let help = "Chains that have a core as a dedicated one";
    let mut family = encoder.encode_descriptor("core_chains", help, None, MetricType::Gauge)?;
    for (core, _) in host.busy() {
        let count = used.iter().filter(|other| **other == core).count() as u64;
        labelled(&mut family, None, Some(("core", &core.to_string())), |metric| {
            metric.encode_gauge(&count)
        })?;
    }
    Ok(())
}
