//! Bucket leases: dispatchers whose unit of offloading is the RSS bucket.

mod common;

use common::{Anything, MS, Random, SLO, US, bursty, checked, conserved, costs, run};
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{ServiceCosts, SplitProfile};
use tailwater_policy::core::{CoreMapper, Destination, Flowlet, Loads, MakeMapper, Plan, Unit, View};
use tailwater_policy::server::{Move, ServerMapper, ServerView};
use tailwater_policy::tailwater::{TailwaterMapper, TailwaterOptions};
use tailwater_sim::policies::Steered;
use tailwater_sim::{ChainModel, ChainReport, Rack, RackPolicy, Recording, RunOptions, SplitCost};

/// Mapper that moves a few random buckets to random cores every 2 ms.
struct AnyMoves {
    random: Random,
    cores: u64,
}

impl ServerMapper for AnyMoves {
    fn period(&self) -> Nanos {
        Nanos(2 * MS)
    }

    fn enforcement_delay(&self) -> Nanos {
        Nanos(50 * US)
    }

    fn remap(&mut self, view: &ServerView<'_>, moves: &mut Vec<Move>) {
        let mut bucket = self.random.below(40) as u16;
        while usize::from(bucket) < view.buckets.len() {
            let to = self.random.below(self.cores) as u16;
            if view.buckets[usize::from(bucket)].core != to {
                moves.push(Move { bucket, to });
            }
            bucket += 1 + self.random.below(40) as u16;
        }
    }
}

fn policy(make: MakeMapper, dedicated: u16, moves: Option<Box<dyn ServerMapper>>) -> RackPolicy {
    RackPolicy {
        name: "leases".to_owned(),
        steered: Steered::Rack(moves),
        core: Some(make),
        start_cores: Some(dedicated),
    }
}

fn late(report: &ChainReport) -> u64 {
    report.late_by_cause.values().sum()
}

/// Every packet opens a flow, at one and a half times what a core processes.
fn flood(length: u64) -> Arc<Recording> {
    let mut random = Random(3);
    let (mut now, mut flow) = (0, 0);
    let packets = std::iter::from_fn(|| {
        now += random.gap(10_000.0).max(1);
        flow += 1;
        (now < length).then_some((Nanos(now), flow, 100))
    });
    Arc::new(Recording::of_packets("flood", packets, 50))
}

/// A packet takes 5 us, and 10 us more if it opens a flow. A dispatcher of flows opens them itself if functions have to
/// open others with them.
fn opening(opens_at_home: bool) -> ChainModel {
    let service = ServiceCosts {
        new_flow: 10_000.0,
        ..costs(4900.0, 3200.0)
    };
    ChainModel {
        receive_packet: 800.0,
        dispatch_packet: 1700.0,
        lease_packet: 300.0,
        hand_over_packet: 500.0,
        auxiliary_packet: 700.0,
        opens_at_home,
        ..ChainModel::new("opening", service)
    }
}

#[test]
fn a_flood_of_new_flows_is_offloaded_with_their_opening() {
    let packets = flood(400 * MS);
    for opens_at_home in [false, true] {
        let report = |unit| {
            let options = TailwaterOptions {
                unit,
                costs: Some(opening(opens_at_home).costs),
                ..TailwaterOptions::new(SLO)
            };
            let make: MakeMapper =
                Arc::new(move || Box::new(TailwaterMapper::new(options, SplitProfile::new()).unwrap()));
            checked(
                &Rack::of_one(4),
                opening(opens_at_home),
                policy(make, 1, None),
                &packets,
            )
        };
        let (flows, buckets) = (report(Unit::Flow), report(Unit::Bucket));
        let [of_flows, of_buckets] = [late(&flows), late(&buckets)];
        let line = format!(
            "at home {opens_at_home}: {of_buckets} late, by flow {of_flows}, of {}",
            packets.packets()
        );
        println!(
            "{line}, {:.2} cores, by flow {:.2}",
            buckets.cores.total, flows.cores.total
        );
        assert!(buckets.decisions.packets_handed > packets.packets() / 4, "{line}");
        assert_eq!(buckets.packets.lost, 0, "{line}");
        if opens_at_home {
            assert_eq!(flows.decisions.packets_handed, 0, "{line}");
            assert!(of_buckets * 10 < of_flows, "{line}");
        } else {
            assert!(of_buckets <= of_flows, "{line}");
        }
    }
}

