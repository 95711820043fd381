//! Decides when a port begins to lose packets and when it stops, and words the events of both.
//!
//! ```text
//!   no loss --(a packet is lost)--> PortLoss --(more are lost: after 10 s, 20 s, ...)--> PortLoss
//!                                      +-----(none is lost for 5 s)-----> PortLossEnded
//! ```
//!
//! Packets that a port loses are lost for all of its chains alike: their chain is unknown.

use crate::events::Severity;
use crate::machine::MachineNote;
use std::collections::VecDeque;
use tailwater_net::Nanos;

/// Length of the interval whose losses are shown: the shortest one of the readings that is at least so long.
const INTERVAL: Nanos = Nanos::from_secs(1);
/// Time without a lost packet after which the port has stopped losing packets.
const QUIET: Nanos = Nanos::from_secs(5);
/// Time until the next event of a port that goes on losing packets. It doubles with each event.
const FIRST_PERIOD: Nanos = Nanos::from_secs(10);
const LONGEST_PERIOD: Nanos = Nanos::from_secs(600);

/// Packets of a port on reception since its opening, at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortReading {
    /// Time of the reading, on any clock.
    pub at: Nanos,
    /// Packets that arrived, lost ones included.
    pub arrived: u64,
    /// Packets that the port lost on reception.
    pub lost: u64,
}

/// Circumstances of a loss: the cores that lost packets since the last reading, and what held them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LossCause {
    /// Cores that poll the queues on which packets were lost: all of the port's if the device does not report the
    /// queue.
    pub cores: Vec<u32>,
    /// Longest time between two polls of these cores; 0 if it is unknown.
    pub gap: Nanos,
    /// Chain that had a turn then.
    pub chain: Option<String>,
}

/// Watches one port.
#[derive(Clone, Debug, Default)]
pub struct PortLossMonitor {
    /// Readings of the last interval, oldest first, and the latest one before it.
    readings: VecDeque<PortReading>,
    episode: Option<Episode>,
    /// Cores that lost packets in the interval, with the time of the last one.
    cores: Vec<(u32, Nanos)>,
}

/// Time in which the port loses packets.
#[derive(Clone, Copy, Debug)]
struct Episode {
    /// Reading before the first loss.
    before: PortReading,
    /// Reading with the last loss.
    last: PortReading,
    /// Reading at the last event.
    reported: PortReading,
    /// Time between that event and the next one.
    period: Nanos,
}

impl PortLossMonitor {
    /// Stores a reading of the port of this name. `cause` is called if packets were lost since the last one. Returns an
    /// event if the port begins or stops losing packets, or has done so for long.
    pub fn observe(
        &mut self,
        port: &str,
        reading: PortReading,
        cause: impl FnOnce() -> LossCause,
    ) -> Option<MachineNote> {
        let before = self.readings.back().copied().unwrap_or(PortReading {
            at: reading.at,
            ..PortReading::default()
        });
        self.readings.push_back(reading);
        while self
            .readings
            .get(1)
            .is_some_and(|next| next.at + INTERVAL <= reading.at)
        {
            self.readings.pop_front();
        }
        self.cores.retain(|(_, at)| *at + INTERVAL > reading.at);
        if reading.lost == before.lost {
            return self.end(port, reading);
        }
        let cause = cause();
        self.cores.retain(|(core, _)| !cause.cores.contains(core));
        self.cores.extend(cause.cores.iter().map(|core| (*core, reading.at)));
        self.cores.sort_unstable();
        let since = match &mut self.episode {
            None => {
                self.episode = Some(Episode {
                    before,
                    last: reading,
                    reported: reading,
                    period: FIRST_PERIOD,
                });
                before
            }
            Some(episode) => {
                episode.last = reading;
                if reading.at < episode.reported.at + episode.period {
                    return None;
                }
                episode.period = LONGEST_PERIOD.min(episode.period + episode.period);
                std::mem::replace(&mut episode.reported, reading)
            }
        };
        Some(MachineNote {
            severity: Severity::Warning,
            chain: None,
            reason: "PortLoss",
            message: format!("port {port}: {}{cause}", Lost(since, reading)),
        })
    }

    /// Ends the episode if no packet has been lost for long enough.
    fn end(&mut self, port: &str, reading: PortReading) -> Option<MachineNote> {
        let episode = self.episode.take_if(|episode| reading.at >= episode.last.at + QUIET)?;
        Some(MachineNote {
            severity: Severity::Normal,
            chain: None,
            reason: "PortLossEnded",
            message: format!(
                "port {port}: no packet lost for {}; before, {}",
                Nanos(reading.at.0 - episode.last.at.0),
                Lost(episode.before, episode.last)
            ),
        })
    }

