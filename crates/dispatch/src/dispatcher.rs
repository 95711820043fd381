//! Backlog of a dispatcher with the mapper that decides about it.

use crate::auxiliary::{AuxiliaryCores, Availability};
use crate::backlog::Backlog;
use crate::benefit::Benefit;
use crate::split::Cut;
use tailwater_net::Nanos;
use tailwater_policy::core::{CoreMapper, Flowlet, Loads, Notice, Plan, Review, View};

/// Dispatcher: its mapper, and its [`Backlog`]. See the [crate](crate).
pub struct Dispatcher<F, P> {
    /// Flows with packets in the system.
    pub backlog: Backlog<F, P>,
    mapper: Box<dyn CoreMapper>,
    plan: Plan,
    boost: bool,
    benefit: Benefit,
}

/// Changes by a [decision](Dispatcher::decide).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Flows in the local queue at the decision.
    pub flows: usize,
    /// Flows moved out of the local queue. Unless there are none, the caller sorts the queue's packets to the
    /// [lists](Backlog::auxiliary_list_of) of their flows, in order.
    pub flows_moved: u32,
    /// Auxiliary cores that they moved to, as a bit map.
    pub moved_to: u64,
    /// Flows that were split, or split differently, and parts that were divided.
    pub splits: u32,
    /// Parts that are to be joined.
    pub joins: u32,
    /// Auxiliary cores whose relief began.
    pub relieved: u32,
    /// `true` if boost mode began.
    pub boosted: bool,
    /// Condition to report to the operator.
    pub notice: Option<Notice>,
}

impl<F, P> std::fmt::Debug for Dispatcher<F, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatcher")
            .field("here", &self.backlog.here())
            .field("parked", &self.backlog.parked())
            .field("boost", &self.boost)
            .finish_non_exhaustive()
    }
}

impl<F, P> Dispatcher<F, P> {
    /// Creates a dispatcher without packets.
    pub fn new(mapper: Box<dyn CoreMapper>, mut backlog: Backlog<F, P>) -> Dispatcher<F, P> {
        backlog.set_always_queues(mapper.measures_queues());
        Dispatcher {
            backlog,
            mapper,
            plan: Plan::default(),
            boost: false,
            benefit: Benefit::new(),
        }
    }

