//! Monitoring of running ports: link state, clock, removal, and counters.

use crate::clock::Clock;
use crate::device::ticks::{ClockView, Learner};
use crate::link_state::LinkState;
use crate::report::{ArrivalTimes, LinkReport, PortReport, QueueReport};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tailwater_dpdk::{Port, PortStats};

/// Initial readings of a device's clock, and their interval: enough for an estimate.
const READINGS: usize = 4;
const APART: Duration = Duration::from_millis(10);

/// Running port with its monitored state.
#[derive(Debug)]
pub(super) struct PortMonitor {
    port: Port,
    /// Packets are received from it.
    receives: bool,
    /// `Some` for a device that timestamps packets.
    learner: Option<Learner>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Missed packets reported so far.
    missed: u64,
    /// Counters in the order of the fields of [`PortStats`].
    counts: [Count; 6],
    gone: bool,
    /// The clock was known at the last check.
    timed: bool,
    link: LinkState,
}

impl Known {
    /// Message about the source of arrival times, if it has changed.
    fn times(&mut self, timed: bool) -> Option<&'static str> {
        let before = std::mem::replace(&mut self.timed, timed);
        (before != timed).then_some(match timed {
            true => "clock synchronised: arrival times from the device",
            false => "clock not synchronised: arrival times from software",
        })
    }

    /// Device counters since the run began. Unchanged if the device does not answer.
    fn counted(&mut self, now: Option<PortStats>) -> PortStats {
        let [received, sent, missed, receive_errors, no_buffer, send_errors] = &mut self.counts;
        PortStats {
            received: received.total(now.map(|now| now.received)),
            sent: sent.total(now.map(|now| now.sent)),
            missed: missed.total(now.map(|now| now.missed)),
            receive_errors: receive_errors.total(now.map(|now| now.receive_errors)),
            no_buffer: no_buffer.total(now.map(|now| now.no_buffer)),
            send_errors: send_errors.total(now.map(|now| now.send_errors)),
        }
    }
}

/// Counter that continues when the device resets its own, as memif does when its peer disconnects.
#[derive(Debug, Default)]
struct Count {
    /// Sum up to the device's last reset.
    before: u64,
    last: u64,
}

impl Count {
    fn total(&mut self, now: Option<u64>) -> u64 {
        let now = now.unwrap_or(self.last);
        if now < self.last {
            self.before += self.last;
        }
        self.last = now;
        self.before + now
    }
}

impl PortMonitor {
    /// A port that packets are received from, or not.
    pub(super) fn new(port: Port, receives: bool) -> PortMonitor {
        PortMonitor {
            port,
            receives,
            learner: None,
            known: Mutex::default(),
        }
    }

    /// Takes arrival times from the device's timestamps, if it has them, on the run's clock. Takes some milliseconds in
    /// that case.
    pub(super) fn timed(mut self, clock: &Clock) -> PortMonitor {
        if self.receives && self.port.info().timestamps {
            let learner = Learner::new(clock.clone());
            let mut known = false;
            for _ in 0..READINGS {
                known = learner.look(&mut || self.port.read_clock());
                std::thread::sleep(APART);
            }
            self.known().timed = known;
            self.learner = Some(learner);
        }
        self
    }

    /// View of the port's clock for a queue.
    pub(super) fn view(&self) -> Option<ClockView> {
        self.learner.as_ref().map(Learner::view)
    }

    pub(super) fn port(&self) -> &Port {
        &self.port
    }

    pub(super) fn receives(&self) -> bool {
        self.receives
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the port and reports news to `tell`. Returns the number of packets the device has lost before reception
    /// since the last call, and `true` if it still exists.
    pub(super) fn poll(&self, tell: &mut dyn FnMut(String)) -> (u64, bool) {
        let (name, mut known) = (self.port.name(), self.known());
        let stats = known.counted(self.port.stats());
        let lost = stats.missed + stats.no_buffer;
        let more = lost - std::mem::replace(&mut known.missed, lost);
        if !known.gone && self.port.has_gone() {
            known.gone = true;
            tell(format!("port {name} disappeared during the run"));
        }
        if let Some(learner) = self.learner.as_ref().filter(|_| !known.gone) {
            let timed = learner.look(&mut || self.port.read_clock());
            if let Some(source) = known.times(timed) {
                tell(format!("port {name}: {source}"));
            }
        }
        let up = self.port.link().map(|link| link.up);
        if !known.gone
            && let Some(state) = known.link.news(up)
        {
            tell(format!("port {name}: link {state}"));
        }
        (more, !known.gone)
    }

    /// Device counters, as far as the device has them.
    pub(super) fn report(&self) -> PortReport {
        let (port, mut known) = (&self.port, self.known());
        let stats = known.counted(port.stats());
        let link = port.link().filter(|_| !known.gone);
        let queues = port.rx_queues().max(port.tx_queues());
        let of_queues = (0..queues).map(|queue| {
            let counts = port.queue_stats(queue);
            QueueReport {
                queue: u64::from(queue),
                received: counts.received,
                receive_errors: counts.receive_errors,
                sent: counts.sent,
            }
        });
        let reta = (port.info().reta_size > 0).then(|| port.reta().ok());
        PortReport {
            port: port.name().to_string(),
            driver: port.info().driver.clone(),
            queues: u64::from(port.rx_queues()),
            send_queues: u64::from(port.tx_queues()),
            descriptors: u64::from(port.info().rx_ring),
            numa_node: port.info().node.map(u64::from),
            checks_checksums: port.info().checksums,
            arrival_times: match self.learner.as_ref().is_some_and(Learner::is_known) {
                true => ArrivalTimes::Device,
                false => ArrivalTimes::Software,
            },
            received: stats.received,
            sent: stats.sent,
            missed: stats.missed,
            receive_errors: stats.receive_errors,
            no_buffer: stats.no_buffer,
            send_errors: stats.send_errors,
            gone: known.gone,
            link: LinkReport {
                up: link.map(|link| link.up),
                mbps: link.and_then(|link| link.mbps).map(u64::from),
                changes: known.link.changes(),
            },
            by_queue: of_queues.filter(|queue| queue.says()).collect(),
            reta: reta.flatten(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_forgets_stays_counted() {
        let mut known = Known::default();
        let mut received = |now: Option<u64>| {
            let now = now.map(|received| PortStats {
                received,
                ..PortStats::default()
            });
            known.counted(now).received
        };
        let seen = [Some(3), Some(10), None, Some(0), Some(4), Some(4), Some(1)];
        assert_eq!(seen.map(&mut received), [3, 10, 10, 10, 14, 14, 15]);
    }

    #[test]
    fn where_times_come_from_is_told_when_it_changes() {
        let mut known = Known::default();
        let told = [false, true, true, false].map(|timed| known.times(timed).is_some());
        assert_eq!(told, [false, true, false, true]);
    }
}
