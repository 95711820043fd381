//! Profiles of a server's chains, for admission.

use crate::place::profiles::{curves, files_of_profiles};
use crate::text::one_line;
use std::fs;
use std::path::{Path, PathBuf};
use tailwater_functions::spec::ChainSpec;
use tailwater_placement::slo::Curves;
use tailwater_profile::cache::Method;
use tailwater_profile::curve::Point;
use tailwater_profile::fingerprint;
use tailwater_profile::profiles::{CacheProfile, ChainProfile, Machine, Profiles, Rising};

/// Profiles in a file or folder, for one machine.
#[derive(Debug)]
pub struct ServerProfiles {
    path: PathBuf,
    machine: Machine,
    /// The server measures profiles that are missing.
    measures: bool,
}

impl ServerProfiles {
    /// Profiles for the machine of a core. No file is read.
    pub fn new(path: &Path, core: usize) -> ServerProfiles {
        ServerProfiles {
            path: path.to_owned(),
            machine: Machine::of(core),
            measures: false,
        }
    }

    /// The same, on a server that measures profiles which are missing, or are of another configuration. An empty folder
    /// is none that is wrong, and a profile may have no curve over cache.
    #[must_use]
    pub fn measured(mut self) -> ServerProfiles {
        self.measures = true;
        self
    }

    /// Checks that the file or folder is there. A folder that the server measures into is created: returns a line for
    /// the user then, since the wrong folder is missing, too.
    ///
    /// # Errors
    /// One line.
    pub fn open(&self) -> Result<Option<String>, String> {
        let shown = || one_line(&self.path.display().to_string());
        let wrong = |error: &dyn std::fmt::Display| format!("spec.admission.profiles: {}: {error}", shown());
        let is_new = self.measures && matches!(self.path.try_exists(), Ok(false));
        if is_new {
            fs::create_dir_all(&self.path).map_err(|error| wrong(&error))?;
        }
        let found = fs::metadata(&self.path).map_err(|error| wrong(&error))?;
        match self.measures && !found.is_dir() {
            true => Err(wrong(&"expected a folder")),
            false => Ok(is_new.then(|| wrong(&"no such folder, created for profiles that the server measures"))),
        }
    }

    /// Checks that a file is a profile of this chain that can be used.
    ///
    /// # Errors
    /// One line.
    pub fn check(&self, file: &Path, spec: &ChainSpec) -> Result<(), String> {
        let profiles = Profiles::read(file).map_err(|error| error.to_string())?;
        let mut of_chain = profiles
            .list
            .iter()
            .filter(|profile| profile.key.chain == spec.metadata.name);
        let profile = of_chain.next();
        let profile = profile.ok_or_else(|| format!("{}: no profile of the chain", file.display()))?;
        self.usable(profile, spec).map(drop)
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
            true if self.measures && !has_profiles(&self.path) => Vec::new(),
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
            (None, Some(_)) if self.measures => Ok(None),
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
        let rising = match self.measures && profile.cache.is_none() {
            true => Rising::of(&with_one_throughput(profile)),
            false => Rising::of(profile),
        };
        let rising = rising.map_err(|error| error.to_string())?;
        if rising.percentile != spec.slo.percentile {
            return Err(format!(
                "the profile of chain \"{}\" is of percentile {}, its objective of percentile {}",
                key.chain, rising.percentile, spec.slo.percentile
            ));
        }
        curves(self.machine.label(), 1, &rising).map_err(|error| error.to_string())
    }
}

/// Returns `true` if a folder has files that may be profiles. An error is found when they are read.
fn has_profiles(folder: &Path) -> bool {
    let is_profile = |name: &std::ffi::OsStr| name.to_string_lossy().ends_with(".curves.yaml");
    fs::read_dir(folder).map_or(true, |mut entries| {
        entries.any(|entry| entry.is_ok_and(|entry| is_profile(&entry.file_name())))
    })
}

/// The profile with its throughput at any part of the cache.
fn with_one_throughput(profile: &ChainProfile) -> ChainProfile {
    let throughput = profile.latency.as_ref().map(|latency| Point {
        at: 1,
        measured: latency.throughput,
    });
    let cache = CacheProfile {
        method: Method::Pirate,
        unit_kibibytes: 1024,
        most_units: 1,
        points: throughput.into_iter().collect(),
        not_held: Vec::new(),
        occupied: Vec::new(),
        verified: Vec::new(),
        hidden_bends: Vec::new(),
    };
    ChainProfile {
        cache: Some(cache),
        ..profile.clone()
    }
}
