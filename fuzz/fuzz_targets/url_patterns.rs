//! Any text as a list of URL patterns: never a panic, and patterns that were read can be looked up.
//!
//! ```text
//! cargo +nightly fuzz run url_patterns
//! ```

#![no_main]

use libfuzzer_sys::fuzz_target;
use tailwater_functions::url_filter::{UrlTable, parse_list};

fuzz_target!(|text: &str| {
    if let Ok(patterns) = parse_list(text) {
        UrlTable::new(&patterns).expect("a short text fits");
    }
});
