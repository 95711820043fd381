//! Statistics of a preset's traffic, for models that work with rates and bursts instead of packets.
//!
//! They are computed from the preset's own configuration: flow lengths and train lengths are drawn with the generator's
//! distributions, and flows are divided by how they appear to a queue:
//!
//! - *base*: packets that come one by one, or in short or slow trains. Their rate varies with the number of active
//!   flows, by [classes of lifetime](FlowClass), and within milliseconds by [trains](TrafficStatistics::dispersion);
//! - *trains*: at least [`LONG_TRAIN`] packets of one flow at a high rate ([`TrainStatistics`]), each an event;
//! - *minnow bursts*: many new flows at once, each an event;
//! - *huge flows*: few at a time, each an event with a rate and a lifetime.

use super::FlowArrivals;
use super::aggregate::{AggregateConfig, MinnowBursts, TrainClass};
use super::bursty::{BurstyConfig, SizeRange};
use super::frame::{FCS, WIRE_OVERHEAD, server};
use super::mixture::{Mixture, Part};
use super::preset::Preset;
use super::random::{HeavyTail, Random};
use std::net::IpAddr;
use tailwater_net::Nanos;

/// Number of packets from which a fast train is an event of its own.
pub const LONG_TRAIN: u32 = 16;
/// Longest time between two packets of a fast train, in nanoseconds.
const FAST_GAP: f64 = 20_000.0;
/// Number of packets from which a flow is huge.
const HUGE: u32 = 10_000;
/// Flows drawn of each part of a mixture.
const DRAWS: usize = 20_000;
/// Packets of a flow up to which its trains are drawn one by one. Those of longer flows are expected values.
const WALKED: u32 = 400;
/// Lifetimes, in nanoseconds, that divide flows into classes.
const LIFETIMES: [f64; 2] = [100e6, 1e9];
/// Steps of a distribution of train lengths.
const SIZES: usize = 256;

/// Statistics of traffic. All rates are per second, of all flows together, over long times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrafficStatistics {
    /// Flows that begin, those of minnow bursts and crowds included.
    pub flows: f64,
    /// Packets.
    pub packets: f64,
    /// Mean length of a packet in bytes.
    pub bytes: f64,
    /// Additional short flows while crowded, or `None` if there are no such times.
    pub crowds: Option<Crowds>,
    /// Bursts of new flows.
    pub minnows: Option<MinnowBursts>,
    /// Base packets, by lifetime of their flows.
    pub classes: Vec<FlowClass>,
    /// Huge flows.
    pub huge: Option<HugeFlows>,
    /// Fast trains.
    pub trains: Vec<TrainStatistics>,
    /// Mean packets of a train of base packets.
    pub base_train: f64,
    /// Variance of the number of base packets in 0.1, 1 and 2 ms, as a multiple of their mean. A Poisson process has 1.
    pub dispersion: [f64; 3],
    /// Destinations with their shares of the flows: /24 networks, or of one with many flows, the first host of each part
    /// of it.
    pub destinations: Vec<(IpAddr, f64)>,
}

/// Times with more flows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crowds {
    /// Arrivals of flows in both states.
    pub arrivals: FlowArrivals,
    /// Packets per second in excess of the calm state.
    pub packets: f64,
}

/// Flows of similar lifetimes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FlowClass {
    /// Base packets per second of all its flows.
    pub packets: f64,
    /// Variance of that number over time: the rates of the active flows, squared and added up.
    pub variance: f64,
    /// Time in which the set of active flows changes, in seconds.
    pub lifetime: f64,
}

/// Flows of many packets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HugeFlows {
    /// Flows that begin per second.
    pub per_second: f64,
    /// Mean lifetime in seconds.
    pub lifetime: f64,
    /// Packets per second of one.
    pub packets: f64,
}

/// Trains of at least [`LONG_TRAIN`] packets of a flow at a high rate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainStatistics {
    /// Trains per second.
    pub per_second: f64,
    /// Packets of a train, as quantiles: all are equally likely.
    pub sizes: Vec<u32>,
    /// Packets per second within a train.
    pub rate: f64,
}

impl TrainStatistics {
    /// Returns the mean number of packets of a train.
    pub fn mean(&self) -> f64 {
        let sum: f64 = self.sizes.iter().map(|size| f64::from(*size)).sum();
        sum / self.sizes.len().max(1) as f64
    }
}

