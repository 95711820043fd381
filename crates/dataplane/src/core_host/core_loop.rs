//! Loop of a core: orders, ports, and the workers' turns.

use super::mailbox::{Order, Orders};
use super::poll_gap::GapMeter;
use super::real_time::ThreadPriority;
use crate::clock::Clock;
use crate::shared_port::Poller;
use crate::worker::hosted::{Feeds, Hosted, HostedTurn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tailwater_net::Nanos;
use tailwater_policy::turns::TurnOrder;

/// Interval at which a worker without packets gets a turn: it ends windows and idle flows.
const IDLE_INTERVAL: Nanos = Nanos::from_micros(100);

/// Time that workers get to end once the core is to stop. They drain their queues for at most half a second.
const LONGEST_STOP: Nanos = Nanos::from_secs(2);

/// Time between two rounds while ports are paused: another process may need the core.
const PAUSE_INTERVAL: Duration = Duration::from_micros(100);

/// Time between two sleeps at real-time priority while another process needs the core, too.
const SHARE_INTERVAL: Nanos = Nanos::from_millis(1);

/// Worker on the core.
struct Resident {
    worker: Box<dyn Hosted>,
    feeds: Feeds,
    /// It had work in its last turn, so there may be more.
    busy: bool,
    /// Time of the next turn without packets.
    idle_turn_at: Nanos,
}

/// State of a core's thread.
pub(super) struct CoreLoop {
    clock: Clock,
    orders: Orders<Order>,
    /// By port number.
    pollers: Vec<(usize, Box<Poller>)>,
    /// By key in `order`.
    residents: Vec<Option<Resident>>,
    order: TurnOrder,
    busy: Arc<AtomicU64>,
    gap: GapMeter,
    nap: Option<Nanos>,
    /// A worker waits for another core.
    waits: bool,
    /// Time of the next sleep for another process that needs the core, if there is one.
    shares_at: Option<Nanos>,
    /// Time at which workers are given up, once the core is to stop.
    stop_at: Option<Nanos>,
}

impl CoreLoop {
    pub(super) fn new(
        clock: Clock,
        orders: Orders<Order>,
        (busy, gap): (Arc<AtomicU64>, GapMeter),
        nap: Option<Nanos>,
    ) -> CoreLoop {
        CoreLoop {
            clock,
            orders,
            pollers: Vec::new(),
            residents: Vec::new(),
            order: TurnOrder::default(),
            busy,
            gap,
            nap,
            waits: false,
            shares_at: None,
            stop_at: None,
        }
    }

    /// Runs until it is to stop and all workers have ended, or the time for that is over.
    pub(super) fn run(mut self) {
        let mut now = self.clock.now();
        let mut priority = ThreadPriority::default();
        // End of the last round, and of the last one with work.
        let (mut last, mut busy_at) = (now, now);
        while !self.stop_at.is_some_and(|at| self.order.is_empty() || now > at) {
            while let Some(order) = self.orders.next() {
                self.obey(order, &mut priority);
                // Orders take time off the turns, but not off the core.
                last = self.clock.now();
                now = last;
            }
            let away = now.saturating_sub(last);
            self.order.pass(now.saturating_sub(last));
            self.pollers.iter_mut().for_each(|(_, poller)| poller.begin_round());
            let polled = self.poll(now);
            let end = self.round(now, away);
            if end > now {
                self.order.pass(end - now);
                self.busy
                    .store(self.busy.load(Ordering::Relaxed) + (end - now).0, Ordering::Relaxed);
                busy_at = end;
            } else if self.is_paused() {
                std::thread::sleep(PAUSE_INTERVAL);
            } else if !polled && !self.waits {
                self.rest(now.saturating_sub(busy_at));
            }
            last = end;
            now = self.clock.now();
            if self.shares_at.is_some_and(|at| now >= at) && priority.is_raised() {
                std::thread::sleep(PAUSE_INTERVAL);
                now = self.clock.now();
                self.shares_at = Some(now + SHARE_INTERVAL);
            }
        }
        self.pollers.iter_mut().for_each(|(_, poller)| poller.finish());
    }

    /// Carries out an order.
    #[cold]
    fn obey(&mut self, order: Order, priority: &mut ThreadPriority) {
        match order {
            Order::Poll { port, poller } => self.pollers.push((port, poller)),
            Order::Change { port, change } => {
                if let Some((_, poller)) = self.pollers.iter_mut().find(|(number, _)| *number == port) {
                    change(poller);
                }
            }
            Order::Run { worker, share, feeds } => {
                let free = self.residents.iter().position(Option::is_none);
                let key = free.unwrap_or_else(|| {
                    self.residents.push(None);
                    self.residents.len() - 1
                });
                self.residents[key] = Some(Resident {
                    worker,
                    feeds,
                    busy: true,
                    idle_turn_at: Nanos::ZERO,
                });
                self.order.add(key, share);
            }
            Order::RealTime { raise, done } => priority.change(raise, &done),
            Order::Share(shares) => self.shares_at = shares.then_some(Nanos::ZERO),
            Order::Stop => {
                let at = self.clock.now() + LONGEST_STOP;
                self.stop_at.get_or_insert(at);
                self.pollers.iter_mut().for_each(|(_, poller)| poller.stop());
            }
        }
    }

    /// Polls all ports. Returns `true` if packets came.
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        self.gap.poll(now);
        let pollers = self.pollers.iter_mut();
        pollers.fold(false, |any, (_, poller)| poller.poll(now) || any)
    }

    /// Returns `true` if there are ports, and packets wait in all of them.
    #[inline]
    fn is_paused(&self) -> bool {
        !self.pollers.is_empty() && self.pollers.iter().all(|(_, poller)| poller.is_paused())
    }

    /// Gives each worker within its share a turn, or, if none had work, one that is beyond it. Returns the end time, or
    /// `now` if none worked. Ports are polled after each turn with work: packets that wait there would be lost whatever
    /// chain they are for, and those in a chain's ring are that chain's own.
    fn round(&mut self, now: Nanos, away: Nanos) -> Nanos {
        let mut at = now;
        let mut position = 0;
        self.waits = false;
        while position < self.order.len() {
            if self.order.is_within(position) {
                match self.turn(position, at, away) {
                    HostedTurn::Worked(end) => {
                        at = end;
                        self.poll(at);
                    }
                    HostedTurn::Idle | HostedTurn::Waits => {}
                    // Another one is at this position now.
                    HostedTurn::Over => continue,
                }
            }
            position += 1;
        }
        if at == now {
            let residents = &self.residents;
            let waits = |key: usize| residents[key].as_ref().is_some_and(|resident| resident.busy);
            // A worker that is not known to have packets may have some all the same.
            let next = self
                .order
                .next_beyond(waits)
                .or_else(|| self.order.next_beyond(|_| true));
            if let Some(position) = next
                && let HostedTurn::Worked(end) = self.turn(position, at, away)
            {
                at = end;
            }
        }
        at
    }

    /// Gives the worker at this position a turn, if it may have work.
    #[inline]
    fn turn(&mut self, position: usize, now: Nanos, away: Nanos) -> HostedTurn {
        let key = self.order.key(position);
        let Some(resident) = &mut self.residents[key] else {
            return HostedTurn::Idle;
        };
        let is_fed = || match resident.feeds.only {
            None => true,
            Some((port, slot)) => {
                let poller = self.pollers.iter().find(|(number, _)| *number == port);
                poller.is_none_or(|(_, poller)| poller.fed() >> slot & 1 == 1)
            }
        };
        if !resident.busy && now < resident.idle_turn_at && !is_fed() {
            return HostedTurn::Idle;
        }
        let turn = resident.worker.turn(now, away, self.order.longest_turn(position));
        if !matches!(turn, HostedTurn::Idle) {
            self.gap.hold(resident.feeds.chain);
        }
        match turn {
            HostedTurn::Worked(end) => {
                resident.busy = true;
                self.order.charge(position, end.saturating_sub(now));
            }
            HostedTurn::Waits => {
                resident.busy = true;
                self.waits = true;
            }
            HostedTurn::Idle => {
                resident.busy = false;
                resident.idle_turn_at = now + IDLE_INTERVAL;
            }
            HostedTurn::Over => {
                self.residents[key] = None;
                self.order.remove(key);
            }
        }
        turn
    }

    /// Polls again, or sleeps if the core may, after `idle` without work.
    #[inline]
    fn rest(&self, idle: Nanos) {
        match self.nap {
            Some(nap) if idle >= nap => std::thread::sleep(Duration::from_nanos(nap.0)),
            _ => std::hint::spin_loop(),
        }
    }
}
