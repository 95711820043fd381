//! Requests to change the configuration of a server.

use crate::admission::placement::Placement;
use crate::chain::{AppliedChain, Manifest};
use crate::configuration::ControlError;
use std::sync::Arc;

/// Request to apply manifests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplyRequest {
    /// The chains, each in one manifest.
    pub manifests: Vec<Manifest>,
    /// Check only.
    pub dry_run: bool,
    /// Run chains that do not fit, without a promise.
    pub force: bool,
}

/// Chains of a request that has not been carried out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Preview {
    /// Names of all.
    pub(crate) names: Vec<String>,
    /// Those whose profiles have to be measured first, in the order of their names.
    pub(crate) unprofiled: Vec<Arc<AppliedChain>>,
}

/// Result of applying a manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// Name of the chain.
    pub name: String,
    /// Difference to before.
    pub outcome: Outcome,
    /// Core and promise of the chain.
    pub placement: Placement,
}

/// Difference that a manifest makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// None.
    Unchanged,
    /// A chain starts.
    Created,
    /// The chain's functions keep their state.
    Configured,
    /// The chain has another list of functions, match or port.
    Replaced,
}

/// Request to change the configuration, and the receiver of its result.
pub(crate) struct Command {
    pub(crate) request: Request,
    pub(crate) reply: Box<dyn FnOnce(Reply) + Send>,
}

/// Result of a request: the outcomes, and the number of the current generation.
pub(crate) type Reply = Result<(Vec<Applied>, u64), ControlError>;

/// Request to change the configuration.
#[cfg_attr(
    not(feature = "control"),
    expect(dead_code, reason = "requests come from the control API")
)]
pub(crate) enum Request {
    Apply(ApplyRequest),
    Delete { names: Vec<String>, dry_run: bool },
    Drain(String),
}
