//! Function in C for tests of whole runs.

use std::path::Path;
use std::process::Command;

/// The function of `numbered.c`, as the item of a chain spec without its braces. With `numbered` it requires packets
/// that carry their flow and number. `test` names the file.
pub fn function_in_c(test: &str, numbered: bool) -> String {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}.so"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/numbered.c");
    let output = Command::new("cc")
        .args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"])
        .arg(format!("-DNUMBERED={}", if numbered { 255 } else { 0 }))
        .arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../sdk/include"))
        .args(["-o".as_ref(), file.as_os_str(), source.as_ref()])
        .output()
        .expect("a C compiler");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    format!("library: {{file: '{}'}}", file.display())
}
