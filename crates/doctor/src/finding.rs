//! Findings and their remedies.

use crate::action::Action;
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

/// Latency that a problem costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Microseconds.
    pub us: f64,
    /// Event that costs so much.
    pub each: &'static str,
    /// Source of the figure.
    pub source: String,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
    /// The same as changes.
    #[serde(skip)]
    pub actions: Vec<Action>,
    /// Latency that the problem costs if it stays, where there is a figure for this machine.
    pub cost: Option<Cost>,
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
            actions: Vec::new(),
            cost: None,
        }
    }

    /// Adds a change that fixes the problem.
    pub(crate) fn fixed_by(mut self, action: impl Into<Action>) -> Finding {
        let action = action.into();
        self.fix.push(action.command());
        self.actions.push(action);
        self
    }

    /// Sets the latency that the problem costs.
    pub(crate) fn costing(mut self, us: f64, each: &'static str, source: impl Into<String>) -> Finding {
        self.cost = Some(Cost {
            us,
            each,
            source: source.into(),
        });
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
