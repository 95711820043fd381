//! Slot of a chain on a shared port.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Slot of a chain on its port.
pub(crate) type Slot = Arc<ChainSlot>;

/// Slot of a chain. It is released at the chain's end, and another chain may get it: from then on, this one has none.
#[derive(Debug, Default)]
pub(crate) struct ChainSlot {
    number: OnceLock<usize>,
    is_released: AtomicBool,
}

impl ChainSlot {
    /// Number of the slot, if the chain has one.
    pub(crate) fn get(&self) -> Option<usize> {
        let number = *self.number.get()?;
        (!self.is_released.load(Ordering::Acquire)).then_some(number)
    }

    /// Notes the chain's slot, which it gets once.
    pub(super) fn take(&self, number: usize) {
        let _ = self.number.set(number);
    }

    /// Gives the slot up. Under the lock of the port's chains.
    pub(super) fn release(&self) {
        self.is_released.store(true, Ordering::Release);
    }
}