    /// Returns `true` if no packet waits or is on an auxiliary core, so received packets can be processed at once.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.backlog.is_empty() && !self.boost
    }

    /// Notes that a batch was processed straight from the port, in a turn without the dispatcher.
    #[inline]
    pub fn went_straight(&mut self) {
        self.benefit.skip();
    }

    /// Returns `true` if a dispatcher that [is quiet](Dispatcher::is_quiet) processes `packets` packets that wait in
    /// the port in time straight from there.
    #[inline]
    pub fn is_in_time(&self, packets: usize) -> bool {
        self.mapper.is_in_time(packets as u32)
    }

    /// Returns `true` if other dedicated cores may process buckets of this one, in whose port a *long* queue waits or
    /// not. With a long one packets are very late anyway, and it is shorter sooner if they pass no queue of this core.
    #[inline]
    pub fn may_be_helped(&self, is_long: bool) -> bool {
        !is_long && self.mapper.can_help(0)
    }

    /// Returns `true` if this core may process buckets of other dedicated cores: it has no packet in the system, and
    /// `packets` in the port are few.
    #[inline]
    pub fn can_help(&self, packets: usize) -> bool {
        self.is_quiet() && self.mapper.can_help(packets as u32)
    }

    /// Returns `true` if the local queue is to be processed now. In boost mode, while packets wait in the port that
    /// `can_receive`, this is so only for packets that no other core may process.
    #[inline]
    pub fn processes(&self, can_receive: bool) -> bool {
        !self.boost || !can_receive || self.backlog.has_bound()
    }

    /// Returns `true` if a decision is due.
    #[inline]
    pub fn is_due(&self, now: Nanos) -> bool {
        self.mapper.due(now, self.backlog.waiting())
    }

    /// Reports to the mapper that an iteration, which took `took`, processed `packets` packets of the local queue, of
    /// which `new` were the first of their flows.
    #[inline]
    pub fn completed(&mut self, packets: u32, new: u32, took: Nanos) {
        self.mapper.completed(packets, new, took);
    }

    /// Same as [`completed`](Dispatcher::completed), for a batch that was processed straight from the port, without
    /// auxiliary cores, while other packets waited there.
    #[inline]
    pub fn completed_straight(&mut self, packets: u32, new: u32, took: Nanos) {
        self.benefit.alone(packets, took);
        self.mapper.completed(packets, new, took);
    }

    /// Updates which auxiliary cores can be used: none, while they are of no [benefit](Dispatcher::turned).
    #[inline]
    pub fn update_available(&mut self, now: Nanos, availability: impl Fn(usize) -> Availability) {
        match self.is_pause(now) {
            true => self.backlog.update_available(|_| Availability::Withdrawn),
            false => self.backlog.update_available(availability),
        }
    }

    /// Returns `true` while auxiliary cores are not used since they were of no [benefit](Dispatcher::turned).
    #[inline]
    pub fn is_pause(&self, now: Nanos) -> bool {
        self.benefit.is_pause(now)
    }

    /// Ends an iteration at `now`, after which packets wait in the port if `is_waiting`. While the core is busy, and
    /// auxiliary cores work for it, the packets that it does or offloads are counted. If they are
    /// clearly fewer than this core would process alone, auxiliary cores are not used for a while. Returns `true` if
    /// that was found.
    ///
    /// Not while a flow is split: what auxiliary cores do for it is no whole packet, and without them the flow would
    /// exceed this core.
    #[inline]
    pub fn turned(&mut self, now: Nanos, is_waiting: bool) -> bool {
        if self.backlog.has_splits() {
            self.benefit.skip();
            return false;
        }
        let is_busy = is_waiting || self.backlog.waiting() > 0;
        self.benefit
            .turned(now, self.backlog.off_hands(), (is_busy, self.backlog.is_helped()))
    }

    /// Reports to the mapper that receiving, placing and offloading packets took `took` of an iteration.
    #[inline]
    pub fn dispatched(&mut self, took: Nanos) {
        self.mapper.dispatched(took);
    }

    /// Reports to the mapper that an auxiliary core took `took` to wake up.
    #[inline]
    pub fn woke(&mut self, took: Nanos) {
        self.mapper.woke(took);
    }

    /// Places a flow that was just [opened](Backlog::open) and is not bound.
    #[inline]
    pub fn place(&mut self, number: u16, flowlet: Flowlet, now: Nanos, cores: &mut impl AuxiliaryCores) {
        if let Some(auxiliary) = self.destination(flowlet, now, cores) {
            self.backlog.begin_at(number, auxiliary);
        }
    }

    /// Returns the auxiliary core for a flow that can go to any core, or `None` for the local queue.
    #[inline]
    fn destination(&mut self, flowlet: Flowlet, now: Nanos, cores: &mut impl AuxiliaryCores) -> Option<usize> {
        let loads = Loads {
            now,
            here: self.backlog.here(),
            auxiliaries: self.backlog.auxiliaries(),
        };
        let wanted = self.mapper.place(flowlet, &loads).as_auxiliary()?;
        self.backlog.activate(wanted, cores).then_some(wanted)
    }

    /// Places flows that have left an auxiliary core, with their parked packets. `arrival` returns the arrival time of
    /// a packet. Each packet is passed to `put` with the list that it joins. Returns their number.
    pub fn place_parked(
        &mut self,
        now: Nanos,
        arrival: impl Fn(&P) -> Nanos,
        cores: &mut impl AuxiliaryCores,
        mut put: impl FnMut(usize, P),
    ) -> u32 {
        let (mut at, mut moved) = (0, 0);
        while let Some(number) = self.backlog.free_to_go(at) {
            at += 1;
            if self.backlog.end_join(number, now) {
                moved += self.backlog.unpark_split(number, &mut put);
                continue;
            }
            let (first, packets) = self.backlog.first_parked(number);
            let flowlet = Flowlet {
                arrival: first.map_or(now, &arrival),
                new: false,
                packets,
                parked: true,
            };
            let to = self.destination(flowlet, now, cores);
            moved += self.backlog.unpark(number, to, &mut put);
        }
        self.backlog.clear_free_to_go();
        moved
    }

    /// Runs the mapper, carries out its plan, and lets it review split flows. `oldest` is the arrival time of the first
    /// packet in the local queue, `first_segment` returns the segment with which the chain's last functions begin, if
    /// it can be split there.
    pub fn decide(
        &mut self,
        now: Nanos,
        oldest: Option<Nanos>,
        first_segment: impl Fn(usize) -> Option<usize>,
        cores: &mut impl AuxiliaryCores,
    ) -> Decision {
        let Dispatcher {
            backlog,
            mapper,
            plan,
            boost,
            ..
        } = self;
        backlog.update_list();
        let view = View {
            now,
            oldest: oldest.unwrap_or(now),
            queued: backlog.listed(),
            packets: backlog.waiting(),
            parked: backlog.parked(),
            auxiliaries: backlog.auxiliaries(),
        };
        plan.clear(view.queued.len());
        mapper.decide(&view, plan);
        let cut = |last_functions| {
            let from = first_segment(last_functions)?;
            Some(Cut { from, last_functions })
        };
        let mut splits = 0;
        for split in &plan.splits {
            if let Some(cut) = cut(split.last_functions) {
                let has_begun = backlog.split(split.flow, cut, split.auxiliary, now, cores);
                splits += u32::from(has_begun);
            }
        }
        let (flows_moved, moved_to) = backlog.move_flows(&plan.destinations, cores);
        backlog.release(plan.release, cores);
        let mut joins = 0;
        for at in 0..backlog.split_flows() {
            match backlog.review(at, now, |split| mapper.review(split)) {
                None | Some(Review::Keep) => {}
                Some(Review::Divide {
                    last_functions,
                    auxiliary,
                }) => {
                    let cut = cut(last_functions);
                    let is_divided = cut.is_some_and(|cut| backlog.divide(at, cut, auxiliary, now, cores));
                    splits += u32::from(is_divided);
                }
                Some(Review::Join) => {
                    backlog.join(at);
                    joins += 1;
                }
            }
        }
        let was_boosting = std::mem::replace(boost, plan.boost);
        Decision {
            flows: plan.destinations.len(),
            flows_moved,
            moved_to,
            splits,
            joins,
            relieved: backlog.relieve(plan.relieve),
            boosted: plan.boost && !was_boosting,
            notice: plan.notice,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Mapper {
        measures_queues: bool,
    }

    impl CoreMapper for Mapper {
        fn measures_queues(&self) -> bool {
            self.measures_queues
        }

        fn due(&self, _now: Nanos, _packets: u32) -> bool {
            false
        }

        fn decide(&mut self, _view: &View<'_>, _plan: &mut Plan) {}
    }

    /// Regression: profiles had one corner that was guessed, since the dispatcher that trains has no auxiliary core,
    /// and no packet passed its queue.
    #[test]
    fn a_mapper_that_measures_queues_sees_them_without_auxiliary_cores() {
        for measures_queues in [false, true] {
            let backlog: Backlog<(), ()> = Backlog::new(0, 96);
            let mut dispatcher = Dispatcher::new(Box::new(Mapper { measures_queues }), backlog);
            assert_eq!(dispatcher.backlog.is_single(), !measures_queues);
            let number = dispatcher.backlog.open(false, |_| ()).unwrap();
            dispatcher.backlog.receive(number, 0);
            assert_eq!(dispatcher.backlog.waiting(), 1);
            assert_eq!(dispatcher.backlog.receives(), measures_queues);
        }
    }
}
