//! Lease that could have made late packets leave in time, and why it was not made.

use super::read::Decision;
use serde::Serialize;
use tailwater_net::Nanos;
use tailwater_policy::core::Notice;

/// Lease of queued work to an auxiliary core at the last decision before packets were late. Field names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Lease {
    /// Outcome: the reason why there was none, or none that helped.
    pub outcome: LeaseOutcome,
    /// Auxiliary core with the fewest packets.
    #[serde(rename = "helper")]
    pub auxiliary: Option<usize>,
    /// It is another dedicated core, which offered help.
    pub dedicated: bool,
    /// Packets of the outcome.
    pub packets: u32,
}

/// Outcome of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseOutcome {
    /// No decision was made while the late packets waited and were not yet late: the dispatcher was off its core, or
    /// busy, or they waited in the port.
    NoDecision,
    /// Other dispatchers had all auxiliary cores, or they had port queues of their own, and packets there.
    NoAuxiliaryCore,
    /// One flow or bucket, of `packets` packets, was most of the queue. A lease only takes it to another core.
    OneFlow,
    /// No queued flow could move: the dispatcher has to open them, or they are split.
    Bound,
    /// Every auxiliary core had at least as much to do, `packets` packets or more.
    NotSooner,
    /// A lease of `packets` packets was made, and was not enough.
    Made,
    /// A lease of `packets` packets, after which both cores end at the same time, was not made: the policy expected all
    /// packets in time without.
    InTimeHere,
    /// Such a lease was not made: the policy reported insufficient cores.
    OutOfCores,
}

impl Lease {
    /// No decision.
    pub(super) const NO_DECISION: Lease = Lease {
        outcome: LeaseOutcome::NoDecision,
        auxiliary: None,
        dedicated: false,
        packets: 0,
    };
}

/// Lease that a decision made, or could have made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chance {
    pub(super) now: Nanos,
    pub(super) lease: Lease,
}

impl Chance {
    pub(super) fn of(decision: &Decision) -> Chance {
        Chance {
            now: decision.now,
            lease: lease(decision),
        }
    }
}

fn lease(decision: &Decision) -> Lease {
    let queue = decision.queue.packets;
    let usable = decision.helpers.iter().enumerate().filter(|(_, helper)| !helper.taken);
    let least = usable.min_by_key(|(_, helper)| helper.load.packets);
    let there = least.map_or(0, |(_, helper)| helper.load.packets);
    let (moved, largest) = (decision.moved().packets, decision.largest());
    let (outcome, packets) = if least.is_none() {
        (LeaseOutcome::NoAuxiliaryCore, 0)
    } else if moved > 0 {
        (LeaseOutcome::Made, moved)
    } else if largest > 0 && decision.listed.iter().all(|flow| flow.bound) {
        (LeaseOutcome::Bound, 0)
    } else if largest > queue / 2 {
        (LeaseOutcome::OneFlow, largest)
    } else if there >= queue {
        (LeaseOutcome::NotSooner, there)
    } else {
        let outcome = match decision.notice {
            Some(Notice::OutOfCores { .. }) => LeaseOutcome::OutOfCores,
            _ => LeaseOutcome::InTimeHere,
        };
        (outcome, (queue - there).div_ceil(2))
    };
    Lease {
        outcome,
        auxiliary: least.map(|(auxiliary, _)| auxiliary),
        dedicated: least.is_some_and(|(_, helper)| helper.dedicated),
        packets,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scaling::record::read::ListedFlow;
    use tailwater_policy::core::{AuxiliaryCore, Destination, Load};

    fn decision(flows: &[(u32, bool)], helpers: &[AuxiliaryCore]) -> Decision {
        let listed = flows.iter().zip(0..).map(|((packets, bound), position)| ListedFlow {
            position,
            packets: *packets,
            bound: *bound,
            place: Destination::OWN_CORE,
        });
        Decision {
            queue: Load {
                flows: flows.len() as u32,
                packets: flows.iter().map(|(packets, _)| packets).sum(),
            },
            listed: listed.collect(),
            helpers: helpers.to_vec(),
            ..Decision::default()
        }
    }

    fn helper(packets: u32) -> AuxiliaryCore {
        AuxiliaryCore {
            active: packets > 0,
            load: Load { flows: 1, packets },
            ..AuxiliaryCore::default()
        }
    }

    #[test]
    fn a_lease_is_found_or_the_reason_against_it() {
        use LeaseOutcome::*;
        let taken = AuxiliaryCore {
            taken: true,
            ..AuxiliaryCore::default()
        };
        let many = [(10, false); 10];
        let is = |decision: &Decision, outcome, auxiliary, packets| {
            let expected = Lease {
                outcome,
                auxiliary,
                dedicated: false,
                packets,
            };
            assert_eq!(lease(decision), expected);
        };
        is(&decision(&many, &[taken]), NoAuxiliaryCore, None, 0);
        is(
            &decision(&[(60, false), (40, false)], &[helper(0)]),
            OneFlow,
            Some(0),
            60,
        );
        is(&decision(&[(10, true); 10], &[helper(0)]), Bound, Some(0), 0);
        is(&decision(&many, &[helper(200), helper(100)]), NotSooner, Some(1), 100);
        let mut idle = decision(&many, &[taken, helper(20)]);
        is(&idle, InTimeHere, Some(1), 40);
        idle.notice = Some(Notice::OutOfCores { packets: 1 });
        is(&idle, OutOfCores, Some(1), 40);
        idle.listed[3].place = Destination::auxiliary(1);
        is(&idle, Made, Some(1), 10);
        let offered = AuxiliaryCore {
            dedicated: true,
            ..AuxiliaryCore::default()
        };
        let helped = lease(&decision(&many, &[taken, offered]));
        assert_eq!((helped.auxiliary, helped.dedicated), (Some(1), true));
    }
}
