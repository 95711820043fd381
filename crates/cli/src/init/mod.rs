//! `tailwater init`: writes a first chain.

mod args;
mod questions;
#[cfg(test)]
mod tests;
mod text;

pub use args::{INIT_EXAMPLES, InitArgs};

use crate::error::CliError;
use crate::files::write_argument;
use crate::input::Traffic;
use crate::output::print;
use args::{FirstFunction, default_cores};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tailwater_api::document::{Document, is_label};
use tailwater_api::server::{self, ServerSpec};
use tailwater_dataplane::cores::format_list;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_sim::spec::RackSpec;
use text::{ServerSettings, Settings};

/// Default objective.
const SLO: Nanos = Nanos::from_micros(200);

/// Default traffic.
const TRAFFIC: &str = "bursty";

/// Writes the specs, and prints the commands that use them.
///
/// # Errors
/// A setting is invalid, a file exists, or a file cannot be written.
pub fn init(args: &InitArgs) -> Result<ExitCode, CliError> {
    let mut settings = settings(args)?;
    if !args.yes && io::stdin().is_terminal() && io::stdout().is_terminal() {
        questions::ask(args, &mut settings, &mut io::stdin().lock(), &mut io::stdout().lock())?;
    }
    let traffic = OsString::from(&settings.traffic);
    Traffic::named(&traffic)?;
    let folder = args.file.parent().unwrap_or(Path::new(""));
    let file_name = args.file.file_name().unwrap_or_default().to_string_lossy();
    let mut files = vec![(args.file.clone(), text::chain(&settings))];
    if let Some(server) = &settings.server {
        files.push((folder.join("server.yaml"), text::server(&settings, server, &file_name)));
    }
    if settings.rack {
        files.push((folder.join("rack.yaml"), text::rack(&settings)));
    }
    if args.file == Path::new(STANDARD_OUTPUT) {
        if files.len() > 1 {
            return Err(CliError::Input(
                "-: expected a file: --server and --rack write others beside it".to_owned(),
            ));
        }
        check(&files, folder)?;
        print(&files[0].1)?;
        return Ok(ExitCode::SUCCESS);
    }
    // All or none: an existing file is found before anything is written.
    for (number, (path, _)) in files.iter().enumerate() {
        if files.iter().take(number).any(|(other, _)| other == path) {
            return Err(CliError::Input(format!(
                "{}: expected another name for the chain",
                path.display()
            )));
        }
        if !args.force && path.symlink_metadata().is_ok() {
            return Err(CliError::Input(format!(
                "{} already exists: nothing was written (--force overwrites it)",
                path.display()
            )));
        }
    }
    check(&files, folder)?;
    for (path, text) in &files {
        write_argument(path, text)?;
    }
    print(&next(&files, &settings))?;
    Ok(ExitCode::SUCCESS)
}

/// Name of standard output, as everywhere else.
const STANDARD_OUTPUT: &str = "-";

/// Settings of the options, with defaults for the others.
fn settings(args: &InitArgs) -> Result<Settings, CliError> {
    let traffic = args.traffic.clone().unwrap_or_else(|| TRAFFIC.into());
    let traffic = traffic.into_string().map_err(|name| {
        let name = name.to_string_lossy();
        CliError::Input(format!("--traffic: expected a name in UTF-8, found {name:?}"))
    })?;
    let stem = args
        .file
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .to_lowercase();
    let name = args.name.clone().or(is_label(&stem).then_some(stem));
    let server = args.server.then(|| ServerSettings {
        cores: args
            .cores
            .as_ref()
            .map_or_else(default_cores, |cores| format_list(&cores.0)),
        port: args.port.as_ref().map(ToString::to_string),
    });
    Ok(Settings {
        name: name.unwrap_or_else(|| "chain".to_owned()),
        functions: args
            .functions
            .clone()
            .unwrap_or_else(|| vec![FirstFunction::Acl, FirstFunction::Nat]),
        slo: args.slo.unwrap_or(SLO),
        traffic,
        server,
        rack: args.rack,
    })
}

/// Checks the texts as the commands do that read them.
fn check(files: &[(PathBuf, String)], folder: &Path) -> Result<(), CliError> {
    for (path, text) in files {
        let name = path.display().to_string();
        if text.contains("\nkind: Chain\n") {
            ChainSpec::parse(text, &name, folder)?;
        } else if text.contains("\nkind: Server\n") {
            let document = Document::parse(text, &name, server::DESCRIPTION)?;
            ServerSpec::new(&document, folder)?;
        } else {
            RackSpec::parse(text, &name, folder)?;
        }
    }
    Ok(())
}

/// Formats the written files, and the commands to go on with.
fn next(files: &[(PathBuf, String)], settings: &Settings) -> String {
    let mut text = "Written:\n".to_owned();
    let name = |path: &Path| quoted(&path.display().to_string());
    // Writing into a string cannot fail.
    for (path, _) in files {
        let _ = writeln!(text, "  {}", name(path));
    }
    text.push_str("\nNext:\n");
    let traffic = match settings.traffic.as_str() {
        TRAFFIC => String::new(),
        other => format!(" --traffic {}", quoted(other)),
    };
    for (path, content) in files {
        let file = name(path);
        let _ = if content.contains("\nkind: Chain\n") {
            writeln!(
                text,
                "  tailwater run {file}{traffic}\n  tailwater run {file}{traffic} --report page.html"
            )
        } else if content.contains("\nkind: Server\n") {
            writeln!(text, "  tailwater serve {file}\n  tailwater top")
        } else {
            writeln!(text, "  tailwater simulate {file}")
        };
    }
    text.push_str("  tailwater doctor\n");
    text
}

/// Quotes a word for a shell, if it must be.
fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./=:,".contains(&byte);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}
