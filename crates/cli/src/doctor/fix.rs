//! `tailwater doctor --fix`: changes with consent.

use super::args::DoctorArgs;
use crate::error::CliError;
use crate::output::{ReportOutput, print};
use crate::text::one_line;
use rustix::process::geteuid;
use serde::Serialize;
use std::io::{self, BufRead, BufReader, IsTerminal};
use tailwater_doctor::{Action, Mending, Step, Undo};
use tailwater_files::InputFile;

/// Outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FixStatus {
    /// The change was made.
    Done,
    /// The system refused the change.
    Failed,
    /// There was no consent.
    NotMade,
    /// The command is for the user.
    ByHand,
    /// The setting is elsewhere.
    Elsewhere,
}

/// A step with its outcome.
#[derive(Clone, Debug, Serialize)]
pub struct Fix {
    /// The finding's check.
    pub check: &'static str,
    /// The command, or the place of the setting.
    pub command: String,
    /// Commands that undo it; empty if there are none.
    pub undo: Vec<String>,
    /// The outcome.
    pub status: FixStatus,
    /// The system's error, or the reason for which it is left to the user or cannot be undone.
    pub message: Option<String>,
}

/// Makes the changes of a plan for which there is consent: by `--yes`, or by an answer on a terminal.
///
/// # Errors
/// A question cannot be printed.
pub fn fix(args: &DoctorArgs, plan: &[Mending<'_>]) -> Result<Vec<Fix>, CliError> {
    // Questions and JSON do not mix.
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let can_ask = is_terminal && !args.yes && args.output == ReportOutput::Table;
    // Reading ends at Ctrl-C, so that the changes made before it are listed.
    let input = can_ask.then(InputFile::stdin).transpose();
    let input = input.map_err(|source| CliError::System {
        what: "standard input cannot be read",
        source,
    })?;
    let mut input = input.map(BufReader::new);
    let mut fixes = Vec::new();
    for mending in plan.iter().filter(|mending| is_chosen(args, mending.finding.check)) {
        for step in &mending.steps {
            let mut fix = Fix {
                check: mending.finding.check,
                command: String::new(),
                undo: Vec::new(),
                status: FixStatus::Elsewhere,
                message: None,
            };
            match step {
                Step::Elsewhere(place) => fix.command.clone_from(place),
                Step::ByHand { command, reason } => {
                    fix.command.clone_from(command);
                    fix.status = FixStatus::ByHand;
                    fix.message = Some((*reason).to_owned());
                }
                Step::Change { action, undo } => {
                    fix.command = action.command();
                    match undo {
                        Undo::By(commands) => fix.undo.clone_from(commands),
                        Undo::Not(reason) => fix.message = Some(format!("no command undoes it: {reason}")),
                    }
                    let answer = match &mut input {
                        Some(input) => ask(mending, action, undo, input)?,
                        None => Some(args.yes),
                    };
                    if answer.is_none() {
                        input = None;
                    }
                    let consent = answer == Some(true);
                    fix.status = match consent.then(|| action.apply()) {
                        None => FixStatus::NotMade,
                        Some(Ok(())) => FixStatus::Done,
                        Some(Err(error)) => {
                            // Root is refused, too, by interrupts that the kernel places itself.
                            let root = match error.kind() {
                                io::ErrorKind::PermissionDenied if !geteuid().is_root() => " (run it with sudo)",
                                _ => "",
                            };
                            fix.message = Some(format!("{error}{root}"));
                            FixStatus::Failed
                        }
                    };
                }
            }
            fixes.push(fix);
        }
    }
    Ok(fixes)
}

fn is_chosen(args: &DoctorArgs, check: &str) -> bool {
    args.only.is_empty() || args.only.iter().any(|only| only == check)
}

/// Asks for consent to a change: anything but `y` and `yes` is no. `None` at the end of the input, or after a signal.
fn ask(
    mending: &Mending<'_>,
    action: &Action,
    undo: &Undo,
    input: &mut impl BufRead,
) -> Result<Option<bool>, CliError> {
    let finding = mending.finding;
    print(&format!(
        "\n{}: {}\n  $ {}\n  {}\nMake this change? [y/N] ",
        finding.check,
        one_line(&finding.found),
        one_line(&action.command()),
        undo_words(undo)
    ))?;
    let mut answer = String::new();
    match input.read_line(&mut answer) {
        Ok(1..) => Ok(Some(matches!(answer.trim(), "y" | "Y" | "yes"))),
        _ => Ok(None),
    }
}

fn undo_words(undo: &Undo) -> String {
    match undo {
        Undo::By(commands) => format!(
            "lasts until the next boot, or until you run: {}",
            one_line(&commands.join(" && "))
        ),
        Undo::Not(reason) => format!("lasts until the next boot; no command undoes it: {reason}"),
    }
}

/// Formats the outcomes, with the meaning of those that are no change, and the commands that undo what was done.
pub fn table(fixes: &[Fix]) -> String {
    let mut text = String::from("\nChanges (--fix)\n");
    let mut undo: Vec<&String> = Vec::new();
    for fix in fixes {
        let (mark, more) = match (fix.status, &fix.message) {
            (FixStatus::Done, None) => ("done", String::new()),
            (FixStatus::Done, Some(message)) => ("done", format!("  # {message}")),
            (FixStatus::Failed, message) => ("FAILED", format!("  # {}", message.as_deref().unwrap_or("refused"))),
            (FixStatus::NotMade, _) => ("not made", String::new()),
            (FixStatus::ByHand, message) => ("by hand", format!("  # {}", message.as_deref().unwrap_or(""))),
            (FixStatus::Elsewhere, _) => ("elsewhere", String::new()),
        };
        let prompt = match fix.status {
            FixStatus::Elsewhere => "",
            _ => "$ ",
        };
        text.push_str(&format!(
            "  {mark:<11}{}: {prompt}{}{}\n",
            fix.check,
            one_line(&fix.command),
            one_line(&more)
        ));
        if fix.status == FixStatus::Done {
            undo.extend(&fix.undo);
        }
    }
    if fixes.is_empty() {
        text.push_str("  nothing to change\n");
    }
    if !undo.is_empty() {
        text.push_str("\nThe changes last until the next boot. To undo them now:\n");
        for command in undo.iter().rev() {
            text.push_str(&format!("  $ {}\n", one_line(command)));
        }
    }
    let has = |status: FixStatus| fixes.iter().any(|fix| fix.status == status);
    let meanings = [
        (
            FixStatus::NotMade,
            "not made   nobody agreed: on a terminal, --fix asks for each; `doctor --fix --yes` makes them all",
        ),
        (
            FixStatus::ByHand,
            "by hand    run these yourself, if you want them: --fix does not, for the reason after the last #",
        ),
        (
            FixStatus::Elsewhere,
            "elsewhere  nothing on this machine changes these: they belong to what is named",
        ),
    ];
    let meanings: Vec<&str> = meanings
        .into_iter()
        .filter(|(status, _)| has(*status))
        .map(|(_, text)| text)
        .collect();
    if !meanings.is_empty() {
        text.push_str(&format!("\n{}\n", meanings.join("\n")));
    }
    text
}
