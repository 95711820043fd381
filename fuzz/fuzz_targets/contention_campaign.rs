//! Any bytes as a campaign of co-runs: reading never panics, and an error is one line. A file that was read is the
//! same after writing and reading. A file whose only mistake is its checksum is tried again with the right one.
//!
//! ```text
//! cargo +nightly fuzz run contention_campaign fuzz/corpus/contention_campaign fuzz/seeds/contention_campaign
//! ```
//!
//! Put a failing input into a test of `crates/predict/tests/files.rs`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tailwater_predict::{Campaign, ContentionModel, Kind, TrainOptions};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    read(text, true);
});

fn read(text: &str, may_correct: bool) {
    match Campaign::parse(text, "file") {
        Ok(read) => check(&read),
        Err(error) => {
            let shown = error.to_line();
            assert!(!shown.contains(['\n', '\r']), "{shown:?}");
            // Mutations rarely guess a checksum. The error names the right one.
            let right = shown
                .split_once("expected ")
                .map(|(_, rest)| rest.get(..16).unwrap_or(""));
            if let Some(right) = right
                && may_correct
                && shown.contains("the checksum of the values")
                && let Some(at) = text.find("checksum: \"")
                && let Some(old) = text.get(at + 11..at + 27)
            {
                read(&text.replacen(old, right, 1), false);
            }
        }
    }
}

fn check(read: &Campaign) {
    let written = read.to_string();
    assert_eq!(Campaign::parse(&written, "written").as_ref(), Ok(read), "{written}");
    // A campaign that was read can be trained on, or refused, without a panic.
    let options = TrainOptions {
        kind: Kind::Ridge,
        folds: 2,
        ..TrainOptions::default()
    };
    if read.observations().len() <= 64 {
        let _ = ContentionModel::train(read, &options);
    }
}
