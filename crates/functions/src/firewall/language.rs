//! Parser for rules as text, one per line:
//!
//! ```text
//! allow tcp from lan to wan ports 443
//! deny  from guests to lan
//! allow udp from lan to servers source 10.1.0.0/16 destination 198.18.0.53 ports 53
//! reject to lan state new,invalid
//! ```
//!
//! A rule consists of the action, an optional protocol, and pairs of a keyword and its value in any order. Empty lines
//! and text after `#` are ignored.

use super::rules::{ANY_PORT, Action, MAX_RULES, Rule, State, States, Zone};
use std::fmt;
use tailwater_api::error::{nearest, quoted};
use tailwater_api::values::{Expected, ports_of, prefix_of, protocol_of};

/// Maximum number of mistakes reported individually.
pub const MAX_REPORTED: usize = tailwater_api::error::MAX_REPORTED;

/// Error in a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Line number, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Expected and found content.
    pub message: String,
    /// Word that was probably meant.
    pub suggestion: Option<String>,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)?;
        match &self.suggestion {
            Some(suggestion) => write!(f, "; did you mean \"{suggestion}\"?"),
            None => Ok(()),
        }
    }
}

/// Keywords that begin a pair.
const WORDS: [&str; 7] = ["from", "to", "source", "destination", "sourcePorts", "ports", "state"];

const ACTIONS: [(&str, Action); 3] = [
    ("allow", Action::Allow),
    ("deny", Action::Deny),
    ("reject", Action::Reject),
];

/// Parses the rules of a text.
///
/// # Errors
/// The first [`MAX_REPORTED`] invalid lines, and the number of further ones.
pub fn parse(text: &str, zones: &[Zone]) -> Result<Vec<Rule>, (Vec<Mistake>, usize)> {
    let (mut rules, mut mistakes, mut wrong) = (Vec::new(), Vec::new(), 0);
    for (i, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        if line.trim().is_empty() {
            continue;
        }
        let outcome = match rules.len() {
            MAX_RULES.. => Err(mistake(line, 0, format!("expected at most {MAX_RULES} rules"))),
            _ => parse_rule(line, zones),
        };
        match outcome {
            Ok(rule) => rules.push(Rule {
                line: i as u32 + 1,
                ..rule
            }),
            Err(mut mistake) => {
                wrong += 1;
                mistake.line = i + 1;
                if mistakes.len() < MAX_REPORTED {
                    mistakes.push(mistake);
                }
            }
        }
    }
    match wrong {
        0 => Ok(rules),
        _ => {
            let more = wrong - mistakes.len();
            Err((mistakes, more))
        }
    }
}

/// Returns a mistake at a byte offset of a line.
fn mistake(line: &str, at: usize, message: String) -> Mistake {
    Mistake {
        line: 1,
        column: line.get(..at).map_or(1, |before| before.chars().count() + 1),
        message,
        suggestion: None,
    }
}

/// Iterator over a line's words and their offsets.
struct Words<'a> {
    line: &'a str,
    at: usize,
}

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<(usize, &'a str)> {
        let rest = &self.line[self.at..];
        let start = self.at + rest.find(|c: char| !c.is_whitespace())?;
        let rest = &self.line[start..];
        let length = rest.find(char::is_whitespace).unwrap_or(rest.len());
        self.at = start + length;
        Some((start, &rest[..length]))
    }

    fn expected<'b>(
        &self,
        what: &str,
        found: Option<(usize, &str)>,
        candidates: impl IntoIterator<Item = &'b str>,
    ) -> Mistake {
        let (at, found, suggestion) = match found {
            Some((at, word)) => {
                let suggestion = nearest(word, candidates).map(str::to_owned);
                (at, quoted(word), suggestion)
            }
            None => (self.line.trim_end().len(), "nothing".to_owned(), None),
        };
        Mistake {
            suggestion,
            ..mistake(self.line, at, format!("expected {what}, found {found}"))
        }
    }
}

