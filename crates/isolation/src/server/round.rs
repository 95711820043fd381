//! Rounds of a worker: a batch passes through the group's processes and returns.
//!
//! A round is *spoilt* if functions may have run before their turn, since one in front gave the core up. The packets
//! that reached that one are lost by it, and no response of it and those behind it is judged: they may have read what
//! was later rewritten. See [`run_queue`](super::run_queue).

mod companions;
mod explanations;
mod flow_ends;
mod frames;
mod non_ip;
mod outages;
mod responses;

use super::area::Area;
use super::group::Group;
use super::outage::Outage;
use super::run_queue::{PassEnd, RunQueueOrder};
use super::status::{Measured, Status, Violation};
use super::transfer::FlowTransfer;
use super::turn_watch::nanos;
use crate::layout::{CHAIN_ENDED, CompanionRefusal, CompanionRequest, CompanionResponse, MAX_TRACED, Masks, NON_IP};
use rustix::thread::sched_yield;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailwater_chain::batch::{Batch, DEFAULT_BATCH, MAX_BATCH};
use tailwater_chain::function::{FlowStates, Lifetimes};
use tailwater_net::Nanos;
use tailwater_policy::isolation::{BatchBounds, BatchSize, TurnDebt};
use tailwater_sdk::protocol::snapshots::FlowSnapshots;

/// Worker's state of a flow: its generation and its slot.
pub(super) type Opened = [u64; 2];

/// Worker's view of a function's process.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    /// Number under which it was attached; each process has another.
    number: u32,
    /// Number of its last companion request.
    wishes: u64,
    /// Number of its drop reasons.
    reasons: u8,
    /// `true` if it must be notified of flow ends.
    wants_flow_ends: bool,
    /// `true` if it may request companions. Requires state, which is the purpose of companions.
    opens_companions: bool,
    outage: Outage,
}

/// A round whose packets are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Failed {
    /// The function that loses them: the first one whose process failed, or gave the core up.
    function: usize,
    /// Number of functions in front whose responses count.
    turns: usize,
}

/// Core time that a function is charged at least for giving the core up in its turn.
const LEAST_PAUSE: Duration = Duration::from_micros(500);

/// Configuration of a worker's rounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundConfig {
    /// Bounds of the batch size.
    pub(super) batch: BatchBounds,
    /// `true` if functions outside this group follow in the chain.
    pub(super) followed: bool,
    /// `true` if other packets of the chain bypass the group.
    pub(super) passed_by: bool,
}

/// Rounds of a worker.
pub(super) struct Round {
    area: Arc<Area>,
    status: Arc<Status>,
    /// Number of the last round.
    round: u64,
    flags: u64,
    /// `true` if functions outside this group follow in the chain.
    followed: bool,
    /// `true` if other packets of the chain bypass the group.
    passed_by: bool,
    /// `true` if the group has had no batch since the last query of the batch size.
    rests: bool,
    /// Total time spent waiting for processes at the end of the run.
    waited: Duration,
    /// Time since when packets wait for a successor, and the function that has no process.
    waiting: Option<(Instant, usize)>,
    /// `true` if the worker's thread has nothing else to do than to wait for a successor.
    may_sleep: bool,
    /// `true` if the core belongs to ordinary programs while the worker sleeps.
    is_on_auxiliary_core: bool,
    /// Number of ended flows of which all functions are known to be notified, or never will be.
    told: u64,
    /// Generation of the last flow opened.
    birth: u64,
    peers: Vec<Peer>,
    order: RunQueueOrder,
    /// Remaining packets in front of each function, and behind the last one.
    through: Vec<Masks>,
    /// Remaining packets whose frame has moved since the first function.
    moved: Masks,
    /// Those of them that have become responses, which leave by their ingress port.
    turned: Masks,
    /// Drop reason by slot; valid for dropped packets.
    reasons: Box<[u8]>,
    /// Current frame bounds by slot; valid for moved packets.
    frames: Box<[[u16; 2]]>,
    /// Bytes of each buffer that may differ from zero: start and end.
    written: Box<[[u32; 2]]>,
    /// Slots of the remaining packets, in order.
    left: Vec<u16>,
    /// Slots of the traced packets that functions explain.
    traced: Vec<u16>,
    /// Round in which they do. Rounds without packets may follow it.
    traced_round: u64,
    size: BatchSize,
    /// Number of rounds until the next measured one without packets.
    until_empty: u32,
    /// Mean duration of rounds without packets, nanoseconds, and their number.
    empty: f64,
    empties: f64,
    /// Counters of each function: the sum of its previous processes, and the current one's.
    notes: Vec<Vec<[u64; 2]>>,
    /// The last function that had no process or another one, which is a reason for the worker to wait.
    suspect: usize,
    /// Core time that each function wasted by giving the core up in its turns.
    debts: Vec<TurnDebt>,
    created: Instant,
}

