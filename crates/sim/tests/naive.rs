//! Comparison of the engine with a simple simulator that has an event per packet: same packets, same latencies, same
//! losses, for random racks, traffic and moves of buckets.

mod common;

use common::{Random, conserved};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_policy::capacity::ServiceCosts;
use tailwater_policy::server::{Move, ServerMapper, ServerView};
use tailwater_sim::policies::Steered;
use tailwater_sim::{ChainModel, ChainRun, Rack, RackPolicy, Recording, RunOptions, Workload, simulate};

/// Scripted sets of moves, made one after the other, independent of the view.
#[derive(Clone)]
struct Script {
    period: u64,
    delay: u64,
    moves: VecDeque<Vec<Move>>,
}

impl ServerMapper for Script {
    fn period(&self) -> Nanos {
        Nanos(self.period)
    }

    fn enforcement_delay(&self) -> Nanos {
        Nanos(self.delay)
    }

    fn remap(&mut self, view: &ServerView<'_>, moves: &mut Vec<Move>) {
        let next = self.moves.pop_front().unwrap_or_default();
        // No move to the core that the bucket is on.
        let news = |m: &Move| view.buckets[usize::from(m.bucket)].core != m.to;
        moves.extend(next.into_iter().filter(news));
    }
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    arrival: u64,
    bytes: u64,
    bucket: u16,
    new: bool,
}

#[derive(Debug)]
enum Event {
    /// Rows of some buckets change.
    Table(Vec<Move>),
    /// A bucket has arrived at its new core.
    Arrived(u16),
    /// A packet has arrived at a core's NIC.
    Packet(Packet),
    /// A core has completed its current work.
    Done(usize),
    /// The mapper may be due.
    Ask,
}

#[derive(Default)]
struct Core {
    ring: VecDeque<Packet>,
    kept: Vec<Packet>,
    next: VecDeque<Packet>,
    /// Buckets that arrived while the core was busy, with their times.
    inbox: Vec<(u64, u16)>,
    working_on: Vec<Packet>,
    until: u64,
}

struct Naive<'a> {
    model: &'a ChainModel,
    rack: &'a Rack,
    events: BTreeMap<(u64, u8, u64), Event>,
    numbered: u64,
    cores: Vec<Core>,
    table: Vec<usize>,
    holder: Vec<usize>,
    /// Buckets in migration, with their old core.
    leaving: BTreeMap<u16, usize>,
    announced: u32,
    moving: u32,
    latencies: Vec<u64>,
    lost: u64,
    kept_back: u64,
}

