//! `tailwater new-function`: generates a directory with a working function.

use crate::error::CliError;
use crate::output::print;
use clap::{Args, ValueEnum};
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use tailwater_api::document::is_label;

/// Help text of `tailwater new-function`.
pub const NEW_FUNCTION_EXAMPLES: &str = "\
Example:
  tailwater new-function rate-limit --lang c
      Creates the folder rate-limit with a working function, its tests, and a chain that runs it.
      An existing folder is left unchanged.";

/// Arguments of `tailwater new-function`.
#[derive(Debug, Args)]
pub struct NewFunctionArgs {
    /// Name of the function and its directory: lower-case letters, digits and dashes
    pub name: String,
    /// Programming language
    #[arg(long, value_enum)]
    pub lang: Language,
}

/// Programming language of a function.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Language {
    /// C11
    C,
    /// Rust
    Rust,
    /// C11, compiled to WebAssembly
    Wasm,
    /// Rust, compiled to WebAssembly
    WasmRust,
}

/// Includes a file of a crate.
macro_rules! of_crate {
    ($from:literal, $path:literal) => {
        include_str!(concat!("../../", $from, "/", $path))
    };
}

/// Includes a file of the SDK.
macro_rules! sdk {
    ($path:literal) => {
        of_crate!("sdk", $path)
    };
}

/// Includes the source files of a crate, which are copied unchanged.
macro_rules! sources {
    ($from:literal: $($path:literal),+ $(,)?) => {
        &[$((concat!("tailwater-", $from, "/", $path), of_crate!($from, $path))),+]
    };
}

/// Path in the directory, and text.
type File = (&'static str, &'static str);

const C: &[File] = &[
    ("function.c", include_str!("new_function/c/function.c")),
    ("main.c", include_str!("new_function/c/main.c")),
    ("test.c", include_str!("new_function/c/test.c")),
    ("Makefile", include_str!("new_function/c/Makefile")),
    ("README.md", include_str!("new_function/c/README.md")),
    (".gitignore", include_str!("new_function/c/gitignore")),
    ("chain.yaml", include_str!("new_function/chain.yaml")),
    ("tailwater_nf.h", sdk!("include/tailwater_nf.h")),
    ("tailwater_json.h", sdk!("include/tailwater_json.h")),
    ("tailwater_test.h", sdk!("include/tailwater_test.h")),
];

const WASM: &[File] = &[
    ("function.c", include_str!("new_function/c/function.c")),
    ("test.c", include_str!("new_function/c/test.c")),
    ("Makefile", include_str!("new_function/wasm/Makefile")),
    ("README.md", include_str!("new_function/wasm/README.md")),
    (".gitignore", include_str!("new_function/wasm/gitignore")),
    ("chain.yaml", include_str!("new_function/wasm/chain.yaml")),
    ("tailwater_nf.h", sdk!("include/tailwater_nf.h")),
    ("tailwater_json.h", sdk!("include/tailwater_json.h")),
    ("tailwater_test.h", sdk!("include/tailwater_test.h")),
    ("wasm/libc.c", sdk!("include/wasm/libc.c")),
    ("wasm/stdlib.h", sdk!("include/wasm/stdlib.h")),
    ("wasm/string.h", sdk!("include/wasm/string.h")),
];

const RUST: &[File] = &[
    ("Cargo.toml", include_str!("new_function/rust/Cargo.toml")),
    ("src/lib.rs", include_str!("new_function/rust/lib.rs")),
    ("src/main.rs", include_str!("new_function/rust/main.rs")),
    ("tests/function.rs", include_str!("new_function/rust/test.rs")),
    ("README.md", include_str!("new_function/rust/README.md")),
    (".gitignore", include_str!("new_function/rust/gitignore")),
    ("chain.yaml", include_str!("new_function/chain.yaml")),
];

