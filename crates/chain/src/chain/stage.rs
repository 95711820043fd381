//! Function in its chain, with its packet counts by reason.

use crate::batch::{Batch, DroppedBy};
use crate::branches::ByPath;
use crate::function::{FunctionProperties, MAX_DROP_REASONS, NetworkFunction, StateSlot};

/// Side of the packet balance on which a count stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Dropped because the spec or a function decided so.
    Dropped,
    /// Lost for lack of resources.
    Lost,
    /// Sent on, but counted as unusual.
    Passed,
}

/// Reason under which packets are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// Name of the function that counts them; `None` for those of the chain itself.
    pub function: Option<String>,
    /// Stable name: `function-name/reason`, `malformed/reason`, ...
    pub name: String,
    /// Outcome for the packets.
    pub outcome: Outcome,
}

impl Reason {
    /// Name without the function's.
    pub fn short_name(&self) -> &str {
        let prefix = self
            .function
            .as_deref()
            .and_then(|function| self.name.strip_prefix(function));
        prefix.and_then(|rest| rest.strip_prefix('/')).unwrap_or(&self.name)
    }
}

/// Function at its position in the chain.
pub(super) struct Stage {
    pub(super) name: String,
    pub(super) function: Box<dyn NetworkFunction>,
    pub(super) properties: FunctionProperties,
    /// `None` for a function without state.
    pub(super) slot: Option<StateSlot>,
    /// In a chain with branches: the paths whose packets pass the function.
    pub(super) paths: Option<ByPath<bool>>,
    /// Number of the function in the chain, of which an instance may run a part.
    pub(super) number: u8,
    /// Packets dropped for each of the function's reasons; the last element counts all other numbers.
    drops: Box<[u64]>,
    /// `true` for reasons that are losses.
    losses: Box<[bool]>,
    /// Values of the function's counters when it came from a chain that this one has succeeded.
    counted_before: Box<[u64]>,
}

impl Stage {
    pub(super) fn new(name: String, function: Box<dyn NetworkFunction>, slot: Option<StateSlot>) -> Stage {
        let reasons = function.drop_reasons().len();
        assert!(reasons <= MAX_DROP_REASONS, "{name} has {reasons} reasons to drop");
        let losses = (0..=reasons).map(|reason| reason < reasons && function.is_loss(reason as u8));
        Stage {
            losses: losses.collect(),
            counted_before: Box::default(),
            drops: vec![0; reasons + 1].into(),
            name,
            properties: function.properties(),
            function,
            slot,
            paths: None,
            number: u8::MAX,
        }
    }

    /// Returns `true` if packets on this path pass the function.
    #[inline]
    pub(super) fn is_on(&self, path: u8) -> bool {
        let paths = self.paths.as_ref();
        paths.is_none_or(|paths| paths[usize::from(path)])
    }

    /// Removes dropped packets from the batch. Returns how many of them are lost.
    #[inline]
    pub(super) fn compact(&mut self, batch: &mut Batch) -> u64 {
        let mut lost = 0;
        batch.compact_by(DroppedBy::Function(self.number), |_, reason| {
            let reason = usize::from(reason).min(self.drops.len() - 1);
            self.drops[reason] += 1;
            lost += u64::from(self.losses[reason]);
        });
        lost
    }

    /// Counts a packet that the function drops outside a batch. Returns 1 if it is lost, else 0.
    pub(super) fn count_drop(&mut self, reason: u8) -> u64 {
        let reason = usize::from(reason).min(self.drops.len() - 1);
        self.drops[reason] += 1;
        u64::from(self.losses[reason])
    }

    /// Leaves what the function has counted so far out of its [counts](Self::reason_counts).
    pub(super) fn count_from_now(&mut self) {
        self.counted_before = self.function.counter_values().into();
    }

    /// Names of the counts in `drops` and of the function's counters.
    pub(super) fn reasons(&self) -> impl Iterator<Item = Reason> {
        let names = self.function.drop_reasons().iter().copied().chain(["other"]);
        let drops = names.zip(&self.losses).map(|(name, loss)| Reason {
            function: Some(self.name.clone()),
            name: format!("{}/{name}", self.name),
            outcome: if *loss { Outcome::Lost } else { Outcome::Dropped },
        });
        let notes = self.function.counters().iter().map(|name| Reason {
            function: Some(self.name.clone()),
            name: format!("{}/{name}", self.name),
            outcome: Outcome::Passed,
        });
        drops.chain(notes)
    }

    /// Counts for the [`reasons`](Stage::reasons), in their order.
    pub(super) fn reason_counts(&self) -> impl Iterator<Item = u64> {
        let before = self.counted_before.iter().copied().chain(std::iter::repeat(0));
        let counted = self.function.counter_values().iter().zip(before);
        let notes = counted.map(|(value, before)| value.wrapping_sub(before));
        self.drops.iter().copied().chain(notes)
    }
}
