//! Any bytes as `schemata` and `bit_usage` of the kernel's resctrl: reading never panics, an error is one line that
//! points into the text, and values that were read are the same after writing and reading.
//!
//! ```text
//! cargo +nightly fuzz run resctrl
//! ```
//!
//! Put a failing input into a test of `crates/resctrl/src/text/tests.rs`.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use tailwater_resctrl::{Schemata, parse_bit_usage};

fuzz_target!(|text: &str| {
    let path = Path::new("file");
    match Schemata::parse(text, path) {
        Ok(mut read) => {
            read.resources.retain(|_, values| !values.is_empty());
            let written = read.to_text();
            let again = Schemata::parse(&written, path).expect("it was written by us");
            assert_eq!(again, read, "{written}");
        }
        Err(error) => check(&error.to_string()),
    }
    match parse_bit_usage(text, path) {
        Ok(caches) => assert!(caches.values().all(|ways| (1..=32).contains(&ways.len()))),
        Err(error) => check(&error.to_string()),
    }
});

fn check(shown: &str) {
    assert!(shown.starts_with("file:") && !shown.contains(['\n', '\r']), "{shown:?}");
}
