//! Relief of auxiliary cores: a dispatcher on one thread, with auxiliary cores that process packets when the test lets
//! them.

use super::super::dispatch::Dispatch;
use super::super::link::{FromDispatcher, Helper, link};
use crate::panics::catch_panic;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, Cuts};
use tailwater_chain::parcel::{PacketStore, Receipt};
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::spec::ChainSpec;
use tailwater_handover::park::{Mode, park};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos, protocol};
use tailwater_policy::core::{CoreMapper, Destination, Flowlet, Load, Loads, Plan, Split, Unit, View};

const BUFFERS: u32 = 512;
const FLOWS: usize = 24;

/// Plan of the mapper, and its inputs.
#[derive(Default)]
struct Script {
    place: Option<Destination>,
    /// Destination of all queued flows.
    moved: Option<Destination>,
    relieve: u64,
    /// Split all queued flows in front of the last function.
    splits: bool,
    /// All flowlets it placed.
    placed: Vec<Flowlet>,
    /// Parked load at its last decision.
    held: Load,
    /// Panic when placing a flow.
    dies: bool,
}

#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<Script>>, Unit);

impl CoreMapper for Scripted {
    fn unit(&self) -> Unit {
        self.1
    }

    fn due(&self, _: Nanos, _: u32) -> bool {
        true
    }

    fn decide(&mut self, view: &View<'_>, plan: &mut Plan) {
        let mut script = self.0.lock().unwrap();
        script.held = view.parked;
        plan.relieve = script.relieve;
        if let Some(place) = script.moved {
            plan.destinations.fill(place);
        }
        if script.splits {
            plan.splits.extend((0..view.queued.len()).map(|flow| Split {
                flow,
                last_functions: 1,
                auxiliary: 0,
            }));
        }
    }

    fn place(&mut self, flowlet: Flowlet, _: &Loads<'_>) -> Destination {
        let mut script = self.0.lock().unwrap();
        script.placed.push(flowlet);
        let (dies, place) = (script.dies, script.place);
        // The panic must not poison the lock.
        drop(script);
        assert!(!dies, "no place on purpose");
        place.unwrap_or(Destination::OWN_CORE)
    }
}

/// Record of a processed packet: the core, the flow, and its arrival.
type Done = (Destination, usize, u64);

struct Rig {
    script: Scripted,
    dispatch: Dispatch,
    chain: Chain,
    pool: BufferPool,
    batch: Batch,
    helpers: Vec<FromDispatcher>,
    receipts: Vec<Receipt>,
    frames: Vec<(Vec<u8>, u32)>,
    /// Flow by arrival, which is different for each packet.
    flow_of: Vec<usize>,
    done: Vec<Done>,
    /// Allocations of the dispatcher.
    allocations: u64,
    /// Packets lost because their flow had too many.
    refused: u64,
}

impl Rig {
    fn new(helpers: usize, look_up: bool) -> Rig {
        Rig::of(Unit::Flow, helpers, look_up)
    }

