//! From the policy's plan to changes of objects.

use super::chains::Chains;
use super::definitions::Definitions;
use super::objects::{Objects, full_name, has_newest_spec, is_of};
use super::pods::{FunctionPods, pods_of};
use super::pools::Pools;
use super::profiling::Profiling;
use super::seen::Servers;
use super::status::{chain_status, events_between};
pub use super::write::{Key, Write};
use crate::resources::{
    CHAIN_LABEL, Chain, ChainInstance, DRAIN_FINALIZER, InstancePhase, InstanceSpec, SERVER_LABEL, SharedSlo,
    references, set_condition,
};
use k8s_openapi::jiff::Timestamp;
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use tailwater_net::ethernet::MacAddress;
use tailwater_placement::rack::{CreateReason, DeleteReason, NewInstance, RackAction, RackPlan};

/// Returns the changes of a round. Instances come before statuses.
pub(super) fn writes(
    objects: &Objects,
    chains: &Chains,
    (servers, pools): (&Servers, &Pools),
    (plan, (profiling, definitions)): (&RackPlan, (&Profiling, &Definitions)),
    now: Timestamp,
) -> Vec<Write> {
    let by_name: HashMap<String, &Arc<Chain>> = objects
        .chains
        .iter()
        .map(|chain| (full_name(&**chain), chain))
        .collect();
    let instances: HashMap<String, &Arc<ChainInstance>> = objects
        .instances
        .iter()
        .map(|instance| (full_name(&**instance), instance))
        .collect();
    let mut writes = Vec::new();
    let mut users: HashSet<u32> = objects
        .instances
        .iter()
        .flat_map(|instance| instance.spec.pods.iter().map(|pod| pod.user))
        .collect();
    let mut macs: HashSet<String> = objects
        .instances
        .iter()
        .map(|instance| instance.spec.mac.clone())
        .collect();
    for action in &plan.actions {
        of_action(
            action,
            &by_name,
            &instances,
            (chains, &mut macs, &mut users),
            &mut writes,
        );
    }
    let functions = FunctionPods::new(objects);
    writes.extend(functions.writes(now));
    let mut of_chain: BTreeMap<String, Vec<&ChainInstance>> = BTreeMap::new();
    for instance in &objects.instances {
        let chain = format!("{}/{}", instance.namespace().unwrap_or_default(), instance.spec.chain);
        of_chain.entry(chain).or_default().push(instance);
    }
    for (name, chain) in objects.chains.iter().map(|chain| (full_name(&**chain), chain)) {
        let of_chain = of_chain.get(&name).map(Vec::as_slice).unwrap_or_default();
        if let Some(Ok(_)) = chains.facts(&name) {
            writes.extend(rollout(chain, of_chain, &mut users));
        }
        let mut status = chain_status(chain, of_chain, (chains, pools), plan.verdicts.get(&name), now);
        functions.tell(chain, of_chain, &mut status, now);
        profiling.tell(chain, &mut status, now);
        definitions.tell(chain, &mut status, now);
        if chain.status.as_ref() != Some(&status) {
            for (warning, reason, note) in events_between(chain.status.as_ref(), &status) {
                let chain = Arc::clone(chain);
                writes.push(Write::Event {
                    chain,
                    warning,
                    reason,
                    note,
                });
            }
            writes.push(Write::Status {
                key: key_of(&**chain),
                status: Box::new(status),
            });
        }
    }
    for server in &objects.servers {
        let name = server.name_any();
        let mut conditions = server.status.clone().unwrap_or_default().conditions;
        let before = conditions.clone();
        let ready = match (servers.last_seen(&name), servers.is_lost(&name)) {
            (None, _) => ("Ready", false, "NeverSeen", "the agent has no lease yet"),
            (Some(_), true) => ("Ready", false, "Lost", "the agent does not renew its lease"),
            (Some(_), false) => ("Ready", true, "AgentReady", "the agent reports"),
        };
        set_condition(&mut conditions, now, ready, server.metadata.generation);
        if before != conditions {
            writes.push(Write::Server { name, conditions });
        }
    }
    writes.extend(pools.writes(objects, servers, now));
    writes.extend(profiling.writes());
    writes
}

