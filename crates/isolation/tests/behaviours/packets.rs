//! Packets of a case, and the model: the same chain in one process, where the hostile function does nothing.

use crate::case::Case;
use crate::honest::{BATCH, DENIED, LEAST, LIVE, LOOT, POLICY, STAMPS, TAG, UNSEEN, is_stamped, set_lengths, stamp};
use crate::script::Random;
use tailwater_api::PacketAction;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, InputPolicy, Outcome};
use tailwater_chain::function::NetworkFunction;
use tailwater_net::Nanos;
use tailwater_net::parse::parse;
use tailwater_net::toeplitz::RssHasher;

/// End of the hostile function's field.
const LOOT_END: usize = LOOT + 24;

/// A frame as it left, and its number in the batch.
pub(crate) type Sent = (usize, Vec<u8>);

/// A chain and the buffers of its packets.
pub(crate) struct Running {
    chain: Chain,
    pool: BufferPool,
    batch: Batch,
}

impl Running {
    pub(crate) fn new(functions: Vec<(String, Box<dyn NetworkFunction>)>, pool: BufferPool) -> Running {
        let input = InputPolicy {
            malformed: PacketAction::Drop,
            non_ip: PacketAction::Drop,
        };
        Running {
            chain: Chain::new(functions, None, input),
            batch: Batch::new(&pool, 256),
            pool,
        }
    }

    /// Sends a batch of these frames.
    pub(crate) fn send(&mut self, frames: &[Vec<u8>]) -> Vec<Sent> {
        for (i, frame) in frames.iter().enumerate() {
            let hash = RssHasher::default().hash(&parse(frame).expect("a frame").key);
            assert!(self.batch.push(&mut self.pool, frame, Nanos(i as u64), hash));
        }
        self.chain.process(&mut self.batch, Nanos(1));
        let left = (0..self.batch.len()).map(|i| {
            let number = self.batch.packet(i).arrival.0 as usize;
            (number, self.batch.frame(i).to_vec())
        });
        let left = left.collect();
        self.batch.release(&mut self.pool);
        left
    }

    /// Returns the counts of packets that did not leave, by reason.
    pub(crate) fn gone(&self) -> Vec<(String, u64)> {
        let reasons = self.chain.reasons().into_iter().zip(self.chain.reason_counts());
        let gone = reasons.filter(|(reason, count)| reason.outcome != Outcome::Passed && *count > 0);
        gone.map(|(reason, count)| (reason.name, count)).collect()
    }

    pub(crate) fn drain(self) {
        self.chain.drain();
    }
}

pub(crate) fn pool() -> BufferPool {
    BufferPool::new(600, 2048).expect("memory")
}

/// Returns the honest functions of a case, in this process.
pub(crate) fn model(case: &Case) -> Running {
    let honest = (0..case.functions()).filter_map(|k| Some((k, case.at(k)?)));
    let honest = honest.map(|(k, it)| (format!("f{k}"), Box::new(it) as Box<dyn NetworkFunction>));
    Running::new(honest.collect(), pool())
}

/// Returns the frames of batch `n`. The hostile function behaves if `live`.
pub(crate) fn frames(case: &Case, n: u32, live: bool) -> Vec<Vec<u8>> {
    let mut random = Random(case.seed.rotate_left(32) ^ u64::from(n));
    let count = 1 + random.below(case.packets);
    let frame = |_| {
        let length = match random.below(4) {
            0 => 1_200 + random.below(200),
            _ => 256 + random.below(128),
        };
        let mut frame = vec![0; length];
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14..24].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17]);
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        frame[34..36].copy_from_slice(&(random.next() as u16).to_be_bytes());
        frame[36..38].copy_from_slice(&80u16.to_be_bytes());
        set_lengths(&mut frame, length);
        frame[BATCH..BATCH + 4].copy_from_slice(&n.to_be_bytes());
        frame[LIVE] = live.into();
        frame[POLICY] = if random.below(5) == 0 { DENIED } else { 80 };
        frame[POLICY + 1..POLICY + 9].copy_from_slice(&UNSEEN);
        for byte in &mut frame[LEAST..] {
            *byte = random.next() as u8;
        }
        stamp(&mut frame, 0);
        frame
    };
    (0..count).map(frame).collect()
}

/// Returns the sightings that the hostile function wrote into a frame.
pub(crate) fn sightings(frame: &[u8]) -> Option<[u64; 2]> {
    let word = |at: usize| {
        let bytes = frame.get(at..at + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    let [secrets, early, check] = [LOOT, LOOT + 8, LOOT + 16].map(word);
    let (secrets, early) = (secrets?, early?);
    (check? == Random(secrets ^ early.rotate_left(32)).next()).then_some([secrets, early])
}

/// Returns `true` if a frame left as the last honest function of the case stamped it.
pub(crate) fn is_unchanged(case: &Case, frame: &[u8]) -> bool {
    is_stamped(frame, case.functions())
}

/// Returns `true` if a frame is the model's, apart from the hostile function's field and the stamps of those behind.
pub(crate) fn is_as_in_model(case: &Case, frame: &[u8], model: &[u8]) -> bool {
    let stamps = STAMPS + 8 * (case.hostile + 1);
    let same = |from: usize, to: usize| frame[from..to] == model[from..to];
    frame.len() == model.len()
        && frame.len() >= LEAST
        && same(0, TAG)
        && same(LOOT_END, stamps)
        && same(LEAST, frame.len())
}
