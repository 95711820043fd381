//! Custom resources: what an operator writes, what the controller decides, and what the agents report.
//!
//! | kind | written by | read by |
//! |---|---|---|
//! | [`Chain`] | operators; status: the controller | the controller |
//! | [`ChainInstance`] | the controller; status: the server's agent | agents, the controller |
//! | [`RackServer`] | the server's agent; `unschedulable`: operators | the controller |
//! | [`Profile`] | operators, or jobs that measure | the controller, agents |
//!
//! The API server is the only truth: a controller or agent that starts anew needs nothing else. `spec` of a chain is
//! that of the file which runs on a single machine, and `spec.scale` in addition.

mod chain;
mod condition;
mod instance;
mod profile;
mod schema;
mod server;

pub use chain::{Chain, ChainSpec, ChainStatus, NameTooLong, Scale, local_name};
pub use condition::{Condition, set as set_condition};
pub use instance::{ChainInstance, InstanceFigures, InstancePhase, InstanceSpec, InstanceStatus};
pub use profile::{Profile, ProfileSpec};
pub use server::{RackServer, ServerSpec, ServerStatus};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

/// API group of all kinds.
pub const GROUP: &str = "tailwater.dev";
/// Version of all kinds.
pub const VERSION: &str = "v1alpha1";
/// Finalizer of instances: the agent removes it when the last packet has left.
pub const DRAIN_FINALIZER: &str = "tailwater.dev/drain";
/// Label of instances: the name of their chain.
pub const CHAIN_LABEL: &str = "tailwater.dev/chain";
/// Label of instances: the name of their server.
pub const SERVER_LABEL: &str = "tailwater.dev/server";

/// Definitions of all kinds, for `kubectl apply` and the Helm chart.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    vec![Chain::crd(), ChainInstance::crd(), RackServer::crd(), Profile::crd()]
}
