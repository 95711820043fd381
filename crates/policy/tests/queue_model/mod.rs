//! A core that dispatches, and its helpers, in virtual time: any [`CoreMapper`] through the
//! vocabulary that the live workers speak, with every cost a number.
//!
//! The deciding core polls its NIC in batches until nothing is left there, places what came, asks
//! its mapper, and processes one batch. A helper that was recruited is awake a while later; packets
//! handed to it are with it a little later; the deciding core is told what is done a little later.
//! Idea C is checked at every step: all packets of a flow that are in the system are in one place,
//! none is lost, and each flow's leave in the order in which they came.

pub mod traffic;
pub mod train;

use std::collections::{HashMap, VecDeque};
use tailwater_net::Nanos;
use tailwater_policy::core::{
    CoreMapper, Flowlet, Helper, Load, Loads, Notice, Place, Plan, QueuedFlow, View,
};
use traffic::Arrival;

/// Packets received, or processed, at a time.
const BATCH: usize = 32;
/// Batches received before one is processed, at most.
const POLLS: usize = 8;
/// The epoch in which active cores are counted (NetBlaze, section 4).
const COUNTED: u64 = 100_000;

/// What work takes, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// Each batch that is processed.
    pub batch: u64,
    /// Each of its packets.
    pub packet: u64,
    /// Each flow that packets in a batch are of: its state is not in the cache.
    pub flow: u64,
    /// Each packet that opens a flow, beside that.
    pub new_flow: u64,
    /// Each batch that is received.
    pub poll: u64,
    /// Each packet that is received and looked up.
    pub receive: u64,
    /// Each packet that is handed to a helper.
    pub hand_over: u64,
    /// A decision.
    pub decide: u64,
    /// Each flow that is decided about.
    pub decide_flow: u64,
}

impl Service {
    /// What a packet takes of a core that does all the work, in full batches of different flows.
    pub fn per_packet(&self) -> u64 {
        self.packet + self.flow + self.receive + (self.batch + self.poll) / BATCH as u64
    }
}

/// A core and its helpers.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    pub service: Service,
    pub helpers: usize,
    /// Until a helper that is recruited processes.
    pub wake: u64,
    /// Until a packet that is handed over is with the helper, and until its end is known.
    pub latency: u64,
    /// Of a packet of a split flow, how many hundredths of its work the deciding core does.
    pub split: u64,
}

/// Never moves anything.
pub struct Never;

impl CoreMapper for Never {
    fn due(&self, _now: Nanos, _packets: u32) -> bool {
        false
    }

    fn decide(&mut self, _view: &View<'_>, _plan: &mut Plan) {}
}

/// A packet that the deciding core processed.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    pub end: u64,
    pub arrival: u64,
    pub flow: u32,
}

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Of each packet, rising.
    pub latencies: Vec<u64>,
    /// Active cores, averaged over epochs of 100 µs.
    pub cores: f64,
    /// Flows moved with packets that waited.
    pub moves: u64,
    /// Flowlets placed on helpers.
    pub placed: u64,
    pub decisions: u64,
    pub recruited: u64,
    pub splits: u64,
    pub whale_notices: u64,
    pub out_of_cores: u64,
    pub boosts: u64,
    /// Packets held until the helper that had their flow was done with it.
    pub held: u64,
    /// What the deciding core processed.
    pub own: Vec<Own>,
}

impl Outcome {
    /// The latency that this share of the packets, in thousandths, do not exceed.
    pub fn per_mille(&self, share: usize) -> u64 {
        let last = self.latencies.len() - 1;
        self.latencies[(self.latencies.len() * share / 1000).min(last)]
    }
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    arrival: u64,
    flow: u32,
    /// Its number within its flow.
    number: u32,
    new: bool,
    /// Its first part is done; only the last is to be.
    last_part: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// Received so far.
    received: u32,
    /// Left so far.
    left: u32,
    /// In the system, as the deciding core knows it.
    inside: u32,
    /// In the own queue.
    queued: u32,
    /// Held until none is with the helper.
    held: u32,
    place: usize,
    /// The last batch that had a packet of it.
    batch: u64,
    /// The helper that has the last part of its chain.
    split: Option<usize>,
}