    /// Length of the last interval, packets that arrived in it, and packets lost in it.
    pub fn interval(&self) -> (Nanos, u64, u64) {
        match (self.readings.front(), self.readings.back()) {
            (Some(first), Some(last)) if last.at > first.at => (
                Nanos(last.at.0 - first.at.0),
                // Packets that are left to another process do not count as arrived any more.
                last.arrived.saturating_sub(first.arrived),
                last.lost - first.lost,
            ),
            (_, Some(only)) => (Nanos::ZERO, only.arrived, only.lost),
            _ => Default::default(),
        }
    }

    /// Cores that lost packets in the last interval, sorted.
    pub fn cores(&self) -> impl Iterator<Item = u32> {
        self.cores.iter().map(|(core, _)| *core)
    }
}

/// Packets lost between two readings, in words.
struct Lost(PortReading, PortReading);

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Lost(from, until) = self;
        let (lost, arrived) = (until.lost - from.lost, until.arrived.saturating_sub(from.arrived));
        let length = until.at.saturating_sub(from.at);
        write!(f, "{lost} of {arrived} packets lost")?;
        if length > Nanos::ZERO {
            let rate = lost as f64 / length.as_secs_f64();
            write!(f, " within {length}, {rate:.0} per second")?;
        }
        Ok(())
    }
}

impl std::fmt::Display for LossCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cores: Vec<String> = self.cores.iter().map(u32::to_string).collect();
        match &cores[..] {
            [] => {}
            [core] => write!(f, ", on core {core}")?,
            cores => write!(f, ", on cores {}", cores.join(", "))?,
        }
        if self.gap > Nanos::ZERO {
            write!(f, "; longest time without a poll {}", self.gap)?;
            match &self.chain {
                Some(chain) => write!(f, ", in a turn of chain {chain}")?,
                None => write!(f, ", outside of the chains' turns")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readings each 100 ms of a port at which 1,000 packets arrive between two of them.
    struct Rig {
        monitor: PortLossMonitor,
        now: PortReading,
    }

    impl Rig {
        fn new() -> Rig {
            Rig {
                monitor: PortLossMonitor::default(),
                now: PortReading::default(),
            }
        }

        /// Events of so many readings, in each of which packets are lost.
        fn read(&mut self, readings: u32, lost: u64) -> Vec<(&'static str, String)> {
            let read = (0..readings).filter_map(|_| {
                self.now.at += Nanos::from_millis(100);
                self.now.arrived += 1000;
                self.now.lost += lost;
                let cause = || LossCause {
                    cores: vec![3],
                    gap: Nanos::from_millis(12),
                    chain: Some("slow".to_owned()),
                };
                self.monitor.observe("in", self.now, cause)
            });
            let read: Vec<MachineNote> = read.collect();
            read.into_iter().map(|note| (note.reason, note.message)).collect()
        }
    }

    #[test]
    fn the_begin_and_the_end_of_losses_are_reported() {
        let mut rig = Rig::new();
        assert!(rig.read(30, 0).is_empty());
        let begins = "port in: 20 of 1000 packets lost within 100ms, 200 per second, on core 3; longest time without a \
                      poll 12ms, in a turn of chain slow";
        assert_eq!(rig.read(5, 20), [("PortLoss", begins.to_owned())]);
        assert_eq!(rig.monitor.interval(), (INTERVAL, 10_000, 100));
        assert_eq!(rig.monitor.cores().collect::<Vec<_>>(), [3]);
        // A pause is no end.
        assert!(rig.read(49, 0).is_empty());
        assert_eq!((rig.monitor.interval().2, rig.monitor.cores().count()), (0, 0));
        assert!(rig.read(1, 7).is_empty());
        let ended = "port in: no packet lost for 5s; before, 107 of 55000 packets lost within 5.5s, 19 per second";
        assert_eq!(rig.read(51, 0), [("PortLossEnded", ended.to_owned())]);
        assert_eq!(rig.read(1, 1).len(), 1);
    }

    #[test]
    fn lasting_losses_are_reported_at_growing_intervals() {
        let mut rig = Rig::new();
        let hour = rig.read(36_000, 1);
        assert!((8..=12).contains(&hour.len()), "{hour:?}");
        assert!(hour[1].1.contains("100 of 100000 packets lost within 10s"), "{hour:?}");
        assert!(rig.monitor.readings.len() < 20);
    }

    #[test]
    fn losses_without_a_known_cause_are_reported_without_one() {
        let mut monitor = PortLossMonitor::default();
        let reading = PortReading {
            at: Nanos::from_secs(9),
            arrived: 10,
            lost: 4,
        };
        let note = monitor.observe("in", reading, LossCause::default).unwrap();
        assert_eq!(note.message, "port in: 4 of 10 packets lost");
        assert_eq!(monitor.interval(), (Nanos::ZERO, 10, 4));
        let cause = LossCause {
            cores: vec![1, 2],
            gap: Nanos::from_millis(3),
            chain: None,
        };
        assert_eq!(
            cause.to_string(),
            ", on cores 1, 2; longest time without a poll 3ms, outside of the chains' turns"
        );
    }
}
