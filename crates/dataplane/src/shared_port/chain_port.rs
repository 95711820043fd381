//! One chain's view of a shared port.

use super::inbox::{Inbox, connect};
use super::poller::ChainOutlets;
use super::slot::Slot;
use super::succession::{RunEnds, Succession};
use super::{LentSender, Reserved, SharedPort};
use crate::device::{DeviceQueue, Steering};
use crate::external::kernel::KernelPorts;
use crate::external::{Attached, Functions};
use crate::kept_packets::RingKeeper;
use crate::port::{OpenError, Port, PortQueue, PortRequirements, PortSender, Reta, RetaError, round_robin};
use crate::report::PortReport;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tailwater_api::chain::Match;
use tailwater_chain::batch::MAX_BATCH;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_chain::parcel::PacketStore;
use tailwater_functions::build::KeptFunction;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::{RssHasher, RssKey};

/// Time until a new bucket table takes effect: longer than a core's turn.
const RETA_DELAY: Nanos = Nanos::from_micros(50);

/// Port of one chain on a [`SharedPort`]. Packets arrive once the chain's workers run, and until it is
/// [withdrawn](Withdrawal::withdraw).
pub struct ChainPort {
    shared: Arc<SharedPort>,
    wanted: Match,
    /// Buffers that suffice for a worker, if they are fewer than a run requests.
    held: Option<u32>,
    /// Time from which workers receive.
    start: Nanos,
    /// Slot, once open.
    slot: Slot,
    reserved: Reserved,
    steering: Option<Arc<Steering>>,
    inboxes: Vec<Inbox>,
    /// By poller, the ends of the rings.
    outlets: Mutex<Vec<ChainOutlets>>,
    live: Arc<AtomicBool>,
    withdrawn: Arc<AtomicBool>,
    ends: RunEnds,
    /// Chain whose packets this one takes over, and what of it.
    replaced: Option<(Withdrawal, Succession)>,
    /// Interfaces of the chain's external functions, and each worker's side of them once open.
    externals: Option<KernelPorts>,
    attached: Vec<Attached>,
}

/// Ends the delivery of packets to a chain whose port it came from.
#[derive(Clone, Debug)]
pub struct Withdrawal {
    shared: Arc<SharedPort>,
    slot: Slot,
    live: Arc<AtomicBool>,
    withdrawn: Arc<AtomicBool>,
    ends: RunEnds,
}

impl Withdrawal {
    /// Ends the delivery: packets that arrive from now on go to other chains. Those delivered before are still in the
    /// chain's rings.
    pub fn withdraw(&self) {
        // First, in case the delivery is only about to begin.
        self.withdrawn.store(true, Ordering::SeqCst);
        self.shared.set_live(&[(&self.slot, false)], None);
    }

    /// Runs `f` on a worker's instance of the chain between two of its turns, once the worker has no packet if it
    /// `needs_quiet`. `None` if that took longer than `timeout`, and does not run any more then, or if there is no such
    /// worker.
    pub fn on_worker<R: Send + 'static>(
        &self,
        worker: usize,
        needs_quiet: bool,
        timeout: Duration,
        f: impl FnOnce(&mut Chain) -> R + Send + 'static,
    ) -> Option<R> {
        self.ends.requests_to(worker)?.call(needs_quiet, timeout, f)
    }

    /// Slot of the chain on its port, while it has one.
    pub fn slot(&self) -> Option<usize> {
        self.slot.get()
    }

    /// Returns `true` once packets have been delivered to the chain's workers, or could have been. In a
    /// [change](SharedPort::begin_change) of several chains, they come at its end.
    pub fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }
}

impl fmt::Debug for ChainPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChainPort")
            .field("port", &self.shared.name())
            .field("slot", &self.slot.get())
            .field("reserved", &self.reserved)
            .finish_non_exhaustive()
    }
}

impl ChainPort {
    /// Creates the view of a chain that processes the packets of this match. When it is opened, it reserves buffers and
    /// senders of the port.
    pub fn new(shared: &Arc<SharedPort>, wanted: &Match) -> ChainPort {
        ChainPort {
            shared: Arc::clone(shared),
            wanted: wanted.clone(),
            held: None,
            start: Nanos::ZERO,
            slot: Slot::default(),
            reserved: Reserved::default(),
            steering: None,
            inboxes: Vec::new(),
            outlets: Mutex::default(),
            live: Arc::default(),
            withdrawn: Arc::default(),
            ends: RunEnds::default(),
            replaced: None,
            externals: None,
            attached: Vec::new(),
        }
    }

