//! Worker of a chain with external functions: it polls its own queue and the functions' ports.
//!
//! The chain is cut at its external functions. Packets that have passed a part go to the function behind it. Packets
//! that come back pass the next part as if they had just been received, with a new look-up, since the function may have
//! changed their flow. They keep their original arrival time. So one core does all the work, and a flow's packets
//! continue in the order in which the function returns them.

use super::attachment::{Attached, Direction};
use super::stage::{ExternalStage, Lane};
use crate::attribution::Cause;
use crate::clock::Clock;
use crate::meter::{Counting, Meter};
use crate::panics::catch_panic;
use crate::port::PortQueue;
use crate::telemetry::WindowSender;
use crate::worker::{Finished, LONGEST_DRAIN, WorkerConfig, since};
use std::sync::atomic::{AtomicBool, Ordering};
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, Reason};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;

/// Parts of a chain, and the external functions between them.
pub(crate) struct Parts {
    chains: Vec<Chain>,
    /// Each part's loss counter when it was last read.
    lost: Vec<u64>,
    /// External functions: one fewer than parts.
    stages: Vec<ExternalStage>,
}

impl Parts {
    /// Parts of `spec`, with its external functions' ports.
    pub(crate) fn new(spec: &ChainSpec, chains: Vec<Chain>, attached: Attached, seed: u64) -> (Parts, BufferPool) {
        let slo = spec.slo.budget();
        let functions = spec.externals().zip(attached.attachments);
        let stages = functions.zip(seed..);
        let stages = stages
            .map(|((function, attachment), seed)| ExternalStage::new(function, attachment, (spec.rss(), seed), slo));
        let parts = Parts {
            lost: chains.iter().map(Chain::lost).collect(),
            chains,
            stages: stages.collect(),
        };
        (parts, attached.pool)
    }

    /// All reasons for which packets are counted. A part's reasons that belong to no function are qualified by the
    /// external function in front.
    pub(crate) fn reasons<'c>(spec: &ChainSpec, mut chains: impl Iterator<Item = &'c Chain>) -> Vec<Reason> {
        let mut reasons = chains.next().map(Chain::reasons).unwrap_or_default();
        let parts = spec.parts();
        let behind = chains.zip(&parts[1..]);
        for (function, (chain, part)) in spec.externals().zip(behind) {
            reasons.extend(ExternalStage::reasons(function));
            let of_function = |name: &str| {
                let function = name.split_once('/').map(|(function, _)| function);
                let mut functions = part.functions.iter();
                functions.any(|other| Some(other.name.as_str()) == function)
            };
            reasons.extend(chain.reasons().into_iter().map(|reason| {
                if of_function(&reason.name) {
                    return reason;
                }
                Reason {
                    name: format!("after-{}/{}", function.0, reason.name),
                    ..reason
                }
            }));
        }
        reasons
    }
}

impl Counting for Parts {
    fn count(&self, counts: &mut Vec<u64>) {
        let mut stations = self.stages.iter();
        for chain in &self.chains {
            counts.extend(chain.reason_counts());
            counts.extend(stations.next().into_iter().flat_map(ExternalStage::reason_counts));
        }
    }
}

/// Worker, ready to run on the thread it is moved to.
pub(crate) struct ExternalWorker {
    queue: Box<dyn PortQueue>,
    parts: Parts,
    entry: Lane,
    back: Lane,
    clock: Clock,
    config: WorkerConfig,
    meter: Meter,
    /// Packets can be sent back to the entry port.
    goes_back: bool,
    /// Packets in processing that have been counted already.
    counted: u64,
}

