//! Workers that die: what is done when a thread of the run panics.
//!
//! A panic in a function may have left a flow's state half written, and whichever core the flow goes to
//! next would go on from there: the promise that it finds what one core would have left cannot be kept
//! (nor could the packet that did it be kept from the next core). So one death ends the run, as it would
//! end a process. What is in the dead worker's hands is counted as lost and given back, so that the
//! others end in good order, and the report is complete.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does the work. The message of its panic, should it end by one.
pub(crate) fn survive<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    // What the panic has left is counted and thrown away, and decides nothing.
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or(panic.downcast_ref::<String>().map(String::as_str));
        text.unwrap_or("without a message").to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_panic_says_is_kept() {
        assert_eq!(survive(|| 7), Ok(7));
        let numbers: Vec<u32> = Vec::new();
        let error = survive(|| numbers[3]).unwrap_err();
        assert!(error.contains("index is 3"), "{error}");
        assert_eq!(survive(|| panic!("plain")).unwrap_err(), "plain");
        let error = survive(|| std::panic::panic_any(3)).unwrap_err();
        assert_eq!(error, "without a message");
    }
}
