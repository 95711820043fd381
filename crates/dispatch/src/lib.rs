//! State machine of a *dispatcher*: a core that receives packets and processes them itself or offloads them to
//! auxiliary cores. The live data plane and the simulator run the same one.
//!
//! The [`Dispatcher`] decides by its mapper where flows go, and its [`Backlog`] counts their packets in the system.
//! Both do no I/O and have no clock. The caller keeps the packets, in one list per [`Destination`]: its local queue and
//! one per auxiliary core. It reports what happens to a packet by its flow's *number*, and the answer is the list that
//! the packet joins. Only parked packets are kept here.
//!
//! For a mapper whose [unit](tailwater_policy::core::Unit) is the bucket, a flow in this crate is an RSS bucket.
//!
//! # Rules
//! - A flow with packets in the system has one destination. It changes only while none of its packets is in flight,
//!   that is, on an auxiliary core and not yet reported done. So packets of a flow keep their order, and no flow state
//!   is used by two cores at a time.
//! - A flow that this core must open, or that is split, is *bound*: its queued packets are processed here. A split flow
//!   without packets in flight may move.
//! - Packets of a flow in flight on a *relieved* auxiliary core are parked, and so are all later ones, until none is in
//!   flight. Then the flow is placed again, with its parked packets in front.
//! - The parts of a split flow can be *divided*: the last segments of one core go to another core, which has no packet
//!   of the flow. Packets pass from auxiliary core to auxiliary core through this one ([`Backlog::relay`]), and those
//!   in flight keep to their route. Parts are *joined*, the last first, while no packet of the flow is queued or in
//!   flight. Until then, later ones are parked.
//! - An auxiliary core is released only if it has no packets and no flow is split with it.
//! - An auxiliary core that gets a port queue of its own is *withdrawn*: it is relieved until it is released, whatever
//!   the mapper plans.
//! - A dispatcher without any usable auxiliary core is [single](Backlog::is_single): it receives a batch only when its
//!   local queue is empty, like a core without a mapper. So at a load that takes all cores, no packet waits longer than
//!   in the port's ring, and none passes the local queue.
//! - A flow with too many queued packets is [behind](Backlog::behind) all others, and one with more than its share of
//!   scarce buffers loses its own packets, never another's. If buckets are the unit, a majority vote over the hashes of
//!   a large bucket's packets finds that flow; without a majority, all of the bucket are behind.
//!   A single dispatcher with a long queue in the port looks for such flows now and then.
//! - A dedicated core with few packets of its own can process flows of others that are behind. It is released as soon
//!   as it has none, and withdrawn once it has more of its own. No flow is split with it.
//! - Auxiliary cores that do clear harm are withdrawn for a while: see [benefit](Dispatcher::turned).
//! - A third of the buffers at most is for the local queue, and for each auxiliary core: beyond that, packets are not
//!   [received](Backlog::receives). They wait in the ring, or are lost there, as without a mapper.
//! - If the chain's spec allows it, every core with too much load, with or without a mapper, dedicated or auxiliary,
//!   discards packets that are too late: see [`Freshness`].
//!
//! # Loop iteration
//! 1. Receive a batch. [Open](Backlog::open) and [place](Dispatcher::place) new flows, and sort each packet by
//!    [`Backlog::receive`].
//! 2. Collect what auxiliary cores report [done](Backlog::done_by), [relay](Backlog::relay) what they have run as far
//!    as the next part, and [place parked flows](Dispatcher::place_parked).
//! 3. Receive [again](Iteration::receives_again), if packets wait.
//! 4. If it is [due](Dispatcher::is_due), [decide](Dispatcher::decide) and sort the local queue to the moved flows'
//!    lists.
//! 5. Offload the packets listed for auxiliary cores.
//! 6. If the core [processes](Dispatcher::processes) packets itself now, do so with a batch of the local queue. Count
//!    its packets [out](Backlog::done_here), or [pass them on](Backlog::pass_on) if their flows are split.
//!
//! [`Destination`]: tailwater_policy::core::Destination

mod auxiliary;
mod backlog;
mod benefit;
mod dispatcher;
mod fairness;
mod flow;
mod freshness;
mod iteration;
mod parked;
mod split;

pub use auxiliary::{AuxiliaryCores, Availability};
pub use backlog::Backlog;
pub use dispatcher::{Decision, Dispatcher};
pub use fairness::Overtaken;
pub use flow::{Flow, OWN};
pub use freshness::Freshness;
pub use iteration::{Iteration, MOST_RECEIVED};
pub use split::NextHop;
