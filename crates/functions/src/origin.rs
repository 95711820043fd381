//! Wall-clock time of a run's start, for threads that report times of packets.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};
use tailwater_net::Nanos;

/// Wall-clock time of the run's start, set by the first worker. Packet times count from there.
#[derive(Debug, Default)]
pub(crate) struct Origin(OnceLock<Nanos>);

impl Origin {
    /// Sets the origin from the current time since the run's start. Only the first call has an effect.
    #[inline]
    pub(crate) fn set_by(&self, now: Nanos) {
        if self.0.get().is_none() {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            let world = since.map_or(0, |since| since.as_nanos() as u64);
            let _ = self.0.set(Nanos(world.wrapping_sub(now.0)));
        }
    }

    /// Wall-clock time of the run's start since 1970; 0 if it has not been set.
    pub(crate) fn get(&self) -> Nanos {
        self.0.get().copied().unwrap_or_default()
    }
}
