//! Offloading of RSS buckets or flows to auxiliary cores, whole or split, as a policy decides.
//!
//! A *dispatcher* is a worker with a queue of the port. It looks up every packet's flow, and its [`CoreMapper`] decides
//! if the flow's packets go to the local queue or to an auxiliary core. Between a dispatcher and an auxiliary core
//! there are two rings: parcels go out, receipts come back. A flow with packets in the system has one destination, and
//! changes it only while none of its packets is in flight. So packets of a flow never overtake each other, and no flow
//! state is ever used by two cores. A split flow has two: the dispatcher runs the chain's first segments on each
//! packet, the auxiliary core the others. Each has its own part of the flow's state.
//!
//! The mapper can also relieve an overloaded auxiliary core of flows, although packets already sent there cannot be
//! recalled. The following packets are *parked* until the auxiliary core is done with those in front of them. Then the
//! flow goes where the mapper places it. So a flow that moves between auxiliary cores passes its dispatcher, with the
//! same rule and the same rings. A parked packet waits no longer than it would have in the ring.
//!
//! The state machine of the dispatcher is `tailwater_dispatch`, which the simulator runs, too.
//!
//! A mapper whose unit is the [`Bucket`](Unit::Bucket) offloads RSS buckets (*bucket leases*), by the same rules: read
//! bucket for flow in the above. The dispatcher looks nothing up. Whoever processes a packet does, and opens its flow.
//! While a bucket has packets on an auxiliary core, the dispatcher does not use its partition of the flow table. A
//! split bucket's partition stays with the dispatcher, which keeps its flows from ending meanwhile. Without a flow
//! table, the unit is finer: packets with the same lower half of the RSS hash.
//!
//! - `dispatch`: the dispatcher's side.
//! - `flow_numbers`: numbers of flows or buckets with packets in the system.
//! - `packet_lists`: the dispatcher's local queue, and packets about to be offloaded.
//! - `auxiliary`: the auxiliary worker.
//! - `link`: the two rings, and activation of auxiliary cores.
//! - [`server`]: the server mapper's thread, which moves RSS buckets between dispatchers.
//! - [`buckets`]: a worker's side of bucket migration.
//! - `spans`: times in which packets were buffered during a migration.
//! - `counters`: counters of offloading and of bucket migration.
//! - `load`: load statistics that workers publish for the server mapper.
//! - [`record`]: decisions recorded, explained, replayed.
//! - [`overhead`]: cost of a decision, for benchmarks.

pub(crate) mod auxiliary;
pub mod buckets;
pub(crate) mod counters;
pub(crate) mod dispatch;
mod flow_numbers;
pub(crate) mod link;
pub(crate) mod load;
#[doc(hidden)]
pub mod overhead;
mod packet_lists;
pub mod record;
pub mod server;
pub(crate) mod spans;
#[cfg(test)]
mod tests;

pub use counters::ScalingCounters;

use auxiliary::AuxiliaryEnds;
use dispatch::Dispatch;
use link::{Activation, link};
use std::fmt;
use std::sync::Arc;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, Cuts};
use tailwater_chain::parcel::PacketStore;
use tailwater_handover::park::{Mode, park};
use tailwater_policy::core::{CoreMapper, Unit};

/// Configuration of offloading to auxiliary cores.
#[derive(Clone)]
pub struct ScalingConfig {
    /// Auxiliary cores.
    pub auxiliary: Vec<usize>,
    /// Creates the core mapper of each dispatcher.
    pub mapper: Arc<dyn Fn() -> Box<dyn CoreMapper> + Send + Sync>,
    /// Wait strategy of auxiliary cores.
    pub park: Mode,
    /// Packet buffers of each dispatcher: the limit of packets in its local queue and on auxiliary cores.
    pub buffers: u32,
}

/// Maximum number of buffers per dispatcher: every packet may be of another flow, and numbers have 16 bits.
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

/// Creates a mapper per dispatcher, and the cuts of the chain they may use. None without `config`.
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

/// Connects each dispatcher, which has one of the `mappers`, `pools` and `chains`, with every auxiliary core. Returns
/// nothing without `config`.
pub(crate) fn connect(
    config: Option<&ScalingConfig>,
    mappers: Vec<Box<dyn CoreMapper>>,
    pools: &[BufferPool],
    chains: &[Chain],
) -> (Vec<Dispatch>, Vec<AuxiliaryEnds>) {
    let Some(config) = config else {
        return (Vec::new(), Vec::new());
    };
    let unit = mappers.first().map_or(Unit::Flow, |mapper| mapper.unit());
    let stores: Vec<PacketStore> = pools.iter().map(PacketStore::new).collect();
    let mut to: Vec<Vec<_>> = pools.iter().map(|_| Vec::new()).collect();
    let mut helpers = Vec::new();
    for _ in &config.auxiliary {
        let (sleeper, waker) = park(config.park);
        let claim = Activation::default();
        let mut links = Vec::new();
        for ((pool, store), to) in pools.iter().zip(&stores).zip(&mut to) {
            let buffers = pool.capacity() as u32;
            let (near, far) = link(buffers, store.clone(), waker.clone(), claim.clone());
            to.push(near);
            links.push((far, pool.memory().clone()));
        }
        helpers.push(AuxiliaryEnds { links, sleeper, unit });
    }
    let links = to.into_iter().zip(stores);
    let parts = mappers.into_iter().zip(links).zip(pools.iter().zip(chains));
    let dispatches = parts.enumerate().map(|(number, parts)| {
        let ((mapper, (links, store)), (pool, chain)) = parts;
        Dispatch::new(number as u32, mapper, store, links, pool, chain)
    });
    (dispatches.collect(), helpers)
}
