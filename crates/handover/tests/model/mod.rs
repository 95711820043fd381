//! Model of a data plane: a dispatcher with a flow table, and auxiliary cores. Rings, parking and packet counts are the
//! crate's own. What the model calls a flow is, in the data plane, a flow or a bucket with its part of the flow table.

#[cfg(loom)]
use loom::{
    sync::{Arc, atomic::AtomicU32, atomic::Ordering},
    thread,
};
use std::collections::VecDeque;
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
use tailwater_handover::route::{Hop, Route};

/// Packet: its flow, its sequence number in the flow, the segment that processes it next, and the first one that its
/// core leaves to another, or 0 for none.
#[derive(Clone, Copy, Debug)]
struct Parcel {
    flow: u32,
    number: u32,
    from: u8,
    until: u8,
}

/// Step of a run.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// A packet of a flow arrives. It is processed at the requested placement, if that is possible now.
    Packet(u32, Placement),
    /// A packet arrives of a flow that is split. It takes the flow's route.
    Routed(u32),
    /// The last segments of one core on a flow's route, from this one on, go to another core.
    Divide(u32, u8, u8),
    /// The last two parts of a flow's route become one, once no packet of it is in flight.
    Join(u32),
    /// No packet of a flow is in flight any more.
    Drain(u32),
}

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
    /// Segments of the chain.
    pub segments: u8,
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
    flows: Vec<Vec<State>>,
    segments: u8,
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

    /// Sends a packet on the wire, which checks the order within each flow. On a route of several cores, those that
    /// sent packets report it in any order: the last segment checks it.
    fn transmit(&self, wire: &mut [u32], parcel: Parcel) {
        let left = &mut wire[parcel.flow as usize];
        self.expect(*left == parcel.number || self.segments > 2, parcel);
        *left += 1;
    }
}

/// Dispatcher's side of an auxiliary core.
struct Link {
    there: Producer<Parcel>,
    back: Consumer<Parcel>,
    /// Packets that continue on another auxiliary core.
    onward: Consumer<Parcel>,
    /// Packets that wait for room in the ring to it.
    staged: VecDeque<Parcel>,
    waker: Waker,
}

impl Link {
    /// Sends staged packets, as far as there is room.
    fn flush(&mut self) {
        let before = self.staged.len();
        while let Some(parcel) = self.staged.pop_front() {
            if let Err(parcel) = self.there.push(parcel) {
                self.staged.push_front(parcel);
                break;
            }
        }
        if self.staged.len() < before {
            self.waker.wake();
        }
    }
}

struct Dispatcher {
    world: Arc<World>,
    owners: Vec<Owner>,
    /// Routes of split flows.
    routes: Vec<Route>,
    links: Vec<Link>,
    /// Packets of each flow sent so far.
    wire: Vec<u32>,
    /// As in [`ModelResult`].
    stayed: u32,
}

impl Dispatcher {
    /// Pops returned packets of all auxiliary cores, and passes those on that continue.
    fn collect(&mut self) {
        let mut relayed = Vec::new();
        let Dispatcher {
            links,
            owners,
            routes,
            wire,
            world,
            ..
        } = self;
        for (auxiliary, link) in links.iter_mut().enumerate() {
            let is_split = |owner: &Owner| matches!(owner.placement(), Placement::Split { .. });
            link.back.pop_each(usize::MAX, |parcel| {
                let owner = &mut owners[parcel.flow as usize];
                if is_split(owner) {
                    routes[parcel.flow as usize].leave(auxiliary as u8);
                }
                owner.returned();
                if owner.in_flight() == 0 {
                    world.take_back(parcel.flow);
                }
                world.transmit(wire, parcel);
            });
            link.onward.pop_each(usize::MAX, |parcel| {
                let (hop, _) = routes[parcel.flow as usize].relay(auxiliary as u8, parcel.from);
                relayed.push((parcel, hop));
            });
        }
        for (parcel, hop) in relayed {
            self.stage(parcel, hop);
        }
        self.links.iter_mut().for_each(Link::flush);
    }

    /// Stages a packet for its next core.
    fn stage(&mut self, mut parcel: Parcel, Hop { auxiliary, until, .. }: Hop) {
        parcel.until = until;
        self.links[usize::from(auxiliary)].staged.push_back(parcel);
    }

    /// Sends a packet to its next core.
    fn send(&mut self, parcel: Parcel, hop: Hop) {
        self.stage(parcel, hop);
        let auxiliary = usize::from(hop.auxiliary);
        self.links[auxiliary].flush();
        while !self.links[auxiliary].staged.is_empty() {
            // The auxiliary core may be waiting for room in its own ring.
            self.collect();
            thread::yield_now();
        }
    }