/// Number of rounds between two without packets. Switches take a few percent of the time, so the extra round is
/// negligible.
const EMPTY_EVERY: u32 = 64;

/// Number of bits of a worker's own generation counter.
const GENERATION_BITS: u32 = 48;

impl Round {
    /// Creates the rounds of a worker; `None` if the group has no memory yet.
    pub(super) fn new(group: &Group, worker: u16, config: RoundConfig) -> Option<Round> {
        let seats = group.slots.iter().map(|seat| &seat.description);
        let peers = group.slots.iter().map(|seat| Peer {
            reasons: seat.description.drop_reasons.len() as u8,
            wants_flow_ends: seat.description.wants_flow_ends,
            opens_companions: seat.description.opens_companions && seat.description.state_bytes > 0,
            outage: Outage::new(&seat.program),
            ..Peer::default()
        });
        let area = group.area.as_ref()?;
        let (status, may_request_companions) = (&group.status, peers.clone());
        let may_request_companions = may_request_companions.map(|peer| peer.opens_companions);
        Some(Round {
            area: Arc::clone(area),
            status: Arc::clone(&group.status),
            round: 0,
            flags: 0,
            followed: config.followed,
            passed_by: config.passed_by,
            rests: false,
            waited: Duration::ZERO,
            waiting: None,
            may_sleep: group.shared.is_none(),
            is_on_auxiliary_core: group.is_auxiliary,
            told: 0,
            birth: u64::from(worker) << GENERATION_BITS,
            order: RunQueueOrder::new(
                Arc::clone(status),
                Arc::clone(area),
                (group.core, group.shared.clone()),
                may_request_companions.collect(),
            ),
            peers: peers.collect(),
            through: vec![Masks::default(); group.slots.len() + 1],
            moved: Masks::default(),
            turned: Masks::default(),
            reasons: vec![0; MAX_BATCH].into(),
            frames: vec![[0; 2]; MAX_BATCH].into(),
            written: vec![[0; 2]; MAX_BATCH].into(),
            left: Vec::with_capacity(MAX_BATCH),
            traced: Vec::with_capacity(MAX_TRACED),
            traced_round: 0,
            size: BatchSize::new(config.batch, DEFAULT_BATCH),
            until_empty: 0,
            empty: 0.0,
            empties: 0.0,
            notes: seats.map(|d| vec![[0; 2]; d.counters.len()]).collect(),
            suspect: 0,
            debts: vec![TurnDebt::default(); group.slots.len()],
            created: Instant::now(),
        })
    }

    /// Returns a new flow generation, which no other flow of this or another worker has.
    pub(super) fn next_generation(&mut self) -> u64 {
        self.birth += 1;
        self.birth
    }

    /// Notes that the next batch has a flow that no function has seen.
    pub(super) fn expect_companion_requests(&mut self) {
        self.order.expect_companion_requests();
    }

    /// Runs a batch through all functions and stores the verdicts for [`tell`](Round::tell).
    pub(super) fn run(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>, has_state: bool) {
        let count = batch.len();
        self.rests = false;
        self.traced.clear();
        self.left.clear();
        self.left.extend(0..count as u16);
        let failed = match self.get_past_outages(count) {
            Some(down) => {
                self.read_verdicts(count, 0);
                Some(down)
            }
            None => {
                self.measure_switches();
                let began = Instant::now();
                self.order.restore_for_packets();
                self.describe(batch, flows, has_state);
                let flags = self.flags;
                if batch.has_traced() {
                    self.flags |= self.name_traced(batch);
                }
                let failed = self.go(count, flows.now().0, |round, k, wish| {
                    round.grant(k, wish, batch, flows)
                });
                self.flags = flags;
                self.traced_round = self.round;
                if failed.is_none() {
                    self.observe(count, began);
                }
                let turns = failed.map_or(self.peers.len(), |failed| failed.turns);
                let liar = self.read_verdicts(count, turns);
                if let Some(liar) = liar {
                    // If the worker slept, any function may have run meanwhile, and changed what another one responded.
                    if !self.order.has_slept() {
                        self.report(liar, Violation::InvalidResponse);
                    }
                    // Functions from the invalid response on do not count.
                    self.read_verdicts(count, liar);
                }
                self.count_bypasses();
                self.status.end();
                liar.or(failed.map(|failed| failed.function))
            }
        };
        if let Some(failed) = failed {
            self.lose(failed);
        }
        self.copy_out(count, batch, failed.is_some());
        if failed.is_none() && self.order.has_slept() {
            // It had to wait for memory, as while a process is started. Functions may have run meanwhile, and changed
            // what was copied.
            self.lose(self.suspect);
        }
    }

