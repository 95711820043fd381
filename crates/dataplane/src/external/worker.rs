//! Worker of a chain with external functions: it polls its own queue and the functions' ports.
//!
//! The chain is cut at its external functions. Packets that have passed a part go to the function behind it. Packets
//! that come back pass the next part as if they had just been received, with a new look-up, since the function may have
//! changed their flow. They keep their original arrival time. They return to the worker that sent them, since each
//! worker has its own ports, and a flow's packets continue in the order in which the function returns them.

use super::attachment::Direction;
use super::parts::Parts;
use super::stage::{ExternalStage, Lane};
use crate::clock::Clock;
use crate::meter::Counting;
use crate::port::{PortQueue, Received};
use crate::telemetry::WindowSender;
use crate::worker::config::WorkerConfig;
use crate::worker::context::{CountedChain, QueueContext};
use crate::worker::finished::Finished;
use crate::worker::poll_loop::{PollLoop, Processing};
use std::time::Duration;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::FunctionTotals;
use tailwater_net::Nanos;

/// Processing of a chain's parts, and of packets in external functions.
pub(crate) struct ExternalProcessing {
    parts: Parts,
    /// Packets from the port.
    entry: Lane,
    /// Packets from external functions.
    back: Lane,
    /// Packets can be sent back to the entry port.
    goes_back: bool,
    /// Packets in processing that have been counted already.
    counted: u64,
}

/// Worker of a chain with external functions, ready to run on the thread it is moved to. It ends once no packet is
/// outside any more.
pub(crate) type ExternalWorker = PollLoop<ExternalProcessing>;

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
        queue.mark_directions();
        let mut context = QueueContext::new(queue, clock, config, telemetry);
        context.meter.know_external();
        PollLoop {
            context,
            processing: ExternalProcessing {
                parts,
                entry: Lane::new(pool),
                back: Lane::new(back),
                goes_back,
                counted: 0,
            },
        }
    }
}

impl ExternalProcessing {
    /// Runs received packets through the first part. Returns the end time.
    fn process_received(&mut self, context: &mut QueueContext, now: Nanos, backlog: bool) -> Nanos {
        let Lane { pool, batch, .. } = &mut self.entry;
        context.meter.note_batch(batch);
        // The time that they will be outside is not known.
        let late = context.too_late(batch, backlog, now);
        if late > 0 {
            let receipts = batch.take_first(late);
            receipts.for_each(|receipt| pool.give(receipt.into_buffer()));
            if batch.is_empty() {
                return context.clock.now();
            }
        }
        let packets = batch.len();
        if backlog {
            context.meter.note_backlog(batch, now);
        }
        context.port.complete(batch);
        self.parts.chains[0].process(batch, now);
        let sent = self.send_on(context, 0, packets, now);
        if backlog {
            context.learn(packets, now, sent);
        }
        sent
    }

    /// Runs packets that come back from an external function in this direction through the part behind it. Returns the
    /// end time, or `None` without packets.
    fn process_returned(
        &mut self,
        context: &mut QueueContext,
        function: usize,
        way: Direction,
        now: Nanos,
    ) -> Option<Nanos> {
        let behind = &self.parts.chains[function + 1];
        self.back.limit(behind, context.config.batch);
        let stage = &mut self.parts.stages[function];
        if stage.receive(way, now, &mut self.back) == 0 {
            return None;
        }
        let batch = &mut self.back.batch;
        let came = stage.recognise(way, self.goes_back, now, batch);
        context.meter.note_made(came.own, came.dropped, now);
        self.counted = (batch.in_hand() - batch.len()) as u64;
        let packets = batch.len();
        if packets == 0 {
            self.back.release();
            self.counted = 0;
            return Some(context.clock.now());
        }
        self.parts.chains[function + 1].process(batch, now);
        let time = self.send_on(context, function + 1, packets, now);
        self.counted = 0;
        Some(time)
    }

    /// Sends packets that have passed a part, of originally `packets`, to the function behind it, or out. Returns the
    /// end time.
    fn send_on(&mut self, context: &mut QueueContext, part: usize, packets: usize, began: Nanos) -> Nanos {
        // Only the first part's packets are from the port.
        let lane = match part {
            0 => &mut self.entry,
            _ => &mut self.back,
        };
        let chain = &mut self.parts.chains[part];
        let sent = match self.parts.stages.get_mut(part) {
            Some(stage) => send_outside(context, (chain, stage), lane, packets, began),
            None => send_out(context, (chain, self.goes_back), lane, packets, began),
        };
        lane.release();
        sent
    }

    /// Counts packets that have been outside for too long, or all of them at the end.
    fn give_up(&mut self, context: &mut QueueContext, all: bool) {
        for stage in &mut self.parts.stages {
            let missing = stage.give_up(all);
            if missing > 0 {
                context.meter.note_missing(missing, stage.loses());
            }
        }
    }
}

/// Sends the lane's packets to an external function, the rest of `packets` packets from the chain in front. Returns the
/// end time.
fn send_outside(
    context: &mut QueueContext,
    (chain, stage): (&mut CountedChain, &mut ExternalStage),
    lane: &mut Lane,
    packets: usize,
    began: Nanos,
) -> Nanos {
    let gone = packets - lane.batch.len();
    let lost = chain.newly_lost();
    let not_out = stage.send(lane, began);
    let sent = context.clock.now();
    let gone = gone + not_out as usize;
    context
        .meter
        .note_processed(packets, gone, lost + not_out, [began, sent]);
    sent
}

