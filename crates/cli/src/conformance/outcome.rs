//! Results of checks.

/// Result of a check, with its reason in a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed(String),
    Failed(String),
    Skipped(String),
}

impl Outcome {
    /// Verdict and reason.
    pub fn parts(&self) -> (&'static str, &str) {
        match self {
            Outcome::Passed(text) => ("passed", text),
            Outcome::Failed(text) => ("FAILED", text),
            Outcome::Skipped(text) => ("skipped", text),
        }
    }

    /// Reads what [`parts`](Outcome::parts) returned, with a space between.
    pub fn parse(line: &str) -> Option<Outcome> {
        let (verdict, text) = line.split_once(' ')?;
        let text = text.to_owned();
        Some(match verdict {
            "passed" => Outcome::Passed(text),
            "FAILED" => Outcome::Failed(text),
            "skipped" => Outcome::Skipped(text),
            _ => return None,
        })
    }
}

/// Outcome of a check that is not skipped.
pub fn outcome(result: Result<String, String>) -> Outcome {
    match result {
        Ok(text) => Outcome::Passed(text),
        Err(text) => Outcome::Failed(text),
    }
}
