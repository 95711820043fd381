//! Test of a whole published rule set: rules accepted, and reasons for the others.

mod common;

use std::collections::BTreeMap;
use tailwater_ids::language::{Reader, Variables};

/// Number of active rules, as stated by the set.
const ACTIVE: usize = 24_827;

#[test]
fn every_active_rule_is_read_or_skipped_for_a_reason() {
    let Some((files, _)) = common::et_open() else {
        return;
    };
    let mut reader = Reader::new(&Variables::default()).unwrap();
    let (mut rules, mut reasons) = (0, BTreeMap::<String, usize>::new());
    for (name, text) in &files {
        let parsed = reader.read(text);
        let mistakes: Vec<_> = parsed.mistakes.iter().map(|m| format!("{name}:{m}")).collect();
        assert_eq!(mistakes, [""; 0]);
        rules += parsed.rules.len();
        for skipped in parsed.skipped {
            *reasons.entry(skipped.reason).or_default() += 1;
        }
    }
    let skipped: usize = reasons.values().sum();
    for (reason, count) in &reasons {
        eprintln!("{count:5} {reason}");
    }
    eprintln!("{rules} read, {skipped} skipped");
    assert_eq!(rules + skipped, ACTIVE);
    // Guards against a loss of supported rules.
    assert!(rules >= 24_000, "{rules}");
}
