//! `tailwater validate`: checks specs of all kinds as the commands that read them do.

use super::documents::{Part, split};
use super::kinds::names;
use crate::error::{BAD_INPUT, CliError};
use crate::output::{ReportOutput, complain, json, print};
use crate::place::profiles::ProfileFiles;
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use tailwater_api::SpecError;
use tailwater_api::chain::{ChainNode, DESCRIPTION};
use tailwater_api::document::{Document, nearest};
use tailwater_api::files::{argument_name, read_argument};
use tailwater_api::isolation::IsolationMode;
use tailwater_api::located::Located;
use tailwater_api::server::{self, ServerSpec};
use tailwater_api::yaml;
use tailwater_files::stop_requested;
use tailwater_functions::library::{Code, CodeExaminer, LibraryError};
use tailwater_functions::spec::ChainSpec;
use tailwater_placement::spec::{ClusterSpec, SloSet};
use tailwater_sim::spec::RackSpec;

/// Help text of `tailwater validate`.
pub const VALIDATE_EXAMPLES: &str = "\
Checks every document of every file, with the files that it names, and reports all errors that the parsers find.
Documents of a file are separated by `---`. Nothing is run or changed.

Examples:
  tailwater validate chain.yaml server.yaml
  tailwater validate cluster.yaml slos.yaml
      Profiles that a set of SLOs names are found by the hardware of the clusters in front of it.
  tailwater validate - --output json < chain.yaml
      For editors and CI.

Exit codes: 0 all are valid, 2 at least one is not.";

/// Arguments of `tailwater validate`.
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// Specs of any kind; `-` for standard input
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Output format
    #[arg(short, long, value_name = "table|json", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: ReportOutput,
}

/// Result of a check.
#[derive(Debug, Serialize)]
struct Report {
    valid: bool,
    documents: Vec<Checked>,
    errors: Vec<Problem>,
}

/// Document of a file.
#[derive(Debug, Serialize)]
struct Checked {
    file: String,
    line: usize,
    kind: Option<String>,
    name: Option<String>,
    valid: bool,
}

/// Error in a document.
#[derive(Debug, Serialize)]
struct Problem {
    file: String,
    line: Option<usize>,
    column: Option<usize>,
    field: Option<String>,
    message: String,
    suggestion: Option<String>,
}

/// Checks specs, and prints what is wrong with them.
///
/// # Errors
/// A signal ended it, or the result cannot be printed.
pub fn validate(args: &ValidateArgs) -> Result<ExitCode, CliError> {
    let mut checks = Checks::default();
    for file in &args.files {
        checks.file(file);
    }
    let valid = checks.errors.is_empty();
    // A pipe that was not read to its end is no mistake of the input.
    if !valid && stop_requested().load(Ordering::Relaxed) {
        let message = "interrupted before all files were checked";
        return Err(CliError::Stopped(message.to_owned()));
    }
    match args.output {
        ReportOutput::Table => {
            // Each line is flushed: they are in order also where both outputs go to one pipe.
            for finding in &checks.findings {
                match finding {
                    Finding::Error(error) => complain("error", &checks.errors[*error].to_line()),
                    Finding::Valid(document) => print(&checks.documents[*document].to_line())?,
                }
            }
        }
        ReportOutput::Json => print(&json(&Report {
            valid,
            documents: checks.documents,
            errors: checks.errors.iter().map(Problem::new).collect(),
        })?)?,
    }
    Ok(match valid {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(BAD_INPUT),
    })
}

impl Checked {
    fn to_line(&self) -> String {
        let of = |part: &Option<String>| part.clone().unwrap_or_default();
        format!("{}: {} {}: valid\n", self.file, of(&self.kind), of(&self.name))
    }
}

impl Problem {
    fn new(error: &SpecError) -> Problem {
        let position = |number: usize| (number > 0).then_some(number);
        Problem {
            file: error.file.clone(),
            line: position(error.line),
            column: position(error.column),
            field: Some(error.path.clone()).filter(|path| !path.is_empty()),
            message: error.message.clone(),
            suggestion: error.suggestion.clone(),
        }
    }
}

/// Documents checked so far.
#[derive(Default)]
struct Checks {
    documents: Vec<Checked>,
    errors: Vec<SpecError>,
    /// Both, in the order of the files.
    findings: Vec<Finding>,
    /// Names and texts of clusters.
    clusters: Vec<(String, String)>,
}

