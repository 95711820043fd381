//! The chains of `chains` over DPDK's devices, on one core, beside the same chains on the trace NIC.
//!
//! `cargo bench -p tailwater-dataplane --features dpdk --bench ports [-- FILTER...] [--runs N] [--flows 10k,1M]
//! [--sizes 64B,imix,1024B]` prints a JSON line a figure. Every chain has one instance, which takes turns: on the trace
//! NIC, over `net_ring`, over `net_memif`. All chains are run in turn, `runs` times, after a warm-up; values are medians
//! of runs, and differences and quotients those of runs next to each other.
//!
//! The worker itself is at the devices' other end (see `devices`), so that one core says what a port costs: what
//! came back is refilled with the next packets by the copy that the trace NIC makes. Over `net_ring` that is in
//! the figures, as the copy is in the trace NIC's. Over `net_memif` the other end's time is taken out, since there it is
//! another program's. `ports/DEVICE/dpdk` is the same with DPDK's own forwarding in place of worker and chain, as
//! `testpmd` forwards in its mode `io`.

mod cases;
mod devices;
mod library;
mod routes;

use cases::{Arguments, BATCH, duration, packets, per_packet, print_runs, short, table_of};
use devices::{Devices, Kind, Until};
use std::sync::Arc;
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::cores::{default_core, pin_to};
use tailwater_dataplane::port::round_robin;
use tailwater_dataplane::trace_nic::{Pacing, TraceNic, TraceNicConfig};
use tailwater_dpdk::Frames;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::RssHasher;
use tailwater_nf::buffer::BufferPool;
use tailwater_nf::build::ChainBuilder;
use tailwater_nf::chain::Chain;

/// A chain and its packets.
struct Case {
    chain: &'static str,
    /// What follows the device's name in those of figures.
    name: String,
    instance: Option<Chain>,
    clock: Clock,
    nic: TraceNic,
    frames: Arc<Frames>,
    /// Nanoseconds that a packet took, by run: on the trace NIC, and over each kind of device.
    nanos: Vec<[f64; 3]>,
}

impl Case {
    fn new(chain: &'static str, (size, flows): (&str, u32), packets: u64, until: Until) -> Case {
        let clock = Clock::start();
        let config = TraceNicConfig {
            pacing: Pacing::Saturate,
            duration: match until {
                Until::Duration(duration) => Some(duration),
                Until::Packets(_) => None,
            },
            // The other end of a device begins anew with the same flows.
            renumber: false,
            ..TraceNicConfig::default()
        };
        let rss = RssHasher::default();
        let mut builder = ChainBuilder::new(&cases::spec(chain, flows), &rss, 1)
            .unwrap_or_else(|error| panic!("{error}"));
        let trace = cases::trace(chain, size, flows, packets);
        let frames = devices::frames(&trace, &rss);
        let nic = TraceNic::new(trace, rss, 1, &round_robin(1), config, clock.clone());
        Case {
            chain,
            name: format!("{chain}/{size}/{}", short(flows)),
            instance: Some(builder.instance(|_| true)),
            clock,
            nic: nic.unwrap_or_else(|error| panic!("{error}")),
            frames,
            nanos: Vec::new(),
        }
    }

    /// Runs the chain once on the trace NIC. Returns how many packets there were, and the time it took.
    fn on_trace(&mut self) -> (u64, Nanos) {
        let start = self.clock.now();
        let pool = BufferPool::new(512, self.nic.longest_frame());
        let pool = pool.unwrap_or_else(|error| panic!("{error}"));
        let queue = Box::new(self.nic.queues(start).remove(0));
        let until = (&self.clock, &(|| false) as _);
        let (window, took) = cases::run(&mut self.instance, (queue, pool), BATCH, start, until);
        (packets(&self.name, &window), took)
    }

    /// The same over a device.
    fn over(&mut self, kind: Kind, until: Until) -> (u64, Nanos) {
        let devices = Devices::new(kind, &self.frames);
        let start = self.clock.now();
        let (queue, pool, kept) = devices.queue(&self.clock, start, until);
        let until = (&self.clock, &(|| kept.is_done()) as _);
        let (window, took) = cases::run(&mut self.instance, (queue, pool), BATCH + 1, start, until);
        (packets(&self.name, &window), took - kept.spent())
    }

    fn run(&mut self) -> [f64; 3] {
        let until = Until::Duration(duration(self.chain));
        let nanos = |(packets, took): (u64, Nanos)| took.0 as f64 / packets as f64;
        [
            nanos(self.on_trace()),
            nanos(self.over(Kind::Ring, until)),
            nanos(self.over(Kind::Memif, until)),
        ]
    }
}

/// DPDK's own forwarding over each kind of device: nanoseconds a packet.
fn dpdk(frames: &Arc<Frames>, clock: &Clock) -> [f64; 2] {
    Kind::ALL.map(|kind| {
        let devices = Devices::new(kind, frames);
        let (packets, took) = devices.forward(clock, duration("forward"));
        took.0 as f64 / packets as f64
    })
}

