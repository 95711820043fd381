//! Default chain of the demonstration: an example and the files it names, embedded in the program.

use crate::error::CliError;
use std::fs;
use std::io;
use std::path::PathBuf;

/// Name of the chain's file.
const CHAIN: &str = "acl-urlfilter-encrypt.yaml";

/// Files by path, relative to the chain's folder.
const FILES: [(&str, &str); 3] = [
    (CHAIN, include_str!("../../../../examples/acl-urlfilter-encrypt.yaml")),
    (
        "rules/acl-1500.rules",
        include_str!("../../../../examples/rules/acl-1500.rules"),
    ),
    (
        "patterns/blocked.txt",
        include_str!("../../../../examples/patterns/blocked.txt"),
    ),
];

/// Capacity profile of the chain for simulated runs, measured on a shared virtual machine with two cores by
/// `tailwater profile capacity examples/acl-urlfilter-encrypt.yaml --slo 200us`.
pub const PROFILE: &str = include_str!("reference.profile.yaml");

/// Folder with the embedded files, removed on drop.
pub struct BuiltIn(PathBuf);

impl BuiltIn {
    /// Writes the files to a new folder.
    ///
    /// # Errors
    /// The folder or a file cannot be written.
    pub fn unpack() -> Result<BuiltIn, CliError> {
        let name = format!("tailwater-demo-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let write = || -> io::Result<BuiltIn> {
            // Fails if the folder exists: another user may own it.
            fs::create_dir(&folder)?;
            let unpacked = BuiltIn(folder.clone());
            for (name, text) in FILES {
                let path = folder.join(name);
                fs::create_dir_all(path.parent().unwrap_or(&folder))?;
                fs::write(path, text)?;
            }
            Ok(unpacked)
        };
        write().map_err(|source| CliError::System {
            what: "the built-in chain cannot be written into the folder for temporary files",
            source,
        })
    }

    /// Path of the chain's file.
    pub fn chain(&self) -> PathBuf {
        self.0.join(CHAIN)
    }
}

impl Drop for BuiltIn {
    fn drop(&mut self) {
        // The system empties the folder for temporary files if this fails.
        let _ = fs::remove_dir_all(&self.0);
    }
}
