//! Chain as the fuzz targets feed it: any frames in, and every packet is sent or counted.

use std::path::Path;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, Outcome};
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_net::parse::parse;
use tailwater_net::toeplitz::RssHasher;

const HEAD: &str = "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: fuzz}\nspec:\n";

/// Chain that counts the packets offered to it and sent by it.
pub struct FuzzedChain {
    chain: Chain,
    pool: BufferPool,
    batch: Batch,
    rss: RssHasher,
    offered: u64,
    sent: u64,
}

impl FuzzedChain {
    /// Builds the chain with these fields of `spec`, in YAML, for batches of at most `batch` packets.
    ///
    /// # Panics
    ///
    /// If the spec is invalid, or memory is short.
    pub fn new(fields: &str, batch: u32) -> Self {
        let spec = ChainSpec::parse(&format!("{HEAD}{fields}"), "fuzz", Path::new(".")).expect("a valid spec");
        let rss = spec.rss();
        let mut builder = ChainBuilder::new(&spec, &rss, 1).expect("enough memory");
        let pool = BufferPool::new(2 * batch, 2048).expect("enough memory");
        FuzzedChain {
            chain: builder.instance(|_| true),
            batch: Batch::new(&pool, batch as usize),
            pool,
            rss,
            offered: 0,
            sent: 0,
        }
    }

    /// Adds a frame that arrives at `now` to the batch. Returns `true` if the batch is full.
    ///
    /// # Panics
    ///
    /// If the batch was full before.
    pub fn add(&mut self, frame: &[u8], now: Nanos) -> bool {
        let hash = parse(frame).map_or(0, |headers| self.rss.hash_headers(&headers));
        self.offered += 1;
        assert!(self.batch.push(&mut self.pool, frame, now, hash));
        self.batch.room() == 0
    }

    /// Processes the batch, passes each packet that leaves to `sent` with its place in the batch, and expires flows.
    pub fn process(&mut self, now: Nanos, mut sent: impl FnMut(&Batch, usize)) {
        self.chain.process(&mut self.batch, now);
        for place in 0..self.batch.len() {
            sent(&self.batch, place);
        }
        self.sent += self.batch.len() as u64;
        self.batch.release(&mut self.pool);
        self.chain.expire(now);
    }

    /// Imports flows of another process, if they are some.
    pub fn import_flows(&mut self, bytes: &[u8], now: Nanos) {
        let imported = self.chain.import_flows(bytes, now, Nanos::ZERO);
        assert!(imported.is_ok_and(|imported| imported.flows <= 1024) || self.chain.flows() <= 1024);
    }

    /// Checks that all packets were sent or counted, and that all buffers are back.
    ///
    /// # Panics
    ///
    /// If not.
    pub fn check_counts(&self) {
        assert_eq!(self.pool.available(), self.pool.capacity());
        let reasons = self.chain.reasons().into_iter().zip(self.chain.reason_counts());
        let gone = reasons.filter(|(reason, _)| reason.outcome != Outcome::Passed);
        let gone: u64 = gone.map(|(_, count)| count).sum();
        assert_eq!(self.offered, self.sent + gone);
    }
}

/// Checks that a packet that leaves is well-formed and has the headers that the chain knows.
///
/// # Panics
///
/// If not.
pub fn check_headers(batch: &Batch, place: usize) {
    let headers = parse(batch.frame(place)).expect("a well-formed packet");
    let known = &batch.packet(place).headers;
    assert_eq!(known.key.of_whole(), headers.key);
    assert_eq!(known.end, headers.end);
}

/// Cuts the input into steps: a byte for the kind, one for the length in units of `unit` bytes, then that many bytes.
pub fn steps(mut bytes: &[u8], unit: usize) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let [kind, length, rest @ ..] = bytes else {
            return None;
        };
        let (payload, rest) = rest.split_at(rest.len().min(usize::from(*length) * unit));
        bytes = rest;
        Some((*kind, payload))
    })
}
