//! Any bytes as a file of profiles: reading never panics, and an error is one line. Profiles that were read are the
//! same after writing and reading, and do not differ from themselves.
//!
//! ```text
//! cargo +nightly fuzz run chain_profiles fuzz/corpus/chain_profiles fuzz/seeds/chain_profiles
//! ```
//!
//! Put a failing input into a test of `crates/profile/src/profiles/tests.rs`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tailwater_profile::profiles::{Profiles, compare, placement};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match Profiles::parse(text, "file") {
        Ok(profiles) => {
            let written = profiles.to_string();
            let read = Profiles::parse(&written, "written");
            assert_eq!(read.as_ref(), Ok(&profiles), "{written}");
            // Several configurations of a chain are compared with the first.
            let _ = compare(&profiles, &profiles);
            let _ = placement(&profiles, None, "machine");
        }
        Err(error) => {
            let shown = error.to_string();
            assert!(!shown.contains(['\n', '\r']), "{shown:?}");
        }
    }
});
