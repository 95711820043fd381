//! Who knows what was measured, where a spec names files of profiles instead of curves.

use crate::cluster::ServerKind;
use crate::slo::ChainProfile;
use tailwater_api::SpecError;
use tailwater_api::document::Located;

/// What reads the parts of specs that are about profiles: their files belong to whoever measures, and this crate
/// knows them by what comes of them only. It is told of all servers of a cluster, then of the files, then of chains.
pub trait Profiles {
    /// Servers of a kind, and what hardware they are if the cluster says.
    ///
    /// # Errors
    /// What is wrong there, also as hardware of these servers.
    fn servers(&mut self, kind: &ServerKind, hardware: Option<&Located<'_>>) -> Result<(), SpecError>;

    /// The files and folders that a set of SLOs names.
    ///
    /// # Errors
    /// What is wrong there, or in a file.
    fn files(&mut self, node: &Located<'_>) -> Result<(), SpecError>;

    /// What was measured of a chain whose `profile` is `node`, on all machines of the cluster.
    ///
    /// # Errors
    /// What is wrong there, or which profile is missing.
    fn chain(&mut self, name: &str, node: &Located<'_>) -> Result<ChainProfile, SpecError>;
}

/// Curves stand in the specs themselves.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProfiles;

impl Profiles for NoProfiles {
    fn servers(&mut self, _: &ServerKind, _: Option<&Located<'_>>) -> Result<(), SpecError> {
        Ok(())
    }

    fn files(&mut self, node: &Located<'_>) -> Result<(), SpecError> {
        Err(node.error("expected chains with curves, found profiles"))
    }

    fn chain(&mut self, _: &str, node: &Located<'_>) -> Result<ChainProfile, SpecError> {
        Err(node.error("expected curves, found a profile"))
    }
}
