//! Task that sends a signal's records.

use super::client::{Answer, post};
use super::endpoint::{Endpoint, ExportConfig};
use super::queue::{Dropped, LOGS, Queue};
use super::records;
use crate::output::complain;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::timeout;

/// Time between two requests, so that they have many records.
const PERIOD: Duration = Duration::from_secs(1);
/// First wait before a request is sent again; it doubles.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Shortest and longest wait, whatever the collector requests.
const WAITS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(30)];
/// Time after which a request is dropped that could not be delivered.
const LONGEST: Duration = Duration::from_secs(60);

/// Sender of a signal.
pub(super) struct Sender {
    queue: Arc<Queue>,
    endpoint: Endpoint,
    config: ExportConfig,
    resource: String,
    /// The user has been warned since the last request that was accepted.
    is_warned: bool,
}

impl Sender {
    pub(super) fn new(queue: Arc<Queue>, endpoint: &Endpoint, config: &ExportConfig, resource: &str) -> Sender {
        Sender {
            queue,
            endpoint: endpoint.clone(),
            config: config.clone(),
            resource: resource.to_owned(),
            is_warned: false,
        }
    }

    /// Sends records as they come, and once more what is left when `stopped` ends: all are collected.
    pub(super) async fn run(mut self, mut stopped: watch::Receiver<()>) {
        while timeout(PERIOD, stopped.changed()).await.is_err() {
            self.send_all(&mut stopped).await;
        }
        self.send_all(&mut stopped).await;
    }

    async fn send_all(&mut self, stopped: &mut watch::Receiver<()>) {
        loop {
            let records = self.queue.take();
            if records.is_empty() {
                return;
            }
            self.deliver(&records, stopped).await;
        }
    }

    /// Sends records until they are accepted or refused, or it takes too long.
    async fn deliver(&mut self, records: &[String], stopped: &mut watch::Receiver<()>) {
        let count = records.len() as u64;
        let body = match self.queue.signal() {
            LOGS => records::logs(&self.resource, records),
            _ => records::spans(&self.resource, records),
        };
        let (began, mut wait) = (Instant::now(), FIRST_WAIT);
        loop {
            match post(&self.endpoint, &self.config, body.clone()).await {
                Answer::Accepted { rejected, message } => {
                    let rejected = rejected.min(count);
                    self.queue.count_sent(count - rejected);
                    self.queue.count_dropped(Dropped::Refused, rejected);
                    match rejected {
                        0 => self.recovered(),
                        _ => self.warn(&format!("it rejects {rejected} of {count} records: {message}")),
                    }
                    return;
                }
                Answer::Refused(message) => {
                    self.queue.count_dropped(Dropped::Refused, count);
                    self.warn(&message);
                    return;
                }
                Answer::Unavailable(message, longer) => {
                    self.warn(&message);
                    let pause = longer.unwrap_or(wait).clamp(WAITS[0], WAITS[1]);
                    wait = (wait * 2).min(WAITS[1]);
                    let is_late = began.elapsed() + pause > LONGEST;
                    if is_late || timeout(pause, stopped.changed()).await.is_ok() {
                        self.queue.count_dropped(Dropped::Unreachable, count);
                        return;
                    }
                }
            }
        }
    }

    /// Warns the user, once until a request is accepted.
    fn warn(&mut self, message: &str) {
        if !self.is_warned {
            self.is_warned = true;
            complain(
                "warning",
                &format!("telemetry is not exported to {}: {message}", self.endpoint.url),
            );
        }
    }

    fn recovered(&mut self) {
        if std::mem::take(&mut self.is_warned) {
            complain(
                "notice",
                &format!("telemetry is exported to {} again", self.endpoint.url),
            );
        }
    }
}
