//! Ports that several chains share.
//!
//! ```text
//!  port queue -> Poller, by ChainRules -> ring of chain A -> worker of chain A -> port
//!                                      -> ring of chain B -> worker of chain B -> port
//! ```
//!
//! One poller per core receives from the port and passes each packet, without a copy, to the ring of the chain whose
//! `spec.match` it satisfies. A [`ChainPort`] is one chain's view of the port: to the chain's workers it is a port like
//! any other. So a chain that shares a port has everything that one with its own port has: RSS buckets
//! that move between its cores, auxiliary cores, its own counters.
//!
//! Each chain's packets wait in rings of fixed size, and each of its workers holds at most a fixed number of buffers.
//! Their sum is reserved when the chain connects. A chain that cannot keep up fills its own ring and loses its own
//! packets; buffers for the others remain.

mod chain_port;
mod flow_samples;
mod inbox;
mod lists;
mod poller;
mod requests;
pub mod rules;
mod slot;
pub(crate) mod succession;
mod take_over;
mod together;

pub use chain_port::{ChainPort, Withdrawal};
pub use flow_samples::FlowSample;
pub(crate) use poller::Poller;
pub use poller::Unmatched;
pub(crate) use requests::ChainRequests;
pub(crate) use slot::Slot;

use crate::capture::CaptureTap;
use crate::clock::Clock;
use crate::device::Sender;
use crate::port::{OpenError, Port, PortRequirements, PortSender};
use crate::report::PortReport;
use crate::worker::flags::WorkerFlags;
use flow_samples::{FlowSamples, flow_samples};
use inbox::Progress;
use poller::PollerCounters;
use rules::MAX_CHAINS;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tailwater_api::chain::Match;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::{BufferMemory, BufferPool};
use tailwater_chain::parcel::PacketStore;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::RssKey;
use together::{Chains, Reserved};

/// Maximum number of buffers of a port: packets in flight have 16-bit numbers.
pub const MOST_BUFFERS: u32 = crate::scaling::MOST_BUFFERS;

/// Groups of chains, by the number of their last one. Those of a group divide what is left when the later ones have
/// their smallest rings. A port with few chains thus has long rings, and one with many has room for all.
const GROUPS: [u32; 3] = [4, 16, MAX_CHAINS as u32];

/// Smallest ring of a chain from each poller, in packets.
const LEAST_RING: usize = 64;

/// Buffers that each of the later chains has at its workers. One that offloads packets needs more, and is refused if
/// they are not there.
const LEAST_HELD: u32 = 128;

/// Size of the rings of a chain with so many workers, which hold `held` buffers, as the next after `chains` others on a
/// port of whose poller's buffers `left` are unreserved: at most `most`, and small enough for all chains that can
/// follow. Where not all can, for as many as half of the buffers suffice for.
fn ring_size(most: usize, (chains, left): (u32, u32), workers: u32, held: u32) -> usize {
    let least = workers * LEAST_RING as u32 + held.min(LEAST_HELD);
    let group = GROUPS.into_iter().find(|group| chains < *group);
    let group = group.unwrap_or(MAX_CHAINS as u32);
    let later = (MAX_CHAINS as u32 - group) * least;
    let all_fit = (MAX_CHAINS as u32).saturating_sub(chains) * least <= left;
    let later = if all_fit { later } else { later.min(left / 2) };
    let room = left.saturating_sub(later) / group.saturating_sub(chains).max(1);
    let ring = room.saturating_sub(held) / workers.max(1);
    let power = ring.checked_ilog2().map_or(0, |power| 1 << power);
    power.clamp(LEAST_RING, most.next_power_of_two().max(LEAST_RING))
}

/// Time between the opening of a port and its first packet.
const LEAD: Nanos = Nanos::from_millis(10);

/// Buffers of a poller: what it receives in a turn, and what waits to be taken back.
const OF_POLLER: u32 = 1024;

