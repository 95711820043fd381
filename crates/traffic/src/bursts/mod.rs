//! Effect of bursts on latency: NetBlaze's whale and minnow experiments on any traffic.
//!
//! [`BurstStudy::measure`] streams the traffic two or three times and stores no packets. The experiments are those of
//! NetBlaze §2 (Tables 1 and 2):
//!
//! - *Whales*: every flow has a core of its own, a queue with a fixed service time per packet. Without bursts within
//!   flows every latency equals the service time.
//! - *Minnows*: each flow is shaped to at most one packet per service time, so that no whale is left. Flows are hashed
//!   to the fewest cores that keep the median latency of all packets below ten service times. Time in the shaper does
//!   not count. Flows are never moved.
//!
//! The paper shapes flows "so that any burstiness is only due to flow arrivals", without saying how. A shaper at the
//! service rate is the weakest one that leaves no whale.

mod arrivals;
mod latencies;
mod queues;
mod series;
mod study;
mod svg;
#[cfg(test)]
mod tests;
mod text;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use tailwater_net::Nanos;

pub use self::arrivals::{Arrival, Arrivals, PacketArrivals};
use self::latencies::Latencies;
use self::queues::{Cores, TRIED, serve};
use self::series::{Point, Series};
pub use self::study::{
    BurstStudy, FlowBytes, LatencyRow, MinnowRow, NewFlows, PacketBytes, WhaleRow, WorstMillisecond,
};
use crate::TrafficError;

/// Approximate memory of a flow in bytes, without 8 bytes for each service time.
const BYTES_PER_FLOW: u64 = 88;
const BYTES_PER_HELD: u64 = 24;

/// Maximum number of cores tried.
const MOST_CORES: u32 = 4_096;

/// Settings of a study.
#[derive(Clone, Debug)]
pub struct StudyOptions {
    /// Service times per packet: at most 16, each above zero and at most one second.
    pub services: Vec<Nanos>,
    /// Memory limit in bytes.
    pub memory_limit_bytes: u64,
}

impl BurstStudy {
    /// Measures traffic in two or more passes. `open` opens the source for each pass, and must yield the same packets
    /// every time.
    ///
    /// Memory grows with the number of flows (about 88 bytes, and 8 for each service time) and with the packets delayed
    /// by shapers, not with the number of packets.
    ///
    /// # Errors
    /// Errors of the source; [`TrafficError::NoPackets`] if it is empty; [`TrafficError::Setting`] for service times
    /// out of range; [`TrafficError::MemoryLimit`].
    pub fn measure<A: Arrivals>(
        mut open: impl FnMut() -> Result<A, TrafficError>,
        options: &StudyOptions,
    ) -> Result<Self, TrafficError> {
        let sound = |service: &Nanos| (Nanos(1)..=Nanos::from_secs(1)).contains(service);
        if options.services.len() > 16 || !options.services.iter().all(sound) {
            let expected = "at most 16 service times, each from 1ns to 1s";
            let given = format!("{:?}", options.services);
            return Err(TrafficError::setting("service", given, expected));
        }
        let mut first = Pass::new(options);
        let mut source = open()?;
        first.run(&mut source, |_, _, _| 0)?;
        let mut study = first.study(&source);
        let in_flows = first.in_flows;
        // The next pass has its own flow state.
        drop((first, source));
        let seconds = study.duration.as_secs_f64();
        let fewest = |service: &Nanos| match seconds > 0.0 {
            true => (in_flows as f64 * service.as_secs_f64() / seconds).ceil() as u32,
            false => 1,
        };
        // The search is bounded: traffic that needs thousands of cores is not that of one server, and would have high
        // latency on any number of cores tried.
        let mut next: Vec<u32> = options.services.iter().map(fewest).collect();
        let mut rows = vec![None; next.len()];
        loop {
            let open_rows = |i: &usize| rows[*i].is_none() && next[*i] <= MOST_CORES;
            let tried: Vec<usize> = (0..next.len()).filter(open_rows).collect();
            if tried.is_empty() || in_flows == 0 {
                break;
            }
            let service = |i: &usize| options.services[*i].0;
            let mut cores: Vec<Cores> = tried.iter().map(|i| Cores::new(service(i), next[*i].max(1))).collect();
            let mut pass = Pass::new(options);
            pass.run(&mut open()?, |time, hash, starts| {
                let mut held = 0;
                for (cores, i) in cores.iter_mut().zip(&tried) {
                    cores.add(time, starts[*i], hash);
                    held += cores.held();
                }
                held
            })?;
            for (cores, i) in cores.into_iter().zip(tried) {
                rows[i] = cores.finish(options.services[i].0 * 10);
                next[i] = next[i].max(1) + TRIED;
            }
        }
        study.minnows = options
            .services
            .iter()
            .zip(rows)
            .map(|(service, row)| minnow_row(*service, row, in_flows, seconds))
            .collect();
        Ok(study)
    }

