//! Devices of pods, by Kubernetes' dynamic resource allocation.
//!
//! A pool of servers says which devices a pod of a function claims there. Each pod has a template of its own for each
//! of them, which its instance owns: a template never changes, and Kubernetes makes a claim from it for this pod.

use super::objects::Objects;
use crate::resources::{ChainInstance, Condition, PoolDevices, ServerPool, set_condition};
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Condition of pools with devices.
const CONDITION: &str = "Devices";

/// Devices of the pods of each chain, by the chains' namespaces and names. None where the API server does not have
/// classes of devices: pods have the resources of their functions then.
pub(super) fn of_chains(objects: &Objects) -> HashMap<String, &[PoolDevices]> {
    if objects.device_classes.is_none() {
        return HashMap::new();
    }
    let with_devices = objects.pools.iter().filter(|pool| !pool.spec.devices.is_empty());
    let pools: HashMap<String, &[PoolDevices]> = with_devices
        .map(|pool| (pool.name_any(), &*pool.spec.devices))
        .collect();
    let chains = objects.chains.iter().filter_map(|chain| {
        let devices = pools.get(chain.spec.pool.as_ref()?)?;
        Some((super::full_name(&**chain), *devices))
    });
    chains.collect()
}

/// Template of a claim of a pod.
fn template(pod: &str, devices: &PoolDevices, instance: &ChainInstance, owner: &OwnerReference) -> Value {
    let selectors = devices.selectors.iter();
    let selectors: Vec<Value> = selectors
        .map(|expression| json!({"cel": {"expression": expression}}))
        .collect();
    let mut exactly = json!({"deviceClassName": devices.class, "allocationMode": "ExactCount", "count": devices.count});
    if !selectors.is_empty() {
        exactly["selectors"] = json!(selectors);
    }
    let spec = json!({"spec": {"devices": {"requests": [{"name": "devices", "exactly": exactly}]}}});
    let mut hash = DefaultHasher::new();
    spec.to_string().hash(&mut hash);
    json!({
        "metadata": {
            "name": format!("{pod}-{}-{:08x}", devices.name, hash.finish() >> 32),
            "namespace": instance.namespace().unwrap_or_default(),
            "ownerReferences": [owner],
        },
        "spec": spec,
    })
}

/// Gives a pod its claims, and removes what they stand for. Returns the claims' templates.
pub(super) fn claim(
    pod: &mut Value,
    devices: &[PoolDevices],
    instance: &ChainInstance,
    owner: &OwnerReference,
) -> Vec<ResourceClaimTemplate> {
    if devices.is_empty() {
        return Vec::new();
    }
    let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let templates = devices.iter().map(|one| template(&name, one, instance, owner));
    let templates: Vec<Value> = templates.collect();
    let claims = devices.iter().zip(&templates).map(
        |(devices, template)| json!({"name": devices.name, "resourceClaimTemplateName": template["metadata"]["name"]}),
    );
    pod["spec"]["resourceClaims"] = claims.collect();
    let replaced = || devices.iter().flat_map(|devices| &devices.replaces);
    if let Some(annotations) = pod["metadata"]["annotations"].as_object_mut() {
        replaced().for_each(|name| drop(annotations.remove(name)));
    }
    let resources = &mut pod["spec"]["containers"][0]["resources"];
    for kind in ["requests", "limits"] {
        if let Some(resources) = resources[kind].as_object_mut() {
            replaced().for_each(|name| drop(resources.remove(name)));
        }
    }
    resources["claims"] = devices.iter().map(|devices| json!({"name": devices.name})).collect();
    let typed = |template: Value| serde_json::from_value(template).ok();
    templates.into_iter().filter_map(typed).collect()
}

/// Sets the condition of a pool with devices, and removes it from others.
pub(super) fn tell(pool: &ServerPool, objects: &Objects, conditions: &mut Vec<Condition>, now: Timestamp) {
    let devices = &pool.spec.devices;
    if devices.is_empty() {
        conditions.retain(|condition| condition.name != CONDITION);
        return;
    }
    let missing;
    let new = match &objects.device_classes {
        None => (
            CONDITION,
            false,
            "NoDeviceClasses",
            "pods have the resources of their Functions instead: expected an API server with DeviceClasses \
             (resource.k8s.io/v1, Kubernetes 1.34 or later), and the right of the controller to read them",
        ),
        Some(classes) => {
            let is_there = |name: &str| classes.iter().any(|class| class.name_any() == name);
            match devices.iter().find(|devices| !is_there(&devices.class)) {
                None => (CONDITION, true, "Ready", ""),
                Some(devices) => {
                    missing = format!(
                        "there is no DeviceClass {}: install its driver, or change spec.devices; pods wait until then",
                        devices.class
                    );
                    (CONDITION, false, "NoDeviceClass", &*missing)
                }
            }
        }
    };
    set_condition(conditions, now, new, pool.metadata.generation);
}