impl ExternalWorker {
    /// Creates a worker that runs the parts on packets that `queue` receives into buffers of `pool`. Packets from
    /// external functions are in buffers of the other pool. `goes_back` is the port's
    /// [`goes_back`](crate::port::Port::goes_back).
    pub(crate) fn new(
        mut queue: Box<dyn PortQueue>,
        (parts, back): (Parts, BufferPool),
        goes_back: bool,
        pool: BufferPool,
        clock: Clock,
        config: WorkerConfig,
        telemetry: WindowSender,
    ) -> ExternalWorker {
        let mut meter = Meter::new(&config, telemetry);
        meter.know_external();
        queue.mark_directions();
        ExternalWorker {
            goes_back,
            queue,
            parts,
            entry: Lane::new(pool),
            back: Lane::new(back),
            clock,
            config,
            meter,
            counted: 0,
        }
    }

    /// Runs until the port ends or `stop` returns `true`, and no packet is outside any more. If the worker panics, sets
    /// `failed` and counts its packets as lost.
    pub(crate) fn run(mut self, stop: impl Fn() -> bool, failed: &AtomicBool) -> Finished {
        let died = catch_panic(|| self.work(stop)).err();
        if died.is_some() {
            failed.store(true, Ordering::Relaxed);
            self.give_back();
        }
        self.meter.finish(&self.parts);
        Finished {
            externals: self.parts.stages.iter().map(ExternalStage::report).collect(),
            chains: self.parts.chains,
            buckets: None,
            state_counters: None,
            died,
        }
    }

    fn work(&mut self, stop: impl Fn() -> bool) {
        let mut now = self.clock.now();
        let mut last = self.config.start;
        let drain = Nanos(self.config.slo.0.saturating_mul(2)).min(LONGEST_DRAIN);
        // At the end, functions have their full timeout for every packet.
        let timeouts = self.parts.stages.iter().map(ExternalStage::timeout);
        let drain = timeouts.fold(drain, |drain, timeout| drain + timeout);
        let mut drain_until = None;
        loop {
            if drain_until.is_none() && stop() {
                self.queue.stop();
                drain_until = Some(now + drain);
            }
            self.entry.limit(&self.parts.chains[0], self.config.batch);
            let Lane { pool, batch, .. } = &mut self.entry;
            let received = self.queue.receive(now, pool, batch);
            let span = [last, now];
            self.meter.note_arrivals(received, span, || Cause::RingFull);
            let mut busy = !self.entry.batch.is_empty();
            if busy {
                last = self.enter(now, received.waiting > 0);
            }
            for function in 0..self.parts.stages.len() {
                for &way in self.parts.stages[function].ways() {
                    let began = if busy { last } else { now };
                    if let Some(time) = self.come_back(function, way, began) {
                        (last, busy) = (time, true);
                    }
                }
            }
            self.give_up(false);
            for chain in &mut self.parts.chains {
                chain.expire(now);
            }
            if !busy {
                self.meter.idle();
                last = now.max(self.config.start);
                std::hint::spin_loop();
            }
            if received.ended {
                if received.waiting == 0 && self.outside() == 0 {
                    break;
                }
                drain_until = drain_until.or(Some(now + drain));
            }
            if drain_until.is_some_and(|until| now > until) {
                self.discard(now);
                break;
            }
            self.meter.roll(last, &self.parts);
            now = if busy { last } else { self.clock.now() };
        }
    }

    /// Runs received packets through the first part. Returns the end time.
    fn enter(&mut self, now: Nanos, backlog: bool) -> Nanos {
        let batch = &mut self.entry.batch;
        let packets = batch.len();
        self.meter.note_batch(batch);
        if backlog {
            self.meter.note_backlog(batch, now);
        }
        self.queue.complete(batch);
        self.parts.chains[0].process(batch, now);
        self.go_on(0, true, packets, now)
    }