    /// Returns a self-contained SVG diagram over time: packets, new flows and packets of one flow per millisecond, and
    /// the tables.
    pub fn svg(&self) -> String {
        svg::svg(self)
    }
}

fn minnow_row(service: Nanos, row: Option<(u32, Latencies)>, packets: u64, seconds: f64) -> MinnowRow {
    let cores = row.as_ref().map(|(cores, _)| *cores);
    let work = packets as f64 * service.as_secs_f64();
    MinnowRow {
        service,
        cores,
        load: cores
            .filter(|_| seconds > 0.0)
            .map(|cores| work / seconds / f64::from(cores)),
        latency: row.map(|(_, latencies)| LatencyRow::of(&latencies)),
    }
}

/// One pass over the traffic.
struct Pass<'a> {
    options: &'a StudyOptions,
    numbers: HashMap<u64, u32, BuildHasherDefault<Mixer>>,
    flows: Vec<FlowState>,
    /// Time at which each flow's own queue is free, for each service time.
    free: Vec<u64>,
    whales: Vec<Latencies>,
    series: Series,
    start: u64,
    now: u64,
    packets: u64,
    /// Packets that belong to flows.
    in_flows: u64,
    bytes: u64,
    shortest: u32,
    longest: u32,
    out_of_order: u64,
    second: u64,
    new_in_second: u64,
    max_new: u64,
}

#[derive(Clone, Copy)]
struct FlowState {
    first: u64,
    last: u64,
    bytes: u64,
    millisecond: u64,
    in_millisecond: u32,
    hash: u32,
}

impl<'a> Pass<'a> {
    fn new(options: &'a StudyOptions) -> Self {
        Pass {
            options,
            numbers: HashMap::default(),
            flows: Vec::new(),
            free: Vec::new(),
            whales: vec![Latencies::new(); options.services.len()],
            series: Series::default(),
            start: 0,
            now: 0,
            packets: 0,
            in_flows: 0,
            bytes: 0,
            shortest: u32::MAX,
            longest: 0,
            out_of_order: 0,
            second: 0,
            new_in_second: 0,
            max_new: 0,
        }
    }

    /// Reads all arrivals. Calls `shaped` with each packet's time, its flow's hash, and its start of service in the
    /// flow's own queue for each service time. `shaped` returns the number of packets it holds.
    fn run<A: Arrivals>(
        &mut self,
        source: &mut A,
        mut shaped: impl FnMut(u64, u32, &[u64]) -> usize,
    ) -> Result<(), TrafficError> {
        let mut starts = vec![0; self.options.services.len()];
        let mut held = 0;
        while let Some(arrival) = source.next_arrival()? {
            let time = self.clock(arrival.time.0);
            self.packets += 1;
            self.bytes += u64::from(arrival.bytes);
            self.shortest = self.shortest.min(arrival.bytes);
            self.longest = self.longest.max(arrival.bytes);
            let Some(number) = arrival.flow else {
                self.series.add(time - self.start, 1, false);
                continue;
            };
            self.in_flows += 1;
            let index = self.flow(number, time, arrival.bytes);
            let count = starts.len();
            let free = &mut self.free[index * count..(index + 1) * count];
            for (i, free) in free.iter_mut().enumerate() {
                starts[i] = serve(time, free, self.options.services[i].0);
                self.whales[i].add(*free - time);
            }
            held = shaped(time, self.flows[index].hash, &starts).max(held);
            if self.packets.is_multiple_of(1024) {
                self.check_memory(held, source.name())?;
                held = 0;
            }
        }
        self.series.close();
        self.max_new = self.max_new.max(self.new_in_second);
        if self.packets == 0 {
            return Err(TrafficError::NoPackets {
                file: source.name().to_owned(),
                reason: "the source ended before its first packet".to_owned(),
            });
        }
        Ok(())
    }