impl Naive<'_> {
    fn at(&mut self, time: u64, event: Event) {
        // At equal times: tables, then buckets, then packets, then completions. The mapper runs before all of them.
        let class = match event {
            Event::Ask | Event::Table(_) => 0,
            Event::Arrived(_) => 1,
            Event::Packet(_) => 2,
            Event::Done(_) => 3,
        };
        self.numbered += 1;
        self.events.insert((time, class, self.numbered), event);
    }

    fn run(&mut self, mut script: Option<Script>) {
        if let Some(script) = &script {
            self.at(script.period, Event::Ask);
        }
        let mut packets_left = self.events.values().filter(|e| matches!(e, Event::Packet(_))).count();
        while let Some(((now, ..), event)) = self.events.pop_first() {
            match event {
                Event::Packet(packet) => {
                    packets_left -= 1;
                    let core = self.table[usize::from(packet.bucket)];
                    let ring = self.rack.servers[0].ring as usize;
                    if self.cores[core].ring.len() >= ring {
                        self.lost += 1;
                    } else {
                        self.cores[core].ring.push_back(packet);
                    }
                }
                Event::Done(core) => {
                    for packet in std::mem::take(&mut self.cores[core].working_on) {
                        self.latencies.push(now - packet.arrival);
                    }
                }
                Event::Arrived(bucket) => {
                    let core = self.table[usize::from(bucket)];
                    self.cores[core].inbox.push((now, bucket));
                }
                Event::Table(moves) => {
                    self.announced -= 1;
                    for Move { bucket, to } in moves {
                        let from = std::mem::replace(&mut self.table[usize::from(bucket)], to.into());
                        self.leaving.insert(bucket, from);
                        self.moving += 1;
                    }
                }
                Event::Ask => self.ask(&mut script, now, packets_left),
            }
            let same_time = self
                .events
                .first_key_value()
                .is_some_and(|((time, ..), _)| *time == now);
            if !same_time {
                self.let_go(now);
                for core in 0..self.cores.len() {
                    self.work(core, now);
                }
            }
        }
    }

    fn ask(&mut self, script: &mut Option<Script>, now: u64, packets_left: usize) {
        let Some(script) = script else { return };
        if packets_left == 0 {
            return;
        }
        if self.moving + self.announced > 0 {
            return self.at(now + 100_000, Event::Ask);
        }
        let mut moves = script.moves.pop_front().unwrap_or_default();
        moves.retain(|m| self.table[usize::from(m.bucket)] != usize::from(m.to));
        if !moves.is_empty() {
            self.announced += 1;
            let delay = script.delay + self.rack.servers[0].reta_delay.0;
            self.at(now + delay, Event::Table(moves));
        }
        self.at(now + script.period, Event::Ask);
    }

    /// Transfers buckets to their new core, once the old one has no packets of them.
    fn let_go(&mut self, now: u64) {
        let mut gone = Vec::new();
        for (&bucket, &from) in &self.leaving {
            let core = &self.cores[from];
            let left = core.ring.iter().chain(&core.next).any(|p| p.bucket == bucket);
            if !left {
                gone.push((bucket, now.max(core.until)));
            }
        }
        for (bucket, time) in gone {
            self.leaving.remove(&bucket);
            self.at(time + self.rack.timing.migration.0, Event::Arrived(bucket));
        }
    }

    fn work(&mut self, number: usize, now: u64) {
        let most = usize::from(self.model.batch);
        let buffers = self.rack.servers[0].buffers as usize;
        let core = &mut self.cores[number];
        if core.until > now {
            return;
        }
        // At equal times in the order of their numbers.
        core.inbox.sort_unstable();
        for (_, bucket) in std::mem::take(&mut core.inbox) {
            self.holder[usize::from(bucket)] = number;
            self.moving -= 1;
            let (its, kept) = core.kept.drain(..).partition(|p: &Packet| p.bucket == bucket);
            core.kept = kept;
            core.next.extend::<Vec<Packet>>(its);
        }
        while core.until <= now && !(core.ring.is_empty() && core.next.is_empty()) {
            let mut batch: Vec<Packet> = Vec::new();
            while batch.len() < most
                && let Some(packet) = core.next.pop_front()
            {
                batch.push(packet);
            }
            let room = buffers.saturating_sub(core.kept.len() + core.next.len());
            let take = room.min(most).saturating_sub(batch.len());
            for _ in 0..take.min(core.ring.len()) {
                let Some(packet) = core.ring.pop_front() else {
                    break;
                };
                if self.holder[usize::from(packet.bucket)] == number {
                    batch.push(packet);
                } else {
                    core.kept.push(packet);
                    self.kept_back += 1;
                }
            }
            if batch.is_empty() {
                if room == 0 {
                    return;
                }
                continue;
            }
            let costs = &self.model.costs;
            let bytes: u64 = batch.iter().map(|p| p.bytes).sum();
            let new = batch.iter().filter(|p| p.new).count();
            let took = costs.batch
                + costs.packet * batch.len() as f64
                + costs.byte * bytes as f64
                + costs.new_flow * new as f64;
            core.until = now + took as u64;
            core.working_on = batch;
            let until = core.until;
            self.at(until, Event::Done(number));
            return self.let_go(now);
        }
    }
}

