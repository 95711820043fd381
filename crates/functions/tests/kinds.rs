//! Every kind of function is documented and has an example.

use std::fs;
use std::path::{Path, PathBuf};
use tailwater_functions::registry::KINDS;
use tailwater_functions::spec::ChainSpec;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Files below a folder with one of these extensions, with their texts.
fn texts(folder: &str, extensions: &[&str]) -> Vec<(PathBuf, String)> {
    let (mut folders, mut found) = (vec![Path::new(REPOSITORY).join(folder)], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the repository") {
            let path = entry.expect("an entry").path();
            let extension = path.extension().and_then(|extension| extension.to_str());
            if path.is_dir() {
                folders.push(path);
            } else if extension.is_some_and(|extension| extensions.contains(&extension)) {
                let text = fs::read_to_string(&path).expect("a text");
                found.push((path, text));
            }
        }
    }
    found
}

/// Converts a key in YAML to the name of its page: `ipForward` to `ip-forward`.
fn page_name(key: &str) -> String {
    let dashed = key.chars().map(|letter| match letter.is_uppercase() {
        true => format!("-{}", letter.to_ascii_lowercase()),
        false => letter.to_string(),
    });
    dashed.collect()
}

/// Returns `true` if a chain in this text has a function of the kind.
fn is_used(text: &str, kind: &str) -> bool {
    let key = format!("{kind}:");
    let lines = text.lines().map(|line| line.trim_start_matches([' ', '-', '{']));
    lines.filter(|line| !line.starts_with('#')).any(|line| {
        let inner = line.split(['{', ',']).map(str::trim_start);
        inner.into_iter().any(|part| part.starts_with(&key))
    })
}

#[test]
fn every_kind_has_a_page_and_an_example() {
    let (pages, examples) = (texts("docs", &["md"]), texts("examples", &["yaml"]));
    let mut missing = Vec::new();
    for kind in KINDS {
        let name = page_name(kind.name);
        let is_page = |path: &Path, text: &str| match kind.name {
            // The pages on writing functions describe them.
            "library" | "program" => is_used(text, kind.name),
            _ => path.file_stem().is_some_and(|stem| *stem == *name),
        };
        if !pages.iter().any(|(path, text)| is_page(path, text)) {
            missing.push(format!("{}: docs/reference/functions/{name}.md", kind.name));
        }
        if !examples.iter().any(|(_, text)| is_used(text, kind.name)) {
            missing.push(format!("{}: a chain in examples/", kind.name));
        }
    }
    assert!(missing.is_empty(), "missing:\n{}", missing.join("\n"));
}

#[test]
fn kinds_have_unique_names_and_one_line_summaries() {
    for (at, kind) in KINDS.iter().enumerate() {
        let first = KINDS.iter().position(|other| other.name == kind.name);
        assert_eq!(first, Some(at), "{}", kind.name);
        let is_text = !kind.summary.is_empty() && !kind.summary.contains('\n') && !kind.summary.ends_with('.');
        assert!(is_text, "{}: {:?}", kind.name, kind.summary);
    }
}

/// A spec without a function lists all kinds, in their order.
#[test]
fn errors_list_every_kind() {
    let text = "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: test}\nspec: {functions: [{}], slo: \
                {latency: 1ms}}\n";
    let error = ChainSpec::parse(text, "test", Path::new(".")).unwrap_err().to_string();
    let names: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
    let expected = format!("expected one function ({}), found none", names.join(", "));
    assert!(error.ends_with(&expected), "{error}");
}

/// Line breaks within a sentence count as spaces.
#[test]
fn pages_give_the_bound_of_drop_reasons() {
    let sentence = format!("at most {} drop reasons", tailwater_chain::function::MAX_DROP_REASONS);
    let reference =
        fs::read_to_string(Path::new(REPOSITORY).join("docs/reference/causes-and-reasons.md")).expect("a page");
    assert!(reference.contains(&sentence), "causes-and-reasons.md: {sentence}");
    let sentence = format!("at most {} reasons", tailwater_chain::function::MAX_DROP_REASONS);
    let how_to =
        fs::read_to_string(Path::new(REPOSITORY).join("docs/how-to/write-a-function-in-rust.md")).expect("a page");
    let how_to = how_to.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(how_to.contains(&sentence), "write-a-function-in-rust.md: {sentence}");
}