    /// Runs packets that come back from an external function in this direction through the part behind it. Returns the
    /// end time, or `None` without packets.
    fn come_back(&mut self, function: usize, way: Direction, now: Nanos) -> Option<Nanos> {
        let behind = &self.parts.chains[function + 1];
        self.back.limit(behind, self.config.batch);
        let station = &mut self.parts.stages[function];
        if station.receive(way, now, &mut self.back) == 0 {
            return None;
        }
        let batch = &mut self.back.batch;
        let came = station.recognise(way, self.goes_back, now, batch);
        self.meter.note_made(came.own, came.dropped, now);
        self.counted = (batch.in_hand() - batch.len()) as u64;
        let packets = batch.len();
        if packets == 0 {
            self.back.release();
            self.counted = 0;
            return Some(self.clock.now());
        }
        self.parts.chains[function + 1].process(batch, now);
        let time = self.go_on(function + 1, false, packets, now);
        self.counted = 0;
        Some(time)
    }

    /// Sends packets that have passed a part, of originally `packets`, to the function behind it, or out. Returns the
    /// end time.
    fn go_on(&mut self, part: usize, entered: bool, packets: usize, began: Nanos) -> Nanos {
        let lane = match entered {
            true => &mut self.entry,
            false => &mut self.back,
        };
        let Parts {
            chains,
            lost,
            stages: stations,
        } = &mut self.parts;
        let gone = packets - lane.batch.len();
        let lost = since(&chains[part], &mut lost[part]);
        let sent;
        if let Some(station) = stations.get_mut(part) {
            let not_out = station.send(lane, began);
            sent = self.clock.now();
            let gone = gone + not_out as usize;
            self.meter.note_processed(packets, gone, lost + not_out, [began, sent]);
        } else {
            let mut unsent = 0;
            if self.goes_back {
                lane.divide();
                if !lane.aside.is_empty() {
                    unsent += self.queue.transmit_back(&mut lane.aside);
                }
            }
            unsent += self.queue.transmit(&mut lane.batch);
            sent = self.clock.now();
            let span = [began, sent];
            self.meter.note_processed(packets, gone, lost, span);
            if unsent > 0 {
                self.meter.note_unsent(unsent);
            }
            self.meter.note_delivered(&lane.batch, span);
            if !lane.aside.is_empty() {
                self.meter.note_delivered(&lane.aside, span);
            }
        }
        lane.release();
        sent
    }

    /// Counts packets that have been outside for too long, or all of them at the end.
    fn give_up(&mut self, all: bool) {
        for station in &mut self.parts.stages {
            let missing = station.give_up(all);
            if missing > 0 {
                self.meter.note_missing(missing, station.loses());
            }
        }
    }

    /// Number of packets outside.
    fn outside(&self) -> usize {
        self.parts.stages.iter().map(ExternalStage::outside).sum()
    }

    /// Counts packets still in the ring or outside as lost.
    fn discard(&mut self, now: Nanos) {
        let meter = &mut self.meter;
        self.queue.discard(&mut |arrival, rss_hash| {
            meter.note_arrival(arrival);
            meter.note_undrained(arrival, rss_hash, now);
        });
        self.give_up(true);
    }

    /// Counts the packets that the panicked worker was processing, and all that wait for it, as lost.
    fn give_back(&mut self) {
        self.meter.on_panic();
        let now = self.clock.now();
        self.queue.stop();
        let Parts { chains, lost, .. } = &mut self.parts;
        let lost = chains.iter().zip(lost).map(|(c, lost)| since(c, lost));
        let mut lost = lost.sum();
        for lane in [&mut self.entry, &mut self.back] {
            if lane.batch.in_hand() > 0 {
                let lost = std::mem::take(&mut lost);
                self.meter.note_unfinished(&mut lane.batch, lost, now);
                // Packets counted before are not dropped now.
                self.meter.window().dropped -= std::mem::take(&mut self.counted);
            }
            lane.release();
        }
        self.discard(now);
    }
}