    /// Returns the maximum size of the chain's next batch. A bypassed group without packets returns `None`: its
    /// measurements may be outdated or too few.
    pub(super) fn wanted_batch(&mut self) -> Option<usize> {
        let rested = std::mem::replace(&mut self.rests, true);
        (!rested || !self.passed_by).then(|| self.size.next())
    }

    /// Gives an auxiliary core back to ordinary programs: the worker is about to sleep.
    pub(super) fn before_sleep(&mut self) {
        if self.is_on_auxiliary_core {
            self.order.rest();
        }
    }

    /// Every [`EMPTY_EVERY`] rounds, runs one without packets to measure the switches alone, and publishes the measured
    /// costs.
    fn measure_switches(&mut self) {
        if let Some(left) = self.until_empty.checked_sub(1) {
            self.until_empty = left;
            return;
        }
        self.until_empty = EMPTY_EVERY;
        let began = Instant::now();
        self.order.restore();
        let failed = self.go(0, 0, |_, _, _| Err(CompanionRefusal::TableFull));
        self.status.end();
        if failed.is_none() {
            let took = began.elapsed().as_nanos() as f64;
            self.empties += 1.0;
            // Mean of all; a round during which the worker was preempted is capped.
            let usual = if self.empties > 8.0 { 3.0 * self.empty } else { took };
            self.empty += (took.min(usual) - self.empty) / self.empties;
            self.size.set_empty(Nanos(self.empty as u64));
        }
        let costs = self.size.costs();
        self.status.measure(&Measured {
            batch: self.size.size(),
            empty: self.empty,
            switches: costs.map_or(0.0, |costs| costs.switches),
            packet: costs.map_or(0.0, |costs| costs.packet),
        });
    }

    fn observe(&mut self, packets: usize, began: Instant) {
        let took = began.elapsed().as_nanos();
        self.size.observe(packets, Nanos(took as u64));
    }

    /// Updates the numbers of the attached processes. Returns the first function that has none.
    fn meet(&mut self) -> Option<usize> {
        self.clear_bypasses();
        let mut down = None;
        for (k, peer) in self.peers.iter_mut().enumerate() {
            let number = self.status.up(k);
            if number != peer.number && number != 0 {
                (peer.number, peer.wishes) = (number, 0);
                self.debts[k] = TurnDebt::default();
                self.order.replaced(k);
                for note in &mut self.notes[k] {
                    *note = [note[0].wrapping_add(note[1]), 0];
                }
            }
            if number == 0 || self.status.violation(k).is_some() {
                down = down.or(Some(k));
                self.suspect = k;
            }
        }
        down
    }