/// For any decisions of core mappers, and any moves of buckets between dispatchers, checks of order, owners and counts
/// hold per flow. The work done is that of each packet once.
#[test]
fn whatever_is_decided_each_packet_is_processed_once_and_in_order() {
    let (mut parked, mut splits, mut moved) = (0, 0, 0);
    for seed in 0..16_u64 {
        let splits_here = seed % 3 == 0;
        let packets = bursty(200 + seed, 60 * MS, 60, 2);
        let make: MakeMapper = Arc::new(move || {
            Box::new(Anything {
                random: Random(seed),
                split: splits_here,
                unit: Unit::Bucket,
            })
        });
        let service = ServiceCosts {
            byte: 1.0,
            new_flow: 700.0,
            ..costs(2000.0, 0.0)
        };
        // The two parts of a split add up to the whole.
        let model = ChainModel {
            splits: vec![SplitCost {
                last_functions: 1,
                first: 0.5,
                last: 0.5,
            }],
            // Then buckets are not split.
            opens_at_home: seed % 2 == 1,
            ..ChainModel::new("exact", service)
        };
        let dedicated = 1 + (seed % 3) as u16;
        let moves: Option<Box<dyn ServerMapper>> = match dedicated {
            1 => None,
            cores => Some(Box::new(AnyMoves {
                random: Random(seed),
                cores: cores.into(),
            })),
        };
        let mut rack = Rack::of_one(dedicated + 3);
        (rack.servers[0].ring, rack.servers[0].reta_delay) = (1 << 16, Nanos(20 * US));
        let options = RunOptions {
            check: true,
            ..RunOptions::default()
        };
        let mut report = run(&rack, model, policy(make, dedicated, moves), &packets, &options);
        let duration = report.duration_s;
        let report = report.chains.remove(0);
        conserved(&report, &packets);
        assert_eq!(report.packets.delivered, report.packets.offered, "seed {seed}");
        let work: u64 = packets.iter().map(|(_, _, bytes)| 2000 + u64::from(bytes)).sum();
        let work = (work + 700 * report.packets.flows) as f64;
        let worked = report.cores.busy * report.cores.total * duration * 1e9;
        let splits_begun = report.decisions.splits;
        assert_eq!(splits_begun > 0, splits_here && seed % 2 == 0, "seed {seed}");
        if splits_begun == 0 {
            assert!((worked - work).abs() < 100.0, "seed {seed}: {worked} instead of {work}");
        }
        parked += report.decisions.packets_parked;
        splits += splits_begun;
        moved += report.decisions.buckets_moved;
    }
    assert!(parked > 1000 && splits > 0 && moved > 100, "{parked} {splits} {moved}");
}

/// Flows of a bucket stay together: while one has a packet on an auxiliary core, the others follow it there.
#[test]
fn a_bucket_has_one_core_at_a_time() {
    struct Away(Option<u64>);
    impl CoreMapper for Away {
        fn unit(&self) -> Unit {
            Unit::Bucket
        }
        fn due(&self, _: Nanos, _: u32) -> bool {
            false
        }
        fn decide(&mut self, _: &View<'_>, _: &mut Plan) {}
        fn place(&mut self, flowlet: Flowlet, _: &Loads<'_>) -> Destination {
            assert!(!flowlet.new, "a dispatcher of buckets cannot tell");
            let next = self.0.map_or(0, |last| (last + 1) % 2);
            self.0 = Some(next);
            Destination::auxiliary(next as usize)
        }
    }
    // Two new flows of each of two buckets, at once. `Recording` draws buckets from the flow's number.
    let all: Vec<(Nanos, u32, u16)> = (0..2000).map(|flow| (Nanos(u64::from(flow)), flow, 100)).collect();
    let recording = Recording::of_packets("all", all, 1);
    let buckets: Vec<u16> = recording.buckets().collect();
    let pair = |not: Option<u32>| {
        let other = not.map(|flow| buckets[flow as usize]);
        let pairs = (0..buckets.len()).filter(|first| Some(buckets[*first]) != other);
        let pair = |first: usize| {
            let second = buckets[first + 1..]
                .iter()
                .position(|bucket| *bucket == buckets[first])?;
            Some((first as u32, (first + 1 + second) as u32))
        };
        pairs.filter_map(pair).next().unwrap()
    };
    let (a, b) = pair(None);
    let (c, d) = pair(Some(a));
    let list = [(0, a), (0, c), (0, b), (0, d), (900_000, b), (900_000, a)];
    let packets = Recording::of_packets("pairs", list.map(|(at, flow)| (Nanos(at), flow, 100)), 1);
    let (packets, make): (_, MakeMapper) = (Arc::new(packets), Arc::new(|| Box::new(Away(None))));
    let model = ChainModel {
        batch: 1,
        ..ChainModel::new("pairs", costs(1000.0, 0.0))
    };
    let mut rack = Rack::of_one(3);
    (rack.timing.wake, rack.timing.hand_over, rack.timing.receipt) = (Nanos(10_000), Nanos(0), Nanos(0));
    let report = checked(&rack, model, policy(make, 1, None), &packets);
    // An auxiliary core processes each pair, one packet after the other. At the third pair it is asleep.
    assert_eq!((report.decisions.packets_handed, report.decisions.activated), (6, 2));
    assert_eq!(
        (report.latency.sum().0, report.latency.max().0),
        (2 * 3_000 + 23_000, 12_000)
    );
}
