//! Outputs of a run: the report, and files that the run or its functions write.

use crate::error::CliError;
use crate::files::{ReportFile, check_output, check_writable, place, same_place, spec_text};
use crate::input::Traffic;
use crate::output::ReportOutput;
use crate::run::args::RunArgs;
use crate::run::export::Export;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tailwater_functions::spec::ChainSpec;

/// Outputs of a run, apart from the packets that it sends.
#[derive(Debug)]
pub struct Outputs {
    /// Format of the report on standard output.
    pub format: ReportOutput,
    /// HTML page of the report.
    pub page: Option<Page>,
    /// File for the policy's input and decisions.
    pub record: Option<PathBuf>,
    /// Address at which metrics are served.
    pub metrics: Option<SocketAddr>,
    /// Export of events and packet traces.
    pub export: Option<Export>,
    /// A missed objective is an exit code.
    pub check_slo: bool,
}

/// HTML page of a run.
#[derive(Debug)]
pub struct Page {
    /// File of the page.
    pub file: ReportFile,
    /// Text of the chain's spec, which the page shows.
    pub spec: String,
}

impl Outputs {
    /// Checks that the files can be written, and are different from each other and from the inputs: the chain, its
    /// files and the `traffic`.
    ///
    /// # Errors
    /// A file cannot be written, is an input, or is written twice.
    pub fn new(args: &RunArgs, spec: &ChainSpec, traffic: Option<&Traffic>) -> Result<Outputs, CliError> {
        check_own(args, traffic)?;
        check_functions(args, spec, traffic)?;
        check_apart(args, spec)?;
        let page = args.report.as_ref().map(|file| {
            Ok::<_, CliError>(Page {
                file: ReportFile::open("--report", file)?,
                spec: spec_text(&args.chain),
            })
        });
        Ok(Outputs {
            format: args.output,
            page: page.transpose()?,
            record: args.record.clone(),
            metrics: args.metrics,
            export: Export::find(args.otlp.as_deref(), args.keep_packets.is_some())?,
            check_slo: args.check_slo,
        })
    }
}

/// Checks the files of the arguments.
fn check_own(args: &RunArgs, traffic: Option<&Traffic>) -> Result<(), CliError> {
    let own = [
        ("--capture-out", &args.capture_out),
        ("--report", &args.report),
        ("--record", &args.record),
    ];
    if let Some(folder) = &args.keep_packets {
        check_folder("--keep-packets", folder)?;
    }
    let [(_, capture_out), (_, report), (_, record)] = own;
    for (flag, path) in own {
        if let Some(path) = path {
            check_output(flag, path, &args.chain, traffic)?;
        }
    }
    let pairs = [
        ("--report and --capture-out", capture_out, report),
        ("--record and --report", record, report),
        ("--record and --capture-out", record, capture_out),
        ("--record and --profile", record, &args.profile),
    ];
    for (flags, path, other) in pairs {
        if let (Some(path), Some(other)) = (path, other)
            && same_place(path, other)
        {
            return Err(CliError::Input(format!("{flags} are both {}", path.display())));
        }
    }
    Ok(())
}

/// Checks that a folder is there or can be created, without creating it.
fn check_folder(flag: &str, folder: &Path) -> Result<(), CliError> {
    // The first one that is there.
    let there = std::path::absolute(folder).ok();
    let there = there
        .as_deref()
        .into_iter()
        .flat_map(Path::ancestors)
        .find(|path| path.exists());
    match there {
        Some(there) if !there.is_dir() => Err(CliError::Input(format!(
            "{flag}: {}: expected a directory, found the file {}",
            folder.display(),
            there.display()
        ))),
        _ => Ok(()),
    }
}

/// Checks the files that functions write.
fn check_functions(args: &RunArgs, spec: &ChainSpec, traffic: Option<&Traffic>) -> Result<(), CliError> {
    let read = spec.functions.iter().flat_map(|function| &function.files);
    let read = read.chain(&args.profile).map(|file| file.as_path());
    for function in &spec.functions {
        for (field, file) in function.config.outputs() {
            let what = format!("{}: {field}", function.name);
            check_writable(&what, &file, read.clone())?;
            check_output(&what, &file, &args.chain, traffic)?;
        }
    }
    Ok(())
}

/// Checks that no two functions, or a function and the command, write the same file.
fn check_apart(args: &RunArgs, spec: &ChainSpec) -> Result<(), CliError> {
    let given = [
        ("--capture-out", &args.capture_out),
        ("--report", &args.report),
        ("--record", &args.record),
    ];
    let given = given
        .into_iter()
        .filter_map(|(flag, file)| Some((flag.to_owned(), place(file.as_ref()?)?)));
    let mut written: HashMap<PathBuf, String> = given.map(|(flag, at)| (at, flag)).collect();
    for function in &spec.functions {
        let own = function.config.outputs().into_iter();
        let own = own.map(|(field, file)| (format!("{}: {field}", function.name), file));
        let own: Vec<_> = own
            .filter_map(|(what, file)| Some((place(&file)?, what, file)))
            .collect();
        for (at, what, file) in &own {
            if let Some(other) = written.get(at) {
                return Err(CliError::Input(format!(
                    "{what}: {} is also written by {other}",
                    file.display()
                )));
            }
        }
        written.extend(own.into_iter().map(|(at, what, _)| (at, what)));
    }
    Ok(())
}