    fn of(unit: Unit, helpers: usize, look_up: bool) -> Rig {
        let rss = RssHasher::default();
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: relief}}\n\
             spec: {{slo: {{latency: 200us}}, functions: [{{forward: {{}}}}, {{name: last, forward: {{}}}}], \
             flows: {{lookUp: {}}}}}",
            if look_up { "always" } else { "as-needed" }
        );
        let spec = ChainSpec::parse(&text, "relief", Path::new(".")).unwrap();
        let cuts = Cuts::before_last(match unit {
            Unit::Flow => 0,
            Unit::Bucket => 1 << 1,
        });
        let mut builder = ChainBuilder::with_cuts(&spec, &rss, 1, cuts).unwrap();
        let chain = builder.instance(|_| true);
        assert_eq!(chain.has_flows(), look_up);
        let pool = BufferPool::new(BUFFERS, 128).unwrap();
        let store = PacketStore::new(&pool);
        let links = (0..helpers).map(|_| {
            let (_, waker) = park(Mode::Spin);
            link(BUFFERS, store.clone(), Helper::auxiliary(waker))
        });
        let (near, far) = links.unzip();
        let frames = (0..FLOWS as u32).map(|flow| {
            let ends = ((0x0a00_0000 + flow).into(), 0xc633_6401.into());
            let key = FlowKey::v4(ends.0, ends.1, protocol::UDP, 1000, 53);
            let frame = FrameBuilder::new(&key).to_vec().unwrap();
            let headers = tailwater_net::parse::parse(&frame).unwrap();
            let hash = rss.hash_headers(&headers);
            (frame, hash)
        });
        let script = Scripted(Arc::default(), unit);
        // Allocations of the script are not the dispatcher's.
        script.0.lock().unwrap().placed.reserve(BUFFERS as usize);
        let mapper = Box::new(script.clone());
        Rig {
            script,
            dispatch: Dispatch::new(0, mapper, store, near, &pool, &chain),
            batch: Batch::new(&pool, 32),
            frames: frames.collect(),
            chain,
            pool,
            helpers: far,
            receipts: Vec::with_capacity(BUFFERS as usize),
            flow_of: Vec::new(),
            done: Vec::new(),
            allocations: 0,
            refused: 0,
        }
    }

    fn script(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.script.0.lock().unwrap());
    }

    /// Lets packets of these flows arrive, and looks them up.
    fn look_up(&mut self, flows: &[usize]) {
        let first = self.flow_of.len() as u64;
        for &flow in flows {
            let now = Nanos(self.flow_of.len() as u64);
            let (frame, hash) = &self.frames[flow];
            assert!(self.batch.push(&mut self.pool, frame, now, *hash));
            self.flow_of.push(flow);
        }
        if !self.dispatch.lends_buckets() {
            self.chain.look_up(&mut self.batch, Nanos(first));
        }
    }

    /// Lets packets of these flows arrive. They are placed, staged or parked.
    fn receive(&mut self, flows: &[usize]) {
        let now = Nanos(self.flow_of.len() as u64);
        self.look_up(flows);
        self.measured(|rig| {
            rig.dispatch.distribute(&mut rig.batch, &mut rig.chain, None, now);
            rig.refused += rig.dispatch.lose_refused(&mut rig.pool);
            rig.dispatch.flush(now);
        });
        assert!(self.batch.is_empty());
    }

    fn measured(&mut self, act: impl FnOnce(&mut Rig)) {
        self.allocations += allocation_counter::measure(|| act(self)).count_total;
    }

    /// Runs a turn without arrivals: receipts, a decision, flushing.
    fn turn(&mut self) {
        let now = Nanos(self.flow_of.len() as u64);
        self.measured(|rig| {
            rig.dispatch.collect(&mut rig.pool, &mut rig.chain, now);
            rig.dispatch.decide(&mut rig.chain, None, now);
            rig.dispatch.flush(now);
        });
    }

    /// Lets an auxiliary core process up to `most` packets.
    fn help(&mut self, helper: usize, most: usize) {
        let Rig {
            helpers,
            receipts,
            flow_of,
            done,
            ..
        } = self;
        let link = &mut helpers[helper];
        link.parcels.pop_each(most, |parcel| {
            let arrival = link.store.arrival(&parcel).0;
            let flow = flow_of[arrival as usize];
            done.push((Destination::auxiliary(helper), flow, arrival));
            receipts.push(parcel.discard());
        });
        link.receipts.push_all(receipts);
    }

    /// Lets the dispatcher process a batch.
    fn process(&mut self) {
        self.dispatch.take(&mut self.batch, false);
        for packet in self.batch.iter() {
            let flow = self.flow_of[packet.arrival.0 as usize];
            self.done.push((Destination::OWN_CORE, flow, packet.arrival.0));
        }
        self.dispatch.done(&mut self.batch, &mut self.pool, &mut self.chain);
    }

    fn done(&mut self) -> Vec<Done> {
        std::mem::take(&mut self.done)
    }

    fn held(&mut self) -> Load {
        self.turn();
        self.script.0.lock().unwrap().held
    }
}

const A: Destination = Destination::auxiliary(0);
const B: Destination = Destination::auxiliary(1);

#[test]
fn a_flow_leaves_a_helper_for_another_with_its_packets_in_order() {
    let mut rig = Rig::new(2, true);
    rig.script(|script| script.place = Some(A));
    rig.receive(&[1, 2, 1]);
    rig.script(|script| script.relieve = 1);
    rig.turn();
    // The first auxiliary core has three packets. Further packets of these flows are parked, another flow still goes
    // there.
    rig.receive(&[2, 1, 3, 2]);
    let held = Load { flows: 2, packets: 3 };
    assert_eq!(rig.held(), held);
    assert_eq!(rig.dispatch.offloaded(), 3 + 1 + 3);
    // The end of the relief changes nothing for parked packets: they would overtake.
    rig.script(|script| (script.relieve, script.place) = (0, Some(B)));
    rig.turn();
    rig.receive(&[2]);
    rig.script(|script| script.placed.clear());
    rig.help(0, 2);
    assert_eq!(rig.held().packets, 1, "flow 2 went on, flow 1 did not");
    let flowlet = Flowlet {
        arrival: Nanos(3),
        new: false,
        packets: 3,
        parked: true,
    };
    rig.script(|script| assert_eq!(script.placed, [flowlet]));
    rig.help(1, 9);
    rig.help(0, 9);
    assert_eq!(rig.held(), Load::default());
    rig.help(1, 9);
    let expected = [
        (A, 1, 0),
        (A, 2, 1),
        (B, 2, 3),
        (B, 2, 6),
        (B, 2, 7),
        (A, 1, 2),
        (A, 3, 5),
        (B, 1, 4),
    ];
    assert_eq!(rig.done(), expected);
    rig.turn();
    assert!(rig.dispatch.is_quiet());
}

