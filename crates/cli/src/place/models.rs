//! Models of contention for the chains of a set of SLOs, from files.

use crate::error::CliError;
use crate::text::one_line;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tailwater_placement::cluster::Cluster;
use tailwater_placement::co_run::slomo::{ChainModel, MAX_MODELS};
use tailwater_placement::slo::ChainProfile;
use tailwater_predict::{ContentionModel, TrainOptions};

/// File name suffix of models in a folder.
const ENDING: &str = ".model.yaml";

/// A model and its file.
pub struct ModelFile {
    file: String,
    model: Arc<ContentionModel>,
}

/// Chain of which there is no model for a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Unmodelled {
    pub chain: String,
    pub machine: String,
    /// Description of what is missing.
    pub why: String,
}

/// Reads files, of models or campaigns, and the models of folders.
///
/// # Errors
/// A file cannot be read or is invalid, or a folder has no models.
pub fn read(paths: &[PathBuf]) -> Result<Vec<ModelFile>, CliError> {
    let mut found = Vec::new();
    for path in paths {
        match fs::metadata(path) {
            Err(error) => {
                let path = path.display();
                return Err(CliError::Input(format!("--models: {path} cannot be read: {error}")));
            }
            Ok(metadata) if metadata.is_dir() => {
                for file in inside(path)? {
                    found.push(of(&file, ContentionModel::read(&file)?));
                }
            }
            Ok(_) => found.push(of(
                path,
                ContentionModel::read_or_train(path, &TrainOptions::default())?,
            )),
        }
    }
    Ok(found)
}

fn of(file: &Path, model: ContentionModel) -> ModelFile {
    ModelFile {
        file: one_line(&file.display().to_string()),
        model: Arc::new(model),
    }
}

/// Returns the models in a folder, by name.
fn inside(folder: &Path) -> Result<Vec<PathBuf>, CliError> {
    let shown = one_line(&folder.display().to_string());
    let unread = |error| CliError::Input(format!("--models: folder {shown} cannot be read: {error}"));
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(unread)? {
        let entry = entry.map_err(unread)?;
        if entry.file_name().to_string_lossy().ends_with(ENDING) {
            files.push(entry.path());
        }
    }
    match files.len() {
        0 => {
            return Err(CliError::Input(format!(
                "--models: expected files *{ENDING} in folder {shown}, found none; \
                 `tailwater predict --target CAMPAIGN --save FILE` writes one"
            )));
        }
        1..=MAX_MODELS => {}
        more => {
            return Err(CliError::Input(format!(
                "--models: expected at most {MAX_MODELS} files *{ENDING} in folder {shown}, found {more}"
            )));
        }
    }
    files.sort();
    Ok(files)
}

/// Selects the model of each chain for each machine of a cluster that the chain was measured on. `names` are the names
/// that a machine has in models.
///
/// # Errors
/// Several models fit.
pub fn select(
    files: &[ModelFile],
    cluster: &Cluster,
    chains: &[Arc<ChainProfile>],
    names: impl Fn(&str) -> Vec<String>,
) -> Result<(Vec<ChainModel>, Vec<Unmodelled>), CliError> {
    let machines: BTreeSet<&str> = cluster.kinds().iter().map(|kind| &*kind.machine).collect();
    let (mut selected, mut missing) = (Vec::new(), Vec::new());
    for chain in chains {
        let of_chain = || files.iter().filter(|file| file.model.key().function == chain.name);
        for &machine in machines.iter().filter(|machine| chain.on(machine).is_some()) {
            let names = names(machine);
            let fits = |file: &&ModelFile| {
                let key = file.model.key();
                let same = |here: &Option<String>, there: &str| here.as_deref().is_none_or(|here| here == there);
                names.contains(&key.machine)
                    && same(&chain.configuration, &key.configuration)
                    && same(&chain.traffic, &key.traffic)
            };
            let fitting: Vec<&ModelFile> = of_chain().filter(fits).collect();
            match &fitting[..] {
                [one] => selected.push(ChainModel {
                    chain: chain.name.clone(),
                    machine: machine.to_owned(),
                    model: one.model.clone(),
                }),
                [] => missing.push(Unmodelled {
                    chain: chain.name.clone(),
                    machine: machine.to_owned(),
                    why: absent(chain, machine, of_chain().next()),
                }),
                several => {
                    let files: Vec<&str> = several.iter().map(|file| &*file.file).take(3).collect();
                    return Err(CliError::Input(format!(
                        "--models: expected one model of chain {} for machine {machine}, found {}: {}",
                        chain.name,
                        several.len(),
                        files.join(", ")
                    )));
                }
            }
        }
    }
    Ok((selected, missing))
}

/// Describes a model that is absent, and the nearest one.
fn absent(chain: &ChainProfile, machine: &str, other: Option<&ModelFile>) -> String {
    let part = |what: &str, value: &Option<String>| value.as_ref().map_or(String::new(), |v| format!(", {what} {v}"));
    let mut text = format!(
        "expected a model of chain {}{}{} measured on machine {machine}",
        chain.name,
        part("configuration", &chain.configuration),
        part("traffic", &chain.traffic)
    );
    text += &match other {
        None => ", found none".to_owned(),
        Some(ModelFile { file, model }) => {
            let key = model.key();
            format!(
                ", found configuration {}, traffic {}, machine {} in {file}",
                key.configuration, key.traffic, key.machine
            )
        }
    };
    one_line(&text)
}