/// The SDK in Rust, and its dependencies.
const RUST_SDK: &[&[File]] = &[
    &[
        ("tailwater-sdk/Cargo.toml", include_str!("new_function/rust/sdk.toml")),
        ("tailwater-net/Cargo.toml", include_str!("new_function/rust/net.toml")),
    ],
    sources!("sdk":
        "src/abi.rs", "src/batch.rs", "src/calls.rs", "src/config.rs", "src/explanation.rs",
        "src/export.rs", "src/flow_state.rs", "src/function.rs", "src/host.rs", "src/key.rs", "src/lib.rs",
        "src/printable.rs", "src/program/flows.rs", "src/program/instance.rs",
        "src/program/joining.rs", "src/program/mod.rs", "src/program/stored.rs", "src/program/turns.rs",
        "src/program/unattached.rs",
        "src/protocol/layout.rs", "src/protocol/layout/companions.rs", "src/protocol/layout/explanations.rs",
        "src/protocol/memory.rs",
        "src/protocol/message.rs", "src/protocol/mod.rs", "src/protocol/snapshots.rs", "src/protocol/socket.rs",
        "src/sys.rs", "src/sys/joining.rs", "src/testing.rs",
    ),
    sources!("net":
        "src/arp.rs", "src/builder.rs", "src/builder/error.rs", "src/builder/fragment.rs", "src/builder/layout.rs",
        "src/builder/write.rs", "src/bytes.rs", "src/checksum.rs", "src/dns.rs", "src/ethernet.rs", "src/flow.rs",
        "src/headers.rs", "src/icmp.rs", "src/ipv4.rs", "src/ipv6.rs", "src/lib.rs", "src/malformed.rs",
        "src/parse.rs", "src/parse/common.rs", "src/pcap.rs", "src/protocol.rs", "src/tcp.rs", "src/time.rs",
        "src/toeplitz.rs", "src/tunnel.rs", "src/udp.rs", "src/vlan.rs",
    ),
];

const WASM_RUST: &[File] = &[
    ("Cargo.toml", include_str!("new_function/wasm_rust/Cargo.toml")),
    (".cargo/config.toml", include_str!("new_function/wasm_rust/config.toml")),
    ("src/lib.rs", include_str!("new_function/wasm_rust/lib.rs")),
    ("tests/function.rs", include_str!("new_function/rust/test.rs")),
    ("README.md", include_str!("new_function/wasm_rust/README.md")),
    (".gitignore", include_str!("new_function/rust/gitignore")),
    ("chain.yaml", include_str!("new_function/wasm/chain.yaml")),
];

/// The part of the SDK in Rust that modules have. These sources are shared with it, and build with Rust 1.63.
const WASM_RUST_SDK: &[&[File]] = &[
    &[
        (
            "tailwater-sdk/Cargo.toml",
            include_str!("new_function/wasm_rust/sdk.toml"),
        ),
        (
            "tailwater-sdk/src/lib.rs",
            include_str!("new_function/wasm_rust/sdk_lib.rs"),
        ),
    ],
    sources!("sdk":
        "src/abi.rs", "src/batch.rs", "src/calls.rs", "src/config.rs", "src/explanation.rs", "src/flow_state.rs",
        "src/function.rs", "src/key.rs", "src/testing.rs",
    ),
];

