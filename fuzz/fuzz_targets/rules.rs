//! Any bytes as a ClassBench rules file or header trace: reading never panics, an error names a line of the text, and
//! the resulting classifier agrees with a linear scan.
//!
//! ```text
//! cargo +nightly fuzz run rules
//! ```

#![no_main]

use libfuzzer_sys::fuzz_target;
use tailwater_functions::acl::{Action, Classifier, classbench, linear};

fuzz_target!(|bytes: &[u8]| {
    let headers = classbench::parse_trace(bytes).unwrap_or_default();
    let rules = match classbench::parse_rules(bytes, Action::Allow) {
        Ok(rules) => rules,
        Err(error) => {
            let shown = error.to_string();
            assert!(!shown.contains(['\n', '\r']), "{shown:?}");
            return;
        }
    };
    let Ok(classifier) = Classifier::new(&rules) else {
        return;
    };
    for header in headers.iter().take(64) {
        let found = classifier.classify(&header.key);
        assert_eq!(found, linear::classify(&rules, &header.key));
    }
});