/// Configuration of a shared port.
#[derive(Clone, Debug)]
pub struct SharedPortConfig {
    /// Name of the port on its server.
    pub name: String,
    /// Number of pollers.
    pub pollers: u16,
    /// Number of workers, of all chains, that may send at a time.
    pub senders: u16,
    /// Packet buffers of all pollers together, at most [`MOST_BUFFERS`].
    pub buffers: u32,
    /// Size of a chain's ring from each poller, in packets. Where many chains share few buffers, it is smaller.
    pub ring: usize,
    /// Treatment of packets that no chain matches.
    pub unmatched: Unmatched,
    /// RSS key of the port. Hashes of chains with another key are computed by their workers.
    pub rss_key: RssKey,
}

/// Port that several chains share.
pub struct SharedPort {
    config: SharedPortConfig,
    clock: Clock,
    port: Mutex<Box<dyn Port>>,
    traffic: String,
    memory: BufferMemory,
    store: OnceLock<PacketStore>,
    /// Buffers with which each poller's pool began.
    share: u32,
    progress: Vec<Arc<Progress>>,
    counters: Vec<Arc<PollerCounters>>,
    samples: Mutex<Vec<FlowSamples>>,
    chains: Mutex<Chains>,
    /// Senders that chains have returned.
    senders: Arc<Senders>,
    control: Box<dyn PollerControl>,
    /// Counts of the process that this one has taken over from.
    before: Mutex<SharedPortCounts>,
}

/// Senders that nobody uses.
type Senders = Mutex<Vec<Box<dyn PortSender>>>;

/// Sender of a port that goes back when its user ends.
pub(crate) struct LentSender {
    /// `None` only while it is dropped.
    sender: Option<Box<dyn PortSender>>,
    senders: Arc<Senders>,
}

impl LentSender {
    #[inline]
    fn get(&mut self) -> &mut dyn PortSender {
        match &mut self.sender {
            Some(sender) => &mut **sender,
            None => unreachable!("only its drop takes it"),
        }
    }
}

impl Drop for LentSender {
    fn drop(&mut self) {
        let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        senders.extend(self.sender.take());
    }
}

impl PortSender for LentSender {
    #[inline]
    fn complete(&mut self, batch: &mut Batch) {
        self.get().complete(batch);
    }

    #[inline]
    fn transmit(&mut self, batch: &mut Batch) -> usize {
        self.get().transmit(batch)
    }

    fn transmit_back(&mut self, batch: &mut Batch) -> usize {
        self.get().transmit_back(batch)
    }

    fn capture(&mut self, tap: CaptureTap) {
        self.get().capture(tap);
    }
}

impl Sender for LentSender {
    #[inline]
    fn transmit(&mut self, batch: &mut Batch) -> usize {
        PortSender::transmit(self, batch)
    }

    fn transmit_back(&mut self, batch: &mut Batch) -> usize {
        PortSender::transmit_back(self, batch)
    }
}

/// Change of a port's pollers, each with its number.
pub(crate) type PollerChange = Arc<dyn Fn(usize, &mut Poller) + Send + Sync>;

/// Access to the pollers on their cores.
pub(crate) trait PollerControl: Send + Sync {
    /// Runs `change` on each poller of the port, with its number, on its core between two turns. Returns once all have
    /// run.
    fn on_pollers(&self, change: PollerChange);

    /// Number of the port on its cores.
    fn number(&self) -> usize;
}

/// Packet counts of a shared port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SharedPortCounts {
    /// Packets that arrived, for all chains and none.
    pub received: u64,
    /// Packets that belonged to a chain: each is in the chain's books, also if it found the chain's ring full.
    pub delivered: u64,
    /// Packets that no chain matched.
    pub unmatched: u64,
    /// Of these, packets that arrived while no chain got any, or while chains changed.
    #[serde(default)]
    pub unmatched_between: u64,
    /// Of the other unmatched ones, packets of IPv6.
    #[serde(default)]
    pub unmatched_ipv6: u64,
    /// Of the other unmatched ones, packets without IP.
    #[serde(default)]
    pub unmatched_non_ip: u64,
    /// Packets lost before their chain was known. If a chain gets all packets of the port, they are in its books, too.
    pub lost: u64,
    /// Packets dropped because the device found their checksum wrong.
    pub damaged: u64,
}

