//! Search for cliffs: at any load and traffic, no more packets are late or lost than with static RSS on the same cores.
//! (Late ones include lost ones. A flow beyond its share of the buffers may lose more of its own packets than with
//! static RSS, since looking after others takes time, but then fewer are late.)
//!
//! A seed determines the cores, the chain, the machine's moods (slow cores, cores taken away for milliseconds), warm
//! and cold starts and caches, and the traffic: levels, steps, waves, bursts of all flows at once, whales, floods of new
//! flows. A quarter of the chains discard packets that are too late (`serve-fresh`), with both policies; static RSS must
//! not have more late packets then than in order. All get the same packets. `make test` tries a few seeds, and
//! `SOAK_MINUTES=10 cargo test --release -p tailwater-sim --test cliffs -- --nocapture` (part of `make soak`)
//! thousands; `SOAK_SEED=n` repeats one. `SOAK_FROM=100000` tries seeds that nothing was tuned on.

mod common;

use common::{MS, Random, costs, policy, run, static_rss};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailwater_api::WhenOverloaded;
use tailwater_net::Nanos;
use tailwater_policy::capacity::Pause;
use tailwater_sim::{ChainModel, ChainReport, Rack, Recording, RunOptions, SpeedProfile};

/// Nanoseconds per packet of the chain, in full batches.
const PACKET: f64 = 4900.0;
/// Time after which a start from one core has settled, and the time that is judged.
const SETTLED: u64 = 1000 * MS;
const JUDGED: u64 = 600 * MS;

/// Share of the packets of these 600 ms that may be late where static RSS has none late: what it costs to find out that
/// one core less does not suffice.
const LATE_ALLOWED: f64 = 0.02;
/// The same for lost packets.
const LOST_ALLOWED: f64 = 0.001;
/// Factor on static RSS' late and lost packets. Buckets of the two are on other cores at times, and which flows share a
/// core is chance.
const MORE: f64 = 1.1;
/// Late packets of static RSS that discards what is too late: share of the packets beyond those in order, and factor on
/// them. The time that a batch takes is an estimate.
const FRESH_ALLOWED: f64 = 0.002;
const FRESH_MORE: f64 = 1.02;
/// The same for late packets beside a whale. Fewer are lost then, and some of them are late instead.
const MORE_BESIDE_A_WHALE: f64 = 1.25;

#[derive(Clone, Copy, Debug)]
enum Shape {
    Level,
    /// Between half and one and a half times the load, this often.
    Steps(u64),
    Sine(u64),
    /// All flows at once at four times the load, for a tenth of this period.
    Bursts(u64),
}