    /// Lets all processes take their turns. Returns the function by which the packets are lost, if a process failed or
    /// the round is spoilt; the last round continues without it. The group stays busy until the responses have been
    /// read.
    fn go(
        &mut self,
        count: usize,
        now: u64,
        mut grant: impl FnMut(&mut Round, usize, CompanionRequest) -> CompanionResponse,
    ) -> Option<Failed> {
        self.round += 1;
        let (round, functions) = (self.round, self.peers.len());
        let area = Arc::clone(&self.area);
        let is_last = self.flags & CHAIN_ENDED != 0;
        // The round is announced before any process can begin it.
        let numbers = self.peers.iter().map(|peer| peer.number);
        let failed = self
            .status
            .begin(round, numbers)
            .err()
            .or_else(|| self.find_early_done(0));
        if let Some(failed) = failed
            && !is_last
        {
            self.order.forget();
            self.status.end();
            return Some(Failed {
                function: failed,
                turns: 0,
            });
        }
        area.request_area.begin(round, count, now, self.flags);
        let (mut k, mut passes) = (0, 0);
        let (mut spoilt, mut gave_up) = (None, None::<(usize, Instant)>);
        let failed = loop {
            if is_last {
                // A response area may still be reset for a process that is attached too late.
                k = 0;
            }
            while k < functions && area.response_areas[k].done() == round {
                k += 1;
            }
            if let Some((lazy, since)) = gave_up
                && lazy != k
            {
                gave_up = None;
                self.status.set_gave_up(None);
                self.charge(lazy, since.elapsed().max(LEAST_PAUSE));
            }
            if k == functions {
                break spoilt.filter(|_| count > 0 || self.flags & NON_IP != 0);
            }
            if self.is_bypassed(k) {
                self.order.skip(k);
                self.respond_for(k, round, count);
                // The functions behind have not had the core for their turns yet.
                passes = 0;
                continue;
            }
            let up = self.status.up(k);
            let failed = up == 0 || up != self.peers[k].number;
            if failed && is_last {
                // Its response concerns no packets, and the functions behind it must still take their turns.
                self.status.miss(k);
                area.response_areas[k].set_done(round);
                continue;
            }
            if failed {
                self.order.forget();
                break Some(Failed { function: k, turns: k });
            }
            let slate = &area.response_areas[k];
            let requested = slate.companion_requests() != self.peers[k].wishes;
            if requested {
                let wish = slate.companion_request();
                self.peers[k].wishes = wish.number;
                let answer = grant(self, k, wish);
                slate.set_companion_response(wish.number, answer);
            }
            if passes > 0 {
                match self.order.next_pass(k, requested) {
                    PassEnd::Expected => {}
                    PassEnd::GaveUp => {
                        gave_up.get_or_insert_with(|| (k, Instant::now()));
                        self.status.set_gave_up(Some(k));
                    }
                    PassEnd::OutOfOrder => {
                        let function = self.find_guilty(k);
                        let turns = k.min(function);
                        spoilt.get_or_insert(Failed { function, turns });
                    }
                }
            }
            self.order.wake(k);
            passes += 1;
            sched_yield();
        };
        if gave_up.is_some() {
            self.status.set_gave_up(None);
        }
        self.status.count_turns(k);
        failed
    }

    /// Returns the first function from `from` on that reported the turn as done which has not begun, before the one in
    /// front did. Its process is guilty: nobody else writes its response area.
    ///
    /// Only where the worker keeps the order: otherwise functions report turns while they are being looked at.
    fn find_early_done(&self, from: usize) -> Option<usize> {
        if !self.order.is_kept() {
            return None;
        }
        let mut response_areas = self.area.response_areas[from..].iter();
        let early = from + response_areas.position(|it| it.done() == self.round)?;
        self.report(early, Violation::EarlyDone);
        Some(early)
    }

    /// Returns the function by which a spoilt round is lost, in which `k` is not done: the guilty one, or `k` if it is
    /// unknown.
    #[cold]
    fn find_guilty(&mut self, k: usize) -> usize {
        let sleeper = self.order.find_sleeper(k);
        if let Some(early) = self.find_early_done(k) {
            return early;
        }
        if let Some(sleeper) = sleeper {
            // A round may be spoilt by chance: a page fault that has to wait for memory.
            self.charge(sleeper, Duration::from_nanos(TurnDebt::MOST_OF_A_TURN.0));
        }
        sleeper.unwrap_or(k)
    }

    /// Charges function `k` for time that it wasted by giving the core up in its turn.
    #[cold]
    fn charge(&mut self, k: usize, wasted: Duration) {
        let now = nanos(self.created.elapsed());
        if self.debts[k].add(now, nanos(wasted)) {
            self.report(k, Violation::GaveUp);
        }
    }

    /// Returns the flow lifetimes, if a function determines them.
    pub(super) fn lifetimes(&self) -> Option<Arc<dyn Lifetimes>> {
        let lifetimes = self.area.lifetimes()?;
        Some(Arc::clone(lifetimes) as Arc<dyn Lifetimes>)
    }

    /// Returns function `k`'s flow state, if it can pass to another process of the server.
    pub(super) fn transfer(&self, k: usize) -> Option<&Arc<FlowTransfer>> {
        self.area.transfer(k)
    }

    /// Returns the snapshots of function `k`'s flow state.
    pub(super) fn images(&self, k: usize) -> Option<&Arc<FlowSnapshots>> {
        self.area.snapshots(k)
    }

    /// Reports a violation by the process that function `k` had at the start of the round.
    fn report(&self, k: usize, violation: Violation) {
        self.status.report_violation(k, self.peers[k].number, violation);
    }
}

#[cfg(test)]
mod tests;
