//! Traffic classes as Metron scales them: split in two when a core loses packets, merged when cores are idle.

use tailwater_net::Nanos;
use tailwater_policy::server::{CoreNumber, Move};

/// Counters of a core that the algorithm reads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Signals {
    pub active: bool,
    pub busy: f64,
    pub lost: u64,
}

/// Splits and merges traffic classes. A core's class is the set of units (rows of a table) that it owns.
#[derive(Clone, Debug, Default)]
pub(super) struct Classes {
    pub owner: Vec<CoreNumber>,
    cores: Vec<Signals>,
    units: Vec<usize>,
    /// Time until which each core's counters may include traffic from before its class changed.
    settles: Vec<Nanos>,
    /// Core that the last plan merged into another one.
    pub merged: Option<CoreNumber>,
}

/// Thresholds for splits and merges.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thresholds {
    pub lost: u64,
    pub merge_below: f64,
    /// Time for which a core's counters are ignored after its class changed.
    pub settle: Nanos,
}

impl Classes {
    /// Runs one period and appends the units that move to `moves`.
    pub(super) fn plan(
        &mut self,
        thresholds: Thresholds,
        now: Nanos,
        owner: impl Iterator<Item = CoreNumber>,
        cores: impl Iterator<Item = Signals>,
        moves: &mut Vec<Move>,
    ) {
        self.owner.clear();
        self.owner.extend(owner);
        self.cores.clear();
        self.cores.extend(cores);
        self.settles.resize(self.cores.len(), Nanos::ZERO);
        self.units.clear();
        self.units.resize(self.cores.len(), 0);
        for &core in &self.owner {
            self.units[usize::from(core)] += 1;
            self.cores[usize::from(core)].active = true;
        }
        self.merged = None;
        let mut split = false;
        for core in 0..self.cores.len() {
            let overloaded = self.cores[core].lost >= thresholds.lost && self.units[core] > 1;
            if overloaded && self.settles[core] <= now {
                split |= self.split(core, thresholds, now, moves);
            }
        }
        if !split {
            self.merge(thresholds, now, moves);
        }
    }

    /// Moves the upper half of the core's units to a new core, if there is one.
    fn split(&mut self, core: usize, thresholds: Thresholds, now: Nanos, moves: &mut Vec<Move>) -> bool {
        let Some(new) = self.cores.iter().position(|core| !core.active) else {
            return false;
        };
        let stay = self.units[core] - self.units[core] / 2;
        self.give(core, stay, new, moves);
        self.cores[new] = Signals {
            active: true,
            ..Signals::default()
        };
        self.settles[core] = now + thresholds.settle;
        self.settles[new] = now + thresholds.settle;
        true
    }

    /// Merges the two least busy cores if they are idle enough.
    fn merge(&mut self, thresholds: Thresholds, now: Nanos, moves: &mut Vec<Move>) {
        let idle = |core: &usize| {
            let signals = self.cores[*core];
            self.units[*core] > 0 && signals.lost < thresholds.lost && self.settles[*core] <= now
        };
        let less = |&a: &usize, &b: &usize| {
            let busy = self.cores[a].busy.total_cmp(&self.cores[b].busy);
            // Among equally busy cores the highest number is merged first.
            busy.then(b.cmp(&a))
        };
        let Some(from) = (0..self.cores.len()).filter(idle).min_by(less) else {
            return;
        };
        let others = (0..self.cores.len()).filter(idle).filter(|&core| core != from);
        let Some(into) = others.min_by(less) else {
            return;
        };
        if self.cores[from].busy + self.cores[into].busy <= thresholds.merge_below {
            self.give(from, 0, into, moves);
            self.settles[into] = now + thresholds.settle;
            self.merged = Some(from as CoreNumber);
        }
    }

    /// Moves all units of `from` except the first `stay` to `to`.
    fn give(&mut self, from: usize, stay: usize, to: usize, moves: &mut Vec<Move>) {
        let mine = self.owner.iter_mut().enumerate();
        let mine = mine.filter(|(_, owner)| usize::from(**owner) == from);
        for (unit, owner) in mine.skip(stay) {
            *owner = to as CoreNumber;
            moves.push(Move {
                bucket: unit as u16,
                to: *owner,
            });
        }
        let moved = self.units[from] - stay;
        self.units[from] = stay;
        self.units[to] += moved;
    }
}
