//! Helpers for tests with real rules and captures.
#![allow(dead_code, reason = "each test uses some of it")]

pub mod evasions;
pub mod oracle;
pub mod rig;

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the folder of rules and captures, which are not part of the project.
pub fn test_data() -> Option<PathBuf> {
    let folder = std::env::var_os("TAILWATER_TEST_DATA").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: TAILWATER_TEST_DATA is not set");
    }
    folder
}

/// Returns the files of ET Open by name, and the file of classes.
pub fn et_open() -> Option<(Vec<(String, String)>, String)> {
    let data = test_data()?;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("et-open-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let unpacked = Command::new("tar")
        .arg("--zstd")
        .arg("-xf")
        .arg(data.join("rules/et_open_2025.tar.zst"))
        .arg("-C")
        .arg(&folder)
        .status();
    if !unpacked.is_ok_and(|status| status.success()) {
        eprintln!("skipped: there is no tar that reads Zstandard");
        return None;
    }
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder.join("rules"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rules"))
        .collect();
    files.sort();
    let read = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).unwrap())
    };
    let texts = files.iter().map(read).collect();
    let classes = std::fs::read_to_string(folder.join("rules/classification.config")).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    Some((texts, classes))
}
