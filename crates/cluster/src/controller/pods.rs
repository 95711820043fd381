//! Pods of the instances' functions: one for each function of each instance, on the instance's server.
//!
//! A pod requires its node by a node affinity, as those of a DaemonSet do: the scheduler still counts its requests, and
//! says why it does not fit. What runs in a pod has no rights. It joins the server's data plane by the socket in the
//! only folder that it sees; the agent lends it its turns on the chain's core.

use super::devices;
use super::objects::{FunctionObjects, Objects, full_name};
use super::write::{Key, Write};
use crate::resources::{
    Chain, ChainInstance, ChainStatus, Function, FunctionSpec, FunctionStatus, INSTANCE_LABEL, InstancePod,
    POD_DIRECTORY, PODS_ANNOTATION, PoolDevices, local_name, pod_folder, pod_socket, references, set_condition,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;
use kube::{Resource, ResourceExt};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

/// First of the users of pods, behind those of programs that servers confine, and their number.
const USERS: (u32, u32) = (0x4f10_0000, 0xf_0000);
/// Annotation of pods: a digest of what they were made from.
const DIGEST_ANNOTATION: &str = "tailwater.dev/digest";
/// Annotation of pods: the name of their Function.
const FUNCTION_ANNOTATION: &str = "tailwater.dev/function";
/// Folder of the socket within a pod.
const MOUNT: &str = "/run/tailwater";
/// Key of the taint that operators may give to the rack's servers.
const TAINT: &str = "tailwater.dev/server";

/// Returns the pods of an instance of a chain with this spec. Those `before` keep their users.
pub(super) fn pods_of(
    spec: &Map<String, Value>,
    instance: &str,
    before: &[InstancePod],
    users: &mut HashSet<u32>,
) -> Vec<InstancePod> {
    let functions = references(spec).into_iter().enumerate();
    let pod = |(index, function): (usize, String)| {
        let name = format!("{instance}-f{index}");
        let user = before.get(index).map(|pod| pod.user);
        InstancePod {
            user: user.unwrap_or_else(|| free_user(&name, users)),
            function,
            name,
        }
    };
    functions.map(pod).collect()
}

/// User that no other pod has.
fn free_user(name: &str, taken: &mut HashSet<u32>) -> u32 {
    let (first, number) = USERS;
    let mut hash = DefaultHasher::new();
    name.hash(&mut hash);
    let start = (hash.finish() % u64::from(number)) as u32;
    let mut users = (0..number).map(|step| first + (start + step) % number);
    let free = users.find(|user| taken.insert(*user));
    free.unwrap_or(first)
}

/// Functions and pods, as they are and as they should be.
pub(super) struct FunctionPods<'o> {
    objects: &'o Objects,
    functions: HashMap<String, &'o Arc<Function>>,
    pods: HashMap<String, &'o Arc<Pod>>,
    /// Devices that the pods of chains claim.
    devices: HashMap<String, &'o [PoolDevices]>,
}

impl<'o> FunctionPods<'o> {
    pub(super) fn new(objects: &'o Objects) -> FunctionPods<'o> {
        let (functions, pods) = match &objects.functions {
            Some(FunctionObjects { functions, pods }) => (&functions[..], &pods[..]),
            None => (&[][..], &[][..]),
        };
        FunctionPods {
            objects,
            functions: functions.iter().map(|one| (full_name(&**one), one)).collect(),
            pods: pods.iter().map(|pod| (full_name(&**pod), pod)).collect(),
            devices: devices::of_chains(objects),
        }
    }

    /// Returns the pod of an instance, if it is one of this instance.
    fn own(&self, instance: &ChainInstance, pod: &InstancePod) -> Option<&'o Pod> {
        let namespace = instance.namespace().unwrap_or_default();
        let found = self.pods.get(&format!("{namespace}/{}", pod.name))?;
        let owner = found.owner_references().iter().map(|owner| &owner.uid);
        let is_own = instance
            .uid()
            .is_some_and(|uid| owner.into_iter().any(|owner| *owner == uid));
        is_own.then_some(found)
    }