impl TrafficStatistics {
    /// Computes the statistics of a preset. Equal presets give equal statistics; seed and duration do not matter.
    pub fn of(preset: &Preset) -> TrafficStatistics {
        match preset {
            Preset::Aggregate { config, .. } => of_aggregate(config),
            Preset::Bursty(config) => of_bursty(config),
        }
    }

    /// Returns the traffic `factor` times as fast: all that happens takes less time.
    #[must_use]
    pub fn faster(mut self, factor: f64) -> TrafficStatistics {
        let shorter = |time: Nanos| Nanos((time.0 as f64 / factor) as u64);
        self.flows *= factor;
        self.packets *= factor;
        if let Some(crowds) = &mut self.crowds {
            crowds.packets *= factor;
            crowds.arrivals.mean_per_second *= factor;
            crowds.arrivals.max_per_second *= factor;
            crowds.arrivals.calm = shorter(crowds.arrivals.calm);
            crowds.arrivals.crowded = shorter(crowds.arrivals.crowded);
        }
        if let Some(minnows) = &mut self.minnows {
            minnows.per_second *= factor;
            minnows.spread = shorter(minnows.spread);
        }
        for class in &mut self.classes {
            class.packets *= factor;
            class.variance *= factor * factor;
            class.lifetime /= factor;
        }
        if let Some(huge) = &mut self.huge {
            huge.per_second *= factor;
            huge.packets *= factor;
            huge.lifetime /= factor;
        }
        for train in &mut self.trains {
            train.per_second *= factor;
            train.rate *= factor;
        }
        self
    }
}

/// Trains of a class that a flow sends.
struct Class {
    weight: f64,
    flow_packets_min: u32,
    packets: HeavyTail,
    /// Mean packets of a train.
    mean: f64,
    /// Nanoseconds between its packets.
    gap: f64,
    bytes: f64,
}

impl Class {
    fn is_long(&self, packets: u32) -> bool {
        packets >= LONG_TRAIN && self.gap < FAST_GAP
    }
}

/// Flows as the generators make them.
struct Flows {
    classes: Vec<Class>,
    /// Mean time between two trains in nanoseconds, and the time in which a flow plans to send all.
    gap: f64,
    planned: f64,
    most_packets: f64,
    /// Share of flows whose first packet is followed by a gap, as with a handshake.
    handshakes: f64,
    /// Packets of a flow without payload, on average, at most all, and their length.
    small: (f64, f64),
}

/// Sums over flows, each weighted by the flows per second that it stands for.
#[derive(Default)]
struct Sums {
    base: f64,
    bytes: f64,
    classes: [FlowClass; LIFETIMES.len() + 1],
    /// Flows per second, times lifetime, times rate.
    huge: (f64, f64, f64),
    /// By class: trains, and (packets, weight) of drawn trains.
    long: Vec<(f64, Vec<(u32, f64)>)>,
    /// Base trains: packets, nanoseconds between them, weight.
    short: Vec<(u32, f64, f64)>,
}

impl Flows {
    fn open(&self, packets: u32) -> impl Iterator<Item = (usize, &Class)> {
        let is_open = move |(_, class): &(usize, &Class)| class.flow_packets_min <= packets;
        self.classes.iter().enumerate().filter(is_open)
    }

    /// Returns the mean time between trains of a flow.
    fn gap(&self, packets: f64, mean: f64) -> f64 {
        self.gap.min(self.planned / (packets / mean).max(1.0))
    }

