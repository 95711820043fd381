//! Objects that the controller decides by.

use crate::resources::{Chain, ChainInstance, Function, Profile, RackServer, ServerPool, SharedSlo, Slo};
use crate::watching::Watched;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::DeviceClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use std::sync::Arc;

/// Objects at one time, sorted by namespace and name.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// Chains.
    pub chains: Vec<Arc<Chain>>,
    /// Instances.
    pub instances: Vec<Arc<ChainInstance>>,
    /// Servers.
    pub servers: Vec<Arc<RackServer>>,
    /// Pools of servers; none if there is no definition of them.
    pub pools: Vec<Arc<ServerPool>>,
    /// Objectives that chains share; none if there is no definition of them.
    pub slos: Vec<Arc<Slo>>,
    /// Profiles.
    pub profiles: Vec<Arc<Profile>>,
    /// Leases of servers, and of the election.
    pub leases: Vec<Arc<Lease>>,
    /// Functions, and pods of functions; `None` if the controller does not see both.
    pub functions: Option<FunctionObjects>,
    /// Definitions of the kinds; `None` if the controller does not see them.
    pub definitions: Option<Vec<Arc<CustomResourceDefinition>>>,
    /// Classes of devices; `None` if the API server has no such kind, or the controller does not see them.
    pub device_classes: Option<Vec<Arc<DeviceClass>>>,
    /// Jobs that measure profiles; `None` if the controller does not see them.
    pub jobs: Option<Vec<Arc<Job>>>,
}

/// Functions, and pods of functions.
#[derive(Clone, Debug, Default)]
pub struct FunctionObjects {
    /// Functions.
    pub functions: Vec<Arc<Function>>,
    /// Pods with the label of an instance.
    pub pods: Vec<Arc<Pod>>,
}

/// Watches of them.
pub(super) struct Watches {
    pub(super) chains: Watched<Chain>,
    pub(super) instances: Watched<ChainInstance>,
    pub(super) servers: Watched<RackServer>,
    pub(super) pools: Watched<ServerPool>,
    pub(super) slos: Watched<Slo>,
    pub(super) profiles: Watched<Profile>,
    pub(super) leases: Watched<Lease>,
    pub(super) functions: Watched<Function>,
    pub(super) pods: Watched<Pod>,
    pub(super) jobs: Watched<Job>,
    pub(super) device_classes: Watched<DeviceClass>,
    pub(super) definitions: Watched<CustomResourceDefinition>,
}

impl Watches {
    /// Waits until all objects have been seen once.
    pub(super) async fn ready(&self) {
        self.chains.ready().await;
        self.instances.ready().await;
        self.servers.ready().await;
        // Definitions of an older version have none. Without rights the pools are unknown: a chain could get servers
        // that are not for it.
        self.pools.ready_or_undefined().await;
        self.slos.ready_or_undefined().await;
        // Pods would lose their claims.
        self.device_classes.ready_or_unavailable().await;
        self.profiles.ready().await;
        self.leases.ready().await;
    }

    /// Returns all objects.
    pub(super) fn read(&self) -> Objects {
        Objects {
            chains: sorted(self.chains.all()),
            instances: sorted(self.instances.all()),
            servers: sorted(self.servers.all()),
            pools: match self.pools.is_ready() {
                true => sorted(self.pools.all()),
                false => Vec::new(),
            },
            slos: match self.slos.is_ready() {
                true => sorted(self.slos.all()),
                false => Vec::new(),
            },
            profiles: sorted(self.profiles.all()),
            leases: sorted(self.leases.all()),
            // A rack without functions needs no rights for them.
            functions: (self.functions.is_ready() && self.pods.is_ready()).then(|| FunctionObjects {
                functions: sorted(self.functions.all()),
                pods: sorted(self.pods.all()),
            }),
            definitions: self.definitions.is_ready().then(|| sorted(self.definitions.all())),
            device_classes: self
                .device_classes
                .is_ready()
                .then(|| sorted(self.device_classes.all())),
            jobs: self.jobs.is_ready().then(|| sorted(self.jobs.all())),
        }
    }
}