#[derive(Clone, Debug, Default)]
struct Worker {
    /// Packets, and when each is here.
    queue: VecDeque<(u64, Packet)>,
    /// When it has done what it is doing, or is awake.
    free: u64,
    /// What is done and not yet told: when it is known, and of which flow.
    done: VecDeque<(u64, u32)>,
    /// Packets of each flow, as the deciding core knows it.
    flows: HashMap<u32, u32>,
    recruited_at: u64,
    /// The last counted epoch that it was counted in, plus one.
    counted: u64,
    /// Counted epochs that it was active in.
    active: u64,
}

struct Model<'a> {
    machine: &'a Machine,
    now: u64,
    flows: Vec<Flow>,
    queue: VecDeque<Packet>,
    here: Load,
    /// Helpers that are relieved, as a bit map; what is held meanwhile, by flow; all of it.
    relieved: u64,
    held: HashMap<u32, VecDeque<Packet>>,
    waiting: Load,
    /// Flows with held packets that have left their helpers.
    free_to_go: Vec<u32>,
    helpers: Vec<Helper>,
    workers: Vec<Worker>,
    outcome: Outcome,
    /// Batches processed, by all cores.
    batches: u64,
    /// For each flow, its place in the view that is made.
    slots: Vec<u32>,
}

/// Runs traffic through a machine until all of it has left.
///
/// # Panics
/// If a mapper breaks idea C or the vocabulary.
pub fn run(mapper: &mut dyn CoreMapper, machine: &Machine, traffic: &[Arrival]) -> Outcome {
    let flows = traffic.iter().map(|a| a.flow + 1).max().unwrap_or(0) as usize;
    let mut model = Model {
        machine,
        now: 0,
        flows: vec![Flow::default(); flows],
        queue: VecDeque::new(),
        here: Load::default(),
        relieved: 0,
        held: HashMap::new(),
        waiting: Load::default(),
        free_to_go: Vec::new(),
        helpers: vec![Helper::default(); machine.helpers],
        workers: vec![Worker::default(); machine.helpers],
        outcome: Outcome::default(),
        batches: 0,
        slots: vec![u32::MAX; flows],
    };
    model.run(mapper, traffic);
    let mut outcome = model.outcome;
    assert_eq!(outcome.latencies.len(), traffic.len(), "packets are lost");
    outcome.latencies.sort_unstable();
    outcome
}