/// Parses one rule. Its line number is 1.
///
/// # Errors
/// The first mistake in the line: an unknown or repeated word, an invalid value, mixed IP versions, or ports with a
/// protocol that has none.
pub fn parse_rule(line: &str, zones: &[Zone]) -> Result<Rule, Mistake> {
    let mut words = Words { line, at: 0 };
    let first = words.next();
    let action = first.and_then(|(_, word)| ACTIONS.iter().find(|(name, _)| *name == word));
    let Some((_, action)) = action else {
        let names = ACTIONS.iter().map(|(name, _)| *name);
        return Err(words.expected("allow, deny or reject", first, names));
    };
    let mut rule = Rule::any(*action, 1);
    let mut given = [false; WORDS.len()];
    let mut protocol = None;
    let mut next = words.next();
    if let Some((at, word)) = next
        && !WORDS.contains(&word)
    {
        if word != "any" {
            let Ok(number) = protocol_of(word) else {
                let what = format!("a protocol such as tcp, or one of {}", WORDS.join(", "));
                let candidates = WORDS.into_iter().chain(["tcp", "udp", "icmp", "icmpv6"]);
                return Err(words.expected(&what, next, candidates));
            };
            rule.protocol = Some(number);
            protocol = Some((at, word));
        }
        next = words.next();
    }
    while let Some((at, word)) = next {
        let Some(place) = WORDS.iter().position(|name| *name == word) else {
            let what = format!("one of {}", WORDS.join(", "));
            return Err(words.expected(&what, next, WORDS));
        };
        if std::mem::replace(&mut given[place], true) {
            return Err(mistake(line, at, format!("expected {word} once, found it twice")));
        }
        let value = words.next();
        let Some((value_at, text)) = value else {
            return Err(words.expected(&format!("a value after {word}"), None, []));
        };
        let wrong = |expected: Expected| Mistake {
            suggestion: expected.suggestion,
            ..mistake(
                line,
                value_at,
                format!("expected {}, found {}", expected.what, quoted(text)),
            )
        };
        match word {
            "from" | "to" => {
                let zone = zones.iter().position(|zone| zone.name == text);
                let Some(zone) = zone else {
                    let names = zones.iter().map(|zone| &*zone.name);
                    return Err(words.expected("a zone", value, names));
                };
                let side = if word == "from" { &mut rule.from } else { &mut rule.to };
                *side = Some(zone as u8);
            }
            "source" | "destination" => {
                let prefix = match text {
                    "any" => None,
                    _ => Some(prefix_of(text).map_err(wrong)?),
                };
                let side = match word {
                    "source" => &mut rule.source,
                    _ => &mut rule.destination,
                };
                *side = prefix;
            }
            "ports" => rule.destination_ports = ports_of(text).map_err(wrong)?,
            "sourcePorts" => rule.source_ports = ports_of(text).map_err(wrong)?,
            _ => {
                rule.states = States::NONE;
                for name in text.split(',') {
                    let state = State::ALL.iter().find(|(known, _)| *known == name);
                    let Some((_, state)) = state else {
                        let names = State::ALL.iter().map(|(name, _)| *name);
                        let what = "states out of new, established, related, invalid, with commas";
                        return Err(words.expected(what, Some((value_at, name)), names));
                    };
                    rule.states = rule.states.with(*state);
                }
            }
        }
        next = words.next();
    }
    if let (Some(source), Some(destination)) = (rule.source, rule.destination)
        && source.addr().is_ipv4() != destination.addr().is_ipv4()
    {
        let message = "expected source and destination of one IP version, found both versions";
        return Err(mistake(line, 0, message.to_owned()));
    }
    let ports = rule.source_ports != ANY_PORT || rule.destination_ports != ANY_PORT;
    if let Some((at, name)) = protocol
        && ports
        && !matches!(rule.protocol, Some(6 | 17 | 132))
    {
        let message = format!("expected ports only with tcp, udp or sctp, found them with {name}");
        return Err(mistake(line, at, message));
    }
    Ok(rule)
}
