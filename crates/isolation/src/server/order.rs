//! The functions' places in the kernel's queue of their core: who runs when its worker yields.
//!
//! Processes of one priority run in the order in which they were queued, and who yields goes to the end. So all take their turns in
//! the chain's order, as long as none of them is missing when a round begins. One that slept would be queued behind the others when it is
//! woken: these would see packets that it has not, before their turn, and each round would take all of them two looks from then on.
//!
//! A function that wishes for a companion yields in the midst of its turn. Meanwhile nobody but the worker is to have the core: the
//! others are set back to a lower priority: those in front of it when it wishes; those behind the first that may wish before the
//! round, if it has flows that no function has seen, and otherwise when one wishes, too. They are queued again, up to the next that
//! may wish, when it has had its turn.

use super::area::Area;
use super::schedule;
use super::status::Status;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// If nothing was heard of the worker for so long it may have slept: the functions had its core.
const MAY_HAVE_SLEPT: Duration = Duration::from_micros(200);

/// What a worker knows of its functions' places.
pub(super) struct Order {
    status: Arc<Status>,
    area: Arc<Area>,
    /// Which functions may wish.
    wishing: Box<[bool]>,
    /// Whether they may be queued otherwise than in the chain's order.
    lost: bool,
    /// When they were last looked at.
    looked: Instant,
    /// Whether there are flows that functions have not seen.
    new_flows: bool,
    /// The function behind which all are set back.
    held_behind: Option<usize>,
    /// How often the worker is to look until all are through, if all goes well.
    looks: u32,
    /// The function for whose wishes all in front of it are set back, too.
    alone: Option<usize>,
}

impl Order {
    /// `wishing` says of each function whether it may wish for companions.
    pub(super) fn new(status: Arc<Status>, area: Arc<Area>, wishing: Box<[bool]>) -> Order {
        Order {
            status,
            area,
            wishing,
            lost: true,
            looked: Instant::now(),
            new_flows: false,
            held_behind: None,
            looks: 1,
            alone: None,
        }
    }

    /// There is a flow in the next batch that no function has seen.
    #[inline]
    pub(super) fn expect_wishes(&mut self) {
        self.new_flows = true;
    }

    /// Restores the order for a round of packets, which are not there to be seen yet.
    #[inline]
    pub(super) fn restore_for_packets(&mut self, now: Instant) {
        self.restore(now);
        if std::mem::take(&mut self.new_flows)
            && self.status.is_real_time()
            && let Some(wishes) = self.next_wishing(0)
        {
            self.held_behind = Some(wishes);
            self.set_back(wishes + 1..self.wishing.len());
        }
    }

    /// Restores the order for a round of no packets.
    #[inline]
    pub(super) fn restore(&mut self, now: Instant) {
        let before = std::mem::replace(&mut self.looked, now);
        self.looks = 1;
        if !self.status.is_real_time() {
            return;
        }
        let mut lost = self.lost || now.duration_since(before) > MAY_HAVE_SLEPT;
        for slate in &self.area.slates {
            lost |= slate.wake();
        }
        if lost {
            self.lost = false;
            self.queue(0..self.wishing.len());
        }
    }

    /// All functions in front of `k` have had their turns.
    #[inline]
    pub(super) fn passed(&mut self, k: usize) {
        if let Some(held) = self.held_behind
            && k > held
        {
            self.go_on_behind(held);
        }
    }

    #[cold]
    fn go_on_behind(&mut self, held: usize) {
        self.held_behind = self.next_wishing(held + 1);
        self.alone = None;
        self.looks += 1;
        let end = self.held_behind.map_or(self.wishing.len(), |next| next + 1);
        self.queue(held + 1..end);
    }

    /// Function `k` has a wish, and will yield until it is answered.
    #[cold]
    pub(super) fn wishes(&mut self, k: usize) {
        if self.alone == Some(k) || !self.status.is_real_time() {
            return;
        }
        self.set_back(0..k);
        if self.held_behind != Some(k) {
            self.held_behind = Some(k);
            self.set_back(k + 1..self.wishing.len());
        }
        self.alone = Some(k);
        self.lost = true;
    }

    /// The round is over, in which the worker has looked so often.
    #[inline]
    pub(super) fn end(&mut self, looks: u32) {
        self.lost |= looks > self.looks || self.held_behind.is_some();
        self.held_behind = None;
        self.alone = None;
    }

    fn next_wishing(&self, from: usize) -> Option<usize> {
        let mut wishing = self.wishing.iter().enumerate().skip(from);
        wishing.find(|(_, wishes)| **wishes).map(|(k, _)| k)
    }

    /// Queues these functions in order behind all others.
    fn queue(&self, functions: Range<usize>) {
        // If it is refused, they are replaced, or go on as ordinary processes; the watch sees to that.
        self.status.with_processes(|processes| {
            // Again: while the watch was waited for, they had the core.
            for slate in &self.area.slates[functions.clone()] {
                slate.wake();
            }
            let processes = processes[functions].iter().copied();
            let _ = schedule::queue(processes.filter(|process| *process != 0));
        });
    }

    /// Keeps these functions from their core as long as the worker, or one that is queued, is there.
    fn set_back(&self, functions: Range<usize>) {
        self.status.with_processes(|processes| {
            let processes = processes[functions].iter().copied();
            schedule::set_back(processes.filter(|process| *process != 0));
        });
    }
}
