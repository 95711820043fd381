//! Flows handed to auxiliary cores, whole or split, when and where a policy says.
//!
//! A *dispatcher* is a worker with a queue of the port. It looks every packet's flow up, keeps the
//! flow's packets in its own queue or hands them to a *helper*, and asks its
//! [`CoreMapper`] which. Between a dispatcher and a helper there
//! are two rings: parcels go out, receipts come back. A flow with packets in the system has one
//! place, and changes it only while none of its packets is beyond recall, so that packets of a flow
//! never overtake each other, and no flow state is ever used by two cores. A flow that is split has
//! two: the dispatcher runs the chain's first segments on each packet, the helper the others, and each
//! has its own part of the flow's state.
//!
//! A helper sheds flows, too, when the mapper says that it has too much, though what it has been handed is
//! beyond recall: the packets that would follow are *held* until the helper is done with those in front of
//! them, and then the flow goes where the mapper places it. So a flow that goes from helper to helper passes
//! its dispatcher, by the rule and the rings that there are; and a packet that is held waits no longer
//! than it would have in the ring.
//!
//! - `backlog`: the flows with packets in the system, and the dispatcher's own queue;
//! - `held`: packets that wait until their flows leave a helper;
//! - `dispatch`: the dispatcher's side;
//! - `helper`: the auxiliary worker;
//! - `link`: the two rings, and who has recruited whom;
//! - [`server`]: the server mapper's thread, which has whole RSS buckets moved between dispatchers;
//! - [`buckets`]: how a worker lets buckets go and takes others over;
//! - `load`: what workers tell the server mapper of their load;
//! - [`record`]: decisions recorded, explained, replayed;
//! - [`overhead`]: what a decision costs, for benchmarks.

pub(crate) mod backlog;
pub mod buckets;
pub(crate) mod dispatch;
mod held;
pub(crate) mod helper;
pub(crate) mod link;
pub(crate) mod load;
#[doc(hidden)]
pub mod overhead;
pub mod record;
pub mod server;
#[cfg(test)]
mod tests;

use dispatch::Dispatch;
use helper::HelperEnds;
use link::{Claim, link};
use serde::Serialize;
use std::fmt;
use std::sync::Arc;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, Cuts};
use tailwater_chain::parcel::PacketStore;
use tailwater_handover::park::{Mode, park};
use tailwater_policy::core::CoreMapper;

/// How a run scales.
#[derive(Clone)]
pub struct ScalingConfig {
    /// The cores of the helpers.
    pub auxiliary: Vec<usize>,
    /// The core mapper of each dispatcher.
    pub mapper: Arc<dyn Fn() -> Box<dyn CoreMapper> + Send + Sync>,
    /// How helpers wait for work.
    pub park: Mode,
    /// Packet buffers of each dispatcher: what can wait in its own queue and at helpers.
    pub buffers: u32,
}

/// What dispatchers did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScalingCounters {
    /// Times a mapper was asked about a queue.
    pub decisions: u64,
    /// Of those, times it moved a flow.
    pub moves: u64,
    /// Flows moved out of a dispatcher's own queue.
    pub flows_moved: u64,
    /// Times a flow was split: its packets pass the chain's first functions here, the last with a helper.
    pub splits: u64,
    /// Packets handed to helpers.
    pub packets_handed: u64,
    /// Times a helper began to be relieved: it had too much.
    pub relieved: u64,
    /// Packets held until the helper that had their flow was done with it.
    pub packets_held: u64,
    /// Times a helper was recruited.
    pub recruited: u64,
    /// Times a helper was let go.
    pub released: u64,
    /// Times boost mode began.
    pub boosts: u64,
    /// Times a mapper knew of a whale that no split helps.
    pub whales_beyond_split: u64,
    /// Times a mapper had no cores left.
    pub out_of_cores: u64,
}

impl ScalingCounters {
    pub(crate) fn merge(&mut self, other: &ScalingCounters) {
        self.decisions += other.decisions;
        self.moves += other.moves;
        self.flows_moved += other.flows_moved;
        self.splits += other.splits;
        self.packets_handed += other.packets_handed;
        self.relieved += other.relieved;
        self.packets_held += other.packets_held;
        self.recruited += other.recruited;
        self.released += other.released;
        self.boosts += other.boosts;
        self.whales_beyond_split += other.whales_beyond_split;
        self.out_of_cores += other.out_of_cores;
    }
}

/// The most buffers of a dispatcher: every packet may be of another flow, and numbers have 16 bits.
pub const MOST_BUFFERS: u32 = 1 << 15;

impl fmt::Debug for ScalingConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScalingConfig")
            .field("auxiliary", &self.auxiliary)
            .field("park", &self.park)
            .field("buffers", &self.buffers)
            .finish_non_exhaustive()
    }
}

/// A mapper for each dispatcher, and where they may have the chain cut. None without `config`.
pub(crate) fn mappers(config: Option<&ScalingConfig>, dispatchers: u16) -> (Vec<Box<dyn CoreMapper>>, Cuts) {
    let Some(config) = config else {
        return (Vec::new(), Cuts::NONE);
    };
    let mappers: Vec<_> = (0..dispatchers).map(|_| (config.mapper)()).collect();
    let points = mappers.iter().fold(0, |points, mapper| points | mapper.split_points());
    let cuts = match config.auxiliary.is_empty() {
        true => Cuts::NONE,
        false => Cuts::before_last(points),
    };
    (mappers, cuts)
}

/// Connects each dispatcher, which has one of the `mappers`, `pools` and `chains`, with every helper.
/// Nothing without `config`.
pub(crate) fn connect(
    config: Option<&ScalingConfig>,
    mappers: Vec<Box<dyn CoreMapper>>,
    pools: &[BufferPool],
    chains: &[Chain],
) -> (Vec<Dispatch>, Vec<HelperEnds>) {
    let Some(config) = config else {
        return (Vec::new(), Vec::new());
    };
    let stores: Vec<PacketStore> = pools.iter().map(PacketStore::new).collect();
    let mut to: Vec<Vec<_>> = pools.iter().map(|_| Vec::new()).collect();
    let mut helpers = Vec::new();
    for _ in &config.auxiliary {
        let (sleeper, waker) = park(config.park);
        let claim = Claim::default();
        let mut links = Vec::new();
        for ((pool, store), to) in pools.iter().zip(&stores).zip(&mut to) {
            let buffers = pool.capacity() as u32;
            let (near, far) = link(buffers, store.clone(), waker.clone(), claim.clone());
            to.push(near);
            links.push((far, pool.memory().clone()));
        }
        helpers.push(HelperEnds { links, sleeper });
    }
    let links = to.into_iter().zip(stores);
    let parts = mappers.into_iter().zip(links).zip(pools.iter().zip(chains));
    let dispatches = parts.enumerate().map(|(number, parts)| {
        let ((mapper, (links, store)), (pool, chain)) = parts;
        Dispatch::new(number as u32, mapper, store, links, pool, chain)
    });
    (dispatches.collect(), helpers)
}
