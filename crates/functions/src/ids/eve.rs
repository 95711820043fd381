//! Alert file in Suricata's EVE JSON format: one object a line.
//!
//! One thread writes the alerts of all workers. Alerts it cannot keep up with are lost and counted.

use super::alert_ring::AlertReader;
use super::shared::UnwrittenAlerts;
use super::sources::Classes;
use crate::exporter::{ExportError, Exported, Exporter, RecordFile, Sender, Sink, Source, UnwrittenRecords};
use crate::out_file::Pulse;
use serde_json::{Map, Value, json};
use std::convert::Infallible;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tailwater_ids::alert::Alert;
use tailwater_ids::rule::App;
use tailwater_ids::ruleset::RuleSet;
use tailwater_net::{Nanos, protocol};

/// Alerts per worker that can wait for the disk.
const RING: usize = 2048;
/// Rule sets kept for alerts that still refer to them.
const EDITIONS: usize = 4;
/// Severity of a rule without a class.
const SEVERITY: u8 = 3;

/// Rule sets with their version numbers, newest last.
type Editions = Arc<Mutex<Vec<(u32, Arc<RuleSet>)>>>;

/// Alert file with its writer thread.
#[derive(Debug)]
pub struct Eve {
    file: PathBuf,
    exporter: Exporter<AlertFile>,
    editions: Editions,
    unwritten: Arc<UnwrittenRecords>,
}

impl Eve {
    /// Creates the file and starts the thread that writes it.
    ///
    /// # Errors
    /// The file or the thread cannot be created.
    pub(super) fn create(path: &Path, rules: Arc<RuleSet>, classes: Classes) -> Result<Eve, ExportError> {
        let pulse = Pulse::default();
        let unwritten = Arc::default();
        let file = RecordFile::create(path, "", &pulse, Arc::clone(&unwritten)).map_err(ExportError::write(path))?;
        let fields = EventFields::new(rules, classes);
        let editions = Arc::clone(&fields.editions);
        let exporter = Exporter::start(AlertFile { file, fields }, pulse);
        Ok(Eve {
            file: path.to_owned(),
            exporter: exporter.map_err(ExportError::write(path))?,
            editions,
            unwritten,
        })
    }

    /// Adds the rule set that is about to take effect, and removes the oldest beyond the limit.
    pub(super) fn renew(&self, number: u32, rules: Arc<RuleSet>) {
        let mut editions = self.editions.lock().unwrap_or_else(PoisonError::into_inner);
        if editions.len() == EDITIONS {
            editions.remove(0);
        }
        editions.push((number, rules));
    }

    /// Returns a worker's sender to the writer thread. [`deregister`](Eve::deregister) takes it back.
    pub(super) fn sender(&self) -> Sender<AlertFile> {
        self.unwritten.register();
        self.exporter.sender(RING, ())
    }

    /// Returns and resets the number of alerts that could not be written.
    #[inline]
    pub(super) fn take_unwritten(&self) -> u64 {
        self.unwritten.take()
    }

    /// Deregisters a worker that has sent this many alerts. The last one waits for the file, and gets the number of
    /// alerts that were not written and that no worker has counted.
    pub(super) fn deregister(&self, sender: Sender<AlertFile>, sent: u64, may_wait: bool) -> u64 {
        drop(sender);
        match self.unwritten.deregister(sent) && may_wait {
            true => {
                self.exporter.end();
                self.unwritten.take_last()
            }
            false => 0,
        }
    }

    /// Waits until all alerts are written or the file is found to hang.
    pub(super) fn finish(&self) -> Result<Option<Exported>, ExportError> {
        let Some(written) = self.exporter.finish() else {
            return Ok(None);
        };
        let records = written.map_err(ExportError::unwritten(&self.file, self.unwritten.lost()))?;
        let file = self.file.clone();
        Ok(Some(Exported { file, records }))
    }
}

/// Alert file with its writer thread, in the host of a function whose processes send alerts through shared memory.
#[derive(Debug)]
pub(super) struct SharedEve {
    file: PathBuf,
    exporter: Exporter<SharedAlertFile>,
    unwritten: Arc<UnwrittenRecords>,
}

