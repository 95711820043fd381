//! Chains of `chains` over DPDK devices, on one core, compared with the same chains on the trace NIC.
//!
//! `cargo bench -p tailwater-dataplane --features dpdk --bench ports [-- FILTER...] [--runs N] [--flows 10k,1M]
//! [--sizes 64B,imix,1024B]` prints one JSON line per figure. Every chain has one instance, which takes turns: on the
//! trace NIC, over `net_ring`, over `net_memif`. All chains are run in turn, `runs` times, after a warm-up. Values are
//! medians of runs, and differences and quotients those of consecutive runs.
//!
//! The worker itself serves the devices' other end (see `devices`), so one core shows the cost of a port: returned
//! buffers are refilled with the next packets by the copy that the trace NIC makes. Over `net_ring` that is included in
//! the figures, as the copy is in the trace NIC's. Over `net_memif` the other end's time is subtracted, since there it
//! belongs to another program. `ports/DEVICE/dpdk` is the same with DPDK's own forwarding in place of worker and chain,
//! as `testpmd` forwards in its mode `io`.
//!
//! Figures with `live` have the other end on another core, as in real use. It makes, sends, receives and frees packets,
//! which takes about as long as to forward them. `other-end-waits` is the share of its bursts for which the memory had
//! no room. Only where that is large does the figure measure the forwarder.

#[allow(dead_code, reason = "other benchmarks use the rest of it")]
mod cases;
mod devices;
mod library;
mod routes;

use cases::events::{INSTRUCTIONS, events, per_packet};
use cases::{Arguments, BATCH, duration, packets, print_runs, short, table_of};
use devices::{Devices, Kind, Until};
use std::sync::Arc;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::cores::{available, default_core, pin_to};
use tailwater_dataplane::port::round_robin;
use tailwater_dataplane::trace_nic::{Pacing, Renumber, TraceNic, TraceNicConfig};
use tailwater_dpdk::Frames;
use tailwater_functions::build::ChainBuilder;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::RssHasher;

/// Chain with its packets.
struct Case {
    chain: &'static str,
    /// Suffix of figures' names, after the device's name.
    name: String,
    instance: Option<Chain>,
    clock: Clock,
    nic: TraceNic,
    frames: Arc<Frames>,
    /// Measurements by run.
    measured: Vec<Measured>,
}

/// Measurements of a run: nanoseconds per packet.
#[derive(Clone, Copy, Debug)]
struct Measured {
    on_trace: f64,
    /// Over each kind of device.
    over: [f64; 2],
    /// Over shared memory, with the other end on another core, if there is one. Second: the share of the other end's
    /// bursts for which there was no room.
    live: Option<[f64; 2]>,
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
            // The other end of a device starts again with the same flows.
            renumber: Renumber::None,
            ..TraceNicConfig::default()
        };
        let rss = RssHasher::default();
        let mut builder =
            ChainBuilder::new(&cases::spec(chain, flows), &rss, 1).unwrap_or_else(|error| panic!("{error}"));
        let trace = cases::traffic::trace(chain, size, flows, packets);
        let frames = devices::frames(&trace, &rss);
        let nic = TraceNic::new(trace, rss, 1, &round_robin(1), config, clock.clone());
        Case {
            chain,
            name: format!("{chain}/{size}/{}", short(flows)),
            instance: Some(builder.instance(|_| true)),
            clock,
            nic: nic.unwrap_or_else(|error| panic!("{error}")),
            frames,
            measured: Vec::new(),
        }
    }

    /// Runs the chain once on the trace NIC. Returns the number of packets, and the time.
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
        let batch = BATCH + 1;
        let (window, took) = cases::run(&mut self.instance, (queue, pool), batch, start, until);
        (packets(&self.name, &window), took - kept.spent())
    }

    /// Over shared memory, with the other end on `core`: nanoseconds per packet sent, and the share of the other end's
    /// bursts for which there was no room.
    fn live(&mut self, core: usize) -> [f64; 2] {
        let devices = Devices::new(Kind::Memif, &self.frames).apart(core);
        let start = self.clock.now();
        let until = Until::Duration(duration(self.chain));
        let (queue, pool, mut kept) = devices.queue(&self.clock, start, until);
        let until = (&self.clock, &(|| false) as _);
        let (window, took) = cases::run(&mut self.instance, (queue, pool), BATCH, start, until);
        [took.0 as f64 / window.delivered as f64, kept.waits()]
    }

    fn run(&mut self, other_core: Option<usize>) -> Measured {
        let until = Until::Duration(duration(self.chain));
        Measured {
            on_trace: nanos(self.on_trace()),
            over: Kind::ALL.map(|kind| nanos(self.over(kind, until))),
            live: other_core.map(|core| self.live(core)),
        }
    }
}

fn nanos((packets, took): (u64, Nanos)) -> f64 {
    took.0 as f64 / packets as f64
}

/// The same for DPDK's own forwarding, which does not exist for the trace NIC.
fn dpdk(frames: &Arc<Frames>, clock: &Clock, other_core: Option<usize>) -> Measured {
    let forward = |devices: Devices| {
        let (packets, took, waits) = devices.forward(clock, duration("forward"));
        [nanos((packets, took)), waits]
    };
    Measured {
        on_trace: f64::NAN,
        over: Kind::ALL.map(|kind| forward(Devices::new(kind, frames))[0]),
        live: other_core.map(|core| forward(Devices::new(Kind::Memif, frames).apart(core))),
    }
}

