//! Handling of worker panics.
//!
//! A panic in a function may leave a flow's state half written, and the next core of the flow would continue from
//! there. The guarantee that it finds the same state as a single core would have cannot be kept. Nor could the packet
//! that caused the panic be kept from the next core. So one panic ends the run, as it would end a process. Packets held
//! by the panicked worker are counted as lost and their buffers returned, so the other workers end normally, and the
//! report is complete.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs `work`. Returns the panic's message if it panics.
pub(crate) fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    // State left by the panic is only counted and discarded, and affects no decision.
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or(panic.downcast_ref::<String>().map(String::as_str));
        text.unwrap_or("without a message").to_owned()
    })
}

/// Runs a worker's loop. If it panics, sets `failed`, so the other workers end, and returns the panic's message.
pub(crate) fn run_or_fail(work: impl FnOnce(), failed: &AtomicBool) -> Option<String> {
    let message = catch_panic(work).err();
    if message.is_some() {
        failed.store(true, Ordering::Relaxed);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_panic_says_is_kept() {
        assert_eq!(catch_panic(|| 7), Ok(7));
        let numbers: Vec<u32> = Vec::new();
        let error = catch_panic(|| numbers[3]).unwrap_err();
        assert!(error.contains("index is 3"), "{error}");
        assert_eq!(catch_panic(|| panic!("plain")).unwrap_err(), "plain");
        let error = catch_panic(|| std::panic::panic_any(3)).unwrap_err();
        assert_eq!(error, "without a message");
    }
}