    /// Opens the interfaces of the chain's external functions together with this port.
    pub(crate) fn attach(&mut self, externals: KernelPorts) {
        self.externals = Some(externals);
    }

    /// Limits the buffers of each worker to what suffices for a chain of which no packet waits at its worker.
    pub(crate) fn limit_held(&mut self, buffers: u32) {
        self.held = Some(buffers);
    }

    /// Takes the place of another chain of the same port with `workers` of its own, on the same cores or others: the
    /// first packet that this one gets is the first that the other one does not get. The other chain's run ends then,
    /// and leaves its functions `kept`, which this chain has, too, with their flows' state.
    #[must_use]
    pub fn replacing(mut self, replaced: Withdrawal, kept: Vec<KeptFunction>, workers: u16) -> ChainPort {
        let before = replaced.ends.workers.get().copied().unwrap_or_default();
        self.replaced = Some((replaced, Succession::new(kept, workers, before)));
        self
    }

    /// Flags of the run's workers, and their heir.
    pub(crate) fn ends(&self) -> &RunEnds {
        &self.ends
    }

    /// Inheritance of the chain, if it takes the place of another one.
    pub(crate) fn succession(&self) -> Option<&Succession> {
        self.replaced.as_ref().map(|(_, succession)| succession)
    }

    /// Handle that ends the delivery of packets.
    pub fn withdrawal(&self) -> Withdrawal {
        Withdrawal {
            shared: Arc::clone(&self.shared),
            slot: Arc::clone(&self.slot),
            live: Arc::clone(&self.live),
            withdrawn: Arc::clone(&self.withdrawn),
            ends: self.ends.clone(),
        }
    }

    /// Number of the shared port, and slot of the chain.
    pub(crate) fn slot(&self) -> (usize, Slot) {
        (self.shared.control.number(), Arc::clone(&self.slot))
    }
}

impl Drop for ChainPort {
    fn drop(&mut self) {
        self.shared.set_live(&[(&self.slot, false)], None);
        self.shared.release(&self.slot, self.reserved);
    }
}

impl Port for ChainPort {
    fn traffic(&self) -> &str {
        &self.shared.traffic
    }

    fn duration(&self) -> Option<Nanos> {
        None
    }

    fn goes_back(&self) -> bool {
        self.shared.lock_port().goes_back()
    }

    fn open(&mut self, need: &PortRequirements) -> Result<Vec<BufferPool>, OpenError> {
        let shared = &self.shared;
        let of_worker = self.held.map_or(need.buffers, |held| held.min(need.buffers));
        let held = u32::from(need.workers) * of_worker;
        let reserved = shared.reserve(&self.wanted, [need.workers, need.auxiliary], held);
        let (slot, reserved, ring) = reserved.map_err(|error| OpenError::Device(error.to_string()))?;
        self.reserved = reserved;
        self.slot.take(slot);
        self.ends.set_workers(need.workers);
        let missed = Arc::<AtomicU64>::default();
        let as_they_are = (same_key(&need.rss_key, &shared.config.rss_key), need.workers == 1);
        let sizes = (ring, of_worker as usize);
        let of_pollers = (&shared.memory, shared.share);
        let ends = (0..need.workers).map(|_| connect(&shared.progress, sizes, of_pollers, &missed, as_they_are));
        let (outlets, inboxes): (Vec<_>, Vec<_>) = ends.unzip();
        self.inboxes = inboxes;
        let mut of_workers: Vec<_> = outlets.into_iter().map(Vec::into_iter).collect();
        let by_poller = (0..shared.progress.len()).filter_map(|poller| {
            let mut own: Vec<_> = of_workers.iter_mut().filter_map(Iterator::next).collect();
            let home = poller.checked_rem(own.len())?;
            Some(ChainOutlets {
                home: own.swap_remove(home),
                others: own,
            })
        });
        *self.outlets.get_mut().unwrap_or_else(PoisonError::into_inner) = by_poller.collect();
        let steering = Steering::new(
            RssHasher::new(&need.rss_key),
            (need.workers, 2 * MAX_BATCH),
            &round_robin(need.workers),
            RETA_DELAY,
            shared.clock.clone(),
        );
        let steering = steering.map_err(|error| OpenError::Device(error.to_string()))?;
        self.steering = Some(Arc::new(steering.counting(missed)));
        if let Some(externals) = &mut self.externals {
            self.attached = externals.open(&())?;
        }
        let pools = (0..need.workers).map(|_| BufferPool::lent(shared.memory.clone(), of_worker as usize));
        Ok(pools.collect())
    }

