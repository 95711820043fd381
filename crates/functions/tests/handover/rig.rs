//! Chain of one function with several instances.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use tailwater_api::PacketAction;
use tailwater_api::{IdleTimeouts, WhenFull};
use tailwater_chain::batch::{Batch, Packet, Verdict};
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, InputPolicy, state_bytes};
use tailwater_chain::flow_table::{FlowTable, FlowTableConfig};
use tailwater_chain::function::{
    FlowEnds, FlowStates, FlowTimer, FunctionProperties, Lifetimes, NetworkFunction, NewFlow, RunEnd,
};
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::parse::parse;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::toeplitz::{BUCKETS, RssHasher};
use tailwater_net::{FlowKey, Nanos, protocol};

pub const SECOND: Nanos = Nanos::from_secs(1);
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Instances that process packets in turns, which the test sets.
struct Relay {
    instances: Vec<Box<dyn NetworkFunction>>,
    turn: Arc<AtomicUsize>,
    /// Incremented to show flows again.
    version: Arc<AtomicU32>,
    notes: Vec<u64>,
    timer_interval: Option<Nanos>,
}

impl NetworkFunction for Relay {
    fn kind(&self) -> &'static str {
        self.instances[0].kind()
    }
    fn drop_reasons(&self) -> &'static [&'static str] {
        self.instances[0].drop_reasons()
    }
    fn is_loss(&self, reason: u8) -> bool {
        self.instances[0].is_loss(reason)
    }
    fn counters(&self) -> &'static [&'static str] {
        self.instances[0].counters()
    }
    fn counter_values(&self) -> &[u64] {
        &self.notes
    }
    fn state_bytes(&self) -> usize {
        self.instances[0].state_bytes()
    }
    fn properties(&self) -> FunctionProperties {
        self.instances[0].properties()
    }
    fn version(&self) -> u32 {
        self.instances[0].version() + self.version.load(Ordering::Relaxed)
    }
    fn prepare(&mut self, batch: &Batch, new: &[u16]) {
        self.instances
            .iter_mut()
            .for_each(|instance| instance.prepare(batch, new));
    }
    fn new_flow(&mut self, packet: &Packet, frame: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        let at = match self.properties().opens_companions {
            true => 0,
            false => self.turn.load(Ordering::Relaxed),
        };
        self.instances[at].new_flow(packet, frame, flow)
    }
    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        self.instances[self.turn.load(Ordering::Relaxed)].process(batch, flows);
        self.sum_notes();
    }
    fn flow_ends(&mut self) -> Option<&mut dyn FlowEnds> {
        self.instances[0].flow_ends()
    }
    fn run_end(&mut self) -> Option<&mut dyn RunEnd> {
        Some(self)
    }
    fn timer(&mut self) -> Option<&mut dyn FlowTimer> {
        match self.timer_interval {
            Some(_) => Some(self),
            None => None,
        }
    }
    fn lifetimes(&self) -> Option<Arc<dyn Lifetimes>> {
        self.instances[0].lifetimes()
    }
}

impl RunEnd for Relay {
    fn drain(&mut self) {
        let run_ends = self.instances.iter_mut().filter_map(|instance| instance.run_end());
        run_ends.for_each(|run_end| run_end.drain());
    }
}

impl FlowTimer for Relay {
    fn interval(&self) -> Nanos {
        self.timer_interval.unwrap_or(Nanos::MAX)
    }
    fn on_timer(&mut self, key: &FlowKey, state: &mut [u8], now: Nanos) {
        if let Some(timer) = self.instances[0].timer() {
            timer.on_timer(key, state, now);
        }
        self.sum_notes();
    }
}

impl Relay {
    fn sum_notes(&mut self) {
        self.notes.fill(0);
        for instance in &self.instances {
            for (sum, count) in self.notes.iter_mut().zip(instance.counter_values()) {
                *sum += count;
            }
        }
    }
}

pub struct Rig {
    chain: Chain,
    pool: BufferPool,
    batch: Batch,
    rss: RssHasher,
    turn: Arc<AtomicUsize>,
    version: Arc<AtomicU32>,
}

