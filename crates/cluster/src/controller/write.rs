//! Change of an object.

use crate::resources::{Chain, ChainInstance, ChainStatus, Condition, FunctionStatus, PoolStatus, SloStatus};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use serde_json::Value;
use std::sync::Arc;

/// Namespace and name of an object.
pub type Key = (String, String);

/// Change of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Create an instance.
    Create(Box<ChainInstance>),
    /// Change the spec of an instance, by a merge patch.
    Change {
        /// Key of the instance.
        key: Key,
        /// Patch of the whole object.
        patch: Value,
    },
    /// Delete an instance.
    Delete {
        /// Key of the instance.
        key: Key,
        /// Do not wait for its agent.
        at_once: bool,
    },
    /// Change the status of a chain.
    Status {
        /// Key of the chain.
        key: Key,
        /// Status.
        status: Box<ChainStatus>,
    },
    /// Change the conditions of a server.
    Server {
        /// Name of the server.
        name: String,
        /// Conditions.
        conditions: Vec<Condition>,
    },
    /// Change the status of a pool.
    PoolStatus {
        /// Name of the pool.
        name: String,
        /// Status.
        status: Box<PoolStatus>,
    },
    /// Change the status of an Slo.
    SloStatus {
        /// Key of the Slo.
        key: Key,
        /// Status.
        status: Box<SloStatus>,
    },
    /// Create a Job that measures a profile.
    CreateJob(Box<Job>),
    /// Create a pod of a function, after the templates of its claims.
    CreatePod {
        /// The pod.
        pod: Box<Pod>,
        /// Templates, which may exist.
        templates: Vec<ResourceClaimTemplate>,
    },
    /// Delete a pod of a function.
    DeletePod {
        /// Key of the pod.
        key: Key,
        /// Do not wait for its node, which may be lost: another instance may get its name.
        at_once: bool,
    },
    /// Change the status of a function.
    FunctionStatus {
        /// Key of the function.
        key: Key,
        /// Status.
        status: Box<FunctionStatus>,
    },
    /// Tell something about a chain.
    Event {
        /// The chain.
        chain: Arc<Chain>,
        /// It is a warning.
        warning: bool,
        /// One word for programs.
        reason: String,
        /// One line for people.
        note: String,
    },
}
