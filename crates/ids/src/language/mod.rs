//! Parser of Suricata's rule language.
//!
//! ```text
//! alert http $HOME_NET any -> $EXTERNAL_NET any (msg:"a message"; flow:established,to_server;
//!     http.uri; content:"/a.php?"; fast_pattern; pcre:"/id=\d+$/"; classtype:trojan-activity; sid:1; rev:1;)
//! ```
//!
//! There is one rule per line; a backslash at the end continues it. All errors of a text are reported together, one
//! [`Mistake`] per rule. A valid rule that uses an unsupported feature is [`Skipped`], with the reason.

mod draft;
mod expressions;
mod header;
mod keywords;
mod numbers;
mod options;
mod problem;

pub use header::{Variables, WrongVariable};

use crate::rule::Rule;
use expressions::Expressions;
use header::Sets;
use problem::Problem;
use std::borrow::Cow;
use std::fmt;

/// Largest number of mistakes reported individually.
pub const MAX_REPORTED: usize = 1000;
/// Largest number of rules in a text.
pub const MAX_RULES: usize = 250_000;

/// Error in a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Expected and actual text.
    pub message: String,
    /// Suggested correction.
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

/// Valid rule that is not supported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Line, from 1.
    pub line: usize,
    /// `sid` of the rule; 0 if it was not read.
    pub sid: u32,
    /// Reason, the same for all rules of one kind.
    pub reason: String,
}

/// Result of parsing a text.
#[derive(Clone, Debug, Default)]
pub struct Parsed {
    /// Rules.
    pub rules: Vec<Rule>,
    /// Unsupported rules.
    pub skipped: Vec<Skipped>,
    /// Errors, up to [`MAX_REPORTED`].
    pub mistakes: Vec<Mistake>,
    /// Number of further errors.
    pub more: usize,
}

impl Parsed {
    /// Adds an error.
    fn add(&mut self, mistake: Mistake) {
        match self.mistakes.len() {
            MAX_REPORTED.. => self.more += 1,
            _ => self.mistakes.push(mistake),
        }
    }
}

/// Returns the lines of a text, without their ends.
fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split_inclusive(|byte| *byte == b'\n').map(|line| {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        line.strip_suffix(b"\r").unwrap_or(line)
    })
}

/// Returns a line as text; the first byte of a rule that is not UTF-8 becomes a mistake.
fn text_of<'a>(number: usize, line: &'a [u8], not_text: &mut Option<Mistake>) -> Cow<'a, str> {
    let error = match std::str::from_utf8(line) {
        Ok(text) => return Cow::Borrowed(text),
        Err(error) => error,
    };
    let (good, rest) = line.split_at(error.valid_up_to());
    not_text.get_or_insert_with(|| Mistake {
        line: number + 1,
        column: String::from_utf8_lossy(good).chars().count() + 1,
        message: format!(
            "expected UTF-8 text, found the byte {:#04x}",
            rest.first().copied().unwrap_or_default()
        ),
        suggestion: None,
    });
    String::from_utf8_lossy(line)
}

/// Parser of rule texts with common variables.
#[derive(Debug)]
pub struct Reader {
    sets: Sets,
    expressions: Expressions,
}

impl Reader {
    /// Creates a parser with these variables.
    ///
    /// # Errors
    /// A variable is neither an address list nor a port list.
    pub fn new(variables: &Variables) -> Result<Reader, WrongVariable> {
        Ok(Reader {
            sets: Sets::new(variables)?,
            expressions: Expressions::default(),
        })
    }

    /// Parses a text. Across several texts the caller must ensure that each `sid` is unique.
    pub fn read(&mut self, text: &str) -> Parsed {
        self.read_bytes(text.as_bytes())
    }

    /// Parses a text that may contain bytes that are not UTF-8: a rule or comment with such is a mistake.
    pub fn read_bytes(&mut self, bytes: &[u8]) -> Parsed {
        let mut parsed = Parsed::default();
        let mut lines = lines(bytes).enumerate();
        while let Some((number, first)) = lines.next() {
            let mut joined = String::new();
            let mut not_text = None;
            let mut line = text_of(number, first, &mut not_text);
            // A continued line counts from the rule's first line.
            while let Some(start) = line.trim_end().strip_suffix('\\') {
                joined.push_str(start);
                line = match lines.next() {
                    Some((number, next)) => text_of(number, next, &mut not_text),
                    None => Cow::Borrowed(""),
                };
            }
            if let Some(mistake) = not_text {
                parsed.add(mistake);
                continue;
            }
            let line = match joined.is_empty() {
                true => &*line,
                false => {
                    joined.push_str(&line);
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
                    let before = line.get(..at + indent);
                    let column = before.map_or(line.chars().count(), |text| text.chars().count());
                    parsed.add(Mistake {
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

    /// Parses one rule; on failure returns its `sid`, if read, and the problem.
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
            // Errors take precedence over unsupported options.
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