#[cfg(test)]
mod tests {
    use super::super::attachment::Attachment;
    use super::*;
    use crate::port::round_robin;
    use crate::telemetry::windows;
    use crate::trace_nic::{Pacing, TraceNic, TraceNicConfig};
    use std::path::Path;
    use tailwater_chain::batch::{Batch, MAX_BATCH};
    use tailwater_functions::build::ChainBuilder;
    use tailwater_net::toeplitz::RssHasher;
    use tailwater_traffic::generate::{FrameSize, Transport, Uniform, UniformConfig};
    use tailwater_traffic::{LoadOptions, Trace};

    /// Returns packets at the next poll, without allocating.
    struct Mirror(Vec<[u8; 64]>);

    impl Attachment for Mirror {
        fn has_two_ports(&self) -> bool {
            true
        }

        fn longest(&self) -> usize {
            64
        }

        fn ring(&self) -> usize {
            usize::MAX
        }

        fn send(&mut self, _: Direction, batch: &mut Batch) -> usize {
            for i in 0..batch.len() {
                let mut frame = [0; 64];
                frame[..batch.frame(i).len()].copy_from_slice(batch.frame(i));
                self.0.push(frame);
            }
            0
        }

        fn receive(&mut self, way: Direction, now: Nanos, pool: &mut BufferPool, batch: &mut Batch) -> usize {
            if way == Direction::Backward {
                return 0;
            }
            let frames = self.0.drain(..);
            frames.for_each(|frame| assert!(batch.push(pool, &frame, now, 0)));
            batch.len()
        }
    }

    /// Allocations in a run of `packets` packets.
    fn allocations(packets: u64) -> u64 {
        let text = "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: test}\nspec:\n  \
                    slo: {latency: 250ms}\n  functions: [{forward: {}}, {external: {port: net_ring0}}, \
                    {accounting: }]\n";
        let spec = ChainSpec::parse(text, "test", Path::new(".")).unwrap();
        let rss = RssHasher::default();
        let builders = spec.parts().into_iter();
        let chains: Vec<Chain> = builders
            .map(|part| ChainBuilder::new(&part, &rss, 1).unwrap().instance(|_| true))
            .collect();
        let attached = Attached {
            attachments: vec![Box::new(Mirror(Vec::with_capacity(MAX_BATCH)))],
            pool: BufferPool::new(2 * MAX_BATCH as u32, 64).unwrap(),
        };
        let parts = Parts::new(&spec, chains, attached, 1);
        let mut source = Uniform::new(UniformConfig {
            seed: 1,
            flows: 100,
            size: FrameSize::Fixed(64),
            transport: Transport::Udp,
            rate_pps: 1_000_000,
            packets,
        })
        .unwrap();
        let trace = Trace::load(&mut source, &LoadOptions::default()).unwrap();
        let (clock, nic_config) = (
            Clock::start(),
            TraceNicConfig {
                pacing: Pacing::Saturate,
                ..TraceNicConfig::default()
            },
        );
        let nic = TraceNic::new(trace, rss, 1, &round_robin(1), nic_config, clock.clone());
        let nic = nic.unwrap();
        let config = WorkerConfig {
            slo: spec.slo.budget(),
            window: Nanos::from_secs(100),
            start: clock.now(),
            batch: 32,
        };
        let queue = Box::new(nic.queues(config.start).remove(0));
        let pool = BufferPool::new(512, nic.longest_frame()).unwrap();
        let (mut senders, receiver) = windows(1, 100);
        let telemetry = senders.remove(0);
        let worker = ExternalWorker::new(queue, parts, false, pool, clock, config, telemetry);
        let mut report = None;
        let counted = allocation_counter::measure(|| {
            let finished = worker.run(|| false, &AtomicBool::new(false));
            assert_eq!(finished.died, None);
            report = finished.externals.into_iter().next();
        });
        drop(receiver);
        let report = report.unwrap();
        assert_eq!((report.sent, report.returned), (packets, packets));
        counted.count_total
    }

    #[test]
    fn no_packet_costs_an_allocation() {
        assert_eq!(allocations(20_000), allocations(5_000));
    }
}