fn throughput(cases: &mut [Case], (size, flows): (&str, u32), runs: usize) {
    let (clock, rss) = (Clock::start(), RssHasher::default());
    let packets = cases::trace_packets("forward", flows);
    let frames = devices::frames(&cases::trace("forward", size, flows, packets), &rss);
    let mut own = Vec::new();
    // Interleaved, so that a noisy minute hits all alike.
    for run in 0..=runs {
        for case in cases.iter_mut() {
            let nanos = case.run();
            eprintln!("{} run {run}: {nanos:.1?} ns/packet", case.name);
            if run > 0 {
                case.nanos.push(nanos);
                // DPDK's next to each, since the two are divided.
                own.push(dpdk(&frames, &clock));
            }
        }
    }
    for (place, kind) in Kind::ALL.into_iter().enumerate() {
        let name = format!("ports/{}/dpdk/{size}/{}", kind.name(), short(flows));
        print_runs(
            name,
            "Mpps",
            own.iter().map(|own| 1e3 / own[place]).collect(),
            None,
        );
    }
    let number = cases.len();
    for (i, case) in cases.iter().enumerate() {
        let table = table_of(case.chain).map(|table| table.name);
        let own = own.iter().skip(i).step_by(number);
        let of = |each: &dyn Fn(&[f64; 3], &[f64; 2]) -> f64| -> Vec<f64> {
            case.nanos
                .iter()
                .zip(own.clone())
                .map(|(n, own)| each(n, own))
                .collect()
        };
        let print = |prefix: &str, suffix: &str, unit, values| {
            print_runs(
                format!("{prefix}/{}{suffix}", case.name),
                unit,
                values,
                table,
            );
        };
        print("chain", "", "Mpps", of(&|n, _| 1e3 / n[0]));
        for (place, kind) in Kind::ALL.into_iter().enumerate() {
            let prefix = format!("ports/{}", kind.name());
            print(&prefix, "", "Mpps", of(&|n, _| 1e3 / n[place + 1]));
            if kind == Kind::Ring {
                let more = of(&|n, _| n[place + 1] - n[0]);
                print(&prefix, "/more-than-trace", "ns/packet", more);
            }
            let share = of(&|n, own| 100.0 * own[place] / n[place + 1]);
            print(&prefix, "/of-dpdk", "%", share);
        }
    }
}

/// One pass over that many packets of 1,000 flows, over a device or else on the trace NIC.
fn one_pass(kind: Option<Kind>, chain: &'static str, count: u64) {
    let mut case = Case::new(chain, ("64B", 1_000), count, Until::Packets(count));
    let (packets, _) = match kind {
        None => case.on_trace(),
        Some(kind) => case.over(kind, Until::Packets(count)),
    };
    assert_eq!(packets, count);
}

/// What a packet costs in allocations and instructions over a device, the other end's among them.
fn counts(kind: Kind, chain: &'static str) {
    let table = table_of(chain).map(|table| table.name);
    let print = |what: &str, value: Option<f64>| match value {
        Some(value) => {
            let name = format!("ports/{}/{chain}/64B/1k/{what}", kind.name());
            let unit = match what {
                "allocations" => "allocations/packet",
                _ => "instructions/packet",
            };
            print_runs(name, unit, vec![value], table);
        }
        None => eprintln!("{chain}: no instruction count: valgrind is not installed or failed"),
    };
    let allocations = per_packet(|count| {
        let mut case = Case::new(chain, ("64B", 1_000), count, Until::Packets(count));
        let run = || {
            case.over(kind, Until::Packets(count));
        };
        Some(allocation_counter::measure(run).count_total)
    });
    print("allocations", allocations);
    let instructions =
        per_packet(|packets| cases::instructions(&[kind.name(), chain, &packets.to_string()]));
    print("instructions", instructions);
}

fn main() {
    let arguments = Arguments::read(&[10_000]);
    if let Some(one) = &arguments.one_pass {
        let [device, chain, packets] = &one[..] else {
            panic!("--one-pass takes a device or `trace`, a chain and a number of packets");
        };
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == device);
        let chain = cases::CHAINS.iter().find(|known| *known == chain);
        let chain = chain.unwrap_or_else(|| panic!("no chain {}", one[1]));
        let packets = packets.parse();
        one_pass(
            kind,
            chain,
            packets.unwrap_or_else(|_| panic!("packets: {}", one[2])),
        );
        return library::clean();
    }
    if let Err(error) = pin_to(default_core()) {
        eprintln!("not pinned: {error}");
    }
    for size in &arguments.sizes {
        for &flows in &arguments.flows {
            let case = |chain| {
                let packets = cases::trace_packets(chain, flows);
                Case::new(
                    chain,
                    (size, flows),
                    packets,
                    Until::Duration(duration(chain)),
                )
            };
            let mut cases: Vec<Case> = arguments.chains().map(case).collect();
            throughput(&mut cases, (size, flows), arguments.runs);
        }
    }
    for kind in Kind::ALL {
        arguments.chains().for_each(|chain| counts(kind, chain));
    }
    library::clean();
}