impl SharedEve {
    /// Creates the file and starts the thread that writes it. `sources` are the processes' rings; alerts that are not
    /// written are counted beside them.
    ///
    /// # Errors
    /// The file or the thread cannot be created.
    pub(super) fn create(
        path: &Path,
        (rules, classes): (Arc<RuleSet>, Classes),
        (rings, uncounted): (Vec<AlertReader>, UnwrittenAlerts),
    ) -> Result<SharedEve, ExportError> {
        let pulse = Pulse::default();
        let unwritten = Arc::default();
        let file = RecordFile::create(path, "", &pulse, Arc::clone(&unwritten)).map_err(ExportError::write(path))?;
        let fields = EventFields::new(rules, classes);
        let sink = SharedAlertFile {
            alerts: AlertFile { file, fields },
            rings,
            unwritten: Arc::clone(&unwritten),
            uncounted,
        };
        let exporter = Exporter::start(sink, pulse).map_err(ExportError::write(path))?;
        Ok(SharedEve {
            file: path.to_owned(),
            exporter,
            unwritten,
        })
    }

    /// Waits until all alerts are written or the file is found to hang.
    pub(super) fn finish(&self) -> Result<Option<Exported>, ExportError> {
        let Some(written) = self.exporter.finish() else {
            return Ok(None);
        };
        let lost = self.unwritten.lost();
        let records = written.map_err(ExportError::unwritten(&self.file, lost))?;
        let file = self.file.clone();
        Ok(Some(Exported { file, records }))
    }
}

/// Alerts of several processes as lines of JSON.
#[derive(Debug)]
struct SharedAlertFile {
    alerts: AlertFile,
    rings: Vec<AlertReader>,
    unwritten: Arc<UnwrittenRecords>,
    uncounted: UnwrittenAlerts,
}

impl SharedAlertFile {
    fn write_alerts(&mut self) {
        let alerts = &mut self.alerts;
        for ring in &mut self.rings {
            ring.take_all(|alert| alerts.put(alert, &mut ()));
        }
        self.alerts.file.flush();
        self.uncounted.add(self.unwritten.take());
    }
}

impl Sink for SharedAlertFile {
    type Record = Infallible;
    type PerSender = ();

    const THREAD: &'static str = "alerts";
    // No process wakes the thread.
    const POLL_INTERVAL: Duration = Duration::from_millis(5);
    const RECORDS_PER_POLL: usize = 0;

    fn put(&mut self, record: &Infallible, _sender: &mut ()) {
        match *record {}
    }

    fn on_idle(&mut self, _sources: &[Source<Self>]) -> ControlFlow<()> {
        self.write_alerts();
        ControlFlow::Continue(())
    }

    fn finish(mut self, _sources: &[Source<Self>], _abandoned: bool) -> io::Result<u64> {
        self.write_alerts();
        self.alerts.file.finish()
    }
}

/// Alerts as lines of JSON.
#[derive(Debug)]
pub(super) struct AlertFile {
    file: RecordFile,
    fields: EventFields,
}

impl Sink for AlertFile {
    type Record = Alert;
    type PerSender = ();

    const THREAD: &'static str = "alerts";
    const POLL_INTERVAL: Duration = Duration::from_millis(50);
    const WAKE_EVERY: Option<u32> = Some(128);
    const RECORDS_PER_POLL: usize = 128;

    fn put(&mut self, alert: &Alert, _sender: &mut ()) {
        self.file.write(|out| self.fields.write(alert, out));
    }

    fn on_idle(&mut self, _sources: &[Source<Self>]) -> ControlFlow<()> {
        // Readers that follow the file see alerts promptly.
        self.file.flush();
        ControlFlow::Continue(())
    }

    fn finish(self, _sources: &[Source<Self>], _abandoned: bool) -> io::Result<u64> {
        self.file.finish()
    }
}

/// Context that turns alerts into JSON: rule sets, classes and the clock's origin.
#[derive(Debug)]
struct EventFields {
    editions: Editions,
    /// Rule set of the last alert, cached.
    known: Option<(u32, Arc<RuleSet>)>,
    classes: Classes,
    /// Wall-clock time at which the run's clock started.
    origin: Nanos,
}

impl EventFields {
    fn new(rules: Arc<RuleSet>, classes: Classes) -> EventFields {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        EventFields {
            editions: Arc::new(Mutex::new(vec![(1, rules)])),
            known: None,
            classes,
            origin: Nanos(since.map_or(0, |since| since.as_nanos() as u64)),
        }
    }

    fn rules(&mut self, number: u32) -> Option<Arc<RuleSet>> {
        if let Some((known, rules)) = &self.known
            && *known == number
        {
            return Some(Arc::clone(rules));
        }
        let editions = self.editions.lock().unwrap_or_else(PoisonError::into_inner);
        self.known = editions.iter().find(|(known, _)| *known == number).cloned();
        self.known.as_ref().map(|(_, rules)| Arc::clone(rules))
    }