fn key_of(object: &impl ResourceExt) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

fn of_action(
    action: &RackAction,
    by_name: &HashMap<String, &Arc<Chain>>,
    instances: &HashMap<String, &Arc<ChainInstance>>,
    (chains, macs, users): (&Chains, &mut HashSet<String>, &mut HashSet<u32>),
    writes: &mut Vec<Write>,
) {
    match action {
        RackAction::Create(new) => {
            let Some(chain) = by_name.get(&new.chain) else { return };
            // A chain that is not accepted keeps the instances that it has.
            if !matches!(chains.facts(&new.chain), Some(Ok(_))) {
                return;
            }
            writes.push(Write::Create(Box::new(instance_of(
                chain,
                new,
                free_mac(&new.name, macs),
                users,
            ))));
            if new.reason != CreateReason::Missing {
                let note = format!("{} on {}: {}", short(&new.name), new.server, because(new.reason));
                let reason = "InstanceCreated".to_owned();
                let chain = Arc::clone(chain);
                writes.push(Write::Event {
                    chain,
                    warning: false,
                    reason,
                    note,
                });
            }
        }
        RackAction::Resize { instance, rate, .. } => {
            let Some(found) = instances.get(instance) else { return };
            let slo = json!({"throughput": throughput(*rate)});
            let patch = json!({"spec": {"promised": rate, "chainSpec": {"slo": slo}}});
            let key = key_of(&***found);
            writes.push(Write::Change { key, patch });
        }
        RackAction::Drain { instance, .. } => {
            let Some(found) = instances.get(instance).filter(|found| !found.spec.draining) else {
                return;
            };
            let key = key_of(&***found);
            let patch = json!({"spec": {"draining": true}});
            writes.push(Write::Change { key, patch });
        }
        RackAction::Delete { instance, reason } => {
            let Some(found) = instances.get(instance) else { return };
            let at_once = *reason == DeleteReason::ServerLost;
            let is_going = found.metadata.deletion_timestamp.is_some();
            if !is_going || at_once && !found.finalizers().is_empty() {
                let key = key_of(&***found);
                writes.push(Write::Delete { key, at_once });
            }
        }
    }
}

fn because(reason: CreateReason) -> &'static str {
    match reason {
        CreateReason::Missing => "too few instances",
        CreateReason::Lost => "others were lost",
        CreateReason::Load => "more packets than the others are promised",
        CreateReason::ServerDrain => "its predecessor's server is to become empty",
        CreateReason::Pool => "its predecessor's server is not one of its pool",
        CreateReason::Plan => "a better plan",
    }
}

/// Name without its namespace.
fn short(name: &str) -> &str {
    name.rsplit_once('/').map_or(name, |(_, short)| short)
}

/// Packets per second, as a chain's spec has them.
fn throughput(rate: f64) -> String {
    format!("{:.0}pps", rate.max(1.0).ceil())
}

/// MAC address for an instance: a local one, from its name, that no other instance has.
fn free_mac(name: &str, taken: &mut HashSet<String>) -> String {
    for number in 0u32.. {
        let mut hash = DefaultHasher::new();
        (name, number).hash(&mut hash);
        let [a, b, c, d, e, ..] = hash.finish().to_be_bytes();
        let mac = MacAddress([2, a, b, c, d, e]).to_string();
        if taken.insert(mac.clone()) {
            return mac;
        }
    }
    unreachable!("fewer instances than addresses")
}

/// Spec of a chain for one instance: its part of the throughput, and its MAC address.
fn spec_for(local: &Map<String, Value>, promised: f64, mac: &str) -> Map<String, Value> {
    let mut spec = local.clone();
    if let Value::Object(fields) = spec.entry("match").or_insert_with(|| json!({})) {
        fields.insert("macs".to_owned(), json!([mac]));
    }
    if let Some(Value::Object(slo)) = spec.get_mut("slo") {
        match promised > 0.0 {
            true => drop(slo.insert("throughput".to_owned(), throughput(promised).into())),
            false => drop(slo.remove("throughput")),
        }
    }
    spec
}

