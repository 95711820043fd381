//! Tests of the Python package, by Python's own test runner: skipped where there is no Python.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Folder with the extension module that cargo has built beside this program.
fn built() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().unwrap();
    let name = "lib_native.so";
    let mut folders = [Some(folder), folder.parent()].into_iter().flatten();
    folders.find(|folder| folder.join(name).is_file()).unwrap().join(name)
}

/// Folder in which the package is complete: links to its files, and the extension module.
fn package() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("tailwater-python-{}", std::process::id()));
    let inside = folder.join("tailwater");
    std::fs::create_dir_all(&inside).unwrap();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/tailwater");
    for source in std::fs::read_dir(sources.canonicalize().unwrap()).unwrap() {
        let source = source.unwrap();
        let is_built = source.file_name().to_string_lossy().starts_with("_native.abi3");
        if !is_built && source.file_type().unwrap().is_file() {
            std::os::unix::fs::symlink(source.path(), inside.join(source.file_name())).unwrap();
        }
    }
    std::os::unix::fs::symlink(built(), inside.join("_native.abi3.so")).unwrap();
    folder
}

#[test]
fn the_package_passes_its_tests() {
    // The oldest version that the extension module is for.
    let recent = "import sys; sys.exit(sys.version_info < (3, 9))";
    let python = Command::new("python3").args(["-c", recent]).status();
    if !python.is_ok_and(|status| status.success()) {
        println!("skipped: Python 3.9 or newer, as python3, is not installed");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap();
    let package = package();
    let mut command = Command::new("python3");
    command.args(["-B", "-m", "unittest", "discover", "--start-directory"]);
    command.arg(root.join("python/tests"));
    // The program of the same build, where the tests of all crates have built it.
    let built = built();
    let program = built.ancestors().skip(1).take(2).map(|folder| folder.join("tailwater"));
    if let Some(program) = program.into_iter().find(|program| program.is_file()) {
        command.env("TAILWATER", program);
    }
    let output = command.env("PYTHONPATH", &package).current_dir(&root).output();
    std::fs::remove_dir_all(&package).unwrap();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    for line in text.lines().filter(|line| line.contains("skipped")) {
        println!("skipped: {line}");
    }
    assert!(output.status.success(), "{text}");
}
