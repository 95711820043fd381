//! Any bytes as a capture file: reading never panics, and packets satisfy the reader's invariants.
//!
//! ```text
//! cargo +nightly fuzz run capture fuzz/corpus/capture crates/traffic/tests/seeds
//! ```
//!
//! Put a failing input into `crates/traffic/tests/regressions/`.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/traffic/tests/invariants/mod.rs"]
mod invariants;

fuzz_target!(|file: &[u8]| {
    invariants::check(file);
});
