//! `tailwater explain-spec`: documentation of fields.

use super::kinds::{KINDS, kind, names};
use crate::error::CliError;
use crate::output::print;
use clap::Args;
use std::fmt::Write as _;
use std::process::ExitCode;
use tailwater_api::document::{METADATA, nearest};
use tailwater_api::schema::{Child, FunctionSchema, Kind, Type, children, find};
use tailwater_functions::registry;

/// Help text of `tailwater explain-spec`.
pub const EXPLAIN_SPEC_EXAMPLES: &str = "\
A path begins with a kind (Chain, Server, SloSet, Cluster, Rack), or with a function of a chain. Without either it
is that of a chain, or of the first of these kinds that has such a field.

Examples:
  tailwater explain-spec chain.spec.slo
  tailwater explain-spec spec.slo.latency
      The same as chain.spec.slo.latency.
  tailwater explain-spec acl.rules
      The same as chain.spec.functions.acl.rules.
  tailwater explain-spec server --recursive
      All fields of a server, with their types.";

/// Width of descriptions in characters.
const WIDTH: usize = 100;
/// Maximum depth of the fields that are listed: functions contain branches, which contain functions.
const MOST_LEVELS: usize = 12;

/// Arguments of `tailwater explain-spec`.
#[derive(Debug, Args)]
pub struct ExplainSpecArgs {
    /// Path of a field, such as chain.spec.slo
    pub path: String,
    /// List the fields of all levels below it
    #[arg(long)]
    pub recursive: bool,
}

/// Prints the documentation of a field.
///
/// # Errors
/// The path leads to no field.
pub fn explain_spec(args: &ExplainSpecArgs) -> Result<ExitCode, CliError> {
    let functions = registry::schemas();
    let (kind, path) = resolve(&args.path, &functions)?;
    let text = match &path[..] {
        [] => of_kind(kind, args.recursive, &functions),
        ["apiVersion" | "kind"] => of_constant(kind, path[0]),
        [first, rest @ ..] => {
            let start = start(kind, first).ok_or_else(|| wrong(kind.name, &PARTS, first))?;
            let name = format!("{}.{first}", kind.name);
            let found = find(&name, start, rest.iter().copied(), &functions);
            let found = found.map_err(|error| {
                let suggestion = error.suggestion.map(|name| format!("; did you mean \"{name}\"?"));
                CliError::Input(format!("{error}{}", suggestion.unwrap_or_default()))
            })?;
            of_field(kind, &path, &found, args.recursive, &functions)
        }
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Parts of a document.
const PARTS: [&str; 4] = ["apiVersion", "kind", "metadata", "spec"];

/// Returns the kind and the path below it.
fn resolve<'p>(path: &'p str, functions: &[FunctionSchema]) -> Result<(&'static Kind, Vec<&'p str>), CliError> {
    let mut parts = path.split('.');
    let first = parts.next().unwrap_or_default();
    if let Some(kind) = kind(first) {
        return Ok((kind, parts.collect()));
    }
    let name = first.split('[').next().unwrap_or(first);
    if functions.iter().any(|function| function.name == name) {
        let below = ["spec", "functions", first].into_iter();
        return Ok((KINDS[0], below.chain(parts).collect()));
    }
    if PARTS.contains(&first) {
        let path: Vec<&str> = path.split('.').collect();
        let kind = KINDS.into_iter().find(|kind| has(kind, &path, functions));
        return Ok((kind.unwrap_or(KINDS[0]), path));
    }
    let kinds = KINDS.map(|kind| kind.name.to_lowercase());
    let candidates = kinds.iter().map(String::as_str);
    let suggestion = nearest(first, candidates.chain(functions.iter().map(|function| function.name)));
    let suggestion = suggestion.map_or(String::new(), |name| format!("; did you mean \"{name}\"?"));
    Err(CliError::Input(format!(
        "expected a path that begins with one of the kinds {}, or with a function, found \"{first}\"{suggestion}",
        names()
    )))
}

/// Returns `true` if a kind has the field of this path.
fn has(kind: &'static Kind, path: &[&str], functions: &[FunctionSchema]) -> bool {
    match path {
        [first, rest @ ..] => {
            let found = start(kind, first).map(|start| find(kind.name, start, rest.iter().copied(), functions));
            found.map_or(rest.is_empty(), |found| found.is_ok())
        }
        [] => true,
    }
}

fn wrong(at: &str, names: &[&str], found: &str) -> CliError {
    let suggestion = nearest(found, names.iter().copied());
    let suggestion = suggestion.map_or(String::new(), |name| format!("; did you mean \"{name}\"?"));
    CliError::Input(format!(
        "{at}: expected one of the fields {}, found \"{found}\"{suggestion}",
        names.join(", ")
    ))
}

/// Part of a document that has fields.
fn start(kind: &'static Kind, name: &str) -> Option<Child> {
    let (name, ty, doc) = match name {
        "metadata" => ("metadata", Type::Map(&METADATA), "Metadata of the object."),
        "spec" => ("spec", Type::Map(kind.spec), kind.doc),
        _ => return None,
    };
    Some(Child {
        name,
        ty,
        doc,
        field: None,
        is_entry: false,
    })
}

fn of_kind(kind: &'static Kind, recursive: bool, functions: &[FunctionSchema]) -> String {
    let mut text = format!("KIND:     {}\n\n{}\n\nFIELDS:\n", kind.name, wrapped(kind.doc));
    for part in PARTS {
        match start(kind, part) {
            None => text.push_str(&format!("  {part}  text (required)\n")),
            Some(child) => {
                text.push_str(&format!("  {part}  map (required)\n"));
                if recursive {
                    list(&mut text, &child.ty, 2, true, functions);
                }
            }
        }
    }
    text
}

fn of_constant(kind: &Kind, field: &str) -> String {
    let value = match field {
        "kind" => kind.name.to_owned(),
        _ => format!("tailwater.dev/{}", tailwater_api::schema::VERSION),
    };
    format!(
        "KIND:     {}\nFIELD:    {field}\nTYPE:     {value} (required)\n",
        kind.name
    )
}

fn of_field(kind: &Kind, path: &[&str], found: &Child, recursive: bool, functions: &[FunctionSchema]) -> String {
    let path: Vec<&str> = path.iter().map(|part| part.split('[').next().unwrap_or(part)).collect();
    let mut text = format!("KIND:     {}\nFIELD:    {}\n", kind.name, path.join("."));
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<9} {value}");
    };
    line("TYPE:", &found.ty.to_words());
    let mut description = found.doc.to_owned();
    if let Some(field) = found.field {
        match (field.required, field.default.or(field.otherwise)) {
            (true, _) => line("DEFAULT:", "required"),
            (false, Some(default)) => line("DEFAULT:", default),
            (false, None) => {}
        }
        if let Some(only) = field.only {
            line("ALLOWED:", &only.to_words());
        }
        if let Some(example) = field.example {
            line("EXAMPLE:", example);
        }
        description = field.doc.to_owned();
    }
    if !description.is_empty() {
        let _ = write!(text, "\n{}\n", wrapped(&description));
    }
    if !children(&found.ty, functions).is_empty() {
        text.push_str("\nFIELDS:\n");
        list(&mut text, &found.ty, 1, recursive, functions);
    }
    text
}