    /// Adds a flow of `packets` packets, of which `weight` begin per second.
    fn add(&self, packets: u32, weight: f64, random: &mut Random, sums: &mut Sums) {
        let weights: f64 = self.open(packets).map(|(_, class)| class.weight).sum();
        let mean = self
            .open(packets)
            .map(|(_, class)| class.weight * class.mean)
            .sum::<f64>()
            / weights;
        let sent = f64::from(packets).min(self.most_packets);
        let gap = self.gap(sent, mean);
        let (mut base, mut time, mut trains) = (0.0, 0.0, 0.0);
        if packets <= WALKED {
            let mut left = packets;
            while left > 0 {
                let mut at = random.unit() * weights;
                let drawn = self.open(packets).find(|(_, class)| {
                    at -= class.weight;
                    at <= 0.0
                });
                let (number, class) = drawn.unwrap_or((0, &self.classes[0]));
                let size = random.length(&class.packets).min(left);
                left -= size;
                trains += 1.0;
                time += f64::from(size - 1) * class.gap;
                sums.bytes += weight * f64::from(size) * class.bytes;
                if class.is_long(size) {
                    sums.long[number].0 += weight;
                    sums.long[number].1.push((size, weight));
                } else {
                    base += f64::from(size);
                    sums.short.push((size, class.gap, weight));
                }
            }
        } else {
            trains = sent / mean;
            for (number, class) in self.open(packets) {
                let of_class = trains * class.weight / weights;
                const SAMPLE: u32 = 8;
                let each = of_class / f64::from(SAMPLE);
                for _ in 0..SAMPLE {
                    let size = random.length(&class.packets);
                    time += each * f64::from(size - 1) * class.gap;
                    sums.bytes += weight * each * f64::from(size) * class.bytes;
                    if class.is_long(size) {
                        sums.long[number].0 += weight * each;
                        sums.long[number].1.push((size, weight * each));
                    } else {
                        base += each * f64::from(size);
                        sums.short.push((size, class.gap, weight * each));
                    }
                }
            }
        }
        let small = f64::from(packets.min(3)) / 3.0 * self.small.0;
        sums.bytes -= weight * small * (self.classes[0].bytes - self.small.1);
        let waits = (trains - 1.0).max(0.0) + if packets > 1 { self.handshakes } else { 0.0 };
        // A flow of one packet is active for as long as its packet matters to a queue.
        let lifetime = (time + waits * gap).max(100_000.0) / 1e9;
        sums.base += weight * base;
        let rate = base / lifetime;
        if packets >= HUGE {
            sums.huge.0 += weight;
            sums.huge.1 += weight * lifetime;
            sums.huge.2 += weight * base;
            return;
        }
        let class = LIFETIMES.iter().position(|most| lifetime * 1e9 < *most);
        let class = &mut sums.classes[class.unwrap_or(LIFETIMES.len())];
        class.packets += weight * base;
        class.variance += weight * lifetime * rate * rate;
        // Weighted by variance for now.
        class.lifetime += weight * lifetime * rate * rate * lifetime;
    }

    /// Adds all flows of a mixture, each part with the same number of draws.
    fn add_mixture(&self, mixture: &Mixture, per_second: f64, random: &mut Random, sums: &mut Sums) {
        let all: f64 = mixture.0.iter().map(|(weight, _)| weight).sum();
        for (weight, part) in &mixture.0 {
            // Few flows have few lengths.
            let draws = match part {
                Part::Uniform { .. } => DRAWS / 10,
                Part::LogNormal { .. } => DRAWS,
            };
            let of_part = Mixture(vec![(1.0, *part)]);
            for _ in 0..draws {
                let packets = of_part.sample(random);
                self.add(packets, per_second * weight / all / draws as f64, random, sums);
            }
        }
    }

    /// Adds flows of a heavy-tailed length. Each power of two has the same number of draws: the few longest flows have
    /// most packets.
    fn add_lengths(&self, lengths: &HeavyTail, per_second: f64, random: &mut Random, sums: &mut Sums) {
        let draws = DRAWS / 10;
        let mut min = lengths.min;
        while min <= lengths.max {
            let max = (2 * min - 1).min(lengths.max);
            let share = lengths.at_least(min) - lengths.at_least(max + 1);
            let part = HeavyTail { min, max, ..*lengths };
            for _ in 0..draws {
                let packets = random.length(&part);
                self.add(packets, per_second * share / draws as f64, random, sums);
            }
            min = max + 1;
        }
    }

    fn finish(&self, mut sums: Sums) -> TrafficStatistics {
        for class in &mut sums.classes {
            class.lifetime /= class.variance.max(f64::MIN_POSITIVE);
        }
        let (starts, lives, packets) = sums.huge;
        let huge = (starts > 0.0).then(|| HugeFlows {
            per_second: starts,
            lifetime: lives / starts,
            packets: packets / lives,
        });
        let long = self.classes.iter().zip(&mut sums.long);
        let trains: Vec<_> = long
            .filter(|(_, (per_second, _))| *per_second > 0.0)
            .map(|(class, (per_second, sizes))| TrainStatistics {
                per_second: *per_second,
                sizes: quantiles(sizes),
                rate: 1e9 / class.gap.max(1.0),
            })
            .collect();
        let in_trains: f64 = trains.iter().map(|train| train.per_second * train.mean()).sum();
        let all = sums.base + in_trains;
        TrafficStatistics {
            packets: all,
            bytes: sums.bytes / all,
            classes: sums.classes.into_iter().filter(|class| class.packets > 0.0).collect(),
            huge,
            trains,
            base_train: train_mean(&sums.short),
            dispersion: [1e5, 1e6, 2e6].map(|window| dispersion(&sums.short, window)),
            ..TrafficStatistics::default()
        }
    }
}