    /// Returns the changes of a round: pods that are missing, wrong or left over, what instances are told about theirs,
    /// and statuses of functions.
    pub(super) fn writes(&self, now: Timestamp) -> Vec<Write> {
        let mut writes = Vec::new();
        if self.objects.functions.is_none() {
            return writes;
        }
        let mut wanted: HashSet<String> = HashSet::new();
        // Functions one of whose pods does not run, or is about to be replaced.
        let mut busy: HashSet<String> = HashSet::new();
        let mut old = Vec::new();
        for instance in &self.objects.instances {
            let namespace = instance.namespace().unwrap_or_default();
            let chain = format!("{namespace}/{}", instance.spec.chain);
            let devices = self.devices.get(&chain).copied().unwrap_or_default();
            let mut running = BTreeMap::new();
            for (index, pod) in instance.spec.pods.iter().enumerate() {
                let name = format!("{namespace}/{}", pod.name);
                let function = format!("{namespace}/{}", pod.function);
                wanted.insert(name.clone());
                let key = || (namespace.clone(), pod.name.clone());
                let desired = self
                    .functions
                    .get(&function)
                    .and_then(|found| desired_pod(instance, index, &found.spec, devices));
                let found = self.pods.get(&name).copied();
                if !found.is_some_and(|found| is_running(found)) {
                    busy.insert(function.clone());
                }
                match (self.own(instance, pod), desired) {
                    // Of an instance that had this name before.
                    (None, _) if found.is_some() => writes.extend(found.map(|found| removal(found))),
                    (None, Some((pod, templates))) if instance.metadata.deletion_timestamp.is_none() => {
                        let pod = Box::new(pod);
                        writes.push(Write::CreatePod { pod, templates });
                    }
                    (Some(own), desired) => {
                        if is_running(own) {
                            running.insert(pod.name.clone(), own.uid().unwrap_or_default());
                        }
                        let has_ended = matches!(phase(own), "Failed" | "Succeeded");
                        if has_ended {
                            writes.extend(deletion(found, key()));
                        } else if desired.is_some_and(|(desired, _)| digest(&desired) != digest(own)) {
                            old.push((function, is_running(own), found, key()));
                        }
                    }
                    (None, _) => {}
                }
            }
            if !instance.spec.pods.is_empty() {
                writes.extend(tell_instance(instance, &running));
            }
        }
        // One pod of a function at a time, but all that do not run anyway.
        for (function, runs, found, key) in old {
            if !runs || busy.insert(function) {
                writes.extend(deletion(found, key));
            }
        }
        for (name, pod) in &self.pods {
            if !wanted.contains(name) {
                writes.push(removal(pod));
            }
        }
        writes.extend(self.statuses(now));
        writes
    }

    /// Statuses of functions that have changed.
    fn statuses(&self, now: Timestamp) -> Vec<Write> {
        let mut of_function: HashMap<String, Vec<(&ChainInstance, &InstancePod)>> = HashMap::new();
        for instance in &self.objects.instances {
            let namespace = instance.namespace().unwrap_or_default();
            for pod in &instance.spec.pods {
                let pods = of_function.entry(format!("{namespace}/{}", pod.function)).or_default();
                pods.push((instance, pod));
            }
        }
        let mut names: Vec<&String> = self.functions.keys().collect();
        names.sort();
        let status = |name: &String| {
            let function = self.functions[name];
            let pods = of_function.get(name).map(Vec::as_slice).unwrap_or_default();
            let own = |(instance, pod): &(&ChainInstance, &InstancePod)| self.own(instance, pod);
            let running = pods.iter().filter_map(own).filter(|pod| is_running(pod)).count();
            let problem = pods.iter().find_map(|(instance, pod)| self.problem(instance, pod));
            let generation = function.metadata.generation;
            let mut status = function.status.clone().unwrap_or_default();
            let new = match &problem {
                Some((reason, message)) => ("Ready", false, &**reason, &**message),
                None if pods.is_empty() => ("Ready", true, "Unused", "no instance of a chain names it"),
                None => ("Ready", true, "Ready", ""),
            };
            set_condition(&mut status.conditions, now, new, generation);
            status.observed_generation = generation.unwrap_or_default();
            status.ready_pods = format!("{running}/{}", pods.len());
            let key: Key = (function.namespace().unwrap_or_default(), function.name_any());
            (function.status.as_ref() != Some(&status)).then(|| Write::FunctionStatus {
                key,
                status: Box::<FunctionStatus>::new(status),
            })
        };
        names.into_iter().filter_map(status).collect()
    }

