//! Isolation of a server's chains.

use crate::error::CliError;
use crate::isolation::{Request, read_text};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_server::generation::chain_file;
use tailwater_server::live::ReadIsolated;
use tailwater_server::{AppliedChain, Refusal};

/// Returns the reader of chains whose functions run in processes of their own. Files for these processes are in the
/// folder `state`. `has_other_cores`: this machine has cores that are not dedicated.
pub fn isolating(state: PathBuf, has_other_cores: bool) -> ReadIsolated {
    let files = AtomicU64::new(0);
    // The processes have another working directory.
    let state = std::path::absolute(&state).unwrap_or(state);
    Box::new(move |chain: &AppliedChain| {
        if !has_other_cores && rustix::process::geteuid().is_root() {
            return Err(Refusal::new(
                "spec.isolation: expected a core of this machine that is not in spec.cores of the server: isolated \
                 functions hold theirs at real-time priority, and the server's other threads would not run",
            ));
        }
        let number = files.fetch_add(1, Ordering::Relaxed);
        let file = state.join(chain_file(&chain.name, number));
        let manifest = &chain.manifest;
        let text = (&*manifest.yaml, &*manifest.source, manifest.base_dir());
        let request = Request::of_spec(chain.settings.isolation.clone());
        let (spec, mut config) = read_text(text, file, &request).map_err(|error| match error {
            CliError::Spec(error) => Refusal::wrong(error.to_string()),
            error => Refusal::new(error.to_string()),
        })?;
        // This process starts further chains, for which it needs its rights.
        config.limits_server = false;
        Ok((spec, config))
    })
}