/// Returns equally likely values of a weighted sample.
fn quantiles(sample: &mut [(u32, f64)]) -> Vec<u32> {
    sample.sort_by_key(|(size, _)| *size);
    let all: f64 = sample.iter().map(|(_, weight)| weight).sum();
    let mut seen = 0.0;
    let mut found = Vec::with_capacity(SIZES);
    for (size, weight) in sample.iter() {
        seen += weight;
        while found.len() < SIZES && seen / all >= (found.len() as f64 + 0.5) / SIZES as f64 {
            found.push(*size);
        }
    }
    found
}

fn train_mean(trains: &[(u32, f64, f64)]) -> f64 {
    let all: f64 = trains.iter().map(|(.., weight)| weight).sum();
    trains
        .iter()
        .map(|(size, _, weight)| f64::from(*size) * weight)
        .sum::<f64>()
        / all.max(f64::MIN_POSITIVE)
}

/// Returns the index of dispersion of packets in `window` nanoseconds, if trains begin at random: packets, the time
/// between them, weight.
fn dispersion(trains: &[(u32, f64, f64)], window: f64) -> f64 {
    let (mut pairs, mut packets) = (0.0, 0.0);
    for &(size, gap, weight) in trains {
        let size = f64::from(size);
        // Sum over all pairs of the time in which a window holds both.
        let reach = (size - 1.0).min(libm::floor(window / gap.max(1.0)));
        let between = reach * (size * window) - reach * (reach + 1.0) / 2.0 * (window + size * gap)
            + gap * reach * (reach + 1.0) * (2.0 * reach + 1.0) / 6.0;
        pairs += weight * (size * window + 2.0 * between);
        packets += weight * size;
    }
    pairs / (packets * window).max(f64::MIN_POSITIVE)
}

fn mean_size(sizes: &[SizeRange]) -> f64 {
    let all: f64 = sizes.iter().map(|range| range.weight).sum();
    let middle = |range: &SizeRange| range.weight * f64::from(range.min + range.max) / 2.0;
    sizes.iter().map(middle).sum::<f64>() / all
}

fn class(weight: f64, least: u32, packets: HeavyTail, bytes: f64, line_rate_bps: f64) -> Class {
    Class {
        weight,
        flow_packets_min: least,
        packets,
        mean: packets.mean(),
        gap: (bytes + (FCS + WIRE_OVERHEAD) as f64) * 8e9 / line_rate_bps,
        bytes,
    }
}

/// Share of the flows from which on a network is divided into hosts.
const DIVIDED: f64 = 1.0 / 256.0;

/// Returns a representative address of each network, or part of one, and its share of the flows.
fn destinations(servers: u32) -> Vec<(IpAddr, f64)> {
    /// Hosts of a network: see `frame::server`.
    const HOSTS: u32 = 254;
    // A flow's server is the cube of a uniform number.
    let below = |count: u32| libm::cbrt(f64::from(count.min(servers)) / f64::from(servers));
    let mut found = Vec::new();
    let mut parts = Vec::new();
    for network in 0..servers.div_ceil(HOSTS) {
        parts.push((network * HOSTS, ((network + 1) * HOSTS).min(servers)));
        while let Some((first, end)) = parts.pop() {
            let share = below(end) - below(first);
            if share <= DIVIDED || end - first == 1 {
                found.push((IpAddr::V4(server(first)), share));
                continue;
            }
            let middle = first + (end - first) / 2;
            parts.extend([(middle, end), (first, middle)]);
        }
    }
    found
}

