//! Small files written by other programs (Python's `struct` and `gzip`, the `zstd` tool). They are read correctly, and
//! serve as fuzzing seeds.

mod invariants;

use std::fs;
use std::path::Path;

/// Returns the files of a directory next to this test, or none if it does not exist.
fn files(folder: &str) -> Vec<(String, Vec<u8>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let Ok(entries) = fs::read_dir(path) else {
        return Vec::new();
    };
    entries
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.display().to_string(), fs::read(&path).unwrap())
        })
        .collect()
}

#[test]
fn seeds_hold_two_packets() {
    let seeds = files("seeds");
    assert_eq!(seeds.len(), 8);
    for (name, bytes) in seeds {
        assert_eq!(invariants::check(&bytes), 2, "{name}");
    }
}

/// Inputs that once broke the reader.
#[test]
fn regressions_stay_fixed() {
    for (name, bytes) in files("regressions") {
        eprintln!("{name}");
        invariants::check(&bytes);
    }
}
