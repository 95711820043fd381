//! Any bytes as a capacity profile, and as a profile in the format of NetBlaze's authors. Reading never panics, and an
//! error is one line that points into the text. A profile that was read is the same after writing and reading. A
//! published frontier is the one its lines span.
//!
//! ```text
//! cargo +nightly fuzz run capacity_profile fuzz/corpus/capacity_profile fuzz/seeds/capacity_profile
//! ```
//!
//! Put a failing input into a test of `crates/policy/src/capacity/tests.rs`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tailwater_policy::capacity::{CapacityProfile, EpochFrontier, MAX_FLOWS, ProfileError, RateFrontier};

fuzz_target!(|bytes: &[u8]| {
    match CapacityProfile::parse(bytes, "file") {
        Ok(profile) => {
            let written = profile.to_string();
            let read = CapacityProfile::parse(written.as_bytes(), "written");
            assert_eq!(read.as_ref(), Ok(&profile), "{written}");
        }
        Err(error) => check(&error, bytes),
    }
    let (epoch, rates) = (
        EpochFrontier::from_published(bytes, "file"),
        RateFrontier::from_published(bytes, "file"),
    );
    match (epoch, rates) {
        (Ok(epoch), Ok(rates)) => compare(bytes, &epoch, &rates),
        (Err(error), Err(other)) => {
            check(&error, bytes);
            check(&other, bytes);
        }
        (epoch, rates) => panic!("one of two loaders refuses: {epoch:?}, {rates:?}"),
    }
});

/// Checks that an error is one line, and that its position is in the text.
fn check(error: &ProfileError, bytes: &[u8]) {
    let shown = error.to_string();
    assert!(shown.starts_with("file:") && !shown.contains(['\n', '\r']), "{shown:?}");
    let lines = bytes.split(|byte| matches!(byte, b'\n' | b'\r')).count();
    assert!(error.line <= lines + 1, "{shown}");
}

/// Compares with the lines themselves: at a number of flows, a core has the largest capacity of all lines with at least
/// that many flows.
fn compare(bytes: &[u8], epoch: &EpochFrontier, rates: &RateFrontier) {
    let text = String::from_utf8_lossy(bytes);
    let numbers: Vec<u32> = text
        .split_ascii_whitespace()
        .map(|number| number.parse().expect("the loaders read it"))
        .collect();
    let lines: Vec<(u32, u32)> = numbers.chunks_exact(2).map(|l| (l[0], l[1])).collect();
    let best = |flows: u32| {
        let enough = lines.iter().filter(|line| line.0 >= flows);
        enough.map(|line| line.1).max().unwrap_or(0)
    };
    for &(flows, _) in &lines {
        let expected = match lines[..] {
            [(_, constant)] => constant,
            _ => best(flows),
        };
        // Flow counts beyond the table use its last entry.
        if flows <= MAX_FLOWS {
            assert_eq!(epoch.capacity(flows), expected, "{flows}");
        }
        // Rates between the frontier's corners are interpolated.
        let rate = rates.rate(flows.into());
        let decides = rates.corners().iter().any(|corner| corner.0 == flows);
        assert!(rate >= expected.into() && rate <= rates.largest(), "{flows}");
        assert!(!decides || rate == expected.into(), "{flows}");
    }
}
