//! Any bytes as a rack spec: reading never panics, an error is one line that points into the text, and what
//! was read is a rack that can be simulated.
//!
//! ```text
//! cargo +nightly fuzz run rack fuzz/corpus/rack examples
//! ```

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::Path;
use tailwater_sim::spec::RackSpec;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    // Below a folder that does not exist no profile is found.
    match RackSpec::parse(text, "rack.yaml", Path::new("no-such-folder")) {
        Ok(spec) => {
            assert!(spec.rack.check().is_ok());
            for chain in &spec.chains {
                let profile = chain.profile(chain.slo, 900.0);
                assert!(!profile.frontier.is_empty() && !profile.rates.is_empty());
            }
        }
        Err(error) => {
            let shown = error.to_string();
            assert!(!shown.contains(['\n', '\r']), "{shown:?}");
            assert!(
                error.line <= text.split(['\n', '\r']).count() + 1,
                "{shown}"
            );
        }
    }
});
