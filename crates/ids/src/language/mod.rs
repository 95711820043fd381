//! Suricata's rule language, as text.
//!
//! ```text
//! alert http $HOME_NET any -> $EXTERNAL_NET any (msg:"a message"; flow:established,to_server;
//!     http.uri; content:"/a.php?"; fast_pattern; pcre:"/id=\d+$/"; classtype:trojan-activity; sid:1; rev:1;)
//! ```
//!
//! A rule a line; a backslash at the end continues it. What is wrong in a text is told at once, a [`Mistake`] for each
//! rule. A rule that is right but asks for something that is not supported is [`Skipped`], with the reason.

mod draft;
mod header;
mod keywords;
mod numbers;
mod options;
mod problem;

pub use header::{Variables, WrongVariable};

use crate::rule::Rule;
use header::Sets;
use problem::Problem;
use std::fmt;

/// The most mistakes that are told one by one.
pub const MOST_TOLD: usize = 1000;
/// The most rules of a text.
pub const MAX_RULES: usize = 250_000;

/// A mistake in a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What was expected and what was found.
    pub message: String,
    /// What was probably meant.
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

/// A rule that is right, and not supported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Line, from 1.
    pub line: usize,
    /// Its number; 0 if it was not read so far.
    pub sid: u32,
    /// Why, the same for all of one kind.
    pub reason: String,
}

/// What a text came to.
#[derive(Clone, Debug, Default)]
pub struct Parsed {
    /// Rules.
    pub rules: Vec<Rule>,
    /// Rules that are not supported.
    pub skipped: Vec<Skipped>,
    /// What is wrong, up to [`MOST_TOLD`].
    pub mistakes: Vec<Mistake>,
    /// How many more mistakes there are.
    pub more: usize,
}

/// Reads texts of rules with the same variables.
#[derive(Debug)]
pub struct Reader {
    sets: Sets,
    expressions: keywords::Expressions,
}

impl Reader {
    /// With these variables.
    ///
    /// # Errors
    /// A variable that is no list of addresses or ports.
    pub fn new(variables: &Variables) -> Result<Reader, WrongVariable> {
        Ok(Reader {
            sets: Sets::new(variables)?,
            expressions: keywords::Expressions::default(),
        })
    }

    /// Reads a text. Rules of several texts are distinct by their numbers only if the caller sees to it.
    pub fn read(&mut self, text: &str) -> Parsed {
        let mut parsed = Parsed::default();
        let mut lines = text.lines().enumerate();
        while let Some((number, first)) = lines.next() {
            let mut joined = String::new();
            let mut line = first;
            // A continued line begins where the rule does.
            while let Some(start) = line.trim_end().strip_suffix('\\') {
                joined.push_str(start);
                match lines.next() {
                    Some((_, next)) => line = next,
                    None => line = "",
                }
            }
            let line = match joined.is_empty() {
                true => line,
                false => {
                    joined.push_str(line);
                    &joined
                }
            };
            let rule = line.trim();
            if rule.is_empty() || rule.starts_with('#') {
                continue;
            }
            let indent = line.len() - line.trim_start().len();
            let outcome = match parsed.rules.len() {
                MAX_RULES.. => Err((0, Problem::wrong(format!("expected at most {MAX_RULES} rules")))),
                _ => self.rule(rule),
            };
            match outcome {
                Ok(rule) => parsed.rules.push(Rule {
                    line: number as u32 + 1,
                    ..rule
                }),
                Err((sid, Problem::Unsupported(reason))) => parsed.skipped.push(Skipped {
                    line: number + 1,
                    sid,
                    reason,
                }),
                Err((
                    _,
                    Problem::Wrong {
                        at,
                        message,
                        suggestion,
                    },
                )) => {
                    if parsed.mistakes.len() == MOST_TOLD {
                        parsed.more += 1;
                        continue;
                    }
                    let before = line.get(..at + indent);
                    let column = before.map_or(line.chars().count(), |text| text.chars().count());
                    parsed.mistakes.push(Mistake {
                        line: number + 1,
                        column: column + 1,
                        message,
                        suggestion,
                    });
                }
            }
        }
        parsed
    }

    /// One rule; or its number, if it was read, and why there is none.
    fn rule(&mut self, text: &str) -> Result<Rule, (u32, Problem)> {
        let open = text.find('(');
        let Some(open) = open else {
            let message = "expected options in parentheses behind the rule's header";
            return Err((0, Problem::at(text.len(), message)));
        };
        let options = options::split(text, open);
        let sid = options.as_ref().map_or(0, |options| options::sid(options).unwrap_or(0));
        let header = header::parse(&text[..open], &mut self.sets);
        let rule = options.and_then(|options| {
            // What is wrong is told before what is not supported.
            let draft = keywords::read(&options, &mut self.expressions);
            match (header, draft) {
                (Err(wrong @ Problem::Wrong { .. }), _) | (_, Err(wrong @ Problem::Wrong { .. })) => Err(wrong),
                (Err(problem), _) | (_, Err(problem)) => Err(problem),
                (Ok(header), Ok(draft)) => draft.finish(header, text.len()),
            }
        });
        rule.map_err(|problem| (sid, problem))
    }
}

#[cfg(test)]
mod tests;
