//! Arrivals at another speed.

use crate::progress::Loading;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tailwater_net::{FlowKey, Nanos};
use tailwater_traffic::bursts::{Arrival, Arrivals};
use tailwater_traffic::{Notice, TrafficError};

/// Arrivals at another speed, with a progress line.
pub struct Timed {
    source: Box<dyn Arrivals>,
    speed: f64,
    loading: Option<Loading>,
    packets: u64,
    /// Time after the first arrival at which the source ends.
    until: Nanos,
    origin: Option<Nanos>,
    /// Ends the source when set.
    stop: Arc<AtomicBool>,
}

impl Timed {
    /// Divides all times by `speed`.
    pub fn new(source: Box<dyn Arrivals>, speed: f64) -> Timed {
        Timed {
            loading: Some(Loading::new(source.name())),
            source,
            speed,
            packets: 0,
            until: Nanos::MAX,
            origin: None,
            stop: Arc::default(),
        }
    }

    /// Ends the source after `until`, or when `stop` is set.
    pub fn within(mut self, until: Nanos, stop: &Arc<AtomicBool>) -> Timed {
        (self.until, self.stop) = (until, Arc::clone(stop));
        self
    }

    /// Disables the progress line.
    pub fn silently(mut self) -> Timed {
        self.loading = None;
        self
    }
}

impl Arrivals for Timed {
    fn next_arrival(&mut self) -> Result<Option<Arrival>, TrafficError> {
        if let Some(loading) = &mut self.loading {
            loading.tell(self.packets);
        }
        self.packets += 1;
        let Some(arrival) = self.source.next_arrival()? else {
            return Ok(None);
        };
        let time = divided(arrival.time, self.speed);
        let origin = *self.origin.get_or_insert(time);
        if time.saturating_sub(origin) >= self.until || self.stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        Ok(Some(Arrival { time, ..arrival }))
    }

    fn flow_key(&self) -> FlowKey {
        self.source.flow_key()
    }

    fn notices(&self) -> Vec<Notice> {
        self.source.notices()
    }

    fn name(&self) -> &str {
        self.source.name()
    }
}

/// Divides a time by a speed; exact for speed 1.
pub fn divided(time: Nanos, speed: f64) -> Nanos {
    match speed == 1.0 {
        true => time,
        false => Nanos((time.0 as f64 / speed).round() as u64),
    }
}
