//! A function in its chain, and the reasons for which packets are counted there.

use crate::batch::Batch;
use crate::branches::ByWay;
use crate::function::{MAX_DROP_REASONS, NetworkFunction, StateSlot};

/// Which side of the balance a count of packets is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Dropped because the spec or a function said so.
    Dropped,
    /// Lost for want of room.
    Lost,
    /// Sent on; noted because it is unusual.
    Passed,
}

/// A reason why packets are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// `function-name/reason`, `malformed/reason`, ...: stable.
    pub name: String,
    /// What became of the packets.
    pub outcome: Outcome,
}

/// A function with its place in the chain.
pub(super) struct Stage {
    pub(super) name: String,
    pub(super) function: Box<dyn NetworkFunction>,
    /// `None` for a function without state.
    pub(super) slot: Option<StateSlot>,
    /// In a chain with branches: which ways packets may have come that pass it.
    pub(super) ways: Option<ByWay<bool>>,
    /// For each of the function's reasons, and last for any other number, the packets dropped.
    drops: Box<[u64]>,
    /// Which reasons are losses.
    losses: Box<[bool]>,
}

impl Stage {
    pub(super) fn new(name: String, function: Box<dyn NetworkFunction>, slot: Option<StateSlot>) -> Stage {
        let reasons = function.drop_reasons().len();
        assert!(reasons <= MAX_DROP_REASONS, "{name} has {reasons} reasons to drop");
        let losses = (0..=reasons).map(|reason| reason < reasons && function.loses(reason as u8));
        Stage {
            losses: losses.collect(),
            drops: vec![0; reasons + 1].into(),
            name,
            function,
            slot,
            ways: None,
        }
    }

    /// Whether it is on this way.
    #[inline]
    pub(super) fn is_on(&self, way: u8) -> bool {
        let ways = self.ways.as_ref();
        ways.is_none_or(|ways| ways[usize::from(way)])
    }

    /// Takes dropped packets out of the batch. Returns how many of them are lost.
    #[inline]
    pub(super) fn compact(&mut self, batch: &mut Batch) -> u64 {
        let mut lost = 0;
        batch.compact(|_, reason| {
            let reason = usize::from(reason).min(self.drops.len() - 1);
            self.drops[reason] += 1;
            lost += u64::from(self.losses[reason]);
        });
        lost
    }

    /// The names of what `drops` and the function's notes count.
    pub(super) fn reasons(&self) -> impl Iterator<Item = Reason> {
        let names = self.function.drop_reasons().iter().copied().chain(["other"]);
        let drops = names.zip(&self.losses).map(|(name, loss)| Reason {
            name: format!("{}/{name}", self.name),
            outcome: if *loss { Outcome::Lost } else { Outcome::Dropped },
        });
        let notes = self.function.notes().iter().map(|name| Reason {
            name: format!("{}/{name}", self.name),
            outcome: Outcome::Passed,
        });
        drops.chain(notes)
    }

    /// The counts for the [`reasons`](Stage::reasons), in their order.
    pub(super) fn reason_counts(&self) -> impl Iterator<Item = u64> {
        self.drops.iter().chain(self.function.note_counts()).copied()
    }
}