#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    cores: u16,
    /// Percent of what all cores process.
    load: u64,
    shape: Shape,
    /// Percent of what a core processes.
    whale: Option<u64>,
    /// Percent of the packets that open a flow.
    new_flows: u64,
    /// Percent of a packet's cost: queueing, offloading, taking over.
    dispatch: [u64; 3],
    /// Percent of a packet's cost to open a flow.
    opening: u64,
    /// Cores are this much slower than thought, in percent, every other 100 ms.
    slow: u64,
    /// Milliseconds for which a core is taken away, 15 of a thousand in all.
    pauses: Option<u64>,
    /// All packets open a flow for a tenth of this period, at twice the load.
    flood: Option<u64>,
    /// Percent of a packet's cost that is added for cold caches.
    cold: u64,
    /// Starts on all cores instead of one.
    warm: bool,
    /// Discards packets that are too late.
    fresh: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut random = Random(seed);
        let mut below = |bound| random.below(bound);
        let period = (20 + below(180)) * MS;
        Case {
            seed,
            cores: 2 + below(5) as u16,
            load: 20 + below(110),
            shape: match below(4) {
                0 => Shape::Level,
                1 => Shape::Steps(period),
                2 => Shape::Sine(period),
                _ => Shape::Bursts(period),
            },
            whale: (below(4) == 0).then(|| 60 + below(100)),
            new_flows: [0, 1, 2, 20][below(4) as usize],
            dispatch: [1 + below(10), 1 + below(6), 1 + below(6)],
            opening: below(100),
            slow: [0, 0, 20, 50][below(4) as usize],
            pauses: (below(4) == 0).then(|| [1, 3, 3, 10][below(4) as usize]),
            // Earlier seeds have the same cases but for what follows.
            flood: (below(6) == 0).then_some(period),
            cold: [0, 0, 0, 50][below(4) as usize],
            warm: below(3) == 0,
            fresh: below(4) == 0,
        }
    }

    fn rack(&self) -> Rack {
        let mut rack = Rack::of_one(self.cores);
        if self.slow > 0 {
            let slower = 1.0 + self.slow as f64 / 100.0;
            rack.pace = Some(SpeedProfile {
                step: Nanos(100 * MS),
                times: (0..40).map(|step| if step % 2 == 0 { 1.0 } else { slower }).collect(),
            });
        }
        rack
    }

    fn model(&self) -> ChainModel {
        let part = |percent: u64| PACKET * percent as f64 / 100.0;
        let [queue, offload, take_over] = self.dispatch.map(part);
        let mut model = ChainModel::new("cliffs", costs(PACKET - 100.0, 3200.0));
        model.costs.new_flow = part(self.opening);
        model.receive_packet = part(2);
        model.dispatch_packet = queue;
        model.lease_packet = part(1);
        model.hand_over_packet = offload;
        model.auxiliary_packet = take_over;
        model.decide = 500.0;
        model.decide_flow = 4.0;
        model.move_packet = 5.0;
        if self.cold > 0 {
            model.cold_after = 500;
            model.cold_packet = part(self.cold);
        }
        if let Some(length) = self.pauses {
            model.pauses = vec![Pause {
                per_second: 15.0 / length as f64,
                nanos: length * MS,
            }];
        }
        if self.fresh {
            model.when_overloaded = WhenOverloaded::ServeFresh;
        }
        model
    }

    /// Returns `true` if all packets open flows at a time.
    fn is_flood(&self, now: u64) -> bool {
        self.flood.is_some_and(|period| now % period < period / 10)
    }

    /// Returns the load at a time, as a factor.
    fn factor(&self, now: u64) -> f64 {
        if self.is_flood(now) {
            return 2.0;
        }
        match self.shape {
            Shape::Level => 1.0,
            Shape::Steps(period) => [0.5, 1.5][(now / period % 2) as usize],
            Shape::Sine(period) => 1.0 + 0.6 * (std::f64::consts::TAU * now as f64 / period as f64).sin(),
            Shape::Bursts(period) => [4.0, 0.67][usize::from(now % period >= period / 10)],
        }
    }

    fn traffic(&self) -> Arc<Recording> {
        let mut random = Random(self.seed ^ 0x5bd1_e995);
        let mean = PACKET * 100.0 / (self.load * u64::from(self.cores)) as f64;
        let (mut now, mut next_flow) = (0, 1000_u32);
        let mut flows: Vec<u32> = (0..1000).collect();
        let mut packets = Vec::new();
        while now < SETTLED + JUDGED {
            now += random.gap(mean / self.factor(now)).max(1);
            // Some flows have more packets than others.
            let at = (random.below(1000) * random.below(1000) / 1000) as usize;
            if random.below(100) < self.new_flows || self.is_flood(now) {
                flows[at] = next_flow;
                next_flow += 1;
            }
            packets.push((now, flows[at]));
        }
        if let Some(whale) = self.whale {
            let gap = (PACKET * 100.0) as u64 / whale;
            packets.extend((0..now / gap).map(|packet| (packet * gap, u32::MAX >> 1)));
            packets.sort();
        }
        let packets = packets.into_iter().map(|(at, flow)| (Nanos(at), flow, 500));
        Arc::new(Recording::of_packets("adversarial", packets, 50))
    }

    /// Compares a policy with static RSS. Returns a line for a report, and `true` if the policy is no worse.
    fn compare(&self, name: &str) -> (String, bool) {
        let packets = self.traffic();
        let options = RunOptions {
            check: true,
            warm_up: Nanos(SETTLED),
            seed: self.seed,
            ..RunOptions::default()
        };
        let shares = |report: &ChainReport| {
            let share = |count: u64| count as f64 / report.packets.offered.max(1) as f64;
            let lost_by = |reason| report.packets.lost_by_reason.get(reason).copied().unwrap_or(0);
            // A flow beyond its share loses its own packets: they are late, but no other flow lost them. What is too
            // late is late either way.
            let lost = report.packets.lost - lost_by("flow-overload") - lost_by("too-late");
            (share(report.late_by_cause.values().sum()), share(lost))
        };
        let of = |policy| run(&self.rack(), self.model(), policy, &packets, &options);
        let mut policy = policy(name);
        if self.warm {
            policy.start_cores = Some(self.cores);
        }
        let (alone, with) = (of(static_rss(self.cores)), of(policy));
        let ((late, lost), (most_late, most_lost)) = (shares(&with.chains[0]), shares(&alone.chains[0]));
        let line = format!(
            "{name}: late {late:.4}, lost {lost:.4}, {:.2} cores; static: late {most_late:.4}, lost {most_lost:.4}: {self}",
            with.cores.average
        );
        let more_late = if self.whale.is_some() {
            MORE_BESIDE_A_WHALE
        } else {
            MORE
        };
        let holds = late <= most_late * more_late + LATE_ALLOWED && lost <= most_lost * MORE + LOST_ALLOWED;
        if !self.fresh {
            return (line, holds);
        }
        let in_order = ChainModel {
            when_overloaded: WhenOverloaded::InOrder,
            ..self.model()
        };
        let in_order = run(&self.rack(), in_order, static_rss(self.cores), &packets, &options);
        let late_in_order = shares(&in_order.chains[0]).0;
        let helps = most_late <= late_in_order * FRESH_MORE + FRESH_ALLOWED;
        (
            format!("{line}; static in order: late {late_in_order:.4}"),
            holds && helps,
        )
    }
}

fn assert_no_cliff(seed: u64) {
    let (line, holds) = Case::new(seed).compare("tailwater");
    println!("{line}");
    assert!(holds, "SOAK_SEED={seed}: {line}");
}

#[test]
fn no_more_packets_are_late_or_lost_than_with_static_rss() {
    (0..4).for_each(assert_no_cliff);
}

/// Where the engine let each core work for a while by itself, a flow's packets stayed in the caches for longer.
#[test]
fn packets_are_as_often_cold_as_with_static_rss() {
    assert_no_cliff(1003);
}

/// As long as `SOAK_MINUTES` says.
#[test]
fn search() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    if let Some(seed) = number("SOAK_SEED") {
        return assert_no_cliff(seed);
    }
    let Some(minutes) = number("SOAK_MINUTES") else {
        println!("search skipped: SOAK_MINUTES is not set");
        return;
    };
    let (began, mut worse, mut tried) = (Instant::now(), 0, 0);
    for seed in number("SOAK_FROM").unwrap_or(1000).. {
        if began.elapsed() >= Duration::from_secs(60 * minutes) {
            break;
        }
        let (line, holds) = Case::new(seed).compare("tailwater");
        tried += 1;
        if !holds {
            worse += 1;
            println!("SOAK_SEED={seed}: {line}");
        }
    }
    println!("{tried} cases, {worse} with more packets late or lost than with static RSS");
    assert_eq!(worse, 0);
}
