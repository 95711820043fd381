//! From the instances of a server and the chains that it has to the next steps. Decides only.

use super::local::{LocalChain, LocalCondition, LocalPhase};
use super::pods::{missing, spec_of};
use crate::controller::chains::{manifest_of, without_mac};
use crate::figures::{latency_text, rate_text};
use crate::resources::{
    ChainInstance, Condition, DRAIN_FINALIZER, InstancePhase, InstanceStatus, local_name, set_condition,
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Step of an agent.
#[derive(Clone, Debug, PartialEq)]
pub enum AgentStep {
    /// Apply an instance to the server.
    Apply {
        /// Key of the instance.
        key: Key,
        /// Name of the chain in its namespace.
        chain: String,
        /// Name of the chain on the server.
        name: String,
        /// Manifest, as JSON.
        manifest: String,
        /// Run it without a promise if it does not fit.
        force: bool,
    },
    /// Remove a chain from the server, after its last packet.
    Delete {
        /// Name of the chain on the server.
        name: String,
    },
    /// The instance's last packet has left: its object may go.
    Release {
        /// Key of the instance.
        key: Key,
    },
}

/// Namespace and name of an instance.
pub type Key = (String, String);

/// Result of the last attempt to apply an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Generation of the instance.
    pub generation: i64,
    /// Reason for which it failed, if it did.
    pub refused: Option<String>,
    /// Time after which it is tried again if it failed.
    pub again: Timestamp,
}

/// Attempts by instance.
pub type Attempts = HashMap<Key, Attempt>;

/// Returns the key of an instance.
pub fn key_of(instance: &ChainInstance) -> Key {
    (instance.namespace().unwrap_or_default(), instance.name_any())
}

/// Returns the name of an instance on its server.
///
/// # Errors
/// One line: it would be too long.
pub fn name_of(instance: &ChainInstance) -> Result<String, String> {
    let namespace = instance.namespace().unwrap_or_default();
    local_name(&namespace, &instance.name_any()).map_err(|error| error.to_string())
}

/// Returns the steps by which the server's chains become those of its instances. Chains that were not applied by an
/// agent stay as they are. Functions in pods join in the folder `pods`; an instance waits until its pods run.
pub fn steps(
    instances: &[impl AsRef<ChainInstance>],
    chains: &[LocalChain],
    attempts: &Attempts,
    (pods, now): (&Path, Timestamp),
) -> Vec<AgentStep> {
    let mut steps = Vec::new();
    let present: HashMap<&str, &LocalChain> = chains.iter().map(|chain| (&*chain.name, chain)).collect();
    let mut wanted = BTreeMap::new();
    for instance in instances.iter().map(AsRef::as_ref) {
        let Ok(name) = name_of(instance) else { continue };
        let key = key_of(instance);
        if instance.metadata.deletion_timestamp.is_none() {
            wanted.insert(name, (key, instance));
        } else if !present.contains_key(&*name) && instance.finalizers().iter().any(|name| name == DRAIN_FINALIZER) {
            steps.push(AgentStep::Release { key });
        }
    }
    for chain in chains {
        let is_from_agent = chain.name.contains("--");
        let is_leaving = chain.phase == LocalPhase::Draining;
        if is_from_agent && !is_leaving && !wanted.contains_key(&chain.name) {
            let name = chain.name.clone();
            steps.push(AgentStep::Delete { name });
        }
    }
    for (name, (key, instance)) in wanted {
        let generation = instance.metadata.generation.unwrap_or_default();
        let is_done = match attempts.get(&key).filter(|attempt| attempt.generation == generation) {
            // After a start of the agent nothing is known: applying what runs already changes nothing.
            None => false,
            Some(attempt) if attempt.refused.is_some() => now < attempt.again,
            Some(_) => present.contains_key(&*name),
        };
        if !is_done && missing(instance).is_none() {
            steps.push(AgentStep::Apply {
                manifest: manifest_of(&name, &local_spec(instance, &name, pods)),
                force: instance.spec.force,
                chain: instance.spec.chain.clone(),
                key,
                name,
            });
        }
    }
    steps
}

/// Spec of an instance on its server, with the sockets of its pods, and the names under which it keeps flow state: the
/// instances of a chain share it, and each is an owner of its own.
///
/// The ingress decides which packets it gets: the server takes all that have its MAC address. So a chain's match
/// changes without a change on servers, whose flows stay, and an instance that is sent packets of the new match before
/// it has the new spec, or of the old one after that, takes them.
fn local_spec(instance: &ChainInstance, name: &str, pods: &Path) -> Map<String, Value> {
    let mut spec = spec_of(instance, name, pods);
    if let Some(Value::Object(matching)) = spec.get_mut("match")
        && matching.contains_key("macs")
    {
        matching.retain(|field, _| field == "macs");
    }
    if let Some(Value::Object(state)) = spec.get_mut("state") {
        let namespace = instance.namespace().unwrap_or_default();
        let chain = format!("{namespace}--{}", instance.spec.chain);
        state.insert("chain".to_owned(), Value::String(chain));
        // With the server: one that was lost starts its last chains when it returns, and an instance elsewhere can have
        // the name of one of them by then. A run of the same name would end that instance's use of the store.
        let owner = format!("{name}.{}", instance.spec.server);
        state.insert("instance".to_owned(), Value::String(owner));
    }
    spec
}

