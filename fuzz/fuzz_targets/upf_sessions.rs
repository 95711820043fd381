//! Any text as user sessions, and as a flow description: never a panic, every error names a line of the text, and
//! sessions that were read have distinct IDs and TEIDs.
//!
//! ```text
//! cargo +nightly fuzz run upf_sessions
//! ```

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::collections::HashSet;
use tailwater_functions::upf::language::{Names, parse};
use tailwater_functions::upf::parse_flows;

fuzz_target!(|text: &str| {
    let _ = parse_flows(text);
    let names = Names {
        profiles: [("a".to_owned(), 0), ("b".to_owned(), 1)].into(),
        versions: [true, text.len().is_multiple_of(2)],
    };
    let lines = text.lines().count();
    match parse(text, &names, 100) {
        Ok(sessions) => {
            assert!(sessions.len() <= lines.min(100));
            let ids: HashSet<_> = sessions.iter().map(|session| session.id).collect();
            let teids: HashSet<_> = sessions.iter().map(|session| session.teid).collect();
            assert!(ids.len() == sessions.len() && teids.len() == sessions.len());
            for session in sessions {
                assert!(session.address.is_some() || session.prefix.is_some());
                assert!(session.teid != 0 && session.profile < 2);
            }
        }
        Err((mistakes, more)) => {
            assert!(!mistakes.is_empty());
            assert!(more == 0 || mistakes.len() == 1000);
            for mistake in mistakes {
                assert!((1..=lines).contains(&mistake.line) && mistake.column > 0);
            }
        }
    }
});
