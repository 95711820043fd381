//! When a run began, on the clock of the world: for threads that tell times of packets.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};
use tailwater_net::Nanos;

/// When a run began, once a worker has said so. Times of packets count from there.
#[derive(Debug, Default)]
pub(crate) struct Origin(OnceLock<Nanos>);

impl Origin {
    /// Says what time it is, since the run's start: what is told first counts.
    #[inline]
    pub(crate) fn set_by(&self, now: Nanos) {
        if self.0.get().is_none() {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            let world = since.map_or(0, |since| since.as_nanos() as u64);
            let _ = self.0.set(Nanos(world.wrapping_sub(now.0)));
        }
    }

    /// The time since 1970; 0 if nobody has said.
    pub(crate) fn get(&self) -> Nanos {
        self.0.get().copied().unwrap_or_default()
    }
}
