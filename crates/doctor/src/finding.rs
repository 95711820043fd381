//! Findings and their remedies.

use serde::Serialize;

/// Severity of a finding. More severe values compare as less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// The objective cannot be met.
    Prevents,
    /// Latency is higher, or throughput lower, than necessary.
    Costs,
    /// A feature that Tailwater could use is missing.
    Missing,
    /// The state could not be determined.
    Unknown,
    /// No problem.
    Good,
}

impl Severity {
    /// Returns the name for display.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Prevents => "prevents",
            Severity::Costs => "costs",
            Severity::Missing => "missing",
            Severity::Unknown => "unknown",
            Severity::Good => "good",
        }
    }
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check, such as `huge-pages`.
    pub check: &'static str,
    /// Severity of the finding.
    pub severity: Severity,
    /// Observed state.
    pub found: String,
    /// Effect on packets; empty if there is none.
    pub why: &'static str,
    /// Commands that fix the problem, in order. Empty if there is no problem or no command fixes it.
    pub fix: Vec<String>,
}

impl Finding {
    /// Creates a finding without a problem.
    pub(crate) fn good(check: &'static str, found: impl Into<String>) -> Finding {
        Finding::bad(check, Severity::Good, found, "")
    }

    /// Creates a finding for a state that could not be determined, because a permission or a program is missing.
    pub(crate) fn unknown(check: &'static str, found: impl Into<String>) -> Finding {
        Finding::bad(check, Severity::Unknown, found, "")
    }

    pub(crate) fn bad(check: &'static str, severity: Severity, found: impl Into<String>, why: &'static str) -> Finding {
        Finding {
            check,
            severity,
            found: found.into(),
            why,
            fix: Vec::new(),
        }
    }

    /// Adds a command that fixes the problem.
    pub(crate) fn fixed_by(mut self, command: impl Into<String>) -> Finding {
        self.fix.push(command.into());
        self
    }
}

/// Returns commands that add words to the kernel's command line, on systems with GRUB.
pub(crate) fn boot_with(words: &str) -> String {
    format!(
        "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&{words} /' /etc/default/grub && sudo update-grub \
         && sudo reboot"
    )
}