#[test]
fn a_flow_comes_home_and_may_move_from_there() {
    for look_up in [true, false] {
        let mut rig = Rig::new(2, look_up);
        rig.script(|script| script.moved = Some(A));
        rig.receive(&[1, 1, 2]);
        // Moved out of the local queue, and still listed there.
        rig.turn();
        rig.script(|script| (script.moved, script.relieve) = (None, 1));
        rig.turn();
        rig.receive(&[1, 3, 1]);
        rig.help(0, 9);
        rig.turn();
        rig.process();
        let expected = [(A, 1, 0), (A, 1, 1), (A, 2, 2)];
        let at_home = [
            (Destination::OWN_CORE, 3, 4),
            (Destination::OWN_CORE, 1, 3),
            (Destination::OWN_CORE, 1, 5),
        ];
        assert_eq!(rig.done(), [expected, at_home].concat());
        assert!(rig.dispatch.is_quiet());
        // And once more, from the dispatcher to the second auxiliary core.
        rig.script(|script| script.place = Some(A));
        rig.receive(&[1]);
        rig.receive(&[1]);
        rig.script(|script| (script.place, script.moved) = (None, Some(B)));
        rig.help(0, 9);
        rig.turn();
        rig.help(1, 9);
        assert_eq!(rig.done(), [(A, 1, 6), (B, 1, 7)]);
    }
}

#[test]
fn what_is_held_at_the_end_is_given_up() {
    let mut rig = Rig::new(1, true);
    rig.script(|script| (script.place, script.relieve) = (Some(A), 1));
    rig.receive(&[1, 2]);
    rig.turn();
    rig.receive(&[2, 1, 2]);
    rig.dispatch.abandon();
    let more = rig.dispatch.take_undone(&mut rig.batch);
    let arrivals: Vec<u64> = rig.batch.iter().map(|packet| packet.arrival.0).collect();
    assert_eq!((more, arrivals.len()), (false, 3), "{arrivals:?}");
    rig.dispatch.done(&mut rig.batch, &mut rig.pool, &mut rig.chain);
    assert!(!rig.dispatch.is_quiet());
    rig.help(0, 9);
    rig.turn();
    assert!(rig.dispatch.is_quiet());
    assert_eq!(rig.pool.available(), rig.pool.capacity());
}

/// In the middle of a batch: its first packets were set aside, the rest is still in the batch.
#[test]
fn a_mapper_that_dies_while_packets_are_set_aside_loses_none_of_them() {
    let mut rig = Rig::new(1, true);
    rig.script(|script| (script.place, script.relieve) = (Some(A), 1));
    rig.receive(&[1]);
    rig.turn();
    rig.receive(&[1]);
    rig.script(|script| script.dies = true);
    rig.look_up(&[1, 1, 2, 1]);
    let died = catch_panic(|| {
        rig.dispatch.distribute(&mut rig.batch, &mut rig.chain, None, Nanos(2));
    });
    assert_eq!(died.unwrap_err(), "no place on purpose");
    let arrivals = |batch: &Batch| -> Vec<u64> { batch.iter().map(|p| p.arrival.0).collect() };
    assert_eq!(arrivals(&rig.batch), [4, 5], "in the worker's hand");
    rig.batch.release(&mut rig.pool);
    rig.dispatch.abandon();
    rig.dispatch.take_undone(&mut rig.batch);
    assert_eq!(arrivals(&rig.batch), [1, 2, 3], "held, and on their way to be");
    rig.dispatch.done(&mut rig.batch, &mut rig.pool, &mut rig.chain);
    rig.help(0, 9);
    rig.turn();
    assert_eq!(rig.pool.available(), rig.pool.capacity());
}

