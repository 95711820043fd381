//! Rules that never decide anything, since an earlier one matches all that they match.

use super::rules::{Action, Rule};
use ipnet::IpNet;
use std::collections::{BTreeSet, HashMap};

/// A rule behind another that matches all it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shadowed {
    /// The rule that never decides: its line.
    pub line: u32,
    /// The earlier one's line.
    pub by: u32,
    /// What they say, if that differs: what the first says counts.
    pub conflict: Option<(Action, Action)>,
}

/// The prefixes of a rule, shortened to lengths that others have.
type Prefixes = (Option<IpNet>, Option<IpNet>);

/// Rules that one earlier rule shadows, in order. (Those that only several earlier ones shadow together are not
/// found.)
///
/// A rule is compared with those whose prefixes hold its own: by prefix lengths that occur, which are few.
pub fn shadowed(rules: &[Rule]) -> Vec<Shadowed> {
    let lengths = |side: fn(&Rule) -> Option<IpNet>| -> BTreeSet<Option<u8>> {
        let lengths = rules
            .iter()
            .map(|rule| side(rule).map(|net| net.prefix_len()));
        lengths.collect()
    };
    let (sources, destinations) = (
        lengths(|rule| rule.source),
        lengths(|rule| rule.destination),
    );
    let mut earlier: HashMap<Prefixes, Vec<&Rule>> = HashMap::new();
    let mut found = Vec::new();
    for rule in rules {
        let mut by: Option<&Rule> = None;
        for source in &sources {
            let Some(source) = shortened(rule.source, *source) else {
                continue;
            };
            for destination in &destinations {
                let Some(destination) = shortened(rule.destination, *destination) else {
                    continue;
                };
                let candidates = earlier.get(&(source, destination));
                let first = candidates.and_then(|rules| rules.iter().find(|r| r.covers(rule)));
                by = [by, first.copied()]
                    .into_iter()
                    .flatten()
                    .min_by_key(|rule| rule.line);
            }
        }
        match by {
            Some(by) => found.push(Shadowed {
                line: rule.line,
                by: by.line,
                conflict: (by.action != rule.action).then_some((by.action, rule.action)),
            }),
            // What a shadowed rule would shadow, the one in front of it does.
            None => earlier
                .entry((rule.source, rule.destination))
                .or_default()
                .push(rule),
        }
    }
    found
}

/// The prefix of that length that holds this one; `None` if there is none.
fn shortened(prefix: Option<IpNet>, length: Option<u8>) -> Option<Option<IpNet>> {
    let Some(length) = length else {
        return Some(None);
    };
    let prefix = prefix.filter(|prefix| prefix.prefix_len() >= length)?;
    IpNet::new(prefix.addr(), length)
        .ok()
        .map(|net| Some(net.trunc()))
}
