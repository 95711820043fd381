//! Chains that a command names: files, folders, standard input.

use crate::error::CliError;
use std::path::{Path, PathBuf};
use tailwater_api::SpecError;
use tailwater_api::chain::{ChainNode, DESCRIPTION};
use tailwater_api::document::Document;
use tailwater_api::files::{argument_name, read_argument};
use tailwater_files::is_stdin;
use tailwater_server::control::generated as message;
use tailwater_server::files::read_all;

/// Reads the chains of files and folders.
///
/// # Errors
/// One of them cannot be read, or a folder has none.
pub fn read(paths: &[PathBuf]) -> Result<Vec<message::Manifest>, CliError> {
    let mut manifests = Vec::new();
    for path in paths {
        match path.is_dir() {
            false => manifests.push(file(path)?),
            true => {
                let chains = read_all(std::slice::from_ref(path))?;
                if chains.is_empty() {
                    let message = format!("{}: expected files *.yaml or *.yml, found none", path.display());
                    return Err(CliError::Input(message));
                }
                manifests.extend(
                    chains
                        .into_iter()
                        .map(|chain| manifest(chain.source, chain.path, chain.yaml)),
                );
            }
        }
    }
    Ok(manifests)
}

fn file(path: &Path) -> Result<message::Manifest, CliError> {
    let (yaml, is_stream) = read_argument(path)?;
    let absolute = std::path::absolute(path).ok();
    // Files that a chain on standard input names are relative to this folder.
    let path_of_stream = || std::env::current_dir().ok().map(|folder| folder.join("-"));
    let absolute = if is_stream || is_stdin(path) {
        path_of_stream()
    } else {
        absolute
    };
    Ok(manifest(argument_name(path), absolute, yaml))
}

fn manifest(source: String, path: Option<PathBuf>, yaml: String) -> message::Manifest {
    message::Manifest {
        source,
        path: path.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default(),
        yaml,
    }
}

/// Returns the names of chains.
///
/// # Errors
/// One is no chain.
pub fn names(manifests: &[message::Manifest]) -> Result<Vec<String>, SpecError> {
    let name = |manifest: &message::Manifest| {
        let document = Document::parse(&manifest.yaml, &manifest.source, DESCRIPTION)?;
        Ok(ChainNode::new(&document)?.name().to_owned())
    };
    manifests.iter().map(name).collect()
}
