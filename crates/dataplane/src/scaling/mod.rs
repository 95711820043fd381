//! Offloading of RSS buckets or flows to auxiliary cores, whole or split, as a policy decides.
//!
//! A *dispatcher* is a worker with a queue of the port. It looks up every packet's flow, and its [`CoreMapper`] decides
//! if the flow's packets go to the local queue or to an auxiliary core. Between a dispatcher and an auxiliary core
//! there are two rings: parcels go out, receipts come back. A flow with packets in the system has one destination, and
//! changes it only while none of its packets is in flight. So packets of a flow never overtake each other, and no flow
//! state is ever used by two cores. A split flow has two: the dispatcher runs the chain's first segments on each
//! packet, the auxiliary core the others. Each has its own part of the flow's state. The auxiliary core's part can be
//! divided further. A packet then passes from auxiliary core to auxiliary core through the dispatcher, in a third ring.
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
//! Dispatchers that lend buckets can lend them to each other, too: a dedicated core with few packets of its own is an
//! auxiliary core of one that is behind, for a while. It uses the same rings, and borrows each bucket for a batch at a
//! time, in its own instance of the chain. No bucket is split with it.
//!
//! - `dispatch`: the dispatcher's side.
//! - `flow_numbers`: numbers of flows or buckets with packets in the system.
//! - `packet_lists`: the dispatcher's local queue, and packets about to be offloaded.
//! - `auxiliary`: the auxiliary worker.
//! - `source`: packets that a dispatcher has sent to another core.
//! - `lent_state`: external flow state of packets on an auxiliary core.
//! - `helping`: a dedicated core's work for others.
//! - [`AuxiliaryPool`]: auxiliary cores that the chains of a server share, lent by a core broker.
//! - `link`: the rings, and activation of auxiliary cores.
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
pub(crate) mod helping;
pub(crate) mod lending;
mod lent_state;
pub(crate) mod link;
pub(crate) mod load;
#[doc(hidden)]
pub mod overhead;
mod packet_lists;
pub mod record;
pub mod server;
mod source;
pub(crate) mod spans;
#[cfg(test)]
mod tests;

pub use counters::ScalingCounters;
pub use lending::AuxiliaryPool;

use auxiliary::AuxiliaryEnds;
use dispatch::Dispatch;
use helping::HelpingEnds;
use lending::Borrower;
use link::{Activation, Helper, link};
use std::fmt;
use std::sync::Arc;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, Cuts};
use tailwater_chain::parcel::PacketStore;
use tailwater_handover::helping::HelpOffers;
use tailwater_handover::park::{Mode, park};
use tailwater_policy::core::{CoreMapper, MAX_AUXILIARY_CORES, Unit};

/// Configuration of offloading to auxiliary cores.
#[derive(Clone)]
pub struct ScalingConfig {
    /// Auxiliary cores.
    pub auxiliary: Vec<usize>,
    /// Dedicated cores help each other, if the mappers offload [buckets](Unit::Bucket) and
    /// [permit](CoreMapper::can_help) it.
    pub dedicated_help: bool,
    /// Creates the core mapper of each dispatcher.
    pub mapper: Arc<dyn Fn() -> Box<dyn CoreMapper> + Send + Sync>,
    /// Wait strategy of auxiliary cores.
    pub park: Mode,
    /// Packet buffers of each dispatcher: the limit of packets in its local queue and on auxiliary cores.
    pub buffers: u32,
}

/// Maximum number of buffers per dispatcher: every packet may be of another flow, and numbers have 16 bits.
pub const MOST_BUFFERS: u32 = 1 << 15;

impl ScalingConfig {
    /// Number of other dedicated cores that can help each of `dedicated` dedicated cores: none, unless the mappers
    /// begin with costs of packets that permit it.
    pub fn helping(&self, dedicated: usize) -> usize {
        let mapper = (self.mapper)();
        self.helping_by(&*mapper, dedicated)
    }

    fn helping_by(&self, mapper: &dyn CoreMapper, dedicated: usize) -> usize {
        if !self.dedicated_help || mapper.unit() != Unit::Bucket || !mapper.can_help(0) {
            return 0;
        }
        let others = dedicated.saturating_sub(1).min(MOST_HELPING);
        others.min(MAX_AUXILIARY_CORES.saturating_sub(self.auxiliary.len()))
    }
}

