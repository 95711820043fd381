//! The `Mirror` network function.

use super::cells::Copied;
use super::writer::{MirrorTable, Sender};
use crate::bpf_filter::{Filter, Instruction, Refused};
use std::sync::Arc;
use tailwater_chain::batch::Batch;
use tailwater_chain::function::{FlowStates, NetworkFunction};
use tailwater_chain::live::Version;

const NOTES: &[&str] = &["copied", "no-room", "file-full", "not-written"];
const COPIED: usize = 0;
const NO_ROOM: usize = 1;
/// From here on what is [lost](Sender::take_lost) later.
const LOST: usize = 2;
const NOT_WRITTEN: usize = 3;

/// Which of the packets that match are copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sampling {
    /// All.
    #[default]
    All,
    /// One in so many, of those on a core.
    Packets(u32),
    /// Those of one flow in so many, by the flow's RSS hash: on every core, and in every run, of the same flows.
    Flows(u32),
}

/// What is copied.
#[derive(Debug)]
pub struct MirrorRules {
    filter: Option<Filter>,
    sampling: Sampling,
    snap: usize,
}

impl MirrorRules {
    /// Packets that this program matches, or all, sampled; of each at most `snap` bytes.
    ///
    /// # Errors
    /// The program cannot be run.
    pub fn new(program: Option<&[Instruction]>, sampling: Sampling, snap: usize) -> Result<MirrorRules, Refused> {
        Ok(MirrorRules {
            filter: program.map(Filter::new).transpose()?,
            sampling,
            snap,
        })
    }
}

/// Whether a flow with this hash is among one in `every`.
#[inline]
fn is_sampled(rss_hash: u32, every: u32) -> bool {
    // Neighbouring hashes are of flows of one RSS bucket: they are spread first.
    let spread = u64::from(rss_hash).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    spread * u64::from(every) < 1 << 32
}

/// Copies packets, which go on as they are.
pub struct Mirror {
    table: Arc<MirrorTable>,
    held: Arc<Version<MirrorRules>>,
    sender: Sender,
    /// How many matching packets come before the next one that is copied.
    before: u32,
    notes: [u64; NOTES.len()],
}

impl Mirror {
    /// A worker's instance.
    pub fn new(table: Arc<MirrorTable>) -> Mirror {
        Mirror {
            held: table.live().current(),
            sender: table.sender(),
            table,
            before: 0,
            notes: [0; NOTES.len()],
        }
    }

    fn count_lost(&mut self) {
        let lost = self.sender.take_lost();
        for (note, lost) in self.notes[LOST..].iter_mut().zip(lost) {
            *note += lost;
        }
    }
}

impl NetworkFunction for Mirror {
    fn kind(&self) -> &'static str {
        "Mirror"
    }

    fn notes(&self) -> &'static [&'static str] {
        NOTES
    }

    fn note_counts(&self) -> &[u64] {
        &self.notes
    }

    fn finish(&mut self) {
        self.notes[NOT_WRITTEN] += self.sender.settle();
        self.count_lost();
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        self.table.live().refresh(&mut self.held);
        self.sender.set_origin(flows.now());
        self.count_lost();
        let Mirror {
            held,
            sender,
            before,
            notes,
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
                // There may have been more of them until now.
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
}
