//! Guilt of functions that hold up their worker, from the processor times that the kernel accounts to them.
//!
//! Responses say nothing about guilt: a function that has reported its turn done may still hold the core, and then the
//! next one cannot even begin. The function whose processor time grows is the one that runs.
//!
//! Between two rounds a function may poll for the next one as long as it likes, while the worker sleeps. It must only
//! yield the core to a worker that is ready.

use std::time::{Duration, Instant};
use tailwater_net::Nanos;
use tailwater_policy::isolation::TurnDebt;

/// Time the last turn of a function may take that writes no file.
const LAST_TURN: Duration = Duration::from_millis(500);
/// Number of deadlines after which a turn ends in any case.
const LAST_RESORT: u32 = 100;
/// Time that a function has to yield once its core was seen to run; at most half its deadline.
const GRACE: Duration = Duration::from_millis(5);
/// Turns of a process before it has a budget. Meanwhile the batch size adapts to the functions' costs.
const TURNS_WITHOUT_BUDGET: u64 = 64;

/// Bounds of all functions' turns.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupLimits {
    /// Maximum processor time of a turn, and maximum time that it may be idle.
    pub(super) deadline: Duration,
    /// Maximum time of the last turn of a function that writes files.
    pub(super) patience: Duration,
    /// Processor time that a turn may not exceed again and again.
    pub(super) budget: Nanos,
}

impl GroupLimits {
    /// Returns the bounds of a turn, for a process that has had this number of turns.
    pub(super) fn of_turn(&self, turns: u64) -> TurnLimits {
        TurnLimits {
            deadline: self.deadline,
            elapsed: LAST_RESORT * self.deadline,
            budget: match turns {
                ..TURNS_WITHOUT_BUDGET => Duration::MAX,
                _ => Duration::from_nanos(self.budget.0),
            },
        }
    }

    /// Returns the bounds of a last turn. A process that writes files and waits for a disk counts as idle.
    pub(super) fn of_last_turn(&self, writes_files: bool) -> TurnLimits {
        let bound = match writes_files {
            true => self.patience,
            false => LAST_TURN.min(self.patience),
        };
        TurnLimits {
            deadline: bound,
            elapsed: bound,
            budget: bound,
        }
    }
}

/// Bounds of a function's turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct TurnLimits {
    /// Maximum processor time in a round; also the maximum time that it may be idle in its turn, or hold the core
    /// between two rounds while its worker is ready.
    pub(super) deadline: Duration,
    /// Maximum time in any case. A function that is ready but does not get its core is innocent, so this is much more.
    pub(super) elapsed: Duration,
    /// Processor time in a round that a function may not exceed again and again.
    pub(super) budget: Duration,
}

/// Observation of a group at one time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample<'a> {
    pub(super) now: Instant,
    /// Number of the round, or of the last one.
    pub(super) round: u64,
    /// `true` if the round is under way.
    pub(super) is_under_way: bool,
    /// The first function that is not done, if the round is under way and the function has a process.
    pub(super) due: Option<usize>,
    /// The function that, as the worker knows, gave the core up in its turn.
    pub(super) gave_up: Option<usize>,
    /// Processor time of each function's process; `None` without one.
    pub(super) times: &'a [Option<Duration>],
    /// Processor time of the worker's thread; `None` if it is unknown.
    pub(super) worker: Option<Duration>,
}

/// States of threads, which take longer to look up.
pub(super) trait States {
    /// Returns `true` if function `k`'s process waits for something else than a core.
    fn is_idle(&self, k: usize) -> bool;
    /// Returns `true` if the worker has a core or waits for one.
    fn is_worker_ready(&self) -> bool;
    /// Waits until the functions' core runs, and returns the time.
    fn wait_for_core(&self) -> Instant;
}

/// Reason for which a function must be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It exceeded the deadline of its turn.
    Overdue,
    /// It exceeded its budget again and again.
    OverBudget,
}

/// Observations since the last change of the round.
#[derive(Debug)]
struct Seen {
    round: u64,
    is_under_way: bool,
    /// Processor times when the round was first seen.
    first: Vec<Option<Duration>>,
    /// The worker's processor time in the last observation.
    worker: Option<Duration>,
    /// Since when the worker has been ready between two rounds and has not run, with the processor times then.
    starved: Option<(Instant, Vec<Option<Duration>>)>,
    /// Processor time of this round that was added to debts.
    charged: Vec<Duration>,
    /// The function whose turn it is, since when, with the processor times then.
    due: (Option<usize>, Instant, Vec<Option<Duration>>),
    /// The function that gave the core up, since when.
    gave_up: (Option<usize>, Instant),
}

/// A function that exceeded its deadline by the clock of its core, which a host may have taken away meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Suspect {
    function: usize,
    round: u64,
    is_under_way: bool,
}

/// Watch over the turns of a group.
#[derive(Debug)]
pub(super) struct TurnWatch {
    began: Instant,
    seen: Option<Seen>,
    /// With the time at which its core was seen to run.
    suspect: Option<(Suspect, Instant)>,
    debts: Vec<TurnDebt>,
}