    /// Reason and message why a pod of an instance does not run.
    fn problem(&self, instance: &ChainInstance, pod: &InstancePod) -> Option<(String, String)> {
        let namespace = instance.namespace().unwrap_or_default();
        let text = |reason: &str, message: String| Some((reason.to_owned(), message));
        if !self.functions.contains_key(&format!("{namespace}/{}", pod.function)) {
            let message = format!("there is no Function {} in namespace {namespace}", pod.function);
            return text("FunctionMissing", message);
        }
        let on = format!("pod {} on {}", pod.name, instance.spec.server);
        let Some(own) = self.own(instance, pod) else {
            return text("PodMissing", format!("{on} is not there yet"));
        };
        if is_running(own) {
            return None;
        }
        let status = own.status.as_ref();
        let containers = status.and_then(|status| status.container_statuses.as_ref());
        let waiting = containers.into_iter().flatten().find_map(|container| {
            let waiting = container.state.as_ref()?.waiting.as_ref()?;
            let reason = waiting.reason.as_deref()?;
            let message = waiting.message.as_deref().unwrap_or_default();
            (!["ContainerCreating", "PodInitializing"].contains(&reason)).then_some((reason, message))
        });
        if let Some((reason, message)) = waiting {
            return text(reason, one_line(&format!("{on}: {message}")));
        }
        let conditions = status.and_then(|status| status.conditions.as_ref());
        let unscheduled = conditions
            .into_iter()
            .flatten()
            .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
        if let Some(condition) = unscheduled {
            let message = condition.message.as_deref().unwrap_or_default();
            return text("Unschedulable", one_line(&format!("{on}: {message}")));
        }
        text("PodStarting", format!("{on} does not run yet"))
    }

