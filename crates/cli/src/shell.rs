//! `tailwater completions` and `tailwater man-pages`: for shells and `man`, from the definitions of the commands.

use crate::error::CliError;
use crate::output::print;
use clap::{Args, Command};
use clap_complete::Shell;
use std::path::PathBuf;
use std::process::ExitCode;

/// Help text of `tailwater completions`.
pub const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  source <(tailwater completions bash)
      For this shell.
  tailwater completions bash > /usr/share/bash-completion/completions/tailwater
  tailwater completions zsh > /usr/share/zsh/vendor-completions/_tailwater
  tailwater completions fish > ~/.config/fish/completions/tailwater.fish
      For all later ones. The Debian package has them.";

/// Arguments of `tailwater completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// Help text of `tailwater man-pages`.
pub const MAN_PAGES_EXAMPLES: &str = "\
Examples:
  tailwater man-pages /usr/local/share/man/man1
  man tailwater-run
      The Debian package has them.";

/// Arguments of `tailwater man-pages`.
#[derive(Debug, Args)]
pub struct ManPagesArgs {
    /// Folder for the pages; created if missing
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}

/// Prints completions of the program.
///
/// # Errors
/// Standard output fails.
pub fn completions(args: &CompletionsArgs, mut program: Command) -> Result<ExitCode, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "tailwater", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a page for each command of the program that is not hidden.
///
/// # Errors
/// A file cannot be written.
pub fn man_pages(args: &ManPagesArgs, program: Command) -> Result<ExitCode, CliError> {
    let failed = |source| CliError::System {
        what: "the pages cannot be written",
        source,
    };
    std::fs::create_dir_all(&args.folder).map_err(failed)?;
    clap_mangen::generate_to(program, &args.folder).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}
