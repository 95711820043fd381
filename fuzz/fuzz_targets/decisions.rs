//! Any bytes as recorded decisions: reading and explaining never panics and uses bounded memory, and an error is one
//! line that points into the file.
//!
//! ```text
//! cargo +nightly fuzz run decisions fuzz/corpus/decisions
//! ```
//!
//! Put a failing input into a test of `crates/dataplane/src/scaling/record/tests.rs`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tailwater_dataplane::scaling::record::{Entry, Explainer, Reader, ServerExplainer};
use tailwater_policy::capacity::EpochFrontier;

fuzz_target!(|bytes: &[u8]| {
    let mut reader = match Reader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return check(&error.to_string()),
    };
    let mut explainer = Explainer::new(reader.header(), EpochFrontier::constant(100), 8);
    let mut server = ServerExplainer::new(8);
    loop {
        match reader.next_entry() {
            Ok(Some(Entry::Core(decision))) => explainer.add(decision),
            Ok(Some(Entry::Server(decision))) => server.add(decision),
            Ok(None) => break,
            Err(error) => return check(&error.to_string()),
        }
    }
    explainer.finish();
    server.finish();
});

fn check(error: &str) {
    assert!(!error.contains('\n'), "{error}");
}