/// Version of the Slo that a chain has its objectives from.
fn slo_version(chain: &Chain) -> Option<String> {
    match &chain.spec.shared {
        SharedSlo::Of(version) => Some(version.clone()),
        SharedSlo::None | SharedSlo::Unusable(..) => None,
    }
}

fn instance_of(chain: &Chain, new: &NewInstance, mac: String, users: &mut HashSet<u32>) -> ChainInstance {
    let name = chain.name_any();
    let spec = InstanceSpec {
        chain: name.clone(),
        server: new.server.clone(),
        chain_generation: chain.metadata.generation.unwrap_or_default(),
        slo_version: slo_version(chain),
        promised: new.rate,
        exclusive: new.exclusive,
        replaces: new.replaces.as_deref().map(|replaced| short(replaced).to_owned()),
        draining: false,
        chain_spec: spec_for(&chain.spec.local, new.rate, &mac),
        mac,
        // There are no profiles of functions in processes of their own.
        force: new.rate == 0.0 || new.exclusive || !references(&chain.spec.local).is_empty(),
        pods: pods_of(&chain.spec.local, short(&new.name), &[], users),
    };
    let labels = [(CHAIN_LABEL, &name), (SERVER_LABEL, &new.server)];
    ChainInstance {
        metadata: ObjectMeta {
            name: Some(short(&new.name).to_owned()),
            namespace: chain.namespace(),
            labels: Some(labels.map(|(label, value)| (label.to_owned(), value.clone())).into()),
            finalizers: Some(vec![DRAIN_FINALIZER.to_owned()]),
            owner_references: Some(chain.controller_owner_ref(&()).into_iter().collect()),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}

/// Brings one instance to the chain's newest spec, if no other one is on the way there.
fn rollout(chain: &Chain, instances: &[&ChainInstance], users: &mut HashSet<u32>) -> Option<Write> {
    let generation = chain.metadata.generation?;
    let is_there = |instance: &&&ChainInstance| has_newest_spec(instance, chain);
    let is_settled = |instance: &&ChainInstance| {
        let status = instance.status.clone().unwrap_or_default();
        Some(status.observed_generation) == instance.metadata.generation
            && status.phase == InstancePhase::Running
            && status.reason.is_empty()
    };
    let stays = |instance: &&&ChainInstance| !instance.spec.draining && instance.metadata.deletion_timestamp.is_none();
    if instances
        .iter()
        .filter(stays)
        .filter(is_there)
        .any(|instance| !is_settled(instance))
    {
        return None;
    }
    let next = instances.iter().filter(stays).find(|instance| !is_there(instance))?;
    // A merge patch leaves fields that it does not name: those that the chain has lost are named with null.
    let mut spec = spec_for(&chain.spec.local, next.spec.promised, &next.spec.mac);
    replace(&mut spec, &next.spec.chain_spec);
    let pods = pods_of(&chain.spec.local, &next.name_any(), &next.spec.pods, users);
    let slo = slo_version(chain);
    let mut patch = json!({"spec": {"chainGeneration": generation, "sloVersion": slo, "chainSpec": spec}});
    if !is_of(next, chain) {
        // The chain was deleted and created again: its instances, if they are still there, become the new one's.
        patch["metadata"] = json!({"ownerReferences": [chain.controller_owner_ref(&())]});
    }
    if pods != next.spec.pods {
        patch["spec"]["pods"] = json!(pods);
    }
    if !pods.is_empty() && !next.spec.force {
        patch["spec"]["force"] = json!(true);
    }
    Some(Write::Change {
        key: key_of(*next),
        patch,
    })
}

/// Makes `new` a merge patch that turns `old` into it.
fn replace(new: &mut Map<String, Value>, old: &Map<String, Value>) {
    for (field, value) in old {
        match (new.get_mut(field), value) {
            (None, _) => drop(new.insert(field.clone(), Value::Null)),
            (Some(Value::Object(new)), Value::Object(old)) => replace(new, old),
            (Some(_), _) => {}
        }
    }
}