impl TurnWatch {
    /// Watch over the turns of this number of functions.
    pub(super) fn new(functions: usize) -> TurnWatch {
        TurnWatch {
            began: Instant::now(),
            seen: None,
            suspect: None,
            debts: vec![TurnDebt::default(); functions],
        }
    }

    /// Forgets observations, since function `k` has another process or none.
    pub(super) fn replaced(&mut self, k: usize) {
        self.seen = None;
        self.suspect = None;
        self.debts[k] = TurnDebt::default();
    }

    /// Returns the function that must be ended. `limits` returns a function's bounds.
    ///
    /// The kernel of a virtual machine accounts time in which the host runs something else on a core to the process
    /// that has the core. So a function that exceeds its deadline is guilty only if its core then runs, and it still
    /// does not yield.
    pub(super) fn check(
        &mut self,
        sample: &Sample<'_>,
        limits: impl Fn(usize) -> TurnLimits,
        states: &impl States,
    ) -> Option<(usize, Fault)> {
        let Some((function, fault)) = self.find(sample, &limits, states) else {
            self.suspect = None;
            return None;
        };
        if fault == Fault::OverBudget {
            return Some((function, fault));
        }
        let suspect = Suspect {
            function,
            round: sample.round,
            is_under_way: sample.is_under_way,
        };
        match self.suspect {
            Some((before, since)) if before == suspect => {
                let grace = GRACE.min(limits(function).deadline / 2);
                (sample.now.saturating_duration_since(since) >= grace).then_some((function, fault))
            }
            _ => {
                self.suspect = Some((suspect, states.wait_for_core()));
                None
            }
        }
    }

    /// Returns the function that must be ended if its core ran all the time.
    fn find(
        &mut self,
        sample: &Sample<'_>,
        limits: &impl Fn(usize) -> TurnLimits,
        states: &impl States,
    ) -> Option<(usize, Fault)> {
        let Sample { now, times, .. } = *sample;
        let same = |seen: &&mut Seen| (seen.round, seen.is_under_way) == (sample.round, sample.is_under_way);
        let Some(seen) = self.seen.as_mut().filter(same) else {
            self.seen = Some(Seen {
                round: sample.round,
                is_under_way: sample.is_under_way,
                first: times.to_vec(),
                worker: sample.worker,
                starved: None,
                charged: vec![Duration::ZERO; times.len()],
                due: (sample.due, now, times.to_vec()),
                gave_up: (sample.gave_up, now),
            });
            return None;
        };
        let grown = |k: usize, before: &[Option<Duration>]| {
            let grown = times[k]
                .zip(before[k])
                .map(|(time, before)| time.saturating_sub(before));
            grown.unwrap_or(Duration::ZERO)
        };
        if !sample.is_under_way {
            let is_starved = sample.worker == seen.worker && states.is_worker_ready();
            seen.worker = sample.worker;
            let (since, before) = seen.starved.take().unwrap_or_else(|| (now, times.to_vec()));
            let starved = now.duration_since(since);
            let most = (0..times.len()).max_by_key(|k| grown(*k, &before));
            // The kernel updates the time of one that runs at clock ticks.
            let guilty = most.filter(|k| starved >= limits(*k).deadline && grown(*k, &before) > starved / 2);
            seen.starved = is_starved.then_some((since, before));
            return guilty.filter(|_| is_starved).map(|k| (k, Fault::Overdue));
        }
        for k in 0..times.len() {
            let (spent, limits) = (grown(k, &seen.first), limits(k));
            if spent >= limits.deadline {
                return Some((k, Fault::Overdue));
            }
            let counts = spent.min(Duration::from_nanos(TurnDebt::MOST_OF_A_TURN.0));
            if spent >= limits.budget && counts > seen.charged[k] {
                let more = counts - std::mem::replace(&mut seen.charged[k], counts);
                let since = now.duration_since(self.began);
                if self.debts[k].add(nanos(since), nanos(more)) {
                    return Some((k, Fault::OverBudget));
                }
            }
        }
        let overdue = sample.due.is_some_and(|k| {
            let limits = limits(k);
            let (due, since, before) = &seen.due;
            let waited = match *due == Some(k) {
                true => now.duration_since(*since),
                false => Duration::ZERO,
            };
            let mut others = (0..times.len()).filter(|other| *other != k);
            let mut is_idle = || !others.any(|other| grown(other, before) > waited / 2) && states.is_idle(k);
            let (lazy, since) = seen.gave_up;
            let gave_up = (lazy, sample.gave_up) == (Some(k), Some(k)) && now.duration_since(since) >= limits.deadline;
            gave_up || waited >= limits.elapsed || waited >= limits.deadline && is_idle()
        });
        if seen.due.0 != sample.due {
            seen.due = (sample.due, now, times.to_vec());
        }
        if seen.gave_up.0 != sample.gave_up {
            seen.gave_up = (sample.gave_up, now);
        }
        sample.due.filter(|_| overdue).map(|k| (k, Fault::Overdue))
    }
}

/// Converts a duration.
pub(super) fn nanos(duration: Duration) -> Nanos {
    Nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
