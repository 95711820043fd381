//! Objects that the controller decides by.

use crate::resources::{Chain, ChainInstance, Function, Profile, RackServer, ServerPool};
use crate::watching::Watched;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
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
    /// Profiles.
    pub profiles: Vec<Arc<Profile>>,
    /// Leases of servers, and of the election.
    pub leases: Vec<Arc<Lease>>,
    /// Functions, and pods of functions; `None` if the controller does not see both.
    pub functions: Option<FunctionObjects>,
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
    pub(super) profiles: Watched<Profile>,
    pub(super) leases: Watched<Lease>,
    pub(super) functions: Watched<Function>,
    pub(super) pods: Watched<Pod>,
    pub(super) jobs: Watched<Job>,
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
            profiles: sorted(self.profiles.all()),
            leases: sorted(self.leases.all()),
            // A rack without functions needs no rights for them.
            functions: (self.functions.is_ready() && self.pods.is_ready()).then(|| FunctionObjects {
                functions: sorted(self.functions.all()),
                pods: sorted(self.pods.all()),
            }),
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
/// has an older one, whatever its number.
pub(super) fn has_newest_spec(instance: &ChainInstance, chain: &Chain) -> bool {
    Some(instance.spec.chain_generation) == chain.metadata.generation && is_of(instance, chain)
}

/// Returns `true` if the server of an instance runs the newest spec of this chain, as its agent has reported. An agent of
/// an older version reports no generation: the instance's spec counts.
pub(super) fn runs_newest_spec(instance: &ChainInstance, chain: &Chain) -> bool {
    let reported = instance.status.as_ref().and_then(|status| status.chain_generation);
    has_newest_spec(instance, chain) && (reported.is_none() || reported == chain.metadata.generation)
}

/// Returns `false` if an instance is one of another chain, which is gone and had the same name.
pub(super) fn is_of(instance: &ChainInstance, chain: &Chain) -> bool {
    let owner = instance.owner_references().iter().find(|owner| owner.kind == "Chain");
    owner.is_none_or(|owner| Some(&owner.uid) == chain.metadata.uid.as_ref())
}
