//! The chains of a generation, and checks of all of them together.

use crate::chain::AppliedChain;
use std::collections::BTreeMap;
use std::sync::Arc;
use tailwater_api::SpecError;
use tailwater_api::chain::ambiguity;

/// Chains of a generation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Configuration {
    /// Number of the generation, rising by one.
    pub generation: u64,
    /// Chains by name.
    pub chains: BTreeMap<String, Arc<AppliedChain>>,
}

/// Reason for which a request is not carried out. Each has one line for each problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The request is wrong: a manifest is no valid chain, a function's configuration is wrong, or two chains
    /// contradict each other.
    #[error("{0}")]
    Invalid(String),
    /// There is no chain of this name.
    #[error("{0}")]
    NotFound(String),
    /// The machine refuses the chain.
    #[error("{0}")]
    Refused(String),
    /// A step failed, or the generation could not be written. The steps before were undone.
    #[error("{0}")]
    Failed(String),
}

impl From<SpecError> for ControlError {
    fn from(error: SpecError) -> ControlError {
        ControlError::Invalid(error.to_string())
    }
}

impl ControlError {
    /// Error about a chain that does not exist.
    pub(crate) fn no_chain(name: &str) -> ControlError {
        ControlError::NotFound(format!("chain \"{name}\" not found"))
    }
}

impl Configuration {
    /// Returns the chain of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn chain(&self, name: &str) -> Result<&Arc<AppliedChain>, ControlError> {
        self.chains.get(name).ok_or_else(|| ControlError::no_chain(name))
    }

    /// Chains that run: those that are not drained.
    pub fn running(&self) -> impl Iterator<Item = &Arc<AppliedChain>> {
        self.chains.values().filter(|chain| !chain.drained)
    }

    /// Checks that no packet is for two chains, as far as one of them differs from the `current` configuration.
    ///
    /// # Errors
    /// One line for each two chains, with a common part of their matches.
    pub fn check_matches(&self, current: &Configuration) -> Result<(), ControlError> {
        let is_new = |chain: &AppliedChain| {
            let before = current.chains.get(&chain.name);
            before.is_none_or(|before| before.drained || !before.takes_same_packets(chain))
        };
        let running: Vec<&Arc<AppliedChain>> = self.running().collect();
        let mut errors = Vec::new();
        for (index, one) in running.iter().enumerate() {
            for two in &running[index + 1..] {
                if one.port != two.port || !(is_new(one) || is_new(two)) {
                    continue;
                }
                if let Some(part) = ambiguity(&one.settings.match_, &two.settings.match_) {
                    errors.push(format!(
                        "chains \"{}\" and \"{}\" on port \"{}\": spec.match of both is equally specific for {part}; \
                         make one of them more specific",
                        one.name, two.name, one.port
                    ));
                }
            }
        }
        match errors.is_empty() {
            true => Ok(()),
            false => Err(ControlError::Invalid(errors.join("\n"))),
        }
    }
}
