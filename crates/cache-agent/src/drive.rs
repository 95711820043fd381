//! The loop, with measurements, clock and controller as traits.

use crate::agent::{Agent, Seen, Tick};
use crate::controller::Controller;
use crate::partitioner::CachePartitioner;
use tailwater_net::Nanos;

/// Source of measurements.
pub trait Source {
    /// Returns the instances on the cache and their observations since the last tick, whose result is `last`.
    fn observe(&mut self, now: Nanos, last: Option<&Tick>) -> Seen;
}

/// Clock. On Linux it must be `CLOCK_BOOTTIME` if another machine grants leases.
pub trait Clock {
    /// Returns the current time, from any fixed start.
    fn now(&self) -> Nanos;

    /// Waits until the given time. Returns `false` if the loop must end.
    fn wait(&mut self, until: Nanos) -> bool;
}

/// Runs ticks until the clock ends the loop, and then removes all classes. `tell` gets the result of each tick, or the
/// error if the cache could not be read. It ends the loop by returning `false`.
///
/// # Errors
/// A class could not be removed. [`Agent::end`] can be called again.
pub fn run<A: CachePartitioner>(
    agent: &mut Agent<A>,
    source: &mut impl Source,
    clock: &mut impl Clock,
    controller: &mut impl Controller,
    every: Nanos,
    mut tell: impl FnMut(Nanos, Result<&Tick, A::Error>) -> bool,
) -> Result<(), A::Error> {
    let mut last = None;
    loop {
        let now = clock.now();
        let seen = source.observe(now, last.as_ref());
        let request = agent.request(now);
        for grant in controller.exchange(now, request.as_ref()) {
            agent.granted(now, &grant);
        }
        let on = match agent.tick(now, &seen) {
            Ok(tick) => tell(now, Ok(last.insert(tick))),
            Err(error) => tell(now, Err(error)),
        };
        if !on || !clock.wait(now + every) {
            return agent.end();
        }
    }
}
