//! What was found, and what to do about it.

use serde::Serialize;

/// How bad it is. Worse is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// The objective cannot be kept.
    Prevents,
    /// Packets are later, or fewer, than they need be.
    Costs,
    /// Something that Tailwater could use is missing.
    Missing,
    /// It could not be told.
    Unknown,
    /// As it should be.
    Good,
}

impl Severity {
    /// For people.
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

/// One thing about the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at: `huge-pages`.
    pub check: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is the case.
    pub found: String,
    /// What that does to packets; empty if it is good.
    pub why: &'static str,
    /// Commands that change it, in order; empty if there is nothing to do or no command does it.
    pub fix: Vec<String>,
}

impl Finding {
    /// As it should be.
    pub(crate) fn good(check: &'static str, found: impl Into<String>) -> Finding {
        Finding::bad(check, Severity::Good, found, "")
    }

    /// It could not be told, for want of a permission or a program.
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

    /// With a command that changes it.
    pub(crate) fn fixed_by(mut self, command: impl Into<String>) -> Finding {
        self.fix.push(command.into());
        self
    }
}

/// Commands that add words to the kernel's command line, on systems with GRUB.
pub(crate) fn boot_with(words: &str) -> String {
    format!(
        "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&{words} /' /etc/default/grub && sudo update-grub \
         && sudo reboot"
    )
}
