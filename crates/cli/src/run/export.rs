//! Export of a run's events and packets to an OpenTelemetry collector, by the exporter of servers.

use crate::error::CliError;
use crate::output::complain;
use crate::telemetry::{Counts, ExportConfig, ExportSources, Exporter, Observed};
use std::fmt::Display;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tailwater_api::Slo;
use tailwater_api::server::TelemetrySpec;
use tailwater_chain::packet_traces::PacketTraces;
use tailwater_dataplane::RunError;
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::kept_packets::KeptObserver;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::run::Progress;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_server::live::window_latency;
use tailwater_server::status::objective;
use tailwater_server::{EventRing, Severity};

/// Export of a run that has not begun.
#[derive(Debug)]
pub struct Export {
    config: ExportConfig,
    counts: Arc<Counts>,
    /// Gets kept packets, if packets are kept and spans exported.
    pub observer: Option<KeptObserver>,
    kept: Option<Receiver<String>>,
}

impl Export {
    /// Export to the collector of `--otlp` or of the environment, if one names a collector.
    ///
    /// # Errors
    /// The URL cannot be used.
    pub fn find(url: Option<&str>, keeps_packets: bool) -> Result<Option<Export>, CliError> {
        let named = url.map(|url| ("--otlp", url));
        let warn = |line: &str| complain("warning", line);
        let config = ExportConfig::find(named, |name| std::env::var(name).ok(), warn)?;
        Ok(config.map(|config| {
            let counts = Arc::default();
            let (observer, kept) = match keeps_packets {
                true => config.observe_kept(&counts),
                false => Default::default(),
            };
            Export {
                config,
                counts,
                observer,
                kept,
            }
        }))
    }

    /// Starts the export of a run of `spec` on `traffic`. Times of its packets are on `clock`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(self, spec: &ChainSpec, traffic: &str, clock: &Clock) -> Result<Exporting, CliError> {
        let (events, traces) = (Arc::<Mutex<EventRing>>::default(), Arc::<PacketTraces>::default());
        let sources = ExportSources {
            server: spec.name.clone(),
            observed: Observed::Run {
                events: Arc::clone(&events),
                chains: [(spec.name.clone(), Arc::clone(&traces))].into(),
            },
            clock: clock.clone(),
            traced_packets: TelemetrySpec::default().traced_packets,
            kept: self.kept,
        };
        let exporting = Exporting {
            exporter: Exporter::start(self.config, sources, &self.counts)?,
            counts: self.counts,
            events,
            traces,
            chain: spec.name.clone(),
            slo: spec.slo,
            met: None,
        };
        exporting.add(Severity::Normal, "Running", &format!("on {traffic}"));
        Ok(exporting)
    }
}

/// Export of a run.
#[derive(Debug)]
pub struct Exporting {
    exporter: Exporter,
    counts: Arc<Counts>,
    events: Arc<Mutex<EventRing>>,
    traces: Arc<PacketTraces>,
    chain: String,
    slo: Slo,
    /// Verdict of the last window that had one.
    met: Option<bool>,
}

impl Exporting {
    /// Switch of the chain's traces.
    pub fn traces(&self) -> Arc<PacketTraces> {
        Arc::clone(&self.traces)
    }

    /// Adds what is new as events.
    pub fn update(&mut self, progress: &Progress) {
        for line in &progress.news {
            self.add(Severity::Normal, "Notice", line);
        }
        let Some(window) = &progress.window else {
            return;
        };
        if window.slo_met.is_none() || window.slo_met == self.met {
            return;
        }
        self.met = window.slo_met;
        let latency = window_latency(window, &self.slo);
        let message = objective(&latency, self.slo.percentile, Nanos::ZERO).message;
        match window.slo_met {
            Some(false) => self.add(Severity::Warning, "ObjectiveMissed", &message),
            _ => self.add(Severity::Normal, "ObjectiveMet", &message),
        }
    }

    /// Adds the event of the run's end.
    pub fn end(&self, ran: &Result<RunReport, RunError>) {
        match ran {
            Ok(_) => self.add(Severity::Normal, "Gone", &""),
            Err(error) => self.add(Severity::Warning, "Failed", error),
        }
    }

    /// Sends what is left, for at most two seconds.
    pub fn stop(self) {
        self.exporter.stop();
        let dropped = self.counts.all_dropped();
        if dropped > 0 {
            complain("notice", &format!("{dropped} records for the collector were dropped"));
        }
    }

    fn add(&self, severity: Severity, reason: &'static str, message: &dyn Display) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, message) = (Nanos(now.as_nanos() as u64), message.to_string());
        events.add(now, severity, Some(&self.chain), reason, &message);
    }
}
