//! Model of a data plane: a dispatcher with a flow table, and auxiliary cores. Rings, parking and packet counts are the
//! crate's own. What the model calls a flow is, in the data plane, a flow or a bucket with its part of the flow table.

#[cfg(loom)]
use loom::{
    sync::{Arc, atomic::AtomicU32, atomic::Ordering},
    thread,
};
use std::sync::atomic::AtomicU32 as Oracle;
use std::time::Duration;
#[cfg(not(loom))]
use std::{
    sync::{Arc, atomic::AtomicU32, atomic::Ordering},
    thread,
};
use tailwater_handover::owner::{Owner, Placement};
use tailwater_handover::park::{Mode, Sleeper, Waker, park};
use tailwater_handover::ring::{Consumer, Producer, ring};

/// Packet: its flow, its sequence number in the flow, and the segment that processes it next.
#[derive(Clone, Copy, Debug)]
struct Parcel {
    flow: u32,
    number: u32,
    from: u8,
}

/// Segments of the chain.
const SEGMENTS: u8 = 2;

/// Flow state of one segment: the number of packets processed.
#[derive(Debug)]
struct State {
    processed: AtomicU32,
    #[cfg(loom)]
    exclusive: loom::cell::UnsafeCell<()>,
}

// SAFETY: nothing is read or written through the cell; loom checks that nobody could do so wrongly.
#[cfg(loom)]
unsafe impl Sync for State {}

impl State {
    fn new() -> State {
        State {
            processed: AtomicU32::new(0),
            #[cfg(loom)]
            exclusive: loom::cell::UnsafeCell::new(()),
        }
    }

    /// Processes a packet. Returns `true` if it was next in order. Read and write are two unordered steps. So a second
    /// owner, or one that came too early, reads a wrong number.
    fn process(&self, parcel: Parcel) -> bool {
        let before = self.processed.load(Ordering::Relaxed);
        self.processed.store(before + 1, Ordering::Relaxed);
        before == parcel.number
    }

    /// Panics if another thread accesses the state without having synchronised with this one's accesses.
    fn touch(&self) {
        #[cfg(loom)]
        self.exclusive.with_mut(|_| ());
    }
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Setup {
    pub flows: u32,
    pub auxiliaries: u8,
    /// Capacity of each ring.
    pub ring: usize,
    /// Packets an auxiliary core takes at once.
    pub batch: usize,
    pub mode: Mode,
    /// Let the dispatcher move flows with packets in flight: the model must detect it.
    pub hasty: bool,
}

/// Result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelResult {
    /// Packets that followed their flow to another core than requested.
    pub stayed: u32,
    /// Packets processed or sent out of order: 0, unless the dispatcher was hasty.
    pub disordered: u32,
}

/// State shared by all threads.
struct World {
    flows: Vec<[State; SEGMENTS as usize]>,
    hasty: bool,
    /// Observer's counter, outside the model.
    disordered: Oracle,
}

impl World {
    /// Processes a packet in the segments from its current one up to `end`.
    fn process(&self, parcel: Parcel, end: u8) {
        for segment in parcel.from..end {
            let state = &self.flows[parcel.flow as usize][usize::from(segment)];
            if !self.hasty {
                state.touch();
            }
            self.expect(state.process(parcel), parcel);
        }
    }

    /// Uses all state of a flow that is back at the dispatcher, as this does with a lent bucket: to expire its flows.
    fn take_back(&self, flow: u32) {
        if !self.hasty {
            self.flows[flow as usize].iter().for_each(State::touch);
        }
    }

    /// Records a packet out of order.
    fn expect(&self, in_order: bool, parcel: Parcel) {
        assert!(in_order || self.hasty, "out of order: {parcel:?}");
        self.disordered.fetch_add(u32::from(!in_order), Ordering::Relaxed);
    }

    /// Sends a packet on the wire, which checks the order within each flow.
    fn transmit(&self, wire: &mut [u32], parcel: Parcel) {
        let left = &mut wire[parcel.flow as usize];
        self.expect(*left == parcel.number, parcel);
        *left += 1;
    }
}

/// Dispatcher's side of an auxiliary core.
struct Link {
    there: Producer<Parcel>,
    back: Consumer<Parcel>,
    waker: Waker,
}

struct Dispatcher {
    world: Arc<World>,
    owners: Vec<Owner>,
    links: Vec<Link>,
    /// Packets of each flow sent so far.
    wire: Vec<u32>,
    /// As in [`ModelResult`].
    stayed: u32,
}

