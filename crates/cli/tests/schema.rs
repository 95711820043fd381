//! The published schemas: equal to what the program prints, in agreement with examples, wrong specs and documentation,
//! and structural where Kubernetes requires it.
//!
//! `UPDATE_GOLDEN=1 cargo test -p tailwater --test schema` writes them anew; read the difference before you commit it.

#[path = "schema/documented.rs"]
mod documented;
#[path = "schema/structural.rs"]
mod structural;
#[path = "schema/validated.rs"]
mod validated;

use boon::{Compiler, SchemaIndex, Schemas};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tailwater_api::yaml::{self, Node};

const PROJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Names of the kinds, in lower case.
const KINDS: [&str; 5] = ["chain", "server", "sloset", "cluster", "rack"];

/// Runs the program, which must succeed, and returns what it prints.
fn printed(arguments: &[&str]) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_tailwater"));
    let output = program.args(arguments).output().expect("the program");
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

/// Files below a folder with this ending, sorted.
fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(PROJECT).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.to_string_lossy().ends_with(ending) => found.push(path),
                false => {}
            }
        }
    }
    found.sort();
    found
}

fn updates() -> bool {
    std::env::var_os("UPDATE_GOLDEN").is_some()
}

/// Converts YAML to JSON as editors read it (YAML 1.2); `None` if it is no YAML that the parsers accept.
fn to_json(text: &str) -> Option<Value> {
    fn value(node: &Node) -> Option<Value> {
        Some(match &node.value {
            yaml::Value::Null => Value::Null,
            yaml::Value::Scalar { text, plain: false } => Value::from(&**text),
            yaml::Value::Scalar { text, plain: true } => match (&**text, text.strip_prefix("0x")) {
                ("true" | "True" | "TRUE", _) => true.into(),
                ("false" | "False" | "FALSE", _) => false.into(),
                (_, Some(digits)) if u64::from_str_radix(digits, 16).is_ok() => {
                    u64::from_str_radix(digits, 16).ok()?.into()
                }
                (text, _) => match serde_json::from_str(text) {
                    Ok(number @ Value::Number(_)) => number,
                    _ => text.into(),
                },
            },
            yaml::Value::List(items) => items.iter().map(value).collect::<Option<Vec<_>>>()?.into(),
            yaml::Value::Map(entries) => {
                let mut fields = serde_json::Map::new();
                for (key, entry) in entries {
                    let yaml::Value::Scalar { text, .. } = &key.value else {
                        return None;
                    };
                    // A parser refuses fields that are there twice.
                    if fields.insert(text.to_string(), value(entry)?).is_some() {
                        return None;
                    }
                }
                fields.into()
            }
        })
    }
    value(&yaml::parse(text, "test").ok()??)
}

/// The published schemas, compiled.
struct Published {
    schemas: Schemas,
    kinds: Vec<(String, SchemaIndex)>,
}

impl Published {
    fn read() -> Published {
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        let kinds = KINDS.map(|kind| {
            let schema: Value = serde_json::from_str(&printed(&["schema", kind])).expect("JSON");
            let title = schema["title"].as_str().expect("a title").to_owned();
            let id = schema["$id"].as_str().expect("an identifier").to_owned();
            compiler.add_resource(&id, schema).expect("a resource");
            let index = compiler.compile(&id, &mut schemas);
            (title, index.unwrap_or_else(|error| panic!("{kind}: {error:#}")))
        });
        Published {
            schemas,
            kinds: kinds.into(),
        }
    }

    /// Checks a document by the schema of its kind; `None` if it is of another kind.
    fn check(&self, document: &Value) -> Option<Result<(), String>> {
        let kind = document["kind"].as_str()?;
        let (_, index) = self.kinds.iter().find(|(name, _)| name == kind)?;
        let outcome = self.schemas.validate(document, *index);
        Some(outcome.map_err(|error| format!("{error:#}")))
    }
}

#[test]
fn published_schemas_are_what_the_program_prints() {
    let listed = printed(&["schema"]);
    assert_eq!(listed.lines().count(), KINDS.len(), "{listed}");
    for kind in KINDS {
        let path = Path::new(PROJECT).join(format!("schemas/v1alpha1/{kind}.json"));
        let printed = printed(&["schema", kind]);
        if updates() {
            fs::write(&path, &printed).expect("writing the schema");
        }
        let published = fs::read_to_string(&path).unwrap_or_default();
        assert!(published == printed, "{path:?} differs: UPDATE_GOLDEN=1 writes it anew");
    }
}

/// Texts of all documents that the project shows or tests with, and their names.
fn right_documents() -> Vec<(String, String)> {
    let mut documents = Vec::new();
    let folders = ["examples", "crates/functions/tests/specs/right", "fuzz/seeds/rack"];
    for path in folders.iter().flat_map(|folder| files(folder, ".yaml")) {
        let text = fs::read_to_string(&path).expect("a file");
        documents.push((path.display().to_string(), text));
    }
    let mut pages = files("docs", ".md");
    pages.push(Path::new(PROJECT).join("README.md"));
    for page in pages {
        let text = fs::read_to_string(&page).expect("a page");
        for block in text.split("```yaml\n").skip(1) {
            let block = block.split("```").next().unwrap_or_default();
            // Objects of Kubernetes are not ours.
            let own = block
                .split("\n---\n")
                .filter(|document| document.starts_with("apiVersion: tailwater.dev/"));
            documents.extend(own.map(|document| (page.display().to_string(), document.to_owned())));
        }
    }
    documents
}

#[test]
fn documents_of_the_project_are_valid_by_their_schemas() {
    let published = Published::read();
    let mut checked = [0; KINDS.len()];
    let mut wrong = Vec::new();
    for (name, text) in right_documents() {
        let Some(document) = to_json(&text) else {
            wrong.push(format!("{name}: no JSON"));
            continue;
        };
        let Some(outcome) = published.check(&document) else {
            continue;
        };
        let kind = published.kinds.iter().position(|(kind, _)| document["kind"] == **kind);
        checked[kind.expect("a kind")] += 1;
        if let Err(error) = outcome {
            wrong.push(format!("{name}: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        checked[0] >= 60 && checked[1..].iter().all(|count| *count > 0),
        "{checked:?}"
    );
}

/// Wrong specs that only the parser refuses: what they need (a file, another field, the language of rules) is beyond
/// JSON Schema.
#[test]
fn wrong_specs_are_refused_by_the_schema_or_listed() {
    let published = Published::read();
    let mut accepted = BTreeSet::new();
    let specs = files("crates/functions/tests/specs/wrong", ".yaml");
    let count = specs.len();
    for path in specs {
        // A text that is no YAML reaches no schema.
        let document = fs::read_to_string(&path).ok().and_then(|text| to_json(&text));
        let outcome = document.and_then(|document| published.check(&document));
        if outcome.is_some_and(|outcome| outcome.is_ok()) {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            accepted.insert(name);
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schema/only-the-parser.txt");
    let found: String = accepted.iter().map(|name| format!("{name}\n")).collect();
    if updates() {
        fs::write(&path, &found).expect("writing the list");
    }
    assert!(accepted.len() < count / 2, "{} of {count} wrong specs", accepted.len());
    assert_eq!(fs::read_to_string(&path).unwrap_or_default(), found);
}