/// Packets that one poller's queue of a shared port has lost on reception, since this process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnreceivedCounts {
    /// Packets that arrived, lost ones included.
    pub arrived: u64,
    /// Packets lost: the queue's ring was full, or they came in several buffers and were too long for one.
    pub lost: u64,
    /// Of these, packets in no chain's books.
    pub unattributed: u64,
    /// Of these, packets lost on a queue that the device does not report. They are counted at the first one.
    pub on_any_queue: u64,
}

/// Cause why a chain cannot use a shared port.
#[derive(Debug, thiserror::Error)]
pub enum SharedPortError {
    /// No slot is left.
    #[error("port {port} has {MAX_CHAINS} chains already")]
    Full {
        /// The port.
        port: String,
    },
    /// Too few senders are left.
    #[error("port {port} has its maximum of {all} sending workers")]
    Senders {
        /// The port.
        port: String,
        /// All senders.
        all: u16,
    },
    /// Too few buffers are left.
    #[error("port {port} has {left} of {all} packet buffers left, the chain requires {required}: raise packetBuffers")]
    Buffers {
        /// The port.
        port: String,
        /// Unreserved buffers.
        left: u32,
        /// All buffers.
        all: u32,
        /// Buffers that the chain requires.
        required: u32,
    },
}

impl fmt::Debug for SharedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedPort")
            .field("config", &self.config)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

/// Poller that is ready to run on its core.
pub(crate) type ReadyPoller = Box<Poller>;

impl SharedPort {
    /// Opens a port for chains, with at least one poller. Its times are on `clock`. `control` reaches the returned
    /// pollers once they run.
    ///
    /// # Errors
    /// If the port cannot be opened.
    pub(crate) fn open(
        mut port: Box<dyn Port>,
        config: SharedPortConfig,
        clock: Clock,
        control: Box<dyn PollerControl>,
    ) -> Result<(Arc<SharedPort>, Vec<ReadyPoller>), OpenError> {
        let pollers = u32::from(config.pollers);
        let buffers = config.buffers.min(MOST_BUFFERS);
        let share = buffers / pollers;
        let pools = port.open_shared(&PortRequirements {
            workers: config.pollers,
            auxiliary: config.senders,
            buffers: share,
            rss_key: config.rss_key,
        })?;
        let memory = pools[0].memory().clone();
        let progress: Vec<_> = pools.iter().map(|_| Arc::<Progress>::default()).collect();
        let counters: Vec<_> = pools.iter().map(|_| Arc::<PollerCounters>::default()).collect();
        // Once memory is there, which takes longer than a ring lasts.
        let start = clock.now() + LEAD;
        let queues = port.queues(start).into_iter();
        let parts = queues.zip(pools).zip(progress.iter().zip(&counters));
        let mut samples = Vec::with_capacity(progress.len());
        let ready = parts.map(|((queue, pool), (progress, counters)): ((_, BufferPool), _)| {
            let (progress, counters) = (Arc::clone(progress), Arc::clone(counters));
            let (sampler, of_poller) = flow_samples();
            samples.push(of_poller);
            Box::new(Poller::new(
                queue,
                pool,
                config.unmatched,
                counters,
                (progress, sampler),
            ))
        });
        let ready = ready.collect();
        let shared = SharedPort {
            traffic: port.traffic().to_owned(),
            config,
            clock,
            port: Mutex::new(port),
            memory,
            store: OnceLock::new(),
            share,
            progress,
            counters,
            samples: Mutex::new(samples),
            chains: Mutex::new(Chains::empty()),
            senders: Arc::default(),
            control,
            before: Mutex::default(),
        };
        Ok((Arc::new(shared), ready))
    }

