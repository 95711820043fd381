//! From a request to the next configuration, without carrying anything out.

use crate::admission::Placement;
use crate::chain::{AppliedChain, Manifest, Origin};
use crate::configuration::{Configuration, ControlError};
use crate::request::{Applied, ApplyRequest, Outcome};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tailwater_api::server::ServerSpec;

/// Current state that requests are compared with.
pub(crate) struct Current<'a> {
    pub(crate) server: &'a ServerSpec,
    pub(crate) configuration: &'a Configuration,
    /// Chains of the configuration that have failed: applying them again starts them.
    pub(crate) failed: &'a BTreeSet<String>,
}

impl Current<'_> {
    /// Returns the configuration after a request, and the outcome for each manifest.
    pub(crate) fn apply(&self, request: &ApplyRequest) -> Result<(Configuration, Vec<Applied>), ControlError> {
        let chains = self.parse(&request.manifests, Origin::Applied)?;
        let mut next = self.next();
        let mut applied = Vec::with_capacity(chains.len());
        for mut chain in chains {
            if let Some(before) = self.configuration.chains.get(&chain.name) {
                self.check_owner(before, &chain)?;
                chain.origin = before.origin;
            }
            chain.forced = request.force;
            applied.push(self.insert(&mut next, chain));
        }
        self.finish(&mut next, &applied)?;
        Ok((next, applied))
    }

    /// Returns the configuration in which the chains of the specification's files and folders are these.
    pub(crate) fn listed(&self, manifests: &[Manifest]) -> Result<(Configuration, Vec<Applied>), ControlError> {
        let chains = self.parse(manifests, Origin::Listed)?;
        let names: BTreeSet<&str> = chains.iter().map(|chain| chain.name.as_str()).collect();
        let mut next = self.next();
        next.chains
            .retain(|name, chain| chain.origin == Origin::Applied || names.contains(name.as_str()));
        let is_shorter = next.chains.len() < self.configuration.chains.len();
        let mut applied = Vec::with_capacity(chains.len());
        for mut chain in chains {
            if let Some(before) = self.configuration.chains.get(&chain.name) {
                if before.origin == Origin::Applied {
                    return Err(ControlError::Invalid(format!(
                        "{}: chain \"{}\" was applied as {}, not from the server's files; delete it first",
                        chain.manifest.source, chain.name, before.manifest.source
                    )));
                }
                let is_same = before.is_same_text(&chain);
                chain.drained = before.drained && is_same;
                chain.forced = before.forced && is_same;
            }
            applied.push(self.insert(&mut next, chain));
        }
        self.finish(&mut next, &applied)?;
        if is_shorter {
            next.generation = self.configuration.generation + 1;
        }
        Ok((next, applied))
    }

    /// Returns the configuration without these chains.
    pub(crate) fn delete(&self, names: &[String]) -> Result<Configuration, ControlError> {
        let mut next = self.next();
        for name in names {
            let chain = self.configuration.chain(name)?;
            self.check_not_watched(chain, "remove")?;
            next.chains.remove(name);
        }
        next.generation += 1;
        Ok(next)
    }

    /// Returns the configuration in which a chain is drained.
    pub(crate) fn drain(&self, name: &str) -> Result<Configuration, ControlError> {
        let chain = self.configuration.chain(name)?;
        let mut next = self.next();
        if !chain.drained {
            next.generation += 1;
            let drained = AppliedChain {
                drained: true,
                ..AppliedChain::clone(chain)
            };
            next.chains.insert(name.to_owned(), Arc::new(drained));
        }
        Ok(next)
    }

    /// Copy of the current configuration.
    fn next(&self) -> Configuration {
        self.configuration.clone()
    }

    /// Reads all manifests. Reports all errors, and chains that are given twice.
    fn parse(&self, manifests: &[Manifest], origin: Origin) -> Result<Vec<AppliedChain>, ControlError> {
        let mut chains: Vec<AppliedChain> = Vec::with_capacity(manifests.len());
        let mut errors = Vec::new();
        let mut sources: BTreeMap<String, &str> = BTreeMap::new();
        for manifest in manifests {
            match AppliedChain::parse(manifest, self.server, origin) {
                Err(error) => errors.push(error.to_string()),
                Ok(chain) => {
                    if let Some(first) = sources.insert(chain.name.clone(), &manifest.source) {
                        errors.push(format!(
                            "{}: metadata.name: expected a name that no other chain has, found \"{}\", which \
                             {first} has",
                            manifest.source, chain.name
                        ));
                    }
                    chains.push(chain);
                }
            }
        }
        match errors.is_empty() {
            true => Ok(chains),
            false => Err(ControlError::Invalid(errors.join("\n"))),
        }
    }

    /// Checks that a chain of a watched file is only changed by that file.
    fn check_owner(&self, before: &AppliedChain, chain: &AppliedChain) -> Result<(), ControlError> {
        match before.manifest.path.is_some() && before.manifest.path == chain.manifest.path {
            true => Ok(()),
            false => self.check_not_watched(before, "change"),
        }
    }

    fn check_not_watched(&self, chain: &AppliedChain, verb: &str) -> Result<(), ControlError> {
        match self.server.watch && chain.origin == Origin::Listed {
            false => Ok(()),
            true => Err(ControlError::Invalid(format!(
                "chain \"{}\" comes from a watched folder; {verb} {}",
                chain.name, chain.manifest.source
            ))),
        }
    }

    /// Puts a chain into the configuration, and returns the outcome.
    fn insert(&self, next: &mut Configuration, chain: AppliedChain) -> Applied {
        let name = chain.name.clone();
        let outcome = match next.chains.get(&name) {
            None => Outcome::Created,
            Some(before) if before.is_same_text(&chain) && before.drained == chain.drained => {
                match self.failed.contains(&name) {
                    // A chain that runs keeps its promise, with --force or not.
                    false => Outcome::Unchanged,
                    true => Outcome::Created,
                }
            }
            Some(before) if before.drained || self.failed.contains(&name) => Outcome::Created,
            Some(before) if before.is_changeable_to(&chain) => Outcome::Configured,
            Some(_) => Outcome::Replaced,
        };
        if outcome != Outcome::Unchanged {
            next.chains.insert(name.clone(), Arc::new(chain));
        }
        Applied {
            name,
            outcome,
            placement: Placement::default(),
        }
    }

    /// Numbers the configuration if it changes, and checks it as a whole.
    fn finish(&self, next: &mut Configuration, applied: &[Applied]) -> Result<(), ControlError> {
        if applied.iter().any(|applied| applied.outcome != Outcome::Unchanged) {
            next.generation = self.configuration.generation + 1;
        }
        next.check_matches(self.configuration)
    }
}