/// Returns random traffic: flows, bursts of many and of one, coinciding times.
fn traffic(seed: u64, count: u32, gap: u64) -> Arc<Recording> {
    let mut random = Random(seed);
    let mut now = 0;
    let packets: Vec<(Nanos, u32, u16)> = (0..count)
        .map(|_| {
            now += match random.below(10) {
                0..4 => 0,
                4..9 => random.below(2 * gap),
                _ => random.below(20 * gap),
            };
            let flow = random.below(1 + random.clone().below(200)) as u32;
            (Nanos(now), flow, 60 + random.below(1000) as u16)
        })
        .collect();
    Arc::new(Recording::of_packets("random", packets, 3))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn the_engine_is_the_naive_simulator(
        seed in any::<u64>(),
        (count, gap) in (1_u32..3000, 10_u64..1500),
        (cores, ring, batch) in (1_u16..6, 1_u32..80, 1_u16..40),
        (batch_cost, packet, new_flow, by_bytes) in (0_u64..500, 1_u64..2000, 0_u64..500, any::<bool>()),
        sets in prop::collection::vec(prop::collection::vec((0_u16..512, 0_u16..6), 0..300), 0..5),
        (period, delay) in (1_000_u64..400_000, 0_u64..50_000),
        together in any::<bool>(),
    ) {
        let packets = traffic(seed, count, gap);
        let mut rack = Rack::of_one(cores);
        rack.servers[0].ring = ring;
        rack.servers[0].buffers = 64;
        rack.servers[0].reta_delay = Nanos(delay / 2);
        let model = ChainModel {
            batch,
            ..ChainModel::new("random", ServiceCosts {
                batch: batch_cost as f64,
                packet: packet as f64,
                byte: if by_bytes { 1.0 } else { 0.0 },
                new_flow: new_flow as f64,
            })
        };
        let moves = sets.into_iter().map(|set| {
            let set: BTreeMap<u16, u16> = set.into_iter().collect();
            set.into_iter().map(|(bucket, to)| Move { bucket, to: to % cores }).collect()
        });
        let script = Script { period, delay, moves: moves.collect() };

        let mut naive = Naive {
            model: &model,
            rack: &rack,
            events: BTreeMap::new(),
            numbered: 0,
            cores: (0..cores).map(|_| Core::default()).collect(),
            table: (0..512).map(|bucket| bucket % usize::from(cores)).collect(),
            holder: (0..512).map(|bucket| bucket % usize::from(cores)).collect(),
            leaving: BTreeMap::new(),
            announced: 0,
            moving: 0,
            latencies: Vec::new(),
            lost: 0,
            kept_back: 0,
        };
        let mut seen = std::collections::HashSet::new();
        let arrivals: Vec<_> = packets.iter().zip(packets.buckets()).collect();
        for ((arrival, flow, bytes), bucket) in arrivals {
            let (arrival, bytes) = (arrival.0, bytes.into());
            naive.at(arrival, Event::Packet(Packet { arrival, bytes, bucket, new: seen.insert(flow) }));
        }
        naive.run(Some(script.clone()));

        let policy = RackPolicy {
            name: "script".to_owned(),
            steered: Steered::Rack(Some(Box::new(script))),
            core: None,
            start_cores: None,
        };
        let chain = ChainRun {
            model: model.clone(),
            slo: Nanos::from_micros(50),
            policy,
            workload: Workload::from(Arc::clone(&packets)),
        };
        let options = RunOptions { check: true, together, ..RunOptions::default() };
        let report = simulate(&rack, vec![chain], &options).unwrap();
        let report = &report.chains[0];
        conserved(report, &packets);
        prop_assert_eq!(report.packets.lost, naive.lost);
        prop_assert_eq!(report.decisions.kept_back, naive.kept_back);
        let mut expected = tailwater_measure::histogram::LatencyHistogram::default();
        naive.latencies.iter().for_each(|latency| expected.record(Nanos(*latency)));
        prop_assert_eq!(report.latency.sum(), expected.sum());
        prop_assert_eq!(report.latency.max(), expected.max());
        let cells: Vec<_> = report.latency.cumulative().collect();
        let wanted: Vec<_> = expected.cumulative().collect();
        prop_assert_eq!(cells, wanted);
    }
}
