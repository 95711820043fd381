//! Any bytes as a chain spec: reading never panics, and an error is one line that points into the text, or one line for
//! each wrong rule of a list.
//!
//! ```text
//! cargo +nightly fuzz run spec fuzz/corpus/spec crates/functions/tests/specs/right crates/functions/tests/specs/wrong
//! ```
//!
//! Put a failing input into `crates/functions/tests/specs/wrong/` with the extension `.yaml`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::Path;
use tailwater_functions::spec::ChainSpec;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    // No rules file exists below a directory that does not exist.
    let Err(error) = ChainSpec::parse(text, "spec.yaml", Path::new("no-such-folder")) else {
        return;
    };
    let shown = error.to_string();
    // Lists of rules report all their errors.
    assert_eq!(shown.lines().count(), error.each().count(), "{shown:?}");
    assert!(!shown.contains('\r'), "{shown:?}");
    for error in error.each() {
        assert!(error.line <= text.split(['\n', '\r']).count() + 1, "{shown}");
    }
});
