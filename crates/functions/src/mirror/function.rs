//! The `Mirror` network function.

use super::cells::Copied;
use super::rules::{MirrorRules, Sampling};
use super::table::{CopySender, MirrorTable};
use std::sync::Arc;
use tailwater_chain::batch::Batch;
use tailwater_chain::function::{FlowStates, NetworkFunction, RunEnd};
use tailwater_chain::live::Version;

const COUNTERS: &[&str] = &["copied", "no-room", "file-full", "not-written"];
const COPIED: usize = 0;
const NO_ROOM: usize = 1;
/// First counter of copies [lost](CopySender::take_lost) behind the ring.
const LOST: usize = 2;
const NOT_WRITTEN: usize = 3;

/// Returns `true` if a flow with this hash is among the one in `every` sampled.
#[inline]
fn is_sampled(rss_hash: u32, every: u32) -> bool {
    // Hashes of one RSS bucket are close together, so they are spread first.
    let spread = u64::from(rss_hash).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    spread * u64::from(every) < 1 << 32
}

/// Network function that copies packets and forwards the originals unchanged.
pub struct Mirror {
    table: Arc<MirrorTable>,
    cached_rules: Arc<Version<MirrorRules>>,
    sender: CopySender,
    /// Matching packets to skip before the next copy.
    before: u32,
    counters: [u64; COUNTERS.len()],
}

impl Mirror {
    /// Creates a worker's instance.
    pub fn new(table: Arc<MirrorTable>) -> Mirror {
        Mirror {
            cached_rules: table.live().current(),
            sender: table.sender(),
            table,
            before: 0,
            counters: [0; COUNTERS.len()],
        }
    }

    fn count_lost(&mut self) {
        let lost = self.sender.take_lost();
        for (note, lost) in self.counters[LOST..].iter_mut().zip(lost) {
            *note += lost;
        }
    }
}

impl NetworkFunction for Mirror {
    fn kind(&self) -> &'static str {
        "Mirror"
    }

    fn counters(&self) -> &'static [&'static str] {
        COUNTERS
    }

    fn counter_values(&self) -> &[u64] {
        &self.counters
    }

    fn can_restart(&self) -> bool {
        true
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        self.table.live().refresh(&mut self.cached_rules);
        self.sender.set_origin(flows.now());
        self.count_lost();
        let Mirror {
            cached_rules: held,
            sender,
            before,
            counters: notes,
            ..
        } = self;
        let MirrorRules { filter, sampling, snap } = &held.value;
        batch.for_each(|packet, frame| {
            if let Sampling::Flows(every) = *sampling
                && !is_sampled(packet.rss_hash, every)
            {
                return;
            }
            if filter.as_ref().is_some_and(|filter| !filter.matches(frame)) {
                return;
            }
            if let Sampling::Packets(every) = *sampling {
                // The sampling interval may have been longer until now.
                *before = (*before).min(every - 1);
                if *before > 0 {
                    *before -= 1;
                    return;
                }
                *before = every - 1;
            }
            let copied = Copied {
                arrival: packet.arrival,
                length: frame.len() as u32,
                frame: &frame[..frame.len().min(*snap)],
            };
            notes[if sender.send(copied) { COPIED } else { NO_ROOM }] += 1;
        });
    }

    fn run_end(&mut self) -> Option<&mut dyn RunEnd> {
        Some(self)
    }
}

impl RunEnd for Mirror {
    fn drain(&mut self) {
        self.counters[NOT_WRITTEN] += self.sender.settle();
        self.count_lost();
    }
}
