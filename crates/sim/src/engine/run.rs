//! Passage of virtual time: packets arrive, controls are due, and cores run loop iterations.

use super::chain_state::{ChainState, Steering};
use super::core::Core;
use super::tree::NEVER;
use super::{Control, Due, Engine, turn};
use crate::report::{Loss, is_missed};
use crate::traffic::Chunk;

/// Time in nanoseconds after the last arrival for which packets are still processed.
const DRAIN: u64 = 10_000_000_000;

/// Packets that are prefetched and sorted at a time, few enough to stay in a cache.
const PART: usize = 1024;

/// Chunks after which the age of the oldest packet is computed again.
const LOOK_AFTER: u32 = 4;

impl Engine<'_> {
    /// Lets the packets of a chunk arrive, and the cores work meanwhile.
    pub fn take(&mut self, chunk: Chunk<'_>) {
        let mut starts = chunk.starts.iter();
        let mut rest = chunk.packets;
        while !rest.is_empty() {
            let part = match self.dispatchers {
                0 => rest,
                _ => &rest[..rest.len().min(PART)],
            };
            let arrived = self.arrive(part, &mut starts);
            rest = &rest[arrived..];
            if arrived == part.len() {
                self.run_until(part[arrived - 1].arrival);
            } else {
                self.run_until(self.control_at);
                self.do_control();
            }
        }
        self.bound();
    }

    /// Drops the packets that every full queue has no room for. Nothing is taken from a queue before now.
    fn bound(&mut self) {
        for number in 0..self.cores.len() {
            let core = &self.cores[number];
            if let Some((chain, _)) = core.dedicated
                && core.fifo.len() > core.ring
            {
                self.overflow(number, usize::from(chain), self.last_arrival.saturating_sub(1));
            }
        }
    }

    /// Completes all work in progress. Returns the time at which the last packet left or arrived.
    pub fn drain(&mut self) -> u64 {
        self.draining = true;
        let limit = self.last_arrival.saturating_add(DRAIN);
        // `true` if the next control is a sample. Without sampling, cores would continue to the following control.
        let mut looked = false;
        while looked || self.inside() > 0 {
            let next = self.next_control().min(limit);
            self.run_until(next);
            looked = matches!(self.controls.peek(), Some(Due(_, Control::Watch)));
            if next == limit || !looked && self.inside() == 0 {
                break;
            }
            self.do_control();
        }
        for chain in &mut self.chains {
            let inside = chain.meter.inside();
            (0..inside).for_each(|_| chain.meter.lost(Loss::NotDrained));
        }
        self.end()
    }

    /// Returns the time at which the last packet so far left or arrived.
    fn end(&self) -> u64 {
        let sent = self.chains.iter().map(|chain| chain.meter.last_sent);
        sent.fold(self.last_arrival, u64::max)
    }

    /// Returns the time until which a core that is given up `now` counts as used: at most the end of the run.
    pub(super) fn used_until(&self, now: u64) -> u64 {
        match self.draining && self.inside() == 0 {
            true => now.min(self.end()),
            false => now,
        }
    }

    /// Returns `true` if a chain certainly misses its objective. `rest` returns the number of packets that are yet to
    /// arrive.
    pub fn is_missed(&self, rest: impl Fn(usize) -> Option<u64>) -> bool {
        let missed = |(number, chain): (usize, &ChainState)| {
            let (window, total) = (&chain.meter.window, &chain.meter.total);
            let late: u64 = window.late.iter().chain(&total.late).sum();
            let offered = window.offered + total.offered;
            rest(number).is_some_and(|rest| is_missed(late, offered + rest))
        };
        // Packets of the warm-up do not count.
        self.last_arrival >= self.warm_up && self.chains.iter().enumerate().any(missed)
    }

    /// Returns the number of packets that have arrived, and neither left nor been lost.
    fn inside(&self) -> u64 {
        self.chains.iter().map(|chain| chain.meter.inside()).sum()
    }

    /// Lets the cores work until a given time.
    fn run_until(&mut self, until: u64) {
        if self.dispatchers == 0 && self.moving == 0 && self.resumed == 0 && !self.together {
            self.scheduled = false;
            for number in 0..self.cores.len() {
                self.run_alone(number, until);
            }
            return;
        }
        if !self.scheduled {
            self.scheduled = true;
            (0..self.cores.len()).for_each(|core| self.schedule(core));
        }
        loop {
            let (core, time) = self.tree.first();
            if time >= until {
                return;
            }
            self.step(core, time);
        }
    }

    /// Lets one core work independently.
    fn run_alone(&mut self, number: usize, until: u64) {
        let core = &mut self.cores[number];
        let Some((chain, _)) = core.dedicated else {
            return;
        };
        let chain = &mut self.chains[usize::from(chain)];
        while let Some(first) = core.fifo.first() {
            let now = core.ready.max(first.at + self.timing.poll);
            if now >= until {
                return;
            }
            turn::direct(core, chain, number, now);
        }
    }

    /// Schedules a core's next iteration.
    #[inline]
    pub(super) fn schedule(&mut self, number: usize) {
        if !self.scheduled {
            return;
        }
        let next = self.cores[number].next(self.timing.poll);
        if next != self.tree.time(number) {
            self.tree.set(number, next);
        }
    }

    /// Returns the arrival time of the oldest packet in the system.
    pub(super) fn oldest(&self) -> u64 {
        let steering = self.chains.iter().filter_map(|chain| match &chain.steering {
            Steering::Buckets(steering) => Some(steering),
            Steering::Flows(_) => None,
        });
        let held = steering.clone().filter_map(|steering| steering.balanced.as_ref());
        let held = held.filter_map(|balanced| balanced.oldest()).min().unwrap_or(NEVER);
        let rows = steering.filter_map(|steering| steering.ingress.as_ref());
        let buffered = rows.flat_map(|ingress| &ingress.pending);
        let buffered = buffered.filter_map(|row| row.packets.first());
        let buffered = buffered.map(|packet| packet.arrival).min().unwrap_or(NEVER);
        let cores = self.cores.iter().map(Core::oldest).min();
        cores.unwrap_or(NEVER).min(buffered).min(held).min(self.last_arrival)
    }

    /// Returns a time before which no packet still in the system arrived.
    pub fn oldest_known(&mut self) -> u64 {
        self.chunks += 1;
        if self.chunks >= LOOK_AFTER {
            self.chunks = 0;
            self.known_oldest = self.oldest();
        }
        self.known_oldest
    }
}
