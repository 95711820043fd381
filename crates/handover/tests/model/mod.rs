//! A data plane of toys: a dispatcher with a table of flows, and helpers. The rings, the sleeping
//! place and the counts are the crate's own.

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
use tailwater_handover::owner::{Owner, Place};
use tailwater_handover::park::{Mode, Sleeper, Waker, park};
use tailwater_handover::ring::{Consumer, Producer, ring};

/// A packet: which flow, its number in it, and the chain's segment that is to process it.
#[derive(Clone, Copy, Debug)]
struct Parcel {
    flow: u32,
    number: u32,
    from: u8,
}

/// Segments of the chain.
const SEGMENTS: u8 = 2;

/// A segment's state of a flow: how many of its packets were processed.
#[derive(Debug)]
struct State {
    processed: AtomicU32,
    #[cfg(loom)]
    exclusive: loom::cell::UnsafeCell<()>,
}

// SAFETY: nothing is read or written through the cell; that nobody could do so wrongly is what
// loom checks.
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

    /// Processes a packet and says whether it was its turn. Reading and writing are two steps, and
    /// neither is ordered with anything: a second owner, or one that came too early, finds a wrong
    /// number.
    fn process(&self, parcel: Parcel) -> bool {
        let before = self.processed.load(Ordering::Relaxed);
        self.processed.store(before + 1, Ordering::Relaxed);
        before == parcel.number
    }

    /// Panics if another thread touches the state and was not told of what this one did before.
    fn touch(&self) {
        #[cfg(loom)]
        self.exclusive.with_mut(|_| ());
    }
}

/// How a run is made up.
#[derive(Clone, Debug)]
pub struct Setup {
    pub flows: u32,
    pub helpers: u8,
    /// Items in each ring.
    pub ring: usize,
    /// Packets that a helper takes at once.
    pub batch: usize,
    pub mode: Mode,
    /// A dispatcher that moves flows with packets in flight: the model must notice.
    pub hasty: bool,
}

/// What came of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Packets that followed their flow to another place than wanted.
    pub stayed: u32,
    /// Packets that were processed or sent out of order; none, unless the dispatcher was hasty.
    pub disordered: u32,
}

/// What all threads see.
struct World {
    flows: Vec<[State; SEGMENTS as usize]>,
    hasty: bool,
    /// Not of the model: an observer's count.
    disordered: Oracle,
}

impl World {
    /// Processes a packet in the segments from its own up to `end`.
    fn process(&self, parcel: Parcel, end: u8) {
        for segment in parcel.from..end {
            let state = &self.flows[parcel.flow as usize][usize::from(segment)];
            if !self.hasty {
                state.touch();
            }
            self.expect(state.process(parcel), parcel);
        }
    }

    /// Takes down whether a packet was in order.
    fn expect(&self, in_order: bool, parcel: Parcel) {
        assert!(in_order || self.hasty, "out of order: {parcel:?}");
        self.disordered.fetch_add(u32::from(!in_order), Ordering::Relaxed);
    }

    /// The wire, which wants each flow's packets in order.
    fn transmit(&self, wire: &mut [u32], parcel: Parcel) {
        let left = &mut wire[parcel.flow as usize];
        self.expect(*left == parcel.number, parcel);
        *left += 1;
    }
}

/// The dispatcher's view of a helper.
struct Link {
    there: Producer<Parcel>,
    back: Consumer<Parcel>,
    waker: Waker,
}

struct Dispatcher {
    world: Arc<World>,
    owners: Vec<Owner>,
    links: Vec<Link>,
    /// Packets of each flow that left, for good.
    wire: Vec<u32>,
    /// As in [`Outcome`].
    stayed: u32,
}

impl Dispatcher {
    /// Takes in what helpers have done.
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
                owners[parcel.flow as usize].returned();
                world.transmit(wire, parcel);
            });
        }
    }

    /// Processes a packet, or hands it to the one who does, perhaps after the first segment.
    fn dispatch(&mut self, mut parcel: Parcel, wanted: Place) {
        self.collect();
        let owner = &mut self.owners[parcel.flow as usize];
        let place = match self.world.hasty {
            true => wanted,
            false => owner.settle(wanted),
        };
        self.stayed += u32::from(place != wanted);
        let helper = match place {
            Place::Home => {
                self.world.process(parcel, SEGMENTS);
                self.world.transmit(&mut self.wire, parcel);
                return;
            }
            Place::Helper(helper) => helper,
            Place::Split { from, helper } => {
                self.world.process(parcel, from);
                parcel.from = from;
                helper
            }
        };
        owner.sent();
        while self.links[helper as usize].there.push(parcel).is_err() {
            // The helper may be waiting for room in its own ring.
            self.collect();
            thread::yield_now();
        }
        self.links[helper as usize].waker.wake();
    }
}

/// A helper's life: until its ring is closed and empty.
fn help(world: &World, mut from: Consumer<Parcel>, mut back: Producer<Parcel>, mut sleeper: Sleeper, batch: usize) {
    loop {
        let closed = from.is_closed();
        // What returns must have room, or the dispatcher and we would wait for each other.
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
            // Its bound is never reached: waking up is the dispatcher's business.
            sleeper.wait(Duration::from_secs(60), || !from.is_empty() || from.is_closed());
        }
    }
}

/// Runs packets, each of a flow and wanted somewhere, through the model.
///
/// # Panics
/// If packets are lost, doubled, or (unless hasty) out of order, or a flow's state had two owners.
pub fn run(setup: &Setup, packets: impl Iterator<Item = (u32, Place)>) -> Outcome {
    let world = Arc::new(World {
        flows: (0..setup.flows).map(|_| [State::new(), State::new()]).collect(),
        hasty: setup.hasty,
        disordered: Oracle::new(0),
    });
    let mut threads = Vec::new();
    let links = (0..setup.helpers).map(|_| {
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
    // Everything came back, so the dispatcher owns all flows again, while helpers still live.
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
    Outcome {
        stayed: dispatcher.stayed,
        disordered: world.disordered.load(Ordering::Relaxed),
    }
}