/// Sends the lane's packets to the port, the rest of `packets` packets from the chain's last part. Returns the end
/// time.
fn send_out(
    context: &mut QueueContext,
    (chain, goes_back): (&mut CountedChain, bool),
    lane: &mut Lane,
    packets: usize,
    began: Nanos,
) -> Nanos {
    let gone = packets - lane.batch.len();
    let lost = chain.newly_lost();
    let mut unsent = 0;
    if goes_back {
        lane.divide();
        if !lane.aside.is_empty() {
            unsent += context.port.transmit_back(&mut lane.aside);
        }
    }
    unsent += context.port.transmit(&mut lane.batch);
    let span = [began, context.clock.now()];
    let meter = &mut context.meter;
    meter.note_processed(packets, gone, lost, span);
    if unsent > 0 {
        meter.note_unsent(unsent);
    }
    meter.note_delivered(&lane.batch, span);
    if !lane.aside.is_empty() {
        meter.note_delivered(&lane.aside, span);
    }
    span[1]
}

impl Counting for ExternalProcessing {
    fn count(&self, counts: &mut Vec<u64>) {
        self.parts.count(counts);
    }

    fn count_functions(&self, totals: &mut Vec<FunctionTotals>) {
        self.parts.count_functions(totals);
    }

    fn flows(&self) -> u64 {
        self.parts.flows()
    }
}

impl Processing for ExternalProcessing {
    /// At the end, functions have their full timeout for every packet.
    fn extra_drain(&self) -> Nanos {
        let timeouts = self.parts.stages.iter().map(ExternalStage::timeout);
        timeouts.fold(Nanos::ZERO, |drain, timeout| drain + timeout)
    }

    fn receive(&mut self, context: &mut QueueContext, now: Nanos) -> Received {
        self.entry.limit(&self.parts.chains[0], context.config.batch);
        let Lane { pool, batch, .. } = &mut self.entry;
        let mut received = context.port.receive(now, pool, batch);
        let packets = batch.len() + context.config.batch;
        context.discard_waiting(&mut received, packets, now);
        received
    }

    fn process(&mut self, context: &mut QueueContext, received: &mut Received, now: Nanos) -> Option<Nanos> {
        let mut end = None;
        if !self.entry.batch.is_empty() {
            end = Some(self.process_received(context, now, received.waiting > 0));
        }
        for function in 0..self.parts.stages.len() {
            for &way in self.parts.stages[function].ways() {
                let began = end.unwrap_or(now);
                end = self.process_returned(context, function, way, began).or(end);
            }
        }
        self.give_up(context, false);
        for chain in &mut self.parts.chains {
            chain.expire(now);
        }
        end
    }

    /// Packets may come back at any time.
    fn on_idle(&mut self, _: Received, _: Nanos, _: Nanos) -> Option<Duration> {
        None
    }

    fn is_done(&self) -> bool {
        self.parts.stages.iter().all(|stage| stage.outside() == 0)
    }

    fn abort(&mut self, context: &mut QueueContext, now: Nanos) {
        let mut lost = self.parts.chains.iter_mut().map(CountedChain::newly_lost).sum();
        for lane in [&mut self.entry, &mut self.back] {
            if lane.batch.in_hand() > 0 {
                let lost = std::mem::take(&mut lost);
                context.meter.note_unfinished(&mut lane.batch, lost, now);
                // Packets counted before are not dropped now.
                context.meter.window().dropped -= std::mem::take(&mut self.counted);
            }
            lane.release();
        }
    }

    /// Packets are outside.
    fn discard(&mut self, context: &mut QueueContext, _: Nanos) {
        self.give_up(context, true);
    }

    fn reclaim(&mut self, context: &mut QueueContext) {
        context.port.reclaim(&mut self.entry.pool);
    }

    fn finish(self, _: Nanos) -> Finished {
        let Parts { chains, stages } = self.parts;
        Finished {
            externals: stages.iter().map(ExternalStage::counts).collect(),
            chains: chains.into_iter().map(CountedChain::into_chain).collect(),
            ..Finished::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::attachment::{Attached, Attachment};
    use super::super::own_buckets::OwnBuckets;
    use super::*;
    use crate::port::round_robin;
    use crate::telemetry::windows;
    use crate::trace_nic::{Pacing, TraceNic, TraceNicConfig};
    use std::path::Path;
    use std::sync::atomic::AtomicBool;
    use tailwater_api::WhenOverloaded;
    use tailwater_chain::batch::{Batch, MAX_BATCH};
    use tailwater_chain::chain::Chain;
    use tailwater_functions::build::ChainBuilder;
    use tailwater_functions::spec::ChainSpec;
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
        let parts = Parts::new(&spec, chains, attached, (1, OwnBuckets::new(&round_robin(1), 0)));
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
            when_overloaded: WhenOverloaded::InOrder,
            window: Nanos::from_secs(100),
            start: clock.now(),
            batch: 32,
            late: Default::default(),
        };
        let queue = Box::new(nic.queues(config.start).remove(0));
        let pool = BufferPool::new(512, nic.longest_frame()).unwrap();
        let (mut senders, receiver) = windows(1, [100, 10]);
        let telemetry = senders.remove(0);
        let worker = ExternalWorker::new(queue, parts, false, pool, clock, config, telemetry);
        let mut report = None;
        let counted = allocation_counter::measure(|| {
            let finished = worker.run(|| false, &AtomicBool::new(false));
            assert_eq!(finished.died, None);
            report = finished.externals.into_iter().next();
        });
        drop(receiver);
        let report = report.unwrap().report();
        assert_eq!((report.sent, report.returned), (packets, packets));
        counted.count_total
    }

    #[test]
    fn no_packet_costs_an_allocation() {
        assert_eq!(allocations(20_000), allocations(5_000));
    }
}
