//! Source of measurements, for specs that name profile files instead of curves.

use crate::cluster::ServerKind;
use crate::slo::ChainProfile;
use tailwater_api::SpecError;
use tailwater_api::document::Located;

/// Reader for the parts of specs about profiles. The profiler defines the format of their files, and this crate uses
/// only the resulting curves. It is called for all servers of a cluster, then for the files, then for chains.
pub trait Profiles {
    /// Registers servers of a kind, and their hardware if the cluster spec contains it.
    ///
    /// # Errors
    /// The node is invalid, or does not match the hardware of these servers.
    fn servers(&mut self, kind: &ServerKind, hardware: Option<&Located<'_>>) -> Result<(), SpecError>;

    /// Registers the files and folders that a set of SLOs names.
    ///
    /// # Errors
    /// The node or a file is invalid.
    fn files(&mut self, node: &Located<'_>) -> Result<(), SpecError>;

    /// Returns the curves of a chain whose `profile` is `node`, on all machines of the cluster.
    ///
    /// # Errors
    /// The node is invalid, or a profile is missing.
    fn chain(&mut self, name: &str, node: &Located<'_>) -> Result<ChainProfile, SpecError>;
}

/// Reader for specs that contain their curves.
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
