//! A chain without ports and threads, in virtual time.

use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, Cuts};
use tailwater_functions::build::{ChainBuilder, Reconfigure};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;

use tailwater_net::parse::{Network, parse};
use tailwater_net::toeplitz::{BUCKETS, RssHasher};

/// Largest batch.
pub const LARGEST_BATCH: usize = 256;
/// Bytes of a buffer.
const BUFFER_BYTES: usize = 2048;
/// Distance between packets.
const GAP: Nanos = Nanos::from_micros(10);

/// Packet of a test: its number, from which its arrival follows, and its frame.
pub type Frame<'f> = (u64, &'f [u8]);

/// Frame as it left the chain, or `None` if it did not.
pub type Sent = Option<Vec<u8>>;

/// Chain on one core, or on several between which RSS buckets move.
pub struct Rig {
    builder: ChainBuilder,
    /// Instances, one for each core; the first one has all buckets at the start.
    pub cores: Vec<Chain>,
    pool: BufferPool,
    batch: Batch,
    rss: RssHasher,
}

/// Arrival of a packet.
pub fn arrival(number: u64) -> Nanos {
    Nanos(Nanos::from_secs(1).0 + number * GAP.0)
}

impl Rig {
    /// Builds the chain for so many cores.
    ///
    /// # Errors
    /// The chain cannot be built, in a line.
    pub fn new(spec: &ChainSpec, cores: usize) -> Result<Rig, String> {
        let rss = spec.rss();
        let mut builder = ChainBuilder::new(spec, &rss, 1).map_err(|error| error.to_string())?;
        let pool = BufferPool::new(2 * LARGEST_BATCH as u32, BUFFER_BYTES).map_err(|error| error.to_string())?;
        let cores = (0..cores).map(|core| builder.instance(|_| core == 0)).collect();
        Ok(Rig {
            builder,
            cores,
            batch: Batch::new(&pool, LARGEST_BATCH),
            pool,
            rss,
        })
    }

    /// Replaces the chain, on one core, by that of another spec, which takes the flows of the functions that both have.
    ///
    /// # Errors
    /// The other chain cannot be built, or has other flows, in a line.
    pub fn succeeded(mut self, spec: &ChainSpec) -> Result<Rig, String> {
        let kept = Reconfigure::of([&self.builder].into_iter());
        let kept = kept.map_or_else(Vec::new, |reconfigure| reconfigure.kept_by(spec));
        let names: Vec<String> = kept.iter().map(|function| function.name().to_owned()).collect();
        let builder = ChainBuilder::succeeding(spec, &self.rss, 1, Cuts::NONE, &kept);
        let mut builder = builder.map_err(|error| error.to_string())?;
        let mut new = builder.instance(|_| true);
        let old = self.cores.remove(0);
        if !new.can_succeed(&old) {
            return Err("the changed chain finds flows by other keys".to_owned());
        }
        new.succeed(old, &names);
        self.cores.push(new);
        Ok(Rig { builder, ..self })
    }

    /// Passes packets through a core's instance in batches of at most so many. Returns a place for each packet.
    ///
    /// # Errors
    /// Packets leave in another order, or a buffer is lost.
    pub fn run(&mut self, core: usize, frames: &[Frame<'_>], batch: usize) -> Result<Vec<Sent>, String> {
        let mut sent: Vec<Sent> = vec![None; frames.len()];
        for (start, part) in frames.chunks(batch).enumerate().map(|(i, part)| (i * batch, part)) {
            for (number, frame) in part {
                let hash = parse(frame).map_or(0, |headers| self.rss.hash_headers(&headers));
                if !self.batch.push(&mut self.pool, frame, arrival(*number), hash) {
                    return Err(format!("packet {number} has no buffer"));
                }
            }
            let now = part.last().map_or(Nanos::ZERO, |(number, _)| arrival(*number));
            self.cores[core].process(&mut self.batch, now);
            // Packets that pass around the functions leave behind the others.
            let passes = |frame: &[u8]| parse(frame).is_ok_and(|headers| headers.network != Network::NotIp);
            let mut last = None;
            for place in 0..self.batch.len() {
                let time = self.batch.packet(place).arrival;
                let at = part.iter().position(|(number, _)| arrival(*number) == time);
                let at = at.ok_or("a packet leaves with another arrival time")?;
                if passes(part[at].1) && last.replace(at) > Some(at) {
                    return Err("packets leave in another order than they came".to_owned());
                }
                sent[start + at] = Some(self.batch.frame(place).to_vec());
            }
            self.batch.release(&mut self.pool);
        }
        match self.pool.available() == self.pool.capacity() {
            true => Ok(sent),
            false => Err("packet buffers are lost".to_owned()),
        }
    }

    /// Moves all RSS buckets, with their flows, from one core to another.
    pub fn move_buckets(&mut self, from: usize, to: usize) {
        for bucket in 0..BUCKETS as u16 {
            if let Some(partition) = self.cores[from].release(bucket) {
                self.cores[to].adopt(partition);
            }
        }
    }

    /// Ends all flows whose timeouts have passed at a time, of a core.
    pub fn expire(&mut self, core: usize, now: Nanos) {
        // Each call has a bound; flows without timeout never end.
        for _ in 0..100_000 {
            if self.cores[core].flows() == 0 {
                break;
            }
            self.cores[core].expire(now);
        }
    }

    /// Ends the chain as a run does.
    pub fn drain(self) {
        for chain in self.cores {
            chain.drain();
        }
        drop(self.builder);
    }

    /// Sum of a count over all cores: reasons that end so.
    pub fn count(&self, ending: &str) -> u64 {
        let of_core = |chain: &Chain| -> u64 {
            let counts = chain.reasons().into_iter().zip(chain.reason_counts());
            counts
                .filter(|(reason, _)| reason.name.ends_with(ending))
                .map(|(_, count)| count)
                .sum()
        };
        self.cores.iter().map(of_core).sum()
    }
}