/// Valid document or error, by its index.
enum Finding {
    Valid(usize),
    Error(usize),
}

impl Checks {
    fn file(&mut self, path: &Path) {
        let name = argument_name(path);
        match read_argument(path) {
            Err(error) => self.add(error, &name, 0),
            Ok((text, _)) => {
                for part in split(&text) {
                    self.part(path, &name, part);
                }
            }
        }
    }

    /// Adds all errors of a part. Lines of the file itself are counted from its start.
    fn add(&mut self, error: SpecError, name: &str, lines_before: usize) {
        for error in error.each() {
            let mut error = SpecError {
                next: None,
                ..error.clone()
            };
            if error.file == name && error.line > 0 {
                error.line += lines_before;
            }
            self.findings.push(Finding::Error(self.errors.len()));
            self.errors.push(error);
        }
    }

    fn part(&mut self, path: &Path, name: &str, part: Part<'_>) {
        let head = head(part.text, name);
        let outcome = head.as_ref().map_err(Clone::clone).and_then(|head| {
            let base_dir = path.parent().unwrap_or(Path::new(""));
            self.check(&head.kind, part.text, name, path, base_dir)
        });
        let head = head.ok();
        if outcome.is_ok() {
            self.findings.push(Finding::Valid(self.documents.len()));
        }
        self.documents.push(Checked {
            file: name.to_owned(),
            line: part.lines_before + 1,
            name: head.as_ref().and_then(|head| head.name.clone()),
            kind: head.map(|head| head.kind),
            valid: outcome.is_ok(),
        });
        if let Err(error) = outcome {
            self.add(error, name, part.lines_before);
        }
    }

    fn check(&mut self, kind: &str, text: &str, name: &str, path: &Path, base_dir: &Path) -> Result<(), SpecError> {
        match kind {
            "Chain" => chain(text, name, base_dir),
            "Server" => {
                let document = Document::parse(text, name, server::DESCRIPTION)?;
                ServerSpec::new(&document, base_dir).map(drop)
            }
            "Cluster" => {
                ClusterSpec::parse_with(text, name, &mut ProfileFiles::of(path))?;
                self.clusters.push((name.to_owned(), text.to_owned()));
                Ok(())
            }
            "SloSet" => {
                let mut profiles = ProfileFiles::of(path);
                for (name, text) in &self.clusters {
                    ClusterSpec::parse_with(text, name, &mut profiles)?;
                }
                SloSet::parse_with(text, name, &mut profiles).map(drop)
            }
            _ => RackSpec::parse(text, name, base_dir).map(drop),
        }
    }
}

/// Kind and name of a document.
struct Head {
    kind: String,
    name: Option<String>,
}

fn head(text: &str, name: &str) -> Result<Head, SpecError> {
    let Some(root) = yaml::parse(text, name)? else {
        return Err(SpecError::whole_file(name, "expected a spec, found an empty document"));
    };
    let root = Located::root(name, &root);
    let fields = root.entries("fields")?;
    let what = format!("one of the kinds {}", names());
    let Some((_, kind)) = fields.iter().find(|(key, _)| *key == "kind") else {
        return Err(root.error(format!("kind: missing, expected {what}")));
    };
    let text = kind.text(&what)?;
    let known: Vec<&str> = super::kinds::KINDS.iter().map(|kind| kind.name).collect();
    if !known.contains(&text) {
        return Err(kind.expected(&what).suggest(nearest(text, known)));
    }
    let named = root.descendant("metadata.name");
    Ok(Head {
        kind: text.to_owned(),
        name: named.text("a name").ok().map(str::to_owned),
    })
}

/// Checks a chain. Third-party code of isolated functions is not run.
fn chain(text: &str, name: &str, base_dir: &Path) -> Result<(), SpecError> {
    let document = Document::parse(text, name, DESCRIPTION)?;
    let isolation = ChainNode::new(&document)?.isolation()?;
    match isolation.mode {
        IsolationMode::None => ChainSpec::parse(text, name, base_dir).map(drop),
        IsolationMode::Process | IsolationMode::Container => {
            ChainSpec::parse_apart(text, name, base_dir, &Unexamined).map(drop)
        }
    }
}

/// Examiner that runs no code: a function's name is that of its file.
struct Unexamined;

impl CodeExaminer for Unexamined {
    fn read_name(&self, code: &Code<'_>, _: &str) -> Result<String, LibraryError> {
        let file = code.file();
        Ok(file.display().to_string())
    }
}
