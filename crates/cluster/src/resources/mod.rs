//! Custom resources: what an operator writes, what the controller decides, and what the agents report.
//!
//! | kind | written by | read by |
//! |---|---|---|
//! | [`Chain`] | operators; status: the controller | the controller |
//! | [`ChainInstance`] | the controller; status: the server's agent | agents, the controller |
//! | [`RackServer`] | the server's agent; `unschedulable`: operators | the controller |
//! | [`Profile`] | operators, or Jobs that measure | the controller, agents |
//! | [`Slo`] | operators; status: the controller | the controller |
//! | [`ServerPool`] | operators; status: the controller | the controller |
//! | [`Function`] | operators; status: the controller | the controller, which makes pods |
//!
//! The API server is the only truth: a controller or agent that starts anew needs nothing else. `spec` of a chain is
//! that of the file which runs on a single machine; `spec.scale`, `spec.pool` and `spec.sloRef` are used on a rack
//! only.

// Columns of tables are attributes that look alike.
#![allow(clippy::duplicated_attributes)]

mod chain;
mod condition;
mod function;
mod instance;
mod pool;
mod profile;
mod schema;
mod server;
mod slo;

pub use chain::{Chain, ChainSpec, ChainStatus, NameTooLong, Scale, local_name};
pub use condition::{Condition, set as set_condition};
pub use function::{
    Function, FunctionSpec, FunctionStatus, FunctionVariable, INSTANCE_LABEL, KeyReference, POD_DIRECTORY,
    PODS_ANNOTATION, PullPolicy, VariableSource, names_a_socket, pod_folder, pod_socket, references, with_sockets,
};
pub use instance::{
    ChainInstance, InstanceFigures, InstancePhase, InstancePod, InstanceSpec, InstanceStatus, SteeringLimit,
};
pub use pool::{PoolDevices, PoolOperator, PoolRequirement, PoolSelector, PoolSpec, PoolStatus, ServerPool};
pub use profile::{Profile, ProfileSpec, apply_profile};
pub use server::{RackServer, ServerSpec, ServerStatus, server_lease};
pub use slo::{SharedSlo, Slo, SloSpec, SloStatus, SloType};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use schema::RULES;
use tailwater_api::schema::{Foreign, FunctionSchema, structural_schema};

/// API group of all kinds.
pub const GROUP: &str = "tailwater.dev";
/// Version of all kinds.
pub const VERSION: &str = "v1alpha1";
/// Finalizer of instances: the agent removes it when the last packet has left.
pub const DRAIN_FINALIZER: &str = "tailwater.dev/drain";
/// Label of instances: the name of their chain.
pub const CHAIN_LABEL: &str = "tailwater.dev/chain";
/// Label of Jobs that measure profiles: the name of their chain.
pub const PROFILE_LABEL: &str = "tailwater.dev/profile";
/// Label of definitions.
pub const DEFINITION_LABEL: &str = "tailwater.dev/definition";
/// Annotation of definitions: version of the program that they are of.
pub const PROGRAM_ANNOTATION: &str = "tailwater.dev/program";
/// Annotation of definitions: digest of their spec.
pub const DIGEST_ANNOTATION: &str = "tailwater.dev/digest";
/// Label of instances: the name of their server.
pub const SERVER_LABEL: &str = "tailwater.dev/server";

/// Definitions of all kinds, for `kubectl apply` and the Helm chart. With the schemas of the functions, the API server
/// checks chains as the parser does; without any, it checks their outline only.
pub fn definitions(functions: &[FunctionSchema]) -> Vec<CustomResourceDefinition> {
    let mut chain = Chain::crd();
    if !functions.is_empty() {
        check_chains(&mut chain, functions);
    }
    let mut definitions = vec![
        chain,
        ChainInstance::crd(),
        RackServer::crd(),
        Profile::crd(),
        Function::crd(),
        ServerPool::crd(),
        Slo::crd(),
    ];
    definitions.iter_mut().for_each(mark);
    definitions
}

/// Marks a definition, so that a controller finds it and knows its version.
fn mark(definition: &mut CustomResourceDefinition) {
    let digest = Fnv::hash(serde_json::to_string(&definition.spec).expect("plain").as_bytes());
    let labels = definition.metadata.labels.get_or_insert_default();
    labels.insert(DEFINITION_LABEL.to_owned(), VERSION.to_owned());
    let annotations = definition.metadata.annotations.get_or_insert_default();
    annotations.insert(PROGRAM_ANNOTATION.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    annotations.insert(DIGEST_ANNOTATION.to_owned(), format!("{digest:016x}"));
}

/// Hash that stays the same from one build to another.
struct Fnv;

impl Fnv {
    fn hash(bytes: &[u8]) -> u64 {
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
    }
}

/// Gives the definition of chains the schema of their files, and the rack's own fields.
fn check_chains(definition: &mut CustomResourceDefinition, functions: &[FunctionSchema]) {
    let mut checked = structural_schema(tailwater_api::chain::SCHEMA.spec, functions, Foreign::Refused);
    let schema = definition.spec.versions[0].schema.as_mut();
    let whole = schema
        .and_then(|schema| schema.open_api_v3_schema.as_mut())
        .expect("made by kube");
    let spec = whole
        .properties
        .as_mut()
        .and_then(|fields| fields.get_mut("spec"))
        .expect("made by kube");
    let outline = serde_json::to_value(&*spec).expect("a plain schema");
    for field in ["scale", "sloRef"] {
        checked["properties"][field] = outline["properties"][field].clone();
    }
    checked["required"] = outline["required"].clone();
    let rules = outline[RULES].as_array().into_iter().flatten().cloned();
    let mut of_file = checked[RULES].as_array().cloned().unwrap_or_default();
    of_file.extend(rules);
    checked[RULES] = of_file.into();
    checked["description"] = outline["description"].clone();
    *spec = serde_json::from_value(checked).expect("a structural schema");
}