    /// Sets the condition `FunctionsReady` of a chain with functions in pods, and removes it from others.
    pub(super) fn tell(&self, chain: &Chain, instances: &[&ChainInstance], status: &mut ChainStatus, now: Timestamp) {
        let has_pods = instances.iter().any(|instance| !instance.spec.pods.is_empty());
        if !has_pods && references(&chain.spec.local).is_empty() {
            status.conditions.retain(|condition| condition.name != "FunctionsReady");
            return;
        }
        let problem = match &self.objects.functions {
            None => Some((
                "NotPermitted".to_owned(),
                "the controller does not see Functions or pods: expected definitions and rights of this version"
                    .to_owned(),
            )),
            Some(_) => instances.iter().find_map(|instance| {
                let mut pods = instance.spec.pods.iter();
                pods.find_map(|pod| self.problem(instance, pod))
            }),
        };
        let new = match &problem {
            Some((reason, message)) => ("FunctionsReady", false, &**reason, &**message),
            None => ("FunctionsReady", true, "Ready", ""),
        };
        set_condition(&mut status.conditions, now, new, chain.metadata.generation);
        if let Some((reason, _)) = problem {
            // It is why others do not hold.
            status.reason = reason;
        }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn phase(pod: &Pod) -> &str {
    let status = pod.status.as_ref();
    status.and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Returns `true` if the container of a pod runs, and the pod is to stay.
fn is_running(pod: &Pod) -> bool {
    let containers = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref());
    let mut states = containers
        .into_iter()
        .flatten()
        .filter_map(|container| container.state.as_ref());
    pod.metadata.deletion_timestamp.is_none() && phase(pod) == "Running" && states.all(|state| state.running.is_some())
}

/// Deletion of a pod that is to be followed by another one.
fn deletion(found: Option<&Arc<Pod>>, key: Key) -> Option<Write> {
    let is_leaving = found?.metadata.deletion_timestamp.is_some();
    (!is_leaving).then_some(Write::DeletePod { key, at_once: false })
}

/// Deletion of a pod whose instance is gone.
fn removal(pod: &Pod) -> Write {
    let key = (pod.namespace().unwrap_or_default(), pod.name_any());
    Write::DeletePod { key, at_once: true }
}

fn digest(pod: &Pod) -> Option<&String> {
    pod.annotations().get(DIGEST_ANNOTATION)
}

/// Tells an instance's agent which of its pods run.
fn tell_instance(instance: &ChainInstance, running: &BTreeMap<String, String>) -> Option<Write> {
    let text = json!(running).to_string();
    if instance.annotations().get(PODS_ANNOTATION) == Some(&text) {
        return None;
    }
    let key = (instance.namespace().unwrap_or_default(), instance.name_any());
    let patch = json!({"metadata": {"annotations": {PODS_ANNOTATION: text}}});
    Some(Write::Change { key, patch })
}

/// Pod of a function of an instance, with the templates of its claims; `None` if the instance has no name on its
/// server.
fn desired_pod(
    instance: &ChainInstance,
    index: usize,
    function: &FunctionSpec,
    devices: &[PoolDevices],
) -> Option<(Pod, Vec<ResourceClaimTemplate>)> {
    let pod = &instance.spec.pods[index];
    // The instance's own finalizer waits for its last packet.
    let owner = OwnerReference {
        block_owner_deletion: None,
        ..instance.controller_owner_ref(&())?
    };
    let namespace = instance.namespace().unwrap_or_default();
    let local = local_name(&namespace, &instance.name_any()).ok()?;
    let folder = pod_folder(Path::new(POD_DIRECTORY), &local, index);
    let mut requests = json!({"cpu": function.cpu, "memory": function.memory});
    let mut limits = json!({"memory": function.memory});
    let more = function.resources.iter().map(|(name, count)| (&**name, count));
    let huge = function.hugepages.iter().map(|bytes| ("hugepages-2Mi", bytes));
    for (name, count) in more.chain(huge) {
        requests[name] = json!(count);
        limits[name] = json!(count);
    }
    let mut env = vec![
        json!({"name": "TAILWATER_FUNCTION_SOCKET", "value": pod_socket(Path::new(MOUNT))}),
        // A turn is a context switch, which this makes a tenth faster.
        json!({"name": "GLIBC_TUNABLES", "value": "glibc.pthread.rseq=0"}),
    ];
    env.extend(function.env.iter().map(|variable| json!(variable)));
    let secrets = function.image_pull_secrets.iter().map(|name| json!({"name": name}));
    let mut annotations: BTreeMap<String, String> = function.annotations.clone();
    annotations.insert(FUNCTION_ANNOTATION.to_owned(), pod.function.clone());
    let mut desired = json!({
        "metadata": {
            "name": pod.name, "namespace": namespace, "annotations": annotations,
            "labels": {INSTANCE_LABEL: instance.name_any(), "app.kubernetes.io/component": "function"},
            "ownerReferences": [owner],
        },
        "spec": {
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchFields": [
                    {"key": "metadata.name", "operator": "In", "values": [instance.spec.server]},
                ]},
            ]}}},
            "tolerations": [{"key": TAINT, "operator": "Exists"}],
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "restartPolicy": "Always",
            // Its processes have ended their work before, with the chain.
            "terminationGracePeriodSeconds": 2,
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": pod.user, "runAsGroup": pod.user,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "imagePullSecrets": secrets.collect::<Vec<_>>(),
            "containers": [{
                "name": "function", "image": function.image, "imagePullPolicy": function.image_pull_policy,
                "command": function.command, "args": function.args, "env": env,
                "resources": {"requests": requests, "limits": limits},
                "securityContext": {
                    "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [{"name": "socket", "mountPath": MOUNT, "readOnly": true}],
            }],
            "volumes": [{"name": "socket", "hostPath": {"path": folder, "type": "DirectoryOrCreate"}}],
        },
    });
    let templates = devices::claim(&mut desired, devices, instance, &owner);
    let mut hash = DefaultHasher::new();
    desired.to_string().hash(&mut hash);
    desired["metadata"]["annotations"][DIGEST_ANNOTATION] = json!(format!("{:016x}", hash.finish()));
    Some((serde_json::from_value(desired).ok()?, templates))
}