    /// Returns the time of a packet, which never goes back.
    fn clock(&mut self, time: u64) -> u64 {
        if self.packets == 0 {
            (self.start, self.now) = (time, time);
        }
        self.out_of_order += u64::from(time < self.now);
        self.now = self.now.max(time);
        let second = (self.now - self.start) / 1_000_000_000;
        if second != self.second {
            self.max_new = self.max_new.max(self.new_in_second);
            (self.second, self.new_in_second) = (second, 0);
        }
        self.now
    }

    /// Counts a packet of a flow, and returns the flow's index.
    fn flow(&mut self, number: u64, time: u64, bytes: u32) -> usize {
        let next = self.flows.len() as u32;
        let index = *self.numbers.entry(number).or_insert(next);
        let millisecond = Series::millisecond(time - self.start);
        let new = index == next;
        if new {
            self.new_in_second += 1;
            self.flows.push(FlowState {
                first: time,
                last: time,
                bytes: 0,
                millisecond,
                in_millisecond: 0,
                hash: (mix(number) >> 32) as u32,
            });
            let count = self.options.services.len();
            self.free.resize(self.free.len() + count, 0);
        }
        let flow = &mut self.flows[index as usize];
        flow.last = time;
        flow.bytes += u64::from(bytes);
        if flow.millisecond != millisecond {
            (flow.millisecond, flow.in_millisecond) = (millisecond, 0);
        }
        flow.in_millisecond = flow.in_millisecond.saturating_add(1);
        let of_flow = flow.in_millisecond;
        self.series.add(time - self.start, of_flow, new);
        index as usize
    }

    fn check_memory(&self, held: usize, name: &str) -> Result<(), TrafficError> {
        let per_flow = BYTES_PER_FLOW + 8 * self.options.services.len() as u64;
        let used = self.flows.len() as u64 * per_flow + held as u64 * BYTES_PER_HELD;
        // Flow indexes have 32 bits.
        if used <= self.options.memory_limit_bytes && self.flows.len() < u32::MAX as usize - 1024 {
            return Ok(());
        }
        Err(TrafficError::MemoryLimit {
            file: name.to_owned(),
            limit_bytes: self.options.memory_limit_bytes,
            packets: self.packets,
        })
    }

    /// Returns all results but those for minnows.
    fn study<A: Arrivals>(&self, source: &A) -> BurstStudy {
        let duration = Nanos(self.now - self.start);
        let seconds = duration.as_secs_f64();
        let flows = self.flows.len() as u64;
        let points = self.series.points.iter().copied();
        let worst = points.fold(Point::default(), Point::max);
        let sizes = || self.flows.iter().map(|flow| flow.bytes);
        let lives = self.flows.iter().map(|flow| flow.last - flow.first);
        let services = self.options.services.iter().zip(&self.whales);
        BurstStudy {
            name: source.name().to_owned(),
            packets: self.packets,
            bytes: self.bytes,
            duration,
            flows,
            new_flows_per_second: NewFlows {
                mean: (seconds > 0.0).then(|| flows as f64 / seconds),
                max: self.max_new,
            },
            packet_bytes: PacketBytes {
                mean: self.bytes as f64 / self.packets as f64,
                min: self.shortest,
                max: self.longest,
            },
            flow_bytes: FlowBytes {
                min: sizes().min().unwrap_or(0),
                max: sizes().max().unwrap_or(0),
            },
            longest_flow: Nanos(lives.max().unwrap_or(0)),
            worst_millisecond: WorstMillisecond {
                packets: worst.packets,
                flow_packets: worst.flow_packets,
                new_flows: worst.new_flows,
            },
            whales: services
                .map(|(service, latencies)| WhaleRow {
                    service: *service,
                    latency: LatencyRow::of(latencies),
                })
                .collect(),
            minnows: Vec::new(),
            packets_out_of_order: self.out_of_order,
            notices: source.notices(),
            series: self.series.clone(),
        }
    }
}

/// Hasher of flow numbers, which are hashes or counters already.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = mix(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = mix(value);
    }
}

/// Finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
fn mix(value: u64) -> u64 {
    let mut x = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