impl fmt::Debug for ScalingConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScalingConfig")
            .field("auxiliary", &self.auxiliary)
            .field("dedicated_help", &self.dedicated_help)
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
    let mut mappers: Vec<_> = (0..dispatchers).map(|_| (config.mapper)()).collect();
    let auxiliaries = config.auxiliary.len();
    let points = mappers
        .iter_mut()
        .fold(0, |points, mapper| points | mapper.split_points(auxiliaries));
    let cuts = match config.auxiliary.is_empty() {
        true => Cuts::NONE,
        false => Cuts::before_last(points),
    };
    (mappers, cuts)
}

/// Maximum number of dedicated cores from which one can get help: those that follow it, in a circle. Each takes rings
/// of its own.
const MOST_HELPING: usize = 16;

/// Ends of the links between a run's cores.
#[derive(Default)]
pub(crate) struct Connected {
    /// A dispatcher for each dedicated core.
    pub(crate) dispatches: Vec<Dispatch>,
    /// Helping sides of the dedicated cores, if they can help each other.
    pub(crate) helping: Vec<HelpingEnds>,
    /// Auxiliary cores.
    pub(crate) auxiliary: Vec<AuxiliaryEnds>,
}

/// Auxiliary cores that a run shares with others, for each of its dispatchers, and the store that the packets of all
/// of them are in.
pub(crate) struct Shared {
    pub(crate) borrowers: Vec<Arc<Borrower>>,
    pub(crate) store: PacketStore,
}

/// Connects each dispatcher, which has one of the `mappers`, `pools` and `chains`, with every auxiliary core, and with
/// other dispatchers. Auxiliary cores are the run's own, or `shared`. Returns nothing without `config`.
pub(crate) fn connect(
    config: Option<&ScalingConfig>,
    mappers: Vec<Box<dyn CoreMapper>>,
    pools: &[BufferPool],
    chains: &[Chain],
    shared: Option<&Shared>,
) -> Connected {
    let Some(config) = config else {
        return Connected::default();
    };
    let unit = mappers.first().map_or(Unit::Flow, |mapper| mapper.unit());
    let store = |pool: &BufferPool| shared.map_or_else(|| PacketStore::new(pool), |shared| shared.store.clone());
    let stores: Vec<PacketStore> = pools.iter().map(store).collect();
    let mut to: Vec<Vec<_>> = pools.iter().map(|_| Vec::new()).collect();
    let mut auxiliary = Vec::new();
    for core in 0..config.auxiliary.len() {
        let (sleeper, waker) = park(config.park);
        let activation = Activation::default();
        let mut links = Vec::new();
        for (dispatcher, ((pool, store), to)) in pools.iter().zip(&stores).zip(&mut to).enumerate() {
            let helper = match shared {
                Some(shared) => Helper::Lent {
                    borrower: Arc::clone(&shared.borrowers[dispatcher]),
                    core,
                },
                None => Helper::Auxiliary {
                    waker: waker.clone(),
                    activation: activation.clone(),
                },
            };
            let (near, far) = link(pool.most(), store.clone(), helper);
            to.push(near);
            links.push((far, pool.memory().clone()));
        }
        let sleeper = shared.is_none().then_some(sleeper);
        auxiliary.push(AuxiliaryEnds { links, sleeper, unit });
    }
    let dispatchers = pools.len();
    let others = mappers
        .first()
        .map_or(0, |mapper| config.helping_by(&**mapper, dispatchers));
    let offers = HelpOffers::new(dispatchers);
    let ends = |number| HelpingEnds {
        number,
        offers: offers.clone(),
        links: Vec::new(),
    };
    let mut helping: Vec<_> = (0..dispatchers).filter(|_| others > 0).map(ends).collect();
    for (from, ((pool, store), to)) in pools.iter().zip(&stores).zip(&mut to).enumerate() {
        for core in (1..=others).map(|next| (from + next) % dispatchers) {
            let helper = Helper::Dedicated {
                offers: offers.clone(),
                core,
            };
            let (near, far) = link(pool.most(), store.clone(), helper);
            to.push(near);
            helping[core].links.push((from, (far, pool.memory().clone())));
        }
    }
    let links = to.into_iter().zip(stores);
    let parts = mappers.into_iter().zip(links).zip(pools.iter().zip(chains));
    let dispatches = parts.enumerate().map(|(number, parts)| {
        let ((mapper, (links, store)), (pool, chain)) = parts;
        let borrower = shared.map(|shared| Arc::clone(&shared.borrowers[number]));
        Dispatch::new(number as u32, mapper, store, links, pool, chain).borrowing(borrower)
    });
    Connected {
        dispatches: dispatches.collect(),
        helping,
        auxiliary,
    }
}