/// Random decisions, auxiliary cores of random speed: order, one core at a time, no loss, no allocation.
#[test]
fn whatever_is_relieved_flows_keep_order_and_have_one_place() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) % below
    };
    const HELPERS: usize = 3;
    let mut rig = Rig::new(HELPERS, true);
    let (mut last, mut most_held, mut seen, mut settled) = ([None; FLOWS], 0, 0, 0);
    let at = |random: &mut dyn FnMut(u64) -> u64| match random(HELPERS as u64 + 1) as usize {
        0 => Destination::OWN_CORE,
        helper => Destination::auxiliary(helper - 1),
    };
    for step in 0..40_000 {
        rig.script(|script| {
            script.place = Some(at(&mut random));
            script.moved = (random(4) == 0).then(|| at(&mut random));
            script.relieve = random(1 << HELPERS) & random(1 << HELPERS);
            script.placed.clear();
        });
        match random(6) {
            0 | 1 if rig.pool.available() >= 16 && step < 39_000 => {
                // A few flows have most packets.
                let flows: Vec<usize> = (0..=random(15))
                    .map(|_| (random(FLOWS as u64) * random(FLOWS as u64)) as usize / FLOWS)
                    .collect();
                rig.receive(&flows);
            }
            2 | 3 => rig.help(random(HELPERS as u64) as usize, 1 + random(20) as usize),
            4 => rig.process(),
            _ => rig.turn(),
        }
        for (_, flow, arrival) in rig.done() {
            assert!(last[flow] < Some(arrival), "flow {flow} is reordered");
            last[flow] = Some(arrival);
            seen += 1;
        }
        if step == 10_000 {
            settled = rig.allocations;
        }
        most_held = most_held.max(rig.script.0.lock().unwrap().held.packets);
    }
    assert!(most_held > 50, "{most_held}");
    assert_eq!(rig.allocations, settled, "allocations in steady state");
    for _ in 0..200 {
        (0..HELPERS).for_each(|helper| rig.help(helper, 100));
        rig.turn();
        rig.process();
        seen += rig.done().len();
    }
    assert!(rig.refused > 0);
    assert_eq!(seen + rig.refused as usize, rig.flow_of.len());
    assert!(rig.dispatch.is_quiet());
    assert_eq!(rig.pool.available(), rig.pool.capacity());
}

/// Idle flows of a split bucket end although packets of a whale are always in the system: at times when none of them is
/// on the auxiliary core.
#[test]
fn flows_of_a_split_bucket_end_between_its_packets() {
    let mut rig = Rig::of(Unit::Bucket, 1, true);
    rig.script(|script| script.splits = true);
    rig.receive(&[1, 1]);
    rig.turn();
    rig.dispatch.take(&mut rig.batch, false);
    let from = rig.dispatch.parts().next().expect("the bucket is split");
    rig.chain.look_up(rig.dispatch.part(from), Nanos(5));
    rig.chain.run_before(from, rig.dispatch.part(from), Nanos(5));
    rig.dispatch.pass_on(from, &mut rig.pool, &mut rig.chain);
    rig.dispatch.flush(Nanos(5));
    // One more waits, so that the bucket is never without.
    rig.receive(&[1]);
    let later = |rig: &mut Rig| {
        (0..1024).for_each(|_| rig.chain.expire(Nanos::from_secs(3600)));
        rig.chain.flows()
    };
    assert_eq!(
        (rig.dispatch.offloaded(), later(&mut rig)),
        (2, 1),
        "its state is elsewhere"
    );
    rig.help(0, 2);
    rig.turn();
    assert_eq!((rig.dispatch.offloaded(), later(&mut rig)), (0, 0));
    assert!(!rig.dispatch.is_quiet());
}

/// A lent bucket is not looked up by its dispatcher until the last packet is back.
#[test]
fn a_lent_bucket_is_used_again_once_its_packets_are_back() {
    let mut rig = Rig::of(Unit::Bucket, 1, true);
    let flows_of = |rig: &mut Rig| {
        // Packet 1 is looked up aside.
        let (frame, hash) = rig.frames[1].clone();
        assert!(rig.batch.push(&mut rig.pool, &frame, Nanos(0), hash));
        rig.chain.look_up(&mut rig.batch, Nanos(0));
        let found = rig.batch.len();
        rig.batch.release(&mut rig.pool);
        found
    };
    assert_eq!(flows_of(&mut rig), 1);
    rig.script(|script| script.place = Some(A));
    rig.receive(&[1, 1]);
    assert_eq!(flows_of(&mut rig), 0);
    rig.help(0, 1);
    rig.turn();
    assert_eq!(flows_of(&mut rig), 0, "one is still there");
    rig.help(0, 1);
    rig.turn();
    assert_eq!(flows_of(&mut rig), 1);
    // Parked packets that come home take it along.
    rig.receive(&[1]);
    rig.script(|script| (script.relieve, script.place) = (1, None));
    rig.turn();
    rig.receive(&[1]);
    assert_eq!((rig.held().packets, flows_of(&mut rig)), (1, 0));
    rig.help(0, 1);
    rig.turn();
    assert_eq!((rig.held().packets, flows_of(&mut rig)), (0, 1));
}
