//! Any text as firewall rules: never a panic, and every error is one line that names a line of the text. Rules that
//! were read are compared with each other.
//!
//! ```text
//! cargo +nightly fuzz run firewall_rules
//! ```

#![no_main]

use libfuzzer_sys::fuzz_target;
use tailwater_functions::firewall::{Zone, language, shadowed};

fuzz_target!(|text: &str| {
    let zone = |name: &str, prefix: &str| Zone {
        name: name.to_owned(),
        prefixes: vec![prefix.parse().expect("a prefix")],
        port: None,
    };
    let zones = [zone("a", "10.0.0.0/8"), zone("b", "::/0")];
    match language::parse(text, &zones) {
        Ok(rules) => {
            let lines = text.lines().count();
            assert!(rules.len() <= lines);
            for rule in shadowed(&rules).expect("rules that fit in a classifier") {
                assert!(rule.by < rule.line && rule.line as usize <= lines);
            }
        }
        Err((mistakes, more)) => {
            let lines = text.lines().count();
            assert!(!mistakes.is_empty() && mistakes.len() + more <= lines);
            for mistake in mistakes {
                assert!((1..=lines).contains(&mistake.line) && mistake.column > 0);
            }
        }
    }
});
