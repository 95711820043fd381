//! Cost of an epoch's end for the deciding core, for benchmarks.

use super::dispatch::Dispatch;
use super::link::{FromDispatcher, Helper, link};
use crate::clock::Clock;
use std::path::Path;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, Cuts};
use tailwater_chain::parcel::{PacketStore, Receipt};
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::spec::ChainSpec;
use tailwater_handover::park::{Mode, park};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos, protocol};
use tailwater_policy::core::CoreMapper;

const BUFFERS: u32 = 4096;

/// Dispatcher with a queue of packets, and auxiliary cores that are not running.
pub struct EpochEnd {
    dispatch: Dispatch,
    chain: Chain,
    pool: BufferPool,
    batch: Batch,
    links: Vec<FromDispatcher>,
    receipts: Vec<Receipt>,
    frames: Vec<(Vec<u8>, u32)>,
    packets: usize,
    clock: Clock,
}

impl EpochEnd {
    /// With `packets` packets of `flows` flows in the queue at each epoch's end, up to `helpers` auxiliary cores, and a
    /// mapper that is always due.
    ///
    /// # Panics
    /// If there is no memory for the packets.
    pub fn new(packets: usize, flows: u32, helpers: usize, mut mapper: Box<dyn CoreMapper>) -> EpochEnd {
        let rss = RssHasher::default();
        let text = "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: epoch}\n\
                    spec: {slo: {latency: 200us}, flows: {lookUp: always}, \
                    functions: [{forward: {}}, {name: second, forward: {}}]}";
        let spec = ChainSpec::parse(text, "epoch", Path::new(".")).expect("a chain");
        let cuts = Cuts::before_last(mapper.split_points(helpers));
        let mut builder = ChainBuilder::with_cuts(&spec, &rss, 1, cuts).expect("a flow table");
        let chain = builder.instance(|_| true);
        let pool = BufferPool::new(BUFFERS, 128).expect("memory");
        let store = PacketStore::new(&pool);
        let (mut near, mut links) = (Vec::new(), Vec::new());
        for _ in 0..helpers {
            let (_, waker) = park(Mode::Spin);
            let (to, from) = link(BUFFERS, store.clone(), Helper::auxiliary(waker));
            near.push(to);
            links.push(from);
        }
        let frames = (0..flows).map(|flow| {
            let ends = ((0x0a00_0000 + flow).into(), 0xc633_6401.into());
            let key = FlowKey::v4(ends.0, ends.1, protocol::UDP, 1000, 53);
            let frame = FrameBuilder::new(&key).to_vec().expect("a frame");
            let hash = tailwater_net::parse::parse(&frame).map(|headers| rss.hash_headers(&headers));
            (frame, hash.unwrap_or_default())
        });
        EpochEnd {
            dispatch: Dispatch::new(0, mapper, store, near, &pool, &chain),
            batch: Batch::new(&pool, 32),
            frames: frames.collect(),
            chain,
            pool,
            links,
            receipts: Vec::with_capacity(BUFFERS as usize),
            packets,
            clock: Clock::start(),
        }
    }

    /// Fills the queue, ends the epoch, and offloads the packets that the mapper moves. Returns the time from reading
    /// the queue to pushing the last packet, and the number of packets offloaded, at once or after the first functions.
    /// All packets are processed afterwards.
    pub fn run(&mut self, now: Nanos) -> (Nanos, usize) {
        let mut next = 0;
        while next < self.packets {
            while next < self.packets && self.batch.room() > 0 {
                let (frame, hash) = &self.frames[next % self.frames.len()];
                self.batch.push(&mut self.pool, frame, now, *hash);
                next += 1;
            }
            self.distribute(now);
        }
        let began = self.clock.now();
        self.dispatch.decide(&mut self.chain, None, now);
        self.dispatch.flush(now);
        let took = self.clock.now() - began;
        let mut moved = self.help(now);
        loop {
            let more = self.dispatch.take(&mut self.batch, false);
            self.dispatch.done(&mut self.batch, &mut self.pool, &mut self.chain);
            for from in 1..self.chain.segments() {
                self.chain.run_before(from, self.dispatch.part(from), now);
                self.dispatch.pass_on(from, &mut self.pool, &mut self.chain);
            }
            self.dispatch.flush(now);
            moved += self.help(now);
            if !more {
                return (took, moved);
            }
        }
    }

    /// Receives the packets, and takes those back that the mapper places on auxiliary cores. Returns the time on this
    /// core, without that of the port, and the number of packets offloaded. There must be room for all.
    pub fn offload(&mut self, now: Nanos) -> (Nanos, usize) {
        let (mut took, mut next, mut moved) = (Nanos::ZERO, 0, 0);
        while next < self.packets {
            while next < self.packets && self.batch.room() > 0 {
                let (frame, hash) = &self.frames[next % self.frames.len()];
                self.batch.push(&mut self.pool, frame, now, *hash);
                next += 1;
            }
            let began = self.clock.now();
            self.distribute(now);
            self.dispatch.flush(now);
            took += self.clock.now() - began;
            moved += self.answer();
            let began = self.clock.now();
            self.dispatch.collect(&mut self.pool, &mut self.chain, now);
            took += self.clock.now() - began;
        }
        while self.dispatch.take(&mut self.batch, false) || !self.batch.is_empty() {
            self.dispatch.done(&mut self.batch, &mut self.pool, &mut self.chain);
        }
        (took, moved)
    }

    /// Distributes a received batch, after its look-up if flows are offloaded.
    fn distribute(&mut self, now: Nanos) {
        if !self.dispatch.lends_buckets() {
            self.chain.look_up(&mut self.batch, now);
        }
        self.dispatch.distribute(&mut self.batch, &mut self.chain, None, now);
    }

    /// Stands in for the auxiliary cores. Returns the number of packets they had.
    fn help(&mut self, now: Nanos) -> usize {
        let helped = self.answer();
        self.dispatch.collect(&mut self.pool, &mut self.chain, now);
        helped
    }

    /// Returns all packets on auxiliary cores as done. Returns their number.
    fn answer(&mut self) -> usize {
        let mut helped = 0;
        for link in &mut self.links {
            let receipts = &mut self.receipts;
            helped += link
                .parcels
                .pop_each(BUFFERS as usize, |parcel| receipts.push(parcel.discard()));
            link.receipts.push_all(receipts);
        }
        helped
    }
}