    fn write(&mut self, alert: &Alert, out: &mut impl Write) -> io::Result<()> {
        let rules = self.rules(alert.version);
        let value = self.value(alert, rules.as_deref());
        serde_json::to_writer(&mut *out, &value)?;
        out.write_all(b"\n")
    }

    /// Returns the alert as a JSON object.
    fn value(&self, alert: &Alert, rules: Option<&RuleSet>) -> Value {
        let key = &alert.key;
        let time = Nanos(self.origin.0.wrapping_add(alert.time.0));
        let mut event = Map::new();
        let mut put = |name: &str, value: Value| drop(event.insert(name.to_owned(), value));
        put("timestamp", timestamp(time).into());
        put("flow_id", (key.of_connection().0.hash(0) >> 1).into());
        put("event_type", "alert".into());
        put("src_ip", key.source().to_string().into());
        put("dest_ip", key.destination().to_string().into());
        if matches!(key.protocol(), protocol::TCP | protocol::UDP) {
            put("src_port", key.source_port().into());
            put("dest_port", key.destination_port().into());
        }
        put("proto", protocol_name(key.protocol()).into());
        let direction = if alert.to_server { "to_server" } else { "to_client" };
        put("direction", direction.into());
        let detail = &alert.detail;
        let text = |bytes: &[u8]| Value::from(String::from_utf8_lossy(bytes));
        if let Some(app) = alert.app {
            put("app_proto", app.name().into());
        }
        if !detail.name().is_empty() || !detail.target().is_empty() {
            match alert.app {
                Some(App::Http | App::Http2) => put(
                    "http",
                    json!({"hostname": text(detail.name()), "url": text(detail.target()), "http_method": text(detail.method())}),
                ),
                Some(App::Tls) => put("tls", json!({"sni": text(detail.name())})),
                Some(App::Dns) => put(
                    "dns",
                    json!({"query": [{"type": "query", "rrname": text(detail.name())}]}),
                ),
                _ => {}
            }
        }
        put("alert", self.about(alert, rules));
        Value::Object(event)
    }

    /// Returns the `alert` object, which describes the rule.
    fn about(&self, alert: &Alert, rules: Option<&RuleSet>) -> Value {
        let action = if alert.dropped { "blocked" } else { "allowed" };
        let Some(about) = rules.and_then(|rules| rules.rule(alert.rule)).map(|rule| &rule.about) else {
            // The rule set has been replaced several times since and is gone.
            return json!({"action": action});
        };
        let class = self.classes.get(&about.class);
        let (category, severity) = match class {
            Some((text, severity)) => (text.as_str(), *severity),
            None => (about.class.as_str(), SEVERITY),
        };
        let mut metadata: Map<String, Value> = Map::new();
        for (key, value) in &about.metadata {
            let values = metadata.entry(key.clone()).or_insert_with(|| json!([]));
            if let Value::Array(values) = values {
                values.push(value.as_str().into());
            }
        }
        json!({
            "action": action,
            "gid": about.generator,
            "signature_id": about.sid,
            "rev": about.revision,
            "signature": about.message,
            "category": category,
            "severity": about.priority.unwrap_or(severity),
            "metadata": metadata,
        })
    }
}

fn protocol_name(number: u8) -> String {
    match number {
        protocol::TCP => "TCP".to_owned(),
        protocol::UDP => "UDP".to_owned(),
        protocol::ICMP => "ICMP".to_owned(),
        protocol::ICMPV6 => "IPv6-ICMP".to_owned(),
        other => other.to_string(),
    }
}

/// Formats a time as ISO 8601: `2026-11-22T16:03:44.000123+0000`.
fn timestamp(time: Nanos) -> String {
    let (seconds, micros) = (time.0 / 1_000_000_000, time.0 / 1000 % 1_000_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days count from 1 March of year 0, so that the leap day is the last day of its year. Eras have 400 years of
    // 146,097 days in total.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}+0000")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_400, "2000-02-29T00:00:00"),
            (951_868_800, "2000-03-01T00:00:00"),
            (1_735_689_599, "2024-12-31T23:59:59"),
            (1_795_363_424, "2026-11-22T16:03:44"),
            (4_107_542_400, "2100-03-01T00:00:00"),
        ] {
            let time = Nanos::from_secs(seconds) + Nanos::from_micros(7);
            assert_eq!(timestamp(time), format!("{expected}.000007+0000"));
        }
    }
}
