//! `tailwater new-function`: a folder with a working function to begin with.

use crate::args::{Language, NewFunctionArgs};
use crate::error::CliError;
use crate::print;
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use tailwater_nf::spec::document::is_label;

/// A file of the interface.
macro_rules! sdk {
    ($path:literal) => {
        include_str!(concat!("../../sdk/", $path))
    };
}

/// A file of the folder: where it goes, and its text.
type File = (&'static str, &'static str);

const C: &[File] = &[
    ("function.c", include_str!("new_function/c/function.c")),
    ("test.c", include_str!("new_function/c/test.c")),
    ("Makefile", include_str!("new_function/c/Makefile")),
    ("README.md", include_str!("new_function/c/README.md")),
    (".gitignore", include_str!("new_function/c/gitignore")),
    ("chain.yaml", include_str!("new_function/chain.yaml")),
    ("tailwater_nf.h", sdk!("include/tailwater_nf.h")),
    ("tailwater_json.h", sdk!("include/tailwater_json.h")),
    ("tailwater_test.h", sdk!("include/tailwater_test.h")),
];

const RUST: &[File] = &[
    ("Cargo.toml", include_str!("new_function/rust/Cargo.toml")),
    ("src/lib.rs", include_str!("new_function/rust/lib.rs")),
    (
        "tests/function.rs",
        include_str!("new_function/rust/test.rs"),
    ),
    ("README.md", include_str!("new_function/rust/README.md")),
    (".gitignore", include_str!("new_function/rust/gitignore")),
    ("chain.yaml", include_str!("new_function/chain.yaml")),
    (
        "tailwater-sdk/Cargo.toml",
        include_str!("new_function/rust/sdk.toml"),
    ),
    ("tailwater-sdk/src/lib.rs", sdk!("src/lib.rs")),
    ("tailwater-sdk/src/abi.rs", sdk!("src/abi.rs")),
    ("tailwater-sdk/src/batch.rs", sdk!("src/batch.rs")),
    ("tailwater-sdk/src/config.rs", sdk!("src/config.rs")),
    ("tailwater-sdk/src/export.rs", sdk!("src/export.rs")),
    ("tailwater-sdk/src/function.rs", sdk!("src/function.rs")),
    ("tailwater-sdk/src/key.rs", sdk!("src/key.rs")),
    ("tailwater-sdk/src/testing.rs", sdk!("src/testing.rs")),
];

/// Writes the folder, and says what to do with it.
pub fn new_function(args: &NewFunctionArgs) -> Result<ExitCode, CliError> {
    let name = &*args.name;
    if !is_label(name) || name.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(CliError::Input(format!(
            "expected a name of lower-case letters, digits and inner dashes that begins with a letter, at most 63 \
             long, found {name:?}"
        )));
    }
    let identifier = name.replace('-', "_");
    let (files, library, build) = match args.lang {
        Language::C => (C, format!("{identifier}.so"), "make test && make"),
        Language::Rust => (
            RUST,
            format!("target/release/lib{identifier}_nf.so"),
            "cargo test && cargo build --release",
        ),
    };
    let folder = Path::new(name);
    // Made here, so that nothing of anybody's is in it.
    fs::create_dir(folder).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            CliError::Input(format!("{name} is there already: nothing was written"))
        }
        _ => CliError::Input(format!("cannot make the folder {name}: {error}")),
    })?;
    let written = files.iter().try_for_each(|(path, text)| {
        let path = folder.join(path);
        let text = text
            .replace("@NAME@", name)
            .replace("@IDENT@", &identifier)
            .replace("@LIBRARY@", &library)
            .replace("@VERSION@", env!("CARGO_PKG_VERSION"))
            .replace("@RUST_VERSION@", env!("CARGO_PKG_RUST_VERSION"));
        let parent = path.parent().unwrap_or(folder);
        fs::create_dir_all(parent)?;
        fs::write(path, text)
    });
    if let Err(error) = written {
        // Half of it would be in the way of another try.
        let _ = fs::remove_dir_all(folder);
        return Err(CliError::Input(format!(
            "cannot write into {name}: {error}"
        )));
    }
    let lines: Vec<String> = files
        .iter()
        .map(|(path, _)| format!("  {name}/{path}\n"))
        .collect();
    print(&format!(
        "Written:\n{}\nNext:\n  cd {name}\n  {build}\n  tailwater run chain.yaml\n",
        lines.concat()
    ))?;
    Ok(ExitCode::SUCCESS)
}