/// Lists the fields below a type. Functions within branches are not listed again.
fn list(text: &mut String, ty: &Type, level: usize, recursive: bool, functions: &[FunctionSchema]) {
    let below = children(ty, functions);
    let width = below.iter().map(|child| child.name.len()).max().unwrap_or(0);
    for child in below {
        let is_required = child.field.is_some_and(|field| field.required);
        let required = if is_required { " (required)" } else { "" };
        let indent = 2 * level;
        let words = match child.field {
            // A function or an entry.
            None if !child.doc.is_empty() => child.doc.to_owned(),
            _ => child.ty.to_words(),
        };
        let _ = writeln!(text, "{:indent$}{:<width$}  {words}{required}", "", child.name);
        let is_nested = matches!(child.ty, Type::Functions) && level > 2;
        if recursive && level < MOST_LEVELS && !is_nested {
            list(text, &child.ty, level + 1, true, functions);
        }
    }
}

/// Breaks a text into lines.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().filter(|line| line.len() + word.len() < WIDTH);
        match last {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words() {
        let text = wrapped(&"word ".repeat(50));
        assert_eq!(text.lines().count(), 3);
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert_eq!(wrapped(&"x".repeat(200)).lines().last().unwrap().len(), 200);
    }

    #[test]
    fn paths_begin_with_a_kind_or_a_function() {
        let functions = registry::schemas();
        let (kind, path) = resolve("CHAIN.spec.slo", &functions).unwrap();
        assert_eq!((kind.name, &path[..]), ("Chain", &["spec", "slo"][..]));
        let (kind, path) = resolve("acl.rules", &functions).unwrap();
        assert_eq!(
            (kind.name, &path[..]),
            ("Chain", &["spec", "functions", "acl", "rules"][..])
        );
        for (path, expected) in [
            ("spec.slo.latency", "Chain"),
            ("kind", "Chain"),
            ("spec.watch", "Server"),
            ("spec.slo.latncy", "Chain"),
        ] {
            let (kind, found) = resolve(path, &functions).unwrap();
            assert_eq!((kind.name, found.join(".").as_str()), (expected, path));
        }
        let error = resolve("serber", &functions).unwrap_err().to_string();
        assert!(error.ends_with("found \"serber\"; did you mean \"server\"?"), "{error}");
    }
}
