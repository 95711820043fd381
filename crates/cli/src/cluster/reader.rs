//! Chains and profiles, as a controller reads them.

use crate::place::profiles::curves;
use tailwater_cluster::controller::{ChainFacts, ChainReader, DocumentReader};
use tailwater_placement::slo::Curves;
use tailwater_profile::profiles::{Profiles, Rising};

/// Reads chains without opening files that they name, which are on the servers, and profiles without comparing the
/// configuration that they are of, which the servers do.
#[derive(Clone, Copy, Debug)]
pub struct ProfileReader;

impl ChainReader for ProfileReader {
    fn read(&self, manifest: &str) -> Result<ChainFacts, String> {
        DocumentReader.read(manifest)
    }

    fn curves(&self, _manifest: &str, file: &str) -> Result<Vec<Curves>, String> {
        let profiles = Profiles::parse(file, "profile").map_err(|error| error.to_string())?;
        let of_profile = |profile| {
            let rising = Rising::of(profile).map_err(|error| error.to_string())?;
            curves(profile.key.machine.label(), 1, &rising).map_err(|error| error.to_string())
        };
        profiles.list.iter().map(of_profile).collect()
    }
}