    /// Name of the port.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Packet counts so far.
    pub fn counts(&self) -> SharedPortCounts {
        let sum = |counter: fn(&PollerCounters) -> &AtomicU64| {
            let counters = self.counters.iter();
            counters.map(|own| counter(own).load(Ordering::Relaxed)).sum::<u64>()
        };
        let before = *self.before.lock().unwrap_or_else(PoisonError::into_inner);
        SharedPortCounts {
            received: before.received + sum(|own| &own.received),
            delivered: before.delivered + sum(|own| &own.delivered),
            unmatched: before.unmatched + sum(|own| &own.unmatched),
            unmatched_between: before.unmatched_between + sum(|own| &own.unmatched_between),
            unmatched_ipv6: before.unmatched_ipv6 + sum(|own| &own.unmatched_ipv6),
            unmatched_non_ip: before.unmatched_non_ip + sum(|own| &own.unmatched_non_ip),
            lost: before.lost + sum(|own| &own.lost),
            damaged: before.damaged + sum(|own| &own.damaged),
        }
    }

    /// Packets that each poller's queue has lost on reception, in the order of the host's dedicated cores.
    pub fn unreceived(&self) -> impl Iterator<Item = UnreceivedCounts> {
        self.counters.iter().map(|own| {
            let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            UnreceivedCounts {
                lost: of(&own.unreceived),
                unattributed: of(&own.unattributed),
                on_any_queue: of(&own.on_any_queue),
                // Last: never fewer than those lost of them.
                arrived: of(&own.received),
            }
        })
    }

    /// Number of the port on its host, as [`PollGap`](crate::core_host::PollGap) names it.
    pub fn number(&self) -> usize {
        self.control.number()
    }

    /// Passes samples of the chains' packets since the last call to `each`.
    pub fn read_flow_samples(&self, mut each: impl FnMut(FlowSample)) {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.iter_mut().for_each(|of_poller| of_poller.read(&mut each));
    }

    /// Reports news of the port, in lines for the user.
    pub fn monitor(&self, tell: &mut dyn FnMut(String)) {
        self.lock_port().monitor(tell);
    }

    /// Device counters.
    pub fn report(&self) -> Vec<PortReport> {
        self.lock_port().report()
    }

    fn lock_port(&self) -> std::sync::MutexGuard<'_, Box<dyn Port>> {
        self.port.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_chains(&self) -> std::sync::MutexGuard<'_, Chains> {
        self.chains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sender of a chain, one of those that it reserved.
    fn sender(&self) -> LentSender {
        let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        LentSender {
            sender: Some(senders.pop().unwrap_or_else(|| self.lock_port().sender())),
            senders: Arc::clone(&self.senders),
        }
    }

    /// Reserves a slot, buffers and senders for a chain with so many workers and other senders, which hold `held`
    /// buffers. Returns the slot, what is reserved, and the size of the chain's rings.
    fn reserve(
        &self,
        wanted: &Match,
        [workers, auxiliary]: [u16; 2],
        held: u32,
    ) -> Result<(usize, Reserved, usize), SharedPortError> {
        let mut chains = self.lock_chains();
        let port = || self.config.name.clone();
        let full = || SharedPortError::Full { port: port() };
        if chains.matches.iter().all(Option::is_some) {
            return Err(full());
        }
        // All packets of all chains may come from one poller.
        let all = self.share.saturating_sub(OF_POLLER);
        let left = all.saturating_sub(chains.reserved.buffers);
        let connected = chains.matches.iter().flatten().count() as u32;
        // Each worker has a ring from each poller.
        let rings = u32::from(workers);
        let ring = ring_size(self.config.ring, (connected, left), rings, held);
        let required = Reserved {
            buffers: rings * ring as u32 + held,
            senders: workers + auxiliary,
        };
        if required.buffers > left {
            return Err(SharedPortError::Buffers {
                port: port(),
                left,
                all,
                required: required.buffers,
            });
        }
        if required.senders > self.config.senders - chains.reserved.senders {
            return Err(SharedPortError::Senders {
                port: port(),
                all: self.config.senders,
            });
        }
        let slot = chains.free_slot().ok_or_else(full)?;
        chains.reserved.buffers += required.buffers;
        chains.reserved.senders += required.senders;
        chains.matches[slot] = Some(wanted.clone());
        Ok((slot, required, ring))
    }

    /// Store for packets on their way to auxiliary cores, created when the first chain needs it.
    fn packet_store(&self) -> PacketStore {
        self.store.get_or_init(|| PacketStore::of_memory(&self.memory)).clone()
    }

