//! Harness for tests of functions: frames through a chain, without ports and workers.

use crate::batch::Batch;
use crate::buffer::BufferPool;
use crate::chain::{Chain, Cuts, InputPolicy, state_bytes_with_cuts};
use crate::flow_table::{FlowTable, FlowTableConfig};
use crate::function::NetworkFunction;
use crate::packet_traces::{PacketFilter, PacketTraces, TracePlace};
use std::fs::File;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tailwater_api::{IdleTimeouts, PacketAction, WhenFull};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::parse::parse;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos, protocol};

/// Chain of functions under test, with a flow table for 4,096 flows and 64 buffers of 2,048 bytes.
pub struct ChainRig {
    /// The chain.
    pub chain: Chain,
    pool: BufferPool,
    batch: Batch,
    /// The hash that the port would put into descriptors.
    pub rss: RssHasher,
}

/// Drops malformed packets and passes non-IP packets.
pub const INPUT: InputPolicy = InputPolicy {
    malformed: PacketAction::Drop,
    non_ip: PacketAction::Pass,
};

impl ChainRig {
    /// Builds the chain in one segment. The RSS hash is symmetric if a function tracks connections.
    ///
    /// # Panics
    /// There is no memory.
    pub fn new(functions: Vec<Box<dyn NetworkFunction>>, input: InputPolicy) -> ChainRig {
        ChainRig::with_cuts(functions, input, Cuts::NONE)
    }

    /// As [`new`](Self::new), in the segments that `cuts` makes.
    ///
    /// # Panics
    /// There is no memory.
    pub fn with_cuts(functions: Vec<Box<dyn NetworkFunction>>, input: InputPolicy, cuts: Cuts) -> ChainRig {
        let functions: Vec<_> = functions
            .into_iter()
            .map(|function| (function.kind().to_lowercase(), function))
            .collect();
        let rss = match functions.iter().any(|(_, f)| f.properties().tracks_connections) {
            true => RssHasher::symmetric(),
            false => RssHasher::default(),
        };
        let config = FlowTableConfig {
            capacity: 4096,
            timeouts: IdleTimeouts {
                tcp: Nanos::from_secs(60),
                udp: Nanos::from_secs(60),
                other: Nanos::from_secs(60),
            },
            when_full: WhenFull::Evict,
            state_bytes: state_bytes_with_cuts(&functions, cuts),
            seed: 1,
        };
        let (mut table, partitions) = FlowTable::create(&config).unwrap();
        partitions.into_iter().for_each(|partition| table.adopt(partition));
        let pool = BufferPool::new(64, 2048).unwrap();
        let batch = Batch::new(&pool, 64);
        let chain = Chain::with_cuts(functions, Some(table), input, cuts);
        ChainRig {
            chain,
            pool,
            batch,
            rss,
        }
    }

    /// Passes one batch and returns the frames that leave the chain: those that went through its functions first, then
    /// those that the input policy passed by.
    ///
    /// # Panics
    /// A buffer is lost, or `frames` are more than a batch holds.
    pub fn run(&mut self, frames: &[Vec<u8>], now: Nanos) -> Vec<Vec<u8>> {
        for frame in frames {
            let hash = parse(frame).map_or(0, |headers| self.rss.hash_headers(&headers));
            assert!(self.batch.push(&mut self.pool, frame, now, hash));
        }
        self.chain.process(&mut self.batch, now);
        let sent = (0..self.batch.len()).map(|i| self.batch.frame(i).to_vec()).collect();
        self.batch.release(&mut self.pool);
        assert_eq!(self.pool.available(), self.pool.capacity(), "a buffer is lost");
        sent
    }

    /// Passes one frame, and returns the functions' [explanations](NetworkFunction::explain) of it, up to the one that
    /// drops it.
    ///
    /// # Panics
    /// A buffer is lost.
    pub fn explain(&mut self, frame: &[u8], now: Nanos) -> Vec<String> {
        let traces = Arc::<PacketTraces>::default();
        let clock = AtomicU64::new(0);
        let read = move || Nanos(clock.fetch_add(1, Ordering::Relaxed));
        self.chain
            .sample_functions(Box::new(read), Arc::clone(&traces), TracePlace::default());
        let all = PacketFilter::parse("").expect("an empty filter is valid");
        let stream = traces.begin(all, 1).expect("nobody else traces");
        self.run(&[frame.to_vec()], now);
        let steps = std::iter::from_fn(|| stream.next_step());
        let steps = steps.filter(|step| step.function.is_some());
        steps.map(|step| step.explanation.as_str().to_owned()).collect()
    }

    /// Count of a drop reason or packet event.
    ///
    /// # Panics
    /// The chain has no such reason.
    pub fn count(&self, reason: &str) -> u64 {
        let reasons = self.chain.reasons().into_iter().zip(self.chain.reason_counts());
        let count = reasons.filter(|(r, _)| r.name == reason).map(|(_, count)| count).next();
        count.unwrap_or_else(|| panic!("no reason {reason}"))
    }
}

/// DNS query from 10.0.0.1 and this source port to 198.18.0.1.
///
/// # Panics
/// Never: the frame is valid.
pub fn udp(source_port: u16) -> Vec<u8> {
    let ends = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(198, 18, 0, 1));
    let key = FlowKey::v4(ends.0, ends.1, protocol::UDP, source_port, 53);
    FrameBuilder::new(&key).payload(b"question").to_vec().unwrap()
}

/// File of `bytes` zero bytes without a name: memory for [`SharedCounters`](crate::shared_counters::SharedCounters) of
/// several processes.
///
/// # Panics
/// The file cannot be made.
pub fn unlinked_file(bytes: usize) -> File {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("tailwater-commons-{}-{next}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let mut options = File::options();
    let file = options.read(true).write(true).create_new(true).open(&path);
    std::fs::remove_file(path).unwrap();
    let file = file.unwrap();
    file.set_len(bytes as u64).unwrap();
    file
}