fn of_aggregate(config: &AggregateConfig) -> TrafficStatistics {
    let bytes = mean_size(&config.sizes);
    let of = |train: &TrainClass| {
        let bytes = if train.full_size { 1514.0 } else { bytes };
        class(
            train.weight,
            train.flow_packets_min,
            train.packets,
            bytes,
            train.line_rate_bps,
        )
    };
    let flows = Flows {
        classes: config.trains.iter().map(of).collect(),
        gap: config.mean_gap.0 as f64,
        planned: 0.6 * config.lifetime_max.0 as f64,
        most_packets: config.flow_bytes_max as f64 / bytes,
        handshakes: config.tcp_share,
        small: (3.0 * config.tcp_share, 55.0),
    };
    let arrivals = config.arrivals;
    let (calm, mean) = (arrivals.calm_per_second(), arrivals.mean_per_second);
    let in_bursts = config
        .minnows
        .map_or(0.0, |minnows| minnows.per_second * minnows.flows.mean());
    let mut random = Random::new(1);
    let mut sums = Sums {
        long: vec![Default::default(); flows.classes.len()],
        ..Sums::default()
    };
    let alone = calm - in_bursts;
    flows.add_mixture(
        &config.flow_packets,
        alone * (1.0 - config.short_share),
        &mut random,
        &mut sums,
    );
    flows.add_lengths(
        &config.short_packets,
        alone * config.short_share,
        &mut random,
        &mut sums,
    );
    // Flows of minnow bursts: their first packets come in the burst, all others as any.
    let short = config.short_packets.mean();
    sums.classes[0].packets += in_bursts * (short - 1.0);
    sums.base += in_bursts * (short - 1.0);
    let mut found = flows.finish(sums);
    let crowd = (mean - calm) * short;
    TrafficStatistics {
        flows: mean,
        packets: found.packets + in_bursts + crowd,
        crowds: (arrivals.max_per_second > mean).then_some(Crowds {
            arrivals,
            packets: (arrivals.max_per_second - calm) * short,
        }),
        minnows: config.minnows.filter(|minnows| minnows.per_second > 0.0),
        destinations: destinations(config.servers),
        classes: std::mem::take(&mut found.classes),
        ..found
    }
}

fn of_bursty(config: &BurstyConfig) -> TrafficStatistics {
    let bytes = mean_size(&config.sizes);
    let flows = Flows {
        classes: vec![class(1.0, 1, config.train_packets, bytes, config.train_rate_bps)],
        gap: config.mean_gap.0 as f64,
        planned: f64::MAX,
        most_packets: f64::MAX,
        handshakes: 0.0,
        small: (2.0 * config.tcp_share, 60.0),
    };
    let mut random = Random::new(1);
    let mut sums = Sums {
        long: vec![Default::default(); 1],
        ..Sums::default()
    };
    let per_second = config.mean_rate_pps / config.flow_packets.mean();
    flows.add_lengths(&config.flow_packets, per_second, &mut random, &mut sums);
    TrafficStatistics {
        flows: per_second,
        destinations: destinations(config.servers),
        ..flows.finish(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{PRESETS, preset};

    #[test]
    fn rates_are_those_of_the_generated_packets() {
        for (name, _) in PRESETS {
            let made = preset(name).unwrap();
            let found = TrafficStatistics::of(&made);
            let ratio = found.packets / made.mean_rate_pps();
            println!("{name}: {ratio:.3} {found:.1?}");
            assert!((0.8..1.25).contains(&ratio), "{name}: {ratio}");
            let shares: f64 = found.destinations.iter().map(|(_, share)| share).sum();
            assert!((shares - 1.0).abs() < 1e-9, "{name}: {shares}");
            assert!(
                found.dispersion[0] >= 0.99 && found.dispersion[1] >= found.dispersion[0],
                "{name}"
            );
        }
    }

    #[test]
    fn destinations_are_small_or_single_hosts() {
        for servers in [1, 100, 254, 20_000] {
            let found = destinations(servers);
            let networks = servers.div_ceil(254) as usize;
            assert!(
                found.len() >= networks && found.len() < networks + 512,
                "{}",
                found.len()
            );
            let sum: f64 = found.iter().map(|(_, share)| share).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{sum}");
            // The first host has more than its share, and is alone.
            let first = (IpAddr::V4(server(0)), libm::cbrt(1.0 / f64::from(servers)));
            assert_eq!(found[0].0, first.0);
            assert!((found[0].1 - first.1).abs() < 1e-12);
        }
    }

    #[test]
    fn dispersion_is_that_of_all_pairs() {
        for (size, gap, window) in [
            (1_u32, 10.0, 100.0),
            (5, 10.0, 100.0),
            (40, 10.0, 105.0),
            (7, 200.0, 100.0),
        ] {
            let mut pairs = 0.0;
            for a in 0..size {
                for b in 0..size {
                    pairs += f64::max(0.0, window - f64::from(a.abs_diff(b)) * gap);
                }
            }
            let expected = pairs / (f64::from(size) * window);
            let found = dispersion(&[(size, gap, 3.0)], window);
            assert!((found / expected - 1.0).abs() < 1e-9, "{size}: {found} {expected}");
        }
    }
}
