//! Any text as detection rules: never a panic, every error names a line of the text, and rules that were read can be
//! matched.
//!
//! ```text
//! cargo +nightly fuzz run ids_rules
//! ```

#![no_main]

use libfuzzer_sys::fuzz_target;
use tailwater_ids::language::{Reader, Variables};
use tailwater_ids::ruleset::{BitNames, RuleSet};

fuzz_target!(|text: &str| {
    let mut reader = Reader::new(&Variables::default()).expect("right variables");
    let parsed = reader.read(text);
    let lines = text.lines().count();
    let all = parsed.rules.len() + parsed.skipped.len() + parsed.mistakes.len() + parsed.more;
    assert!(all <= lines);
    for mistake in &parsed.mistakes {
        assert!((1..=lines).contains(&mistake.line) && mistake.column > 0);
        assert!(!mistake.to_string().contains('\n'));
    }
    RuleSet::new(parsed.rules, &mut BitNames::default()).expect("a few rules");
});
