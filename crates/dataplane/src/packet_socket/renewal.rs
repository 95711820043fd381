//! Renewal of an interface that was deleted and made again with the same name.
//!
//! A thread without packets opens new sockets with new rings. The new sockets take the descriptors of the old ones, so
//! that whoever sends goes on by the same number. Each core gets its new ring by an [exchange](RingExchange), once it
//! has read all of the old one.

use super::error::{InterfaceError, Problem};
use super::ring::{RingLayout, RxRing};
use super::socket::PacketSocket;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Times between two attempts: the first, and the longest, to which they double.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Time after which an interface is not looked for any more.
pub(crate) const MOST_PATIENCE: Duration = Duration::from_secs(3600);

/// Passes a core its new ring, and gets the old one back.
#[derive(Debug, Default)]
pub(crate) struct RingExchange {
    /// Set while the ring is a new one.
    is_new: AtomicBool,
    ring: Mutex<Option<RxRing>>,
}

impl RingExchange {
    /// Returns `true` if a new ring waits for its core.
    #[inline]
    pub(crate) fn is_new(&self) -> bool {
        self.is_new.load(Ordering::Relaxed)
    }

    /// Exchanges a core's ring for the new one, if there is one. It never waits.
    #[cold]
    pub(crate) fn exchange(&self, own: &mut RxRing) {
        let Ok(mut ring) = self.ring.try_lock() else {
            return;
        };
        if let (true, Some(new)) = (self.is_new(), ring.as_mut()) {
            // The old one is unmapped by another thread.
            std::mem::swap(own, new);
            self.is_new.store(false, Ordering::Relaxed);
        }
    }

    fn offer(&self, new: RxRing) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        *ring = Some(new);
        self.is_new.store(true, Ordering::Relaxed);
    }

    /// Unmaps the ring that a core has given back.
    fn clear(&self) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_new() {
            *ring = None;
        }
    }
}

/// How an interface is used again.
#[derive(Debug)]
pub(crate) struct Renewal {
    /// Frames for other MAC addresses are received, too.
    pub(crate) promiscuous: bool,
    /// MTU that the user wants at least.
    pub(crate) mtu: Option<u16>,
    /// Sizes of the rings; `None` if the interface only sends.
    pub(crate) layout: Option<RingLayout>,
    /// Of each socket that receives.
    pub(crate) exchanges: Vec<Arc<RingExchange>>,
    /// Time for which the interface counts as there, although it is gone.
    pub(crate) patience: Duration,
}

impl Renewal {
    /// Replaces all sockets of an interface. Returns the MTU of the new interface in bytes.
    ///
    /// # Errors
    /// The interface does not exist yet, or cannot be used. Nothing has changed.
    pub(crate) fn renew(&self, old: &[&PacketSocket]) -> Result<usize, InterfaceError> {
        let Some(before) = old.first() else {
            return Ok(0);
        };
        let mut new = vec![PacketSocket::find(before.name())?];
        let found = new[0].mtu();
        let problem = match (self.mtu, self.layout) {
            (Some(wanted), _) if usize::from(wanted) > found => Some(Problem::Mtu { wanted, found }),
            (_, Some(_)) if found > before.mtu() => Some(Problem::MtuAbove {
                most: before.mtu(),
                found,
            }),
            _ => None,
        };
        if let Some(problem) = problem {
            return Err(before.error(problem));
        }
        for _ in 1..old.len() {
            new.push(new[0].another()?);
        }
        let failed = |error: io::Error| before.error(Problem::Ring(error));
        let mut rings = Vec::new();
        if let Some(layout) = self.layout {
            let all: Vec<&PacketSocket> = new.iter().collect();
            let made = all.iter().map(|socket| socket.create_ring(layout));
            rings = made.collect::<io::Result<Vec<RxRing>>>().map_err(failed)?;
            PacketSocket::start(&all, self.promiscuous).map_err(failed)?;
        }
        for (old, new) in old.iter().zip(&new) {
            old.replace_by(new).map_err(failed)?;
        }
        for (exchange, ring) in self.exchanges.iter().zip(rings) {
            exchange.offer(ring);
        }
        Ok(found)
    }

    /// Unmaps old rings.
    pub(crate) fn clear(&self) {
        self.exchanges.iter().for_each(|exchange| exchange.clear());
    }
}

/// Attempts to use an interface again, with pauses that grow.
#[derive(Debug)]
pub(crate) struct Attempts {
    since: Instant,
    next: Instant,
    pause: Duration,
    /// Last problem of which the user was told.
    told: String,
}

impl Attempts {
    /// Begins at this time, with an attempt at once.
    pub(crate) fn new(now: Instant) -> Attempts {
        Attempts {
            since: now,
            next: now,
            pause: FIRST_PAUSE,
            told: String::new(),
        }
    }

    /// Time since the interface has disappeared.
    pub(crate) fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// Returns `true` if an attempt is due now, and sets the time of the next one.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next && self.elapsed(now) < MOST_PATIENCE;
        if is_due {
            self.next = now + self.pause;
            self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        }
        is_due
    }

    /// Message of an attempt's failure, if it is news. An interface that is not there or not up yet is none.
    pub(crate) fn news(&mut self, error: &InterfaceError) -> Option<String> {
        if matches!(error.problem, Problem::Missing | Problem::Down) {
            return None;
        }
        let text = error.problem.to_string();
        (text != self.told).then(|| {
            self.told.clone_from(&text);
            format!("port interface={} is back, and cannot be used: {text}", error.interface)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_made_at_growing_pauses_and_end() {
        let start = Instant::now();
        let mut attempts = Attempts::new(start);
        let ms = |ms: u64| start + Duration::from_millis(ms);
        let due: Vec<u64> = (0..10_000).filter(|at| attempts.is_due(ms(*at))).collect();
        assert_eq!(due, [0, 50, 150, 350, 750, 1550, 3150, 5150, 7150, 9150]);
        assert!(!attempts.is_due(start + MOST_PATIENCE));
    }

    #[test]
    fn a_problem_is_told_once_and_what_passes_by_itself_is_not() {
        let mut attempts = Attempts::new(Instant::now());
        let mut news = |problem| attempts.news(&InterfaceError::new("eth1", problem));
        assert_eq!([Problem::Missing, Problem::Down].map(&mut news), [None, None]);
        let above = || Problem::MtuAbove {
            most: 1500,
            found: 9000,
        };
        let told = news(above()).unwrap();
        assert!(told.starts_with("port interface=eth1 is back, and cannot be used: expected an MTU of at most 1500"));
        assert_eq!(news(above()), None);
        assert!(news(Problem::NotEthernet).is_some());
    }
}