/// Returns the status of an instance, from its chain on the server and the last attempt to apply it.
pub fn status(
    instance: &ChainInstance,
    chain: Option<&LocalChain>,
    attempt: Option<&Attempt>,
    now: Timestamp,
) -> InstanceStatus {
    let before = instance.status.clone().unwrap_or_default();
    let refused = attempt.and_then(|attempt| attempt.refused.as_deref());
    let is_leaving = instance.metadata.deletion_timestamp.is_some();
    let waits = missing(instance).map(|pod| format!("its pod {pod} does not run yet"));
    let (phase, reason) = match chain {
        _ if is_leaving => (InstancePhase::Draining, ""),
        None => match (refused, &waits) {
            (_, Some(waits)) => (InstancePhase::Pending, &**waits),
            (Some(reason), None) => (InstancePhase::Failed, reason),
            (None, None) => (InstancePhase::Pending, ""),
        },
        Some(chain) => match chain.phase {
            LocalPhase::Starting => (InstancePhase::Pending, &*chain.reason),
            LocalPhase::Draining => (InstancePhase::Draining, &*chain.reason),
            LocalPhase::Failed => (InstancePhase::Failed, &*chain.reason),
            // A changed spec that the server refuses leaves the chain as it was.
            LocalPhase::Running => (InstancePhase::Running, refused.unwrap_or(&chain.reason)),
        },
    };
    let generation = instance.metadata.generation;
    let mut conditions = before.conditions;
    let local = chain.map(|chain| &*chain.conditions).unwrap_or_default();
    retain_known(&mut conditions, local);
    for condition in local {
        if let Some(holds) = condition.holds {
            let new = (&*condition.name, holds, &*condition.reason, &*condition.message);
            set_condition(&mut conditions, now, new, generation);
        }
    }
    let figures = chain.and_then(|chain| chain.figures);
    let cores = chain.map(|chain| &*chain.cores).unwrap_or_default();
    let cores: Vec<String> = cores.iter().map(u32::to_string).collect();
    let taken = takes(instance, attempt) && phase == InstancePhase::Running;
    InstanceStatus {
        observed_generation: attempt.map_or(before.observed_generation, |attempt| attempt.generation),
        phase,
        reason: reason.to_owned(),
        conditions,
        cores: cores.join(","),
        p99: chain.and_then(|chain| chain.latency).map(latency_text),
        rate: figures.map(|figures| rate_text(figures.offered)),
        figures,
        bound_state: chain.and_then(|chain| chain.bound_state.clone()),
        match_: taken.then(|| match_of(instance)).or(before.match_),
        slo_version: match taken {
            true => instance.spec.slo_version.clone(),
            false => before.slo_version,
        },
        chain_generation: taken
            .then_some(instance.spec.chain_generation)
            .or(before.chain_generation),
        // The ingress writes these.
        steered: None,
        steering_reason: None,
        steering_limit: None,
    }
}

/// Returns `true` if the server has taken the instance's newest spec.
fn takes(instance: &ChainInstance, attempt: Option<&Attempt>) -> bool {
    attempt.is_some_and(|attempt| attempt.refused.is_none() && Some(attempt.generation) == instance.metadata.generation)
}

/// Traffic of the instance's spec.
fn match_of(instance: &ChainInstance) -> String {
    let spec = without_mac(&instance.spec.chain_spec);
    spec.get("match").map_or_else(|| "{}".to_owned(), Value::to_string)
}

/// Leaves out conditions that the server does not know any more.
fn retain_known(conditions: &mut Vec<Condition>, local: &[LocalCondition]) {
    let is_known = |name: &str| {
        local
            .iter()
            .any(|condition| condition.name == name && condition.holds.is_some())
    };
    conditions.retain(|condition| is_known(&condition.name));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::InstanceSpec;
    use serde_json::json;

    #[test]
    fn instances_of_a_chain_keep_state_under_its_name_and_own_it_under_theirs() {
        let spec = json!({
            "chain": "edge", "server": "a", "chainGeneration": 1,
            "chainSpec": {"state": {"redis": {"socket": "/r"}, "instance": "mine"}},
        });
        let mut spec: InstanceSpec = serde_json::from_value(spec).unwrap();
        let state_of = |spec: &InstanceSpec| {
            let mut instance = ChainInstance::new("edge-7", spec.clone());
            instance.metadata.namespace = Some("shop".to_owned());
            let name = name_of(&instance).unwrap();
            let spec = local_spec(&instance, &name, Path::new("/run/pods"));
            if let Some(matching) = spec.get("match") {
                assert_eq!(*matching, json!({"macs": ["02:00:00:00:00:07"]}));
            }
            spec.get("state").cloned()
        };
        // Its server takes all packets that have its address.
        spec.chain_spec.insert(
            "match".to_owned(),
            json!({"destinations": ["10.1.0.0/16"], "macs": ["02:00:00:00:00:07"]}),
        );
        let expected = json!({"redis": {"socket": "/r"}, "chain": "shop--edge", "instance": "shop--edge-7.a"});
        assert_eq!(state_of(&spec), Some(expected));
        spec.chain_spec.clear();
        assert_eq!(state_of(&spec), None);
    }
}
