//! `tailwater completions` and `tailwater man-pages`: for shells and `man`, from the definitions of the commands.

use crate::error::CliError;
use crate::files::{cannot_write, write_argument};
use crate::output::print;
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use std::path::{Path, PathBuf};
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
/// The folder cannot be created, or a page cannot be written: that page is as it was before.
pub fn man_pages(args: &ManPagesArgs, program: Command) -> Result<ExitCode, CliError> {
    let folder = &args.folder;
    std::fs::create_dir_all(folder).map_err(|source| match folder.is_dir() || !folder.exists() {
        true => cannot_write(&folder.display().to_string(), &source),
        false => CliError::Input(format!("{}: expected a folder, found a file", folder.display())),
    })?;
    let mut program = program.disable_help_subcommand(true);
    program.build();
    write_pages(program, folder)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of a command, after those of the commands below it.
fn write_pages(command: Command, folder: &Path) -> Result<(), CliError> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_pages(below.clone(), folder)?;
    }
    let page = Man::new(command);
    let mut text = Vec::new();
    page.render(&mut text).map_err(CliError::Output)?;
    write_argument(&folder.join(page.get_filename()), &String::from_utf8_lossy(&text))
}
