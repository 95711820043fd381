//! Profiles of a server's chains, for admission.

use crate::place::profiles::{curves, files_of_profiles};
use crate::text::one_line;
use std::path::{Path, PathBuf};
use tailwater_functions::spec::ChainSpec;
use tailwater_placement::slo::Curves;
use tailwater_profile::fingerprint;
use tailwater_profile::profiles::{ChainProfile, Machine, Profiles, Rising};

/// Profiles in a file or folder, for one machine.
pub struct ServerProfiles {
    path: PathBuf,
    machine: Machine,
}

impl ServerProfiles {
    /// Profiles for the machine of a core. No file is read.
    pub fn new(path: &Path, core: usize) -> ServerProfiles {
        ServerProfiles {
            path: path.to_owned(),
            machine: Machine::of(core),
        }
    }

    /// Bytes of the last-level cache; of an unknown one, more than any chain uses.
    pub fn cache_bytes(&self) -> u64 {
        match self.machine.cache_kibibytes {
            0 => u64::MAX,
            kibibytes => u64::from(kibibytes) * 1024,
        }
    }

    /// Returns the curves of a chain: of several profiles, for different traffic, the slowest. The files are read again
    /// at each call, so that new profiles are found. `None` if there is no profile of this name.
    ///
    /// # Errors
    /// One line: a file cannot be read, or all profiles of this name are of another configuration, percentile or
    /// machine.
    pub fn curves(&self, spec: &ChainSpec) -> Result<Option<Curves>, String> {
        let files = match self.path.is_dir() {
            true => files_of_profiles(&self.path)?,
            false => vec![self.path.clone()],
        };
        let (mut found, mut other) = (None::<Curves>, None);
        for file in files {
            let profiles = Profiles::read(&file).map_err(|error| error.to_string())?;
            for profile in profiles
                .list
                .iter()
                .filter(|profile| profile.key.chain == spec.metadata.name)
            {
                match self.usable(profile, spec) {
                    Err(reason) => {
                        other = other.or(Some(format!("{}: {reason}", one_line(&file.display().to_string()))))
                    }
                    Ok(next) => {
                        let is_slower = |best: &Curves| next.cache.most() < best.cache.most();
                        if found.as_ref().is_none_or(is_slower) {
                            found = Some(next);
                        }
                    }
                }
            }
        }
        match (found, other) {
            (Some(found), _) => Ok(Some(found)),
            (None, Some(reason)) => Err(reason),
            (None, None) => Ok(None),
        }
    }

    /// Returns the curves of a profile if it is one of this chain on this machine.
    fn usable(&self, profile: &ChainProfile, spec: &ChainSpec) -> Result<Curves, String> {
        let key = &profile.key;
        if key.configuration != fingerprint(spec) {
            return Err(format!(
                "the profile of chain \"{}\" is of another configuration or version of Tailwater; tailwater profile \
                 all measures it again",
                key.chain
            ));
        }
        let differences = self.machine.differences(&key.machine);
        if !differences.is_empty() {
            return Err(format!(
                "the profile of chain \"{}\" is of another machine: {} differ",
                key.chain,
                differences.join(", ")
            ));
        }
        let rising = Rising::of(profile).map_err(|error| error.to_string())?;
        if rising.percentile != spec.slo.percentile {
            return Err(format!(
                "the profile of chain \"{}\" is of percentile {}, its objective of percentile {}",
                key.chain, rising.percentile, spec.slo.percentile
            ));
        }
        curves(self.machine.label(), 1, &rising).map_err(|error| error.to_string())
    }
}