/// Writes the directory, and prints the next steps.
///
/// # Errors
/// The name is invalid, the directory exists already or cannot be written, or the result cannot be printed.
pub fn new_function(args: &NewFunctionArgs) -> Result<ExitCode, CliError> {
    let name = &*args.name;
    if !is_label(name) || name.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(CliError::Input(format!(
            "expected a name of lower-case letters, digits and inner dashes that begins with a letter, at most 63 \
             long, found {name:?}"
        )));
    }
    let identifier = name.replace('-', "_");
    let (files, interface, library, program, build) = match args.lang {
        Language::C => (
            C,
            &[][..],
            format!("{identifier}.so"),
            format!("{name}-nf"),
            "make test && make",
        ),
        Language::Rust => (
            RUST,
            RUST_SDK,
            format!("target/release/lib{identifier}_nf.so"),
            format!("target/release/{name}-nf"),
            "cargo test && cargo build --release",
        ),
        Language::Wasm => (WASM, &[][..], format!("{identifier}.wasm"), String::new(), "make"),
        Language::WasmRust => (
            WASM_RUST,
            WASM_RUST_SDK,
            format!("target/wasm32-unknown-unknown/release/{identifier}_nf.wasm"),
            String::new(),
            "cargo test && cargo build --release --target wasm32-unknown-unknown",
        ),
    };
    // libtailwater_nf is built into the same directory as this program.
    let program_folder = std::env::current_exe().ok();
    let library_folder = program_folder.as_deref().and_then(Path::parent);
    let library_folder = library_folder.unwrap_or(Path::new("/usr/local/lib"));
    let library_folder = library_folder.display().to_string();
    let folder = Path::new(name);
    // Created here, so that it contains no foreign files.
    fs::create_dir(folder).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => CliError::Input(format!("{name} already exists: nothing was written")),
        _ => CliError::of_file(format!("cannot make the folder {name}: {error}"), &error),
    })?;
    let mut all = files.iter().chain(interface.iter().copied().flatten());
    let written = all.try_for_each(|(path, text)| {
        let path = folder.join(path);
        let text = text
            .replace("@NAME@", name)
            .replace("@IDENT@", &identifier)
            .replace("@LIBRARY@", &library)
            .replace("@LIBRARY_FOLDER@", &library_folder)
            .replace("@PROGRAM@", &program)
            .replace("@VERSION@", env!("CARGO_PKG_VERSION"))
            .replace("@RUST_VERSION@", env!("CARGO_PKG_RUST_VERSION"));
        let parent = path.parent().unwrap_or(folder);
        fs::create_dir_all(parent)?;
        fs::write(path, text)
    });
    if let Err(error) = written {
        // An incomplete directory would prevent another attempt.
        let _ = fs::remove_dir_all(folder);
        return Err(CliError::of_file(format!("cannot write into {name}: {error}"), &error));
    }
    let files = files.iter().map(|(path, _)| *path);
    // Of the SDK, only the directories are listed.
    let folders = interface.first().copied().unwrap_or_default().iter();
    let folders = folders.filter_map(|(path, _)| path.strip_suffix("Cargo.toml"));
    let lines: Vec<String> = files.chain(folders).map(|path| format!("  {name}/{path}\n")).collect();
    print(&format!(
        "Written:\n{}\nNext:\n  cd {name}\n  {build}\n  tailwater test-function chain.yaml\n  \
         tailwater run chain.yaml\n  \
         sudo tailwater run chain.yaml --isolation process\n",
        lines.concat()
    ))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    /// Returns the sources of a crate without tests.
    fn sources(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let found = paths.flat_map(|path| match path.is_dir() {
            true => sources(&path),
            false => vec![path],
        });
        found.filter(|path| !path.ends_with("tests.rs")).collect()
    }

    #[test]
    fn every_source_of_the_interface_is_written() {
        let written = RUST_SDK.iter().copied().flatten();
        let written: BTreeSet<String> = written
            .map(|(path, _)| (*path).to_owned())
            .filter(|path| path.ends_with(".rs"))
            .collect();
        let mut there = BTreeSet::new();
        for name in ["sdk", "net"] {
            let of_crate = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
            for path in sources(&of_crate.join("src")) {
                let path = path.strip_prefix(&of_crate).unwrap();
                there.insert(format!("tailwater-{name}/{}", path.display()));
            }
        }
        assert_eq!(written, there);
    }

    /// Rust has literals of `CStr` since 1.77; modules build with older versions.
    #[test]
    fn both_functions_in_rust_are_one() {
        let mut new = include_str!("new_function/wasm_rust/lib.rs").replace(" c_str, ", " ");
        for name in ["@NAME@", "too-many", "flows"] {
            new = new.replace(&format!("c_str!(\"{name}\")"), &format!("c\"{name}\""));
        }
        assert_eq!(new, include_str!("new_function/rust/lib.rs"));
    }
}