impl Model<'_> {
    fn run(&mut self, mapper: &mut dyn CoreMapper, traffic: &[Arrival]) {
        let service = self.machine.service;
        let mut plan = Plan::default();
        let mut next = 0;
        let end = traffic.last().map_or(0, |last| last.at);
        while next < traffic.len() || self.outcome.latencies.len() < traffic.len() {
            let turn = self.now;
            assert!(turn <= end * 20, "packets wait for ever");
            for helper in 0..self.workers.len() {
                self.work(helper);
                self.told(helper);
            }
            self.place_held(mapper);
            let mut received = 0;
            for _ in 0..POLLS {
                let ready = |arrival: &&Arrival| arrival.at <= self.now;
                let batch = traffic[next..].iter().take(BATCH).take_while(ready).count();
                if batch > 0 {
                    self.now += service.poll;
                }
                for arrival in &traffic[next..next + batch] {
                    self.receive(mapper, *arrival);
                }
                next += batch;
                received += batch;
                if batch < BATCH {
                    break;
                }
            }
            let due = mapper.due(Nanos(self.now), self.queue.len() as u32);
            if due {
                self.decide(mapper, &mut plan);
            }
            let processed = self.process(plan.boost, mapper, turn);
            if received + processed == 0 && !due {
                // Nothing to do until a packet comes, or a helper tells, or a little time is over.
                let arrival = traffic.get(next).map_or(u64::MAX, |arrival| arrival.at);
                self.now = arrival.clamp(self.now + 50, self.now + 1_000);
            }
        }
        let epochs = self.now.div_ceil(COUNTED);
        for helper in 0..self.workers.len() {
            if self.helpers[helper].recruited {
                self.count(helper);
            }
        }
        let active: u64 = self.workers.iter().map(|worker| worker.active).sum();
        self.outcome.cores = 1.0 + active as f64 / epochs as f64;
    }

    fn receive(&mut self, mapper: &mut dyn CoreMapper, arrival: Arrival) {
        self.now += self.machine.service.receive;
        let flow = &mut self.flows[arrival.flow as usize];
        let packet = Packet {
            arrival: arrival.at,
            flow: arrival.flow,
            number: flow.received,
            new: flow.received == 0 && arrival.flow >= traffic::KNOWN,
            last_part: false,
        };
        flow.received += 1;
        if flow.inside == 0 {
            let flowlet = Flowlet {
                arrival: Nanos(arrival.at),
                new: packet.new,
                packets: 1,
                held: false,
            };
            let loads = Loads {
                now: Nanos(self.now),
                here: self.here,
                helpers: &self.helpers,
            };
            flow.place = mapper.place(flowlet, &loads).index();
            self.outcome.placed += u64::from(flow.place > 0);
        }
        flow.inside += 1;
        match flow.place {
            0 => self.keep(packet),
            // One that was just placed there has none to wait for.
            place if flow.held > 0 || self.relieved >> (place - 1) & 1 != 0 && flow.inside > 1 => {
                self.waiting.flows += u32::from(flow.held == 0);
                self.waiting.packets += 1;
                flow.held += 1;
                self.outcome.held += 1;
                self.held.entry(packet.flow).or_default().push_back(packet);
            }
            place => self.hand_over(place - 1, packet),
        }
    }

    /// Places flows that have left a helper, with what was held of them.
    fn place_held(&mut self, mapper: &mut dyn CoreMapper) {
        for number in std::mem::take(&mut self.free_to_go) {
            let held = self.held.remove(&number).expect("it is held");
            let flowlet = Flowlet {
                arrival: Nanos(held[0].arrival),
                new: false,
                packets: held.len() as u32,
                held: true,
            };
            let loads = Loads {
                now: Nanos(self.now),
                here: self.here,
                helpers: &self.helpers,
            };
            let place = mapper.place(flowlet, &loads).index();
            let flow = &mut self.flows[number as usize];
            assert_eq!(flow.inside, flow.held, "it is still with a helper");
            self.waiting.flows -= 1;
            self.waiting.packets -= flow.held;
            (flow.place, flow.held) = (place, 0);
            for packet in held {
                match place {
                    0 => self.keep(packet),
                    place => self.hand_over(place - 1, packet),
                }
            }
        }
    }

    fn keep(&mut self, packet: Packet) {
        let flow = &mut self.flows[packet.flow as usize];
        flow.queued += 1;
        self.here.flows += u32::from(flow.queued == 1);
        self.here.packets += 1;
        self.queue.push_back(packet);
    }

    fn hand_over(&mut self, helper: usize, packet: Packet) {
        self.now += self.machine.service.hand_over;
        let (known, worker) = (&mut self.helpers[helper], &mut self.workers[helper]);
        assert!(!known.taken, "a taken helper is used");
        if !known.recruited {
            known.recruited = true;
            worker.recruited_at = self.now;
            worker.free = self.now + self.machine.wake;
            self.outcome.recruited += 1;
        }
        let packets = worker.flows.entry(packet.flow).or_default();
        *packets += 1;
        known.load.flows += u32::from(*packets == 1);
        known.load.packets += 1;
        worker
            .queue
            .push_back((self.now + self.machine.latency, packet));
    }

    /// What a helper does up to now.
    fn work(&mut self, helper: usize) {
        loop {
            let worker = &mut self.workers[helper];
            let Some(&(here, _)) = worker.queue.front() else {
                return;
            };
            let start = worker.free.max(here);
            if start > self.now {
                return;
            }
            let mut end = start + self.machine.service.batch;
            self.batches += 1;
            let mut batch = [None; BATCH];
            for slot in &mut batch {
                match worker.queue.front() {
                    Some(&(here, packet)) if here <= start => {
                        worker.queue.pop_front();
                        let flow = &mut self.flows[packet.flow as usize];
                        end += cost(self.machine, packet, flow, self.batches, false);
                        *slot = Some(packet);
                    }
                    _ => break,
                }
            }
            worker.free = end;
            for packet in batch.into_iter().flatten() {
                let done = (end + self.machine.latency, packet.flow);
                self.workers[helper].done.push_back(done);
                self.leave(packet, end);
            }
        }
    }

    /// A packet leaves the machine.
    fn leave(&mut self, packet: Packet, end: u64) {
        let flow = &mut self.flows[packet.flow as usize];
        assert_eq!(flow.left, packet.number, "a flow's packets are reordered");
        flow.left += 1;
        self.outcome.latencies.push(end - packet.arrival);
    }

    /// The deciding core hears of what a helper has done.
    fn told(&mut self, helper: usize) {
        let (known, worker) = (&mut self.helpers[helper], &mut self.workers[helper]);
        while let Some(&(at, flow)) = worker.done.front() {
            if at > self.now {
                break;
            }
            worker.done.pop_front();
            let packets = worker.flows.get_mut(&flow).expect("it was handed over");
            *packets -= 1;
            known.load.packets -= 1;
            if *packets == 0 {
                worker.flows.remove(&flow);
                known.load.flows -= 1;
            }
            known.idle_since = Nanos(self.now);
            let number = flow;
            let flow = &mut self.flows[flow as usize];
            flow.inside -= 1;
            if flow.inside == 0 {
                flow.split = None;
            }
            if flow.held > 0 && flow.inside == flow.held {
                self.free_to_go.push(number);
            }
        }
    }

    fn process(&mut self, boost: bool, mapper: &mut dyn CoreMapper, turn: u64) -> usize {
        // In boost mode only what nobody else can process.
        let own = |packet: &&Packet| !boost || self.flows[packet.flow as usize].split.is_some();
        let count = self.queue.iter().take(BATCH).take_while(own).count();
        if count == 0 {
            return 0;
        }
        let batch: Vec<Packet> = self.queue.drain(..count).collect();
        self.now += self.machine.service.batch;
        self.batches += 1;
        let mut new = 0;
        for packet in &batch {
            let flow = &mut self.flows[packet.flow as usize];
            let split = flow.split.is_some();
            self.now += cost(self.machine, *packet, flow, self.batches, split);
            new += u32::from(packet.new);
        }
        for packet in batch {
            let flow = &mut self.flows[packet.flow as usize];
            flow.queued -= 1;
            self.here.packets -= 1;
            self.here.flows -= u32::from(flow.queued == 0);
            match flow.split {
                Some(helper) => {
                    let last_part = true;
                    self.hand_over(
                        helper,
                        Packet {
                            last_part,
                            ..packet
                        },
                    );
                }
                None => {
                    flow.inside -= 1;
                    self.outcome.own.push(Own {
                        end: self.now,
                        arrival: packet.arrival,
                        flow: packet.flow,
                    });
                    self.leave(packet, self.now);
                }
            }
        }
        mapper.completed(count as u32, new, Nanos(self.now - turn));
        count
    }

    fn decide(&mut self, mapper: &mut dyn CoreMapper, plan: &mut Plan) {
        let mut order = Vec::new();
        let mut queued: Vec<QueuedFlow> = Vec::new();
        for packet in &self.queue {
            let slot = &mut self.slots[packet.flow as usize];
            if *slot == u32::MAX {
                *slot = order.len() as u32;
                order.push(packet.flow);
                let flow = self.flows[packet.flow as usize];
                let bound = flow.inside > flow.queued || flow.split.is_some();
                queued.push(QueuedFlow { packets: 0, bound });
            }
            queued[*slot as usize].packets += 1;
        }
        for flow in &order {
            self.slots[*flow as usize] = u32::MAX;
        }
        let view = View {
            now: Nanos(self.now),
            oldest: Nanos(self.queue.front().map_or(self.now, |packet| packet.arrival)),
            queued: &queued,
            held: self.waiting,
            packets: self.queue.len() as u32,
            helpers: &self.helpers,
        };
        let boost = plan.boost;
        plan.clear(queued.len());
        mapper.decide(&view, plan);
        let service = self.machine.service;
        self.now += service.decide + service.decide_flow * order.len() as u64;
        self.outcome.decisions += 1;
        self.outcome.boosts += u64::from(plan.boost && !boost);
        match plan.notice {
            Some(Notice::WhaleBeyondSplit { .. }) => self.outcome.whale_notices += 1,
            Some(Notice::OutOfCores { .. }) => self.outcome.out_of_cores += 1,
            None => {}
        }
        self.apply(plan, &order, &queued);
    }

    fn apply(&mut self, plan: &Plan, order: &[u32], queued: &[QueuedFlow]) {
        for split in &plan.splits {
            assert_eq!(plan.places[split.flow], Place::HERE);
            assert!(!queued[split.flow].bound, "a bound flow is split");
            self.flows[order[split.flow] as usize].split = Some(split.helper);
            self.outcome.splits += 1;
        }
        let mut moved = 0;
        for ((place, flow), queued) in plan.places.iter().zip(order).zip(queued) {
            if *place != Place::HERE {
                assert!(!queued.bound, "a bound flow is moved");
                let flow = &mut self.flows[*flow as usize];
                assert_eq!((flow.place, flow.inside), (0, flow.queued));
                flow.place = place.index();
                flow.queued = 0;
                self.here.flows -= 1;
                self.here.packets -= queued.packets;
                moved += 1;
            }
        }
        self.outcome.moves += moved;
        if moved > 0 {
            for _ in 0..self.queue.len() {
                let packet = self.queue.pop_front().expect("counted");
                match self.flows[packet.flow as usize].place {
                    0 => self.queue.push_back(packet),
                    place => self.hand_over(place - 1, packet),
                }
            }
        }
        for helper in 0..self.helpers.len() {
            if plan.release & 1 << helper != 0 {
                let known = &mut self.helpers[helper];
                assert!(known.recruited, "released without having been recruited");
                assert_eq!(known.load, Load::default(), "released with work");
                known.recruited = false;
                self.count(helper);
            }
        }
        assert_eq!((plan.release | plan.relieve) >> self.helpers.len(), 0);
        self.relieved = plan.relieve;
    }

    /// Counts the epochs in which a helper was active since it was recruited.
    fn count(&mut self, helper: usize) {
        let worker = &mut self.workers[helper];
        let end = self.now / COUNTED + 1;
        worker.active += end - (worker.recruited_at / COUNTED).max(worker.counted);
        worker.counted = end;
    }
}

/// What a packet in a batch takes of a core that processes all of its chain, or, if its flow is split,
/// one part.
fn cost(machine: &Machine, packet: Packet, flow: &mut Flow, batch: u64, split: bool) -> u64 {
    let service = machine.service;
    let mut more = if packet.new { service.new_flow } else { 0 };
    if flow.batch != batch {
        flow.batch = batch;
        more += service.flow;
    }
    match (split, packet.last_part) {
        (_, true) => service.packet * (100 - machine.split) / 100,
        (true, false) => service.packet * machine.split / 100 + more,
        (false, false) => service.packet + more,
    }
}
