//! Questions of `tailwater init` on a terminal.

use super::args::{FirstFunction, InitArgs, default_cores};
use super::text::{ServerSettings, Settings};
use crate::error::CliError;
use crate::input::Traffic;
use crate::values;
use clap::ValueEnum;
use std::io::{BufRead, Write};

/// Asks for the settings that no option gave. An end of the input takes the remaining defaults.
///
/// # Errors
/// A question cannot be printed.
pub fn ask(
    args: &InitArgs,
    settings: &mut Settings,
    input: &mut impl BufRead,
    output: &mut impl Write,
) -> Result<(), CliError> {
    let mut dialogue = Dialogue { input, output };
    if args.name.is_none() {
        let default = settings.name.clone();
        settings.name = dialogue.ask("Name of the chain", &default, values::label)?;
    }
    if args.functions.is_none() {
        let names = FirstFunction::value_variants()
            .iter()
            .filter_map(ValueEnum::to_possible_value);
        let names: Vec<String> = names.map(|value| value.get_name().to_owned()).collect();
        let question = format!("Functions in order, of {}", names.join(", "));
        settings.functions = dialogue.ask(&question, "acl,nat", functions)?;
    }
    if args.slo.is_none() {
        let default = settings.slo.to_string();
        settings.slo = dialogue.ask("Latency objective of the 99th percentile", &default, values::slo)?;
    }
    if args.traffic.is_none() {
        let default = settings.traffic.clone();
        let traffic = |text: &str| match Traffic::named(text.as_ref()) {
            Ok(_) => Ok(text.to_owned()),
            Err(error) => Err(error.to_string()),
        };
        settings.traffic = dialogue.ask("Traffic: a capture file or a preset", &default, traffic)?;
    }
    if !args.server && dialogue.ask("Also write a server (y/n)", "n", yes_or_no)? {
        settings.server = Some(ServerSettings {
            cores: dialogue.ask("Cores of the server", &default_cores(), |text| {
                values::cores(text).map(|_| text.to_owned())
            })?,
            port: None,
        });
    }
    Ok(())
}

fn functions(text: &str) -> Result<Vec<FirstFunction>, String> {
    let names = text.split(',').map(str::trim);
    names
        .map(|name| FirstFunction::from_str(name, true).map_err(|_| format!("unknown function {name:?}")))
        .collect()
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(true),
        "n" | "no" => Ok(false),
        _ => Err("expected y or n".to_owned()),
    }
}

struct Dialogue<'d, I, O> {
    input: &'d mut I,
    output: &'d mut O,
}

impl<I: BufRead, O: Write> Dialogue<'_, I, O> {
    /// Asks until an answer is valid. An empty one, or the end of the input, is the default.
    fn ask<T>(
        &mut self,
        question: &str,
        default: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, CliError> {
        loop {
            write!(self.output, "{question} [{default}]: ").map_err(CliError::Output)?;
            self.output.flush().map_err(CliError::Output)?;
            let mut line = String::new();
            let read = self.input.read_line(&mut line).unwrap_or(0);
            let answer = match line.trim() {
                "" => default,
                answer => answer,
            };
            match parse(answer) {
                Ok(value) => return Ok(value),
                Err(error) if read == 0 => return Err(CliError::Input(error)),
                Err(error) => writeln!(self.output, "  {error}").map_err(CliError::Output)?,
            }
        }
    }
}