/// Sorts by namespace and name, so that equal states lead to equal decisions.
pub(crate) fn sorted<K: ResourceExt>(mut objects: Vec<Arc<K>>) -> Vec<Arc<K>> {
    objects.sort_by_cached_key(|object| (object.namespace(), object.name_any()));
    objects
}

/// Name of an object with its namespace: `edge/web`.
pub fn full_name(object: &impl ResourceExt) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

/// Returns `true` if an instance has the newest spec of this chain. One of a chain that is gone, and had the same name,
/// has an older one, whatever its number. Without usable objectives of its Slo, those that it has are the newest.
pub(super) fn has_newest_spec(instance: &ChainInstance, chain: &Chain) -> bool {
    let version = instance.spec.slo_version.as_ref();
    let has_slo = match &chain.spec.shared {
        SharedSlo::None => version.is_none(),
        SharedSlo::Of(newest) => version == Some(newest),
        SharedSlo::Unusable(..) => true,
    };
    has_slo && Some(instance.spec.chain_generation) == chain.metadata.generation && is_of(instance, chain)
}

/// Returns `true` if the server of an instance runs the newest spec of this chain, as its agent reports. An agent of
/// an older version reports no generation: the instance's spec counts.
pub(super) fn runs_newest_spec(instance: &ChainInstance, chain: &Chain) -> bool {
    let runs = instance.status.as_ref().is_none_or(|status| {
        let has_slo = status.slo_version == instance.spec.slo_version;
        status.chain_generation.is_none() || status.chain_generation == chain.metadata.generation && has_slo
    });
    has_newest_spec(instance, chain) && runs
}

/// Returns `false` if an instance is one of another chain, which is gone and had the same name.
pub(super) fn is_of(instance: &ChainInstance, chain: &Chain) -> bool {
    let owner = instance.owner_references().iter().find(|owner| owner.kind == "Chain");
    owner.is_none_or(|owner| Some(&owner.uid) == chain.metadata.uid.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn object<K: serde::de::DeserializeOwned>(kind: &str, generation: i64, spec: &Value, status: &Value) -> K {
        let object = json!({
            "apiVersion": "tailwater.dev/v1alpha1", "kind": kind,
            "metadata": {"name": "web", "namespace": "a", "uid": "w", "generation": generation},
            "spec": spec, "status": status,
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_roll_out_is_complete_when_the_servers_run_the_newest_spec_not_when_it_is_written() {
        let mut chain: Chain = object("Chain", 2, &json!({"functions": []}), &Value::Null);
        let runs = |chain: &Chain, written: (i64, Option<&str>), reported: &Value| {
            let (generation, version) = written;
            let spec = json!({
                "chain": "web", "server": "s", "chainGeneration": generation, "sloVersion": version, "chainSpec": {},
            });
            runs_newest_spec(&object("ChainInstance", 5, &spec, reported), chain)
        };
        let phase = |generation: i64, version: Option<&str>| -> Value {
            json!({"phase": "Running", "chainGeneration": generation, "sloVersion": version})
        };
        assert!(!runs(&chain, (1, None), &phase(1, None)));
        assert!(!runs(&chain, (2, None), &phase(1, None)));
        assert!(runs(&chain, (2, None), &phase(2, None)));
        // Agents of an older version do not say.
        assert!(runs(&chain, (2, None), &json!({"phase": "Running"})));
        // Another version of its Slo.
        chain.spec.shared = SharedSlo::Of("u/2".to_owned());
        assert!(!runs(&chain, (2, Some("u/1")), &phase(2, Some("u/1"))));
        assert!(!runs(&chain, (2, Some("u/2")), &phase(2, Some("u/1"))));
        assert!(runs(&chain, (2, Some("u/2")), &phase(2, Some("u/2"))));
        // It is gone: there is no newer one.
        chain.spec.shared = SharedSlo::Unusable("SloMissing", String::new());
        assert!(runs(&chain, (2, Some("u/2")), &phase(2, Some("u/2"))));
    }
}