impl Rig {
    /// Creates the chain; flows expire after 60 seconds.
    pub fn new<F: NetworkFunction + 'static>(instances: impl IntoIterator<Item = F>) -> Rig {
        let mut instances: Vec<Box<dyn NetworkFunction>> =
            instances.into_iter().map(|instance| Box::new(instance) as _).collect();
        let turn = Arc::new(AtomicUsize::new(0));
        let version = Arc::new(AtomicU32::new(0));
        let relay = Relay {
            notes: vec![0; instances[0].counters().len()],
            timer_interval: instances[0].timer().map(|timer| timer.interval()),
            instances,
            turn: Arc::clone(&turn),
            version: Arc::clone(&version),
        };
        let functions: Vec<(String, Box<dyn NetworkFunction>)> = vec![("function".to_owned(), Box::new(relay))];
        let rss = match functions[0].1.properties().tracks_connections {
            true => RssHasher::symmetric(),
            false => RssHasher::default(),
        };
        let timeout = Nanos::from_secs(60);
        let config = FlowTableConfig {
            capacity: 4096,
            timeouts: IdleTimeouts {
                tcp: timeout,
                udp: timeout,
                other: timeout,
            },
            when_full: WhenFull::Evict,
            state_bytes: state_bytes(&functions),
            seed: 1,
        };
        let (mut table, partitions) = FlowTable::create(&config).unwrap();
        partitions.into_iter().for_each(|partition| table.adopt(partition));
        let input = InputPolicy {
            malformed: PacketAction::Drop,
            non_ip: PacketAction::Pass,
        };
        let pool = BufferPool::new(64, 2048).unwrap();
        Rig {
            chain: Chain::new(functions, Some(table), input),
            batch: Batch::new(&pool, 64),
            pool,
            rss,
            turn,
            version,
        }
    }

    /// Shows every flow again with its next packet.
    pub fn show_again(&mut self) {
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// Selects the instance that processes the following packets.
    pub fn turn_to(&mut self, instance: usize) {
        self.turn.store(instance, Ordering::Relaxed);
    }

    /// Returns the frames that leave the chain.
    pub fn run(&mut self, frames: &[Vec<u8>], now: Nanos) -> Vec<Vec<u8>> {
        for frame in frames {
            let hash = parse(frame).map_or(0, |headers| self.rss.hash_headers(&headers));
            assert!(self.batch.push(&mut self.pool, frame, now, hash));
        }
        self.chain.process(&mut self.batch, now);
        let sent = (0..self.batch.len()).map(|i| self.batch.frame(i).to_vec()).collect();
        self.batch.release(&mut self.pool);
        sent
    }

    /// Expires idle flows.
    pub fn expire(&mut self, now: Nanos) {
        (0..BUCKETS).for_each(|_| self.chain.expire(now));
    }

    pub fn flows(&self) -> usize {
        self.chain.flows()
    }

    pub fn count(&self, reason: &str) -> u64 {
        let name = format!("function/{reason}");
        let mut counts = self.chain.reasons().into_iter().zip(self.chain.reason_counts());
        counts.find(|(reason, _)| reason.name == name).unwrap().1
    }

    pub fn finish(self) {
        self.chain.drain();
    }
}

/// All counts of the chain.
pub fn sums(rig: &Rig) -> Vec<u64> {
    rig.chain.reason_counts().collect()
}

pub fn frame(key: &FlowKey) -> Vec<u8> {
    let builder = FrameBuilder::new(key);
    builder.payload(b"what it carries").to_vec().unwrap()
}

/// TCP segment of the client.
pub fn segment(port: u16, sequence: u32, flags: TcpFlags, payload: &[u8]) -> Vec<u8> {
    let key = FlowKey::v4(CLIENT, SERVER, protocol::TCP, port, 80);
    let fields = TcpFields {
        sequence,
        flags,
        ..TcpFields::default()
    };
    let builder = FrameBuilder::new(&key).tcp(fields);
    builder.payload(payload).to_vec().unwrap()
}
