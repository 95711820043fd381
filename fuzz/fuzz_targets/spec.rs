//! Any bytes as a chain spec: reading never panics, and an error is one line that points into
//! the text, or one for each wrong rule of a list.
//!
//! ```text
//! cargo +nightly fuzz run spec fuzz/corpus/spec crates/functions/tests/specs/right crates/functions/tests/specs/wrong
//! ```
//!
//! Put a failing input into `crates/functions/tests/specs/wrong/` with the ending `.yaml`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::Path;
use tailwater_functions::spec::ChainSpec;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    // Below a folder that does not exist no rules file is found.
    let Err(error) = ChainSpec::parse(text, "spec.yaml", Path::new("no-such-folder")) else {
        return;
    };
    let shown = error.to_string();
    // Lists of rules tell all that is wrong with them.
    assert_eq!(shown.lines().count(), error.each().count(), "{shown:?}");
    assert!(!shown.contains('\r'), "{shown:?}");
    for error in error.each() {
        assert!(error.line <= text.split(['\n', '\r']).count() + 1, "{shown}");
    }
});