    /// Begins a change of several chains: those that start get packets together, when it [ends](Self::end_change).
    /// Until then, packets of chains that end count as unmatched, also if one with another match takes the place of
    /// such a chain, and all others get what they got before. With `drops_unmatched`, packets that no chain matches are
    /// dropped meanwhile, although the port forwards such packets otherwise.
    pub fn begin_change(&self, drops_unmatched: bool) {
        let mut chains = self.lock_chains();
        chains.begin_joint_change(drops_unmatched);
        if drops_unmatched {
            self.install_rules(&chains, None);
        }
    }

    /// Ends a change, if one is under way. Returns once all pollers have the new rules.
    pub fn end_change(&self) {
        let mut chains = self.lock_chains();
        if chains.end_joint_change() {
            self.install_rules(&chains, None);
        }
    }

    /// Lets chains get packets, or none any more, all at one time. Returns once all pollers have the new rules. Ends
    /// the run of workers with these flags as soon as that is so. In a [change](Self::begin_change), chains that take
    /// no other's place get packets later.
    pub(super) fn set_live(&self, changes: &[(&Slot, bool)], over: Option<&Arc<WorkerFlags>>) {
        let mut chains = self.lock_chains();
        // A slot that was released may be another chain's.
        let of_slot = |(slot, live): &(&Slot, bool)| Some((slot.get()?, *live));
        let changes: Vec<_> = changes.iter().filter_map(of_slot).collect();
        if chains.set_live(&changes) {
            self.install_rules(&chains, over.cloned());
        } else if let Some(over) = over {
            // Those workers get no packets already.
            over.stop.store(true, Ordering::Release);
        }
    }

    /// Gives the pollers the chains' rules: under their lock, so that the last change is the last that pollers get.
    fn install_rules(&self, chains: &Chains, over: Option<Arc<WorkerFlags>>) {
        let rules = Arc::new(chains.rules());
        let left = AtomicUsize::new(self.progress.len());
        self.control.on_pollers(Arc::new(move |_, poller| {
            poller.set_rules(Arc::clone(&rules));
            // Release and acquire: the last poller's thread has seen the others' deliveries.
            if left.fetch_sub(1, Ordering::AcqRel) == 1
                && let Some(over) = &over
            {
                over.stop.store(true, Ordering::Release);
            }
        }));
    }

    /// Frees the slot and the buffers of a chain that is gone.
    fn release(&self, slot: &Slot, reserved: Reserved) {
        let Some(number) = slot.get() else {
            return;
        };
        self.control
            .on_pollers(Arc::new(move |_, poller| poller.disconnect(number)));
        let mut chains = self.lock_chains();
        slot.release();
        chains.matches[number] = None;
        chains.reserved.buffers -= reserved.buffers;
        chains.reserved.senders -= reserved.senders;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_suffice_for_all_chains_and_the_first_have_long_rings() {
        for (workers, all, first) in [
            (1, 64_000, 1024),
            (1, 31_744, 1024),
            (2, 31_743, 1024),
            (1, 13_000, 128),
        ] {
            let (mut left, held) = (all, 128);
            let mut rings = Vec::new();
            for chains in 0..MAX_CHAINS as u32 {
                let ring = ring_size(1024, (chains, left), workers, held);
                let required = workers * ring as u32 + held;
                assert!(
                    required <= left,
                    "chain {chains} of {workers} workers: {required} of {left}"
                );
                left -= required;
                rings.push(ring);
            }
            assert_eq!(rings[0], first, "{rings:?}");
        }
        // Too few for all: the first ones have rings for bursts, as on a server with many cores.
        assert_eq!(ring_size(1024, (0, 7_167), 1, 128), 512);
        assert_eq!(ring_size(1024, (0, 15_360), 2, 256), 512);
        // Far too few: those that fit have the smallest rings.
        assert_eq!(ring_size(1024, (0, 2_000), 1, 128), LEAST_RING);
        assert_eq!(ring_size(16, (0, 60_000), 1, 128), LEAST_RING);
    }
}