    fn queues(&mut self, start: Nanos) -> Vec<Box<dyn PortQueue>> {
        self.start = start;
        let Some(steering) = &self.steering else {
            return Vec::new();
        };
        let inboxes = std::mem::take(&mut self.inboxes);
        let devices = inboxes
            .into_iter()
            .map(|inbox| (vec![inbox], self.shared.sender()))
            .collect();
        let queues = steering.queues(devices, start, Nanos::MAX).into_iter();
        queues
            .map(|queue: DeviceQueue<Inbox, LentSender>| Box::new(queue) as Box<dyn PortQueue>)
            .collect()
    }

    fn sender(&mut self) -> Box<dyn PortSender> {
        Box::new(self.shared.sender())
    }

    fn packet_store(&self) -> Option<PacketStore> {
        Some(self.shared.packet_store())
    }

    fn keep_lost(&mut self, keeper: &dyn Fn(usize) -> RingKeeper) {
        let outlets = self.outlets.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (poller, own) in outlets.iter_mut().enumerate() {
            // As in `open`: a poller delivers to one worker.
            own.home.keep_lost(keeper(poller % (own.others.len() + 1)));
        }
    }

    fn attached(&mut self) -> Vec<Attached> {
        std::mem::take(&mut self.attached)
    }

    fn monitor(&self, tell: &mut dyn FnMut(String)) {
        if let Some(externals) = &self.externals {
            Functions::<()>::monitor(externals, tell);
        }
    }

    fn report(&self) -> Vec<PortReport> {
        let externals = self.externals.as_ref();
        externals.map(Functions::<()>::report).unwrap_or_default()
    }

    fn reta_delay(&self) -> Option<Nanos> {
        Some(RETA_DELAY)
    }

    fn set_reta(&self, reta: &Reta) -> Result<Nanos, RetaError> {
        match &self.steering {
            Some(steering) => steering.set_reta(reta),
            None => Err(RetaError::NotPaced),
        }
    }

    fn on_started(&self) {
        let Some(slot) = self.slot.get() else {
            return;
        };
        let outlets = std::mem::take(&mut *self.outlets.lock().unwrap_or_else(PoisonError::into_inner));
        let outlets = Mutex::new(outlets.into_iter().map(Some).collect::<Vec<_>>());
        self.shared.control.on_pollers(Arc::new(move |number, poller| {
            let mut outlets = outlets.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(own) = outlets.get_mut(number).and_then(Option::take) {
                poller.connect(slot, own);
            }
        }));
        // Packets delivered before would only fill the rings.
        let early = self.start.saturating_sub(self.shared.clock.now());
        std::thread::sleep(Duration::from_nanos(early.0));
        let replaced = self.replaced.as_ref();
        let old = replaced.map(|(replaced, _)| (&replaced.slot, false));
        let changes: Vec<_> = [(&self.slot, true)].into_iter().chain(old).collect();
        if let Some((replaced, succession)) = replaced {
            // A chain has one successor.
            let _ = replaced.ends.heir.set(Arc::clone(&succession.estates));
        }
        let over = replaced.map(|(replaced, _)| &replaced.ends.flags);
        self.shared.set_live(&changes, over);
        if self.withdrawn.load(Ordering::SeqCst) {
            self.shared.set_live(&[(&self.slot, false)], None);
        }
        self.live.store(true, Ordering::Release);
    }
}

fn same_key(a: &RssKey, b: &RssKey) -> bool {
    a.as_slice() == b.as_slice()
}
