//! `tailwater diff`: differences between measured runs.

mod args;
mod document;
mod table;

pub use args::{DIFF_EXAMPLES, DiffArgs};

use crate::error::CliError;
use crate::output::{ReportOutput, complain, json, print};
use document::{ChainDocument, Document};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use tailwater_api::files::argument_name;
use tailwater_dataplane::comparison::{
    ChainComparison, CompareOptions, MAX_BYTES, Method, RUNS_FOR_WELCH, RunFigures, STEPS_FOR_BOOTSTRAP, compare, parse,
};
use tailwater_files::InputFile;

/// Exit code if there are differences, as for `diff`.
const DIFFERENT: u8 = 1;

/// Share of windows with CPU interference from which a run is doubted.
const DISTURBED: f64 = 0.1;

/// Runs of a group by chain.
type Runs = BTreeMap<String, Vec<RunFigures>>;

/// Prints the differences between runs.
///
/// # Errors
/// A file cannot be read or is no run, the chains differ, nothing can be judged, or the result cannot be printed.
pub fn diff(args: &DiffArgs) -> Result<ExitCode, CliError> {
    let before: Vec<&PathBuf> = args.before.iter().chain(&args.before_runs).collect();
    let after: Vec<&PathBuf> = args.after.iter().chain(&args.after_runs).collect();
    let (before, after) = (read(&before)?, read(&after)?);
    notice_copies(&before, &after);
    let (before, after) = (by_chain(before), by_chain(after));
    same_chains(&before, &after)?;
    let options = CompareOptions {
        confidence: args.confidence,
        tolerance: args.tolerance,
    };
    let mut chains: Vec<ChainComparison> = Vec::new();
    for (chain, before) in &before {
        let Some(after) = after.get(chain) else { continue };
        notice(chain, before, after);
        let [before, after]: [Vec<&RunFigures>; 2] = [before.iter().collect(), after.iter().collect()];
        chains.push(compare(&before, &after, &options));
    }
    let nothing = chains.iter().find(|chain| chain.method == Method::None);
    let document = Document {
        different: chains.iter().any(|chain| chain.differences().next().is_some()),
        confidence: args.confidence,
        tolerance: args.tolerance,
        chains: chains.iter().map(ChainDocument::from).collect(),
    };
    print(&match args.output {
        ReportOutput::Table => table::table(&chains, args.confidence),
        ReportOutput::Json => json(&document)?,
    })?;
    match nothing {
        Some(chain) if !document.different => Err(CliError::Input(format!(
            "chain {}: nothing to judge by: expected runs of at least {STEPS_FOR_BOOTSTRAP} windows, or \
             {RUNS_FOR_WELCH} runs a side",
            chain.chain
        ))),
        _ if document.different => Ok(ExitCode::from(DIFFERENT)),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// A document that was read.
struct Read {
    /// Names of the files that have this content, as arguments.
    names: Vec<String>,
    /// Its runs, one a chain.
    runs: Vec<RunFigures>,
}

/// Reads the documents of a group. Copies of one are one: they are no independent runs, and would seem to show that
/// runs never vary.
fn read(files: &[&PathBuf]) -> Result<Vec<Read>, CliError> {
    let mut documents: Vec<Read> = Vec::new();
    let mut first: Option<(String, Vec<String>)> = None;
    for file in files {
        let name = argument_name(file);
        let bytes = InputFile::named(file).and_then(|input| input.read_up_to(MAX_BYTES as u64));
        let bytes = bytes.map_err(|error| CliError::of_file(format!("{name}: cannot be read: {error}"), &error))?;
        let found =
            parse(&bytes).map_err(|error| CliError::Input(format!("{name}:{error}", error = spaced(&error))))?;
        let chains: Vec<String> = found.iter().map(|run| run.chain.clone()).collect();
        match &first {
            Some((other, expected)) if *expected != chains => {
                return Err(CliError::Input(format!(
                    "{name}: expected the chains of {other}, {}; found {}",
                    expected.join(", "),
                    chains.join(", ")
                )));
            }
            Some(_) => {}
            None => first = Some((name.clone(), chains)),
        }
        match documents.iter_mut().find(|document| document.runs == found) {
            Some(document) => document.names.push(name),
            None => documents.push(Read {
                names: vec![name],
                runs: found,
            }),
        }
    }
    Ok(documents)
}

/// Sorts the runs of a group by chain.
fn by_chain(documents: Vec<Read>) -> Runs {
    let mut runs = Runs::new();
    for run in documents.into_iter().flat_map(|document| document.runs) {
        runs.entry(run.chain.clone()).or_default().push(run);
    }
    runs
}

/// Says which files are the same.
fn notice_copies(before: &[Read], after: &[Read]) {
    for document in before.iter().chain(after) {
        if let [first, copies @ ..] = &document.names[..]
            && !copies.is_empty()
        {
            let (copies, run) = (copies.len() + 1, "counted as one run");
            complain("notice", &format!("{first}: given {copies} times, or copied: {run}"));
        }
    }
    for document in before {
        if let Some(same) = after.iter().find(|other| other.runs == document.runs) {
            let text = format!(
                "{} before and {} after have the same content: the same run, on both sides",
                document.names[0], same.names[0]
            );
            complain("notice", &text);
        }
    }
}

/// Separates a message from the file's name, unless it begins with a line's number.
fn spaced(error: &tailwater_dataplane::comparison::DocumentError) -> String {
    match error.line {
        0 => format!(" {error}"),
        _ => error.to_string(),
    }
}

fn same_chains(before: &Runs, after: &Runs) -> Result<(), CliError> {
    let names = |runs: &Runs| runs.keys().cloned().collect::<Vec<String>>().join(", ");
    match before.keys().eq(after.keys()) {
        true => Ok(()),
        false => Err(CliError::Input(format!(
            "expected runs of the same chains, found {} before and {} after",
            names(before),
            names(after)
        ))),
    }
}

/// Warns of conditions under which figures differ for other reasons than the change that is examined.
fn notice(chain: &str, before: &[RunFigures], after: &[RunFigures]) {
    let say = |text: String| complain("notice", &format!("chain {chain}: {text}"));
    let all = || before.iter().chain(after);
    let differs = |part: fn(&RunFigures) -> String| {
        let mut values: Vec<String> = all().map(part).collect();
        values.dedup();
        (values.len() > 1).then(|| values.join(", then "))
    };
    if let Some(traffic) = differs(|run| run.traffic.clone()) {
        say(format!("other traffic: {traffic}"));
    }
    if let Some(slo) = differs(|run| format!("p{} within {} us", run.slo.1, run.slo.0)) {
        say(format!("another objective, so other packets are late: {slo}"));
    }
    let disturbed = all().filter(|run| run.flagged_share() > DISTURBED).count();
    if disturbed > 0 {
        let runs = all().count();
        say(format!(
            "{disturbed} of {runs} runs had CPU interference in more than 10 % of their windows; \
             `tailwater doctor` finds its source"
        ));
    }
    if all().any(|run| run.interrupted) {
        say("a run was interrupted".to_owned());
    }
}