impl Dispatcher {
    /// Pops returned packets of all auxiliary cores.
    fn collect(&mut self) {
        let Dispatcher {
            links,
            owners,
            wire,
            world,
            ..
        } = self;
        for link in links {
            link.back.pop_each(usize::MAX, |parcel| {
                let owner = &mut owners[parcel.flow as usize];
                owner.returned();
                if owner.in_flight() == 0 {
                    world.take_back(parcel.flow);
                }
                world.transmit(wire, parcel);
            });
        }
    }

    /// Processes a packet, or sends it to an auxiliary core, after the first segment if the flow is split.
    fn dispatch(&mut self, mut parcel: Parcel, wanted: Placement) {
        self.collect();
        let owner = &mut self.owners[parcel.flow as usize];
        let placement = match self.world.hasty {
            true => wanted,
            false => owner.settle(wanted),
        };
        self.stayed += u32::from(placement != wanted);
        let auxiliary = match placement {
            Placement::Home => {
                self.world.process(parcel, SEGMENTS);
                self.world.transmit(&mut self.wire, parcel);
                return;
            }
            Placement::Auxiliary(auxiliary) => auxiliary,
            Placement::Split { from, auxiliary } => {
                self.world.process(parcel, from);
                parcel.from = from;
                auxiliary
            }
        };
        owner.sent();
        while self.links[auxiliary as usize].there.push(parcel).is_err() {
            // The auxiliary core may be waiting for room in its own ring.
            self.collect();
            thread::yield_now();
        }
        self.links[auxiliary as usize].waker.wake();
    }
}

/// Main loop of an auxiliary core, until its ring is closed and empty.
fn help(world: &World, mut from: Consumer<Parcel>, mut back: Producer<Parcel>, mut sleeper: Sleeper, batch: usize) {
    loop {
        let closed = from.is_closed();
        // Takes no more than the return ring has room for, or both sides would deadlock.
        let room = back.room(batch).min(batch);
        let done = from.pop_each(room, |parcel| {
            world.process(parcel, SEGMENTS);
            assert!(back.push(parcel).is_ok());
        });
        if done == 0 && room == 0 {
            thread::yield_now();
        } else if done == 0 && closed {
            return;
        } else if done == 0 {
            // The timeout is never reached: the dispatcher wakes it.
            sleeper.wait(Duration::from_secs(60), || !from.is_empty() || from.is_closed());
        }
    }
}

/// Runs packets, each with its flow and the requested placement, through the model.
///
/// # Panics
/// If packets are lost, duplicated, or (unless hasty) out of order, or a flow's state had two owners.
pub fn run(setup: &Setup, packets: impl Iterator<Item = (u32, Placement)>) -> ModelResult {
    let world = Arc::new(World {
        flows: (0..setup.flows).map(|_| [State::new(), State::new()]).collect(),
        hasty: setup.hasty,
        disordered: Oracle::new(0),
    });
    let mut threads = Vec::new();
    let links = (0..setup.auxiliaries).map(|_| {
        let (there, from) = ring(setup.ring);
        let (to, back) = ring(setup.ring);
        let (sleeper, waker) = park(setup.mode);
        let (world, batch) = (world.clone(), setup.batch);
        threads.push(thread::spawn(move || {
            help(&world, from, to, sleeper, batch);
        }));
        Link { there, back, waker }
    });
    let mut dispatcher = Dispatcher {
        links: links.collect(),
        world: world.clone(),
        owners: vec![Owner::default(); setup.flows as usize],
        wire: vec![0; setup.flows as usize],
        stayed: 0,
    };
    let mut arrived = vec![0; setup.flows as usize];
    for (flow, wanted) in packets {
        let number = arrived[flow as usize];
        arrived[flow as usize] += 1;
        let from = 0;
        dispatcher.dispatch(Parcel { flow, number, from }, wanted);
    }
    while dispatcher.owners.iter().any(|owner| owner.in_flight() > 0) {
        dispatcher.collect();
        thread::yield_now();
    }
    // All packets are back, so the dispatcher owns all flows again, while auxiliary cores still run.
    for (flow, &number) in world.flows.iter().zip(&arrived).filter(|_| !setup.hasty) {
        for segment in flow {
            segment.touch();
            assert_eq!(segment.processed.load(Ordering::Relaxed), number);
        }
    }
    assert_eq!(dispatcher.wire, arrived, "everything left");
    for link in dispatcher.links {
        let Link { there, waker, .. } = link;
        drop(there);
        waker.wake();
    }
    for thread in threads {
        thread.join().unwrap();
    }
    ModelResult {
        stayed: dispatcher.stayed,
        disordered: world.disordered.load(Ordering::Relaxed),
    }
}
