//! Any bytes as the JSON of a run: reading never panics, an error is one line, and a run that was read does not differ
//! from itself.
//!
//! ```text
//! cargo +nightly fuzz run run_document fuzz/corpus/run_document fuzz/seeds/run_document
//! ```
//!
//! Put a failing input into a test of `crates/measure/src/comparison/tests.rs`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tailwater_dataplane::comparison::{CompareOptions, compare, parse};

fuzz_target!(|bytes: &[u8]| {
    match parse(bytes) {
        Ok(runs) => {
            let options = CompareOptions {
                confidence: 0.95,
                tolerance: 0.01,
            };
            for run in &runs {
                let found = compare(&[run], &[run], &options);
                assert_eq!(found.differences().count(), 0, "{found:?}");
                compare(&[run; 3], &[run; 3], &options);
            }
        }
        Err(error) => {
            let shown = error.to_string();
            assert!(!shown.contains(['\n', '\r']), "{shown:?}");
        }
    }
});