    /// Sends a packet of a split flow along its route.
    fn route(&mut self, mut parcel: Parcel) {
        self.collect();
        let flow = parcel.flow as usize;
        let first = self.routes[flow].parts()[0];
        self.world.process(parcel, first.from);
        parcel.from = first.from;
        self.owners[flow].sent();
        let hop = self.routes[flow].enter();
        self.send(parcel, hop);
    }

    /// Gives the last segments of one core on a flow's route to another.
    fn divide(&mut self, flow: u32, from: u8, auxiliary: u8) {
        let flow = flow as usize;
        assert!(self.routes[flow].divide(from, auxiliary));
        self.owners[flow].divide(from, auxiliary);
    }

    /// Joins the last two parts of a flow's route.
    fn join(&mut self, flow: u32) {
        let flow = flow as usize;
        self.drain(flow);
        assert!(self.routes[flow].join().is_some());
        let first = self.routes[flow].parts()[0];
        self.owners[flow].settle(Placement::Split {
            from: first.from,
            auxiliary: first.auxiliary,
        });
    }

    /// Waits until no packet of a flow is in flight.
    fn drain(&mut self, flow: usize) {
        while self.owners[flow].in_flight() > 0 {
            self.collect();
            thread::yield_now();
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
        let hop = match placement {
            Placement::Home => {
                self.world.process(parcel, self.world.segments);
                self.world.transmit(&mut self.wire, parcel);
                return;
            }
            Placement::Auxiliary(auxiliary) => Hop {
                auxiliary,
                until: 0,
                is_first: true,
            },
            Placement::Split { from, auxiliary } => {
                let route = &mut self.routes[parcel.flow as usize];
                if owner.in_flight() == 0 || self.world.hasty {
                    *route = Route::new(from, auxiliary);
                }
                self.world.process(parcel, from);
                parcel.from = from;
                route.enter()
            }
        };
        owner.sent();
        self.send(parcel, hop);
    }
}

/// Main loop of an auxiliary core, until its ring is closed and empty.
fn help(
    world: &World,
    mut from: Consumer<Parcel>,
    (mut back, mut onward): (Producer<Parcel>, Producer<Parcel>),
    mut sleeper: Sleeper,
    batch: usize,
) {
    loop {
        let closed = from.is_closed();
        // Takes no more than the return rings have room for, or both sides would deadlock.
        let room = back.room(batch).min(batch).min(onward.room(batch));
        let done = from.pop_each(room, |mut parcel| {
            if parcel.until > 0 {
                world.process(parcel, parcel.until);
                parcel.from = parcel.until;
                assert!(onward.push(parcel).is_ok());
                return;
            }
            world.process(parcel, world.segments);
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
    run_steps(setup, packets.map(|(flow, wanted)| Step::Packet(flow, wanted)))
}

/// Same as [`run`], for any steps.
pub fn run_steps(setup: &Setup, steps: impl Iterator<Item = Step>) -> ModelResult {
    let states = || (0..setup.segments).map(|_| State::new()).collect();
    let world = Arc::new(World {
        flows: (0..setup.flows).map(|_| states()).collect(),
        segments: setup.segments,
        hasty: setup.hasty,
        disordered: Oracle::new(0),
    });
    let mut threads = Vec::new();
    let links = (0..setup.auxiliaries).map(|_| {
        let (there, from) = ring(setup.ring);
        let (to, back) = ring(setup.ring);
        let (to_next, onward) = ring(setup.ring);
        let (sleeper, waker) = park(setup.mode);
        let (world, batch) = (world.clone(), setup.batch);
        threads.push(thread::spawn(move || {
            help(&world, from, (to, to_next), sleeper, batch);
        }));
        Link {
            there,
            back,
            onward,
            staged: VecDeque::new(),
            waker,
        }
    });
    let mut dispatcher = Dispatcher {
        links: links.collect(),
        world: world.clone(),
        owners: vec![Owner::default(); setup.flows as usize],
        routes: vec![Route::new(1, 0); setup.flows as usize],
        wire: vec![0; setup.flows as usize],
        stayed: 0,
    };
    let mut arrived = vec![0; setup.flows as usize];
    let mut next = |flow: u32| {
        arrived[flow as usize] += 1;
        Parcel {
            flow,
            number: arrived[flow as usize] - 1,
            from: 0,
            until: 0,
        }
    };
    for step in steps {
        match step {
            Step::Packet(flow, wanted) => dispatcher.dispatch(next(flow), wanted),
            Step::Routed(flow) => dispatcher.route(next(flow)),
            Step::Divide(flow, from, auxiliary) => dispatcher.divide(flow, from, auxiliary),
            Step::Join(flow) => dispatcher.join(flow),
            Step::Drain(flow) => dispatcher.drain(flow as usize),
        }
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
