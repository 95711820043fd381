//! Any bytes as an Ethernet frame: `parse` agrees with its oracle, offsets are inside the frame, and no view, checksum
//! or fragment panics.
//!
//! ```text
//! cargo +nightly fuzz run parse -- -max_len=512
//! ```
//!
//! Put a failing input into `crates/net/tests/regressions/` with the extension `.bin`.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/net/tests/invariants/mod.rs"]
mod invariants;

fuzz_target!(|frame: &[u8]| invariants::check(frame));
