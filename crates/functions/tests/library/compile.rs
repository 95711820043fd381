//! Libraries of `functions.c`.

use std::path::{Path, PathBuf};
use std::process::Command;
use tailwater_api::SpecError;
use tailwater_functions::spec::ChainSpec;

/// Folder of libraries and specs. Specs name libraries relative to it.
pub fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Compiles the named function, into a separate file for each test.
pub fn library(function: &str, test: &str) -> PathBuf {
    let file = folder().join(format!("{test}-{function}.so"));
    let output = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Wno-unused-function"])
        .args(["-Werror", "-fPIC", "-shared"])
        .arg(format!("-D{function}"))
        .arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../sdk/include"))
        .arg("-o")
        .arg(&file)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/library/functions.c"))
        .output()
        .expect("a C compiler");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    file
}

/// Parses a spec with these functions in flow style.
///
/// # Errors
/// If the spec is invalid.
pub fn spec(functions: &str) -> Result<ChainSpec, SpecError> {
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  \
         slo: {{latency: 200us}}\n  flows: {{capacity: 512}}\n  functions: {functions}\n"
    );
    ChainSpec::parse(&text, "chain.yaml", folder())
}

/// Spec item for a library.
pub fn item(library: &Path, config: &str) -> String {
    let name = library.file_name().unwrap().to_str().unwrap();
    match config {
        "" => format!("{{library: {{file: {name}}}}}"),
        _ => format!("{{library: {{file: {name}, config: {config}}}}}"),
    }
}