fn throughput(cases: &mut [Case], (size, flows): (&str, u32), runs: usize, other_core: Option<usize>) {
    let (clock, rss) = (Clock::start(), RssHasher::default());
    let packets = cases::trace_packets("forward", flows);
    let frames = devices::frames(&cases::traffic::trace("forward", size, flows, packets), &rss);
    let mut own = Vec::new();
    // Interleaved, so a disturbance affects all alike.
    for run in 0..=runs {
        let dpdks = dpdk(&frames, &clock, other_core);
        eprintln!("DPDK's own forwarding, run {run}: {dpdks:.1?} ns/packet");
        if run > 0 {
            own.push(dpdks);
        }
        for case in cases.iter_mut() {
            let measured = case.run(other_core);
            eprintln!("{} run {run}: {measured:.1?} ns/packet", case.name);
            if run > 0 {
                case.measured.push(measured);
            }
        }
    }
    let print_over = |name: &str, measured: &[Measured], table| {
        for (place, kind) in Kind::ALL.into_iter().enumerate() {
            let mpps = measured.iter().map(|run| 1e3 / run.over[place]).collect();
            print_runs(format!("ports/{}/{name}", kind.name()), "Mpps", mpps, table);
        }
        let live: Vec<_> = measured.iter().filter_map(|run| run.live).collect();
        if !live.is_empty() {
            let name = format!("ports/{}/{name}/live", Kind::Memif.name());
            let mpps = live.iter().map(|[nanos, _]| 1e3 / nanos).collect();
            let waits = live.iter().map(|[_, waits]| 100.0 * waits).collect();
            print_runs(name.clone(), "Mpps", mpps, table);
            print_runs(format!("{name}/other-end-waits"), "%", waits, table);
        }
    };
    print_over(&format!("dpdk/{size}/{}", short(flows)), &own, None);
    for case in cases.iter() {
        let table = table_of(case.chain).map(|table| table.name);
        let print = |name: String, unit, values| print_runs(name, unit, values, table);
        let runs = || case.measured.iter().zip(&own);
        let mpps = runs().map(|(run, _)| 1e3 / run.on_trace).collect();
        print(format!("chain/{}", case.name), "Mpps", mpps);
        print_over(&case.name, &case.measured, table);
        let ring = format!("ports/{}/{}", Kind::Ring.name(), case.name);
        let more = runs().map(|(run, _)| run.over[0] - run.on_trace).collect();
        print(format!("{ring}/more-than-trace"), "ns/packet", more);
        let memif = format!("ports/{}/{}", Kind::Memif.name(), case.name);
        let share = runs().map(|(run, own)| 100.0 * own.over[1] / run.over[1]);
        print(format!("{memif}/of-dpdk"), "%", share.collect());
        let live = runs().filter_map(|(run, own)| Some(100.0 * own.live?[0] / run.live?[0]));
        let live: Vec<f64> = live.collect();
        if !live.is_empty() {
            print(format!("{memif}/live/of-dpdk"), "%", live);
        }
    }
}

/// One pass over `count` packets of 1,000 flows, over a device or on the trace NIC.
fn one_pass(kind: Option<Kind>, chain: &'static str, count: u64) {
    let mut case = Case::new(chain, ("64B", 1_000), count, Until::Packets(count));
    let (packets, _) = match kind {
        None => case.on_trace(),
        Some(kind) => case.over(kind, Until::Packets(count)),
    };
    assert_eq!(packets, count);
}

/// Prints the allocations and instructions per packet over a device, including the other end's.
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
        Some([allocation_counter::measure(run).count_total])
    });
    print("allocations", allocations.map(|[each]| each));
    if chain != "forward" {
        // The additional cost of a device is the same for all.
        return;
    }
    let counts = per_packet(|packets| events(&[kind.name(), chain, &packets.to_string()]));
    print("instructions", counts.map(|counts| counts[INSTRUCTIONS]));
}

fn main() {
    let arguments = Arguments::read(cases::CHAINS, &["64B"], &[10_000]);
    if let Some(one) = &arguments.one_pass {
        let [device, chain, packets] = &one[..] else {
            panic!("--one-pass takes a device or `trace`, a chain and a number of packets");
        };
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == device);
        let chain = cases::CHAINS.iter().find(|known| *known == chain);
        let chain = chain.unwrap_or_else(|| panic!("no chain {}", one[1]));
        let packets = packets.parse();
        one_pass(kind, chain, packets.unwrap_or_else(|_| panic!("packets: {}", one[2])));
        return library::clean();
    }
    let core = default_core();
    let other_core = available().into_iter().find(|&other| other != core);
    if let Err(error) = pin_to(core) {
        eprintln!("not pinned: {error}");
    }
    for size in &arguments.sizes {
        for &flows in &arguments.flows {
            let case = |chain| {
                let packets = cases::trace_packets(chain, flows);
                Case::new(chain, (size, flows), packets, Until::Duration(duration(chain)))
            };
            let mut cases: Vec<Case> = arguments.chains().map(case).collect();
            throughput(&mut cases, (size, flows), arguments.runs, other_core);
        }
    }
    for kind in Kind::ALL {
        arguments.chains().for_each(|chain| counts(kind, chain));
    }
    library::clean();
}
