//! The loop: measurements, clock and controller as traits.

use crate::agent::{Agent, Seen, Tick};
use crate::cut::Cut;
use tailwater_net::Nanos;
use tailwater_placement::lease::{Grant, Request};

/// What measures.
pub trait Source {
    /// What is on the cache, and what was seen of it since the last tick. `last` is what came of that one.
    fn look(&mut self, now: Nanos, last: Option<&Tick>) -> Seen;
}

/// Time. On Linux `CLOCK_BOOTTIME`, if anything is leased by another machine.
pub trait Clock {
    /// Now, from any fixed time on.
    fn now(&self) -> Nanos;

    /// Waits until then; `false` if the loop is to end.
    fn wait(&mut self, until: Nanos) -> bool;
}

/// What leases ways, or carries messages to it.
pub trait Controller {
    /// Takes a request, if there is one, and gives the grants that have come since.
    fn exchange(&mut self, now: Nanos, request: Option<&Request>) -> Vec<Grant>;
}

/// Nobody leases anything.
impl Controller for () {
    fn exchange(&mut self, _: Nanos, _: Option<&Request>) -> Vec<Grant> {
        Vec::new()
    }
}

/// Ticks until the clock says that it is enough, and gives everything back. `tell` hears what came of each tick, or why
/// the cache could not be looked at; it ends the loop by `false`.
///
/// # Errors
/// What could not be given back; [`Agent::end`] can be called again.
pub fn run<A: Cut>(
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
        let seen = source.look(now, last.as_ref());
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
