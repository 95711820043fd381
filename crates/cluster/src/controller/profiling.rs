//! Profiles on demand: a Job measures a chain on a server of its pool, and writes its Profile.
//!
//! One Job for each generation of a chain and each machine of its servers that no profile is of. Its name says so: the
//! API server refuses a second one. A Job that failed is remembered in the chain's condition when it is gone.

use super::chains::{Chains, manifest_of};
use super::objects::{Objects, full_name};
use super::pools::Pools;
use super::seen::Servers;
use super::write::Write;
use crate::resources::{Chain, ChainStatus, PROFILE_LABEL, RackServer, references, set_condition};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;
use kube::{Resource, ResourceExt};
use serde_json::json;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;
use tailwater_net::Nanos;

/// Condition of chains.
const CONDITION: &str = "Profiled";
/// Service account of the Jobs, in the namespace of each.
const ACCOUNT: &str = "tailwater-profiler";
/// Annotation of the Jobs' pods: the chain's manifest.
const CHAIN_ANNOTATION: &str = "tailwater.dev/chain";
/// Key of the taint that operators may give to the rack's servers.
const TAINT: &str = "tailwater.dev/server";
/// Longest name of a chain: with a hyphen, ten digits, and what Kubernetes adds, a pod has 63 characters.
const LONGEST_NAME: usize = 46;
/// Longest manifest: annotations of a pod have 256 KiB.
const LONGEST_MANIFEST: usize = 200 << 10;
/// Most servers that a Job may run on; the scheduler chooses one.
const MOST_SERVERS: usize = 8;
/// Longest time for which the watch of Jobs may lag behind this controller's own writes.
const LAG: Nanos = Nanos::from_secs(10);
/// Time for which an ended Job is kept, in seconds.
const KEPT: u64 = 3600;
/// Between the texts of several Jobs in a condition.
const BETWEEN: &str = " | ";

/// Settings of the Jobs.
#[derive(Clone, Debug)]
pub struct ProfilingConfig {
    /// Image with this program.
    pub image: String,
    /// Namespaces whose chains are measured.
    pub namespaces: Vec<String>,
    /// Most Jobs at a time.
    pub at_a_time: usize,
    /// Time limit of a Job.
    pub time_limit: Duration,
    /// Processors of a Job: one for the chain, one for the pirate that occupies the cache.
    pub cpu: String,
    /// Memory of a Job.
    pub memory: String,
}

/// Starts Jobs. Remembers those that the watch may not have yet.
#[derive(Debug)]
pub(super) struct Profiler {
    config: ProfilingConfig,
    started: HashMap<String, Nanos>,
}

/// Profiling of chains at one time.
#[derive(Debug, Default)]
pub struct Profiling {
    is_on: bool,
    /// By chain: its state, or `None` for a chain that is not measured. Nothing is known of others.
    states: HashMap<String, Option<State>>,
    /// Jobs to create.
    jobs: Vec<Job>,
}

/// State of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// There are profiles of all machines.
    Profiled,
    /// A Job measures it, or waits for others: which, one line.
    Running(String),
    /// A Job failed: which, why, and what to do, one line.
    Failed(String),
}

/// Outcome of a Job.
enum Outcome {
    Running,
    Complete,
    Failed(String),
}

impl Profiler {
    pub(super) fn new(config: ProfilingConfig) -> Profiler {
        Profiler {
            config,
            started: HashMap::new(),
        }
    }

    /// Decides which Jobs to start.
    pub(super) fn decide(
        &mut self,
        objects: &Objects,
        chains: &Chains,
        (servers, pools): (&Servers, &Pools),
        now: Nanos,
    ) -> Profiling {
        let mut profiling = Profiling {
            is_on: true,
            ..Profiling::default()
        };
        let Some(jobs) = &objects.jobs else {
            return profiling;
        };
        let jobs: HashMap<String, &Arc<Job>> = jobs.iter().map(|job| (full_name(&**job), job)).collect();
        let profiles: HashSet<String> = objects.profiles.iter().map(|profile| full_name(&**profile)).collect();
        self.started
            .retain(|name, at| !jobs.contains_key(name) && now.saturating_sub(*at) < LAG);
        let under_way = jobs.values().filter(|job| matches!(outcome(job), Outcome::Running));
        let mut at_a_time = under_way.count() + self.started.len();
        let loads = loads(objects);
        for chain in &objects.chains {
            let (name, namespace) = (full_name(&**chain), chain.namespace().unwrap_or_default());
            // There is no profile of a function in a process of its own.
            if !self.config.namespaces.contains(&namespace) || !references(&chain.spec.local).is_empty() {
                profiling.states.insert(name, None);
                continue;
            }
            let (Some(Ok(_)), Some(read)) = (chains.facts(&name), chains.get(&name)) else {
                continue;
            };
            let pool = chain.spec.pool.as_deref();
            let mut machines: BTreeMap<String, Vec<&RackServer>> = BTreeMap::new();
            for server in &objects.servers {
                let is_usable = is_usable(server, servers) && pools.has(pool, &server.name_any());
                let machine = server.status.as_ref().map(|status| status.machine.clone());
                if let Some(machine) = machine.filter(|machine| is_usable && !machine.is_empty()) {
                    machines.entry(machine).or_default().push(server);
                }
            }
            if machines.is_empty() {
                continue;
            }
            machines.retain(|machine, _| read.curves.iter().all(|curves| curves.machine != *machine));
            let (mut running, mut failed) = (Vec::new(), Vec::new());
            for (machine, mut servers) in machines {
                let job = job_name(chain, &machine);
                let full = format!("{namespace}/{job}");
                if profiles.contains(&full) {
                    // It cannot be used: `Placed` says why.
                    continue;
                }
                match jobs.get(&full).map(|job| outcome(job)) {
                    Some(Outcome::Running) => running.push(format!("{job} measures it on {machine}")),
                    Some(Outcome::Complete) => running.push(format!("{job} has measured it on {machine}")),
                    Some(Outcome::Failed(message)) => failed.push(failure(&namespace, &job, &message)),
                    None => {
                        if let Some(text) = failed_before(chain, &job) {
                            failed.push(text);
                            continue;
                        }
                        if self.started.contains_key(&full) {
                            running.push(format!("{job} measures it on {machine}"));
                            continue;
                        }
                        if at_a_time >= self.config.at_a_time {
                            running.push(format!("{job} waits until others have ended"));
                            continue;
                        }
                        servers.sort_by_cached_key(|server| {
                            let name = server.name_any();
                            (loads.get(&name).copied().unwrap_or_default(), name)
                        });
                        match self.job(chain, &job, &servers) {
                            Ok(new) => {
                                running.push(format!("{job} measures it on {machine}"));
                                profiling.jobs.push(new);
                                self.started.insert(full, now);
                                at_a_time += 1;
                            }
                            Err(message) => failed.push(format!("{job}: {message}")),
                        }
                    }
                }
            }
            let state = match (failed.is_empty(), running.is_empty()) {
                (false, _) => State::Failed(failed.join(BETWEEN)),
                (true, false) => State::Running(running.join(BETWEEN)),
                (true, true) => State::Profiled,
            };
            profiling.states.insert(name, Some(state));
        }
        profiling
    }

    /// Job that measures a chain on one of these servers.
    fn job(&self, chain: &Chain, name: &str, servers: &[&RackServer]) -> Result<Job, String> {
        let chain_name = chain.name_any();
        if chain_name.len() > LONGEST_NAME {
            return Err(format!(
                "expected a chain's name of at most {LONGEST_NAME} characters, or a Profile of yours"
            ));
        }
        let manifest = manifest_of(&chain_name, &chain.spec.local);
        if manifest.len() > LONGEST_MANIFEST {
            return Err(format!(
                "expected a chain of at most {LONGEST_MANIFEST} bytes, or a Profile of yours"
            ));
        }
        let namespace = chain.namespace().unwrap_or_default();
        let owner = chain.controller_owner_ref(&()).map(|owner| OwnerReference {
            block_owner_deletion: None,
            ..owner
        });
        let term = |server: &&RackServer| {
            let node = json!({"key": "metadata.name", "operator": "In", "values": [server.name_any()]});
            json!({"matchFields": [node]})
        };
        let terms: Vec<_> = servers.iter().take(MOST_SERVERS).map(term).collect();
        let resources = json!({"cpu": self.config.cpu, "memory": self.config.memory});
        let labels = json!({PROFILE_LABEL: chain_name, "app.kubernetes.io/component": "profiler"});
        let job = json!({
            "metadata": {
                "name": name, "namespace": namespace, "labels": labels,
                "ownerReferences": owner.into_iter().collect::<Vec<_>>(),
            },
            "spec": {
                "backoffLimit": 1,
                "activeDeadlineSeconds": self.config.time_limit.as_secs().max(1),
                "ttlSecondsAfterFinished": KEPT,
                "template": {
                    "metadata": {"labels": labels, "annotations": {CHAIN_ANNOTATION: manifest}},
                    "spec": {
                        "restartPolicy": "Never",
                        "serviceAccountName": ACCOUNT,
                        "enableServiceLinks": false,
                        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": terms,
                        }}},
                        "tolerations": [{"key": TAINT, "operator": "Exists"}],
                        "securityContext": {
                            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
                            "seccompProfile": {"type": "RuntimeDefault"},
                        },
                        "containers": [{
                            "name": "profiler",
                            "image": self.config.image,
                            "args": [
                                "profile", "publish", "/etc/tailwater/chain.yaml",
                                "--profile", format!("{namespace}/{name}"), "--file", "/tmp/curves.yaml",
                                // The traffic that is measured with has other addresses.
                                "--all-packets",
                            ],
                            // Equal ones: the static CPU manager gives it processors of its own.
                            "resources": {"requests": resources, "limits": resources},
                            "terminationMessagePolicy": "FallbackToLogsOnError",
                            "securityContext": {
                                "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                                "capabilities": {"drop": ["ALL"]},
                            },
                            "volumeMounts": [
                                {"name": "chain", "mountPath": "/etc/tailwater", "readOnly": true},
                                {"name": "tmp", "mountPath": "/tmp"},
                            ],
                        }],
                        "volumes": [
                            {"name": "chain", "downwardAPI": {"items": [{
                                "path": "chain.yaml",
                                "fieldRef": {"fieldPath": format!("metadata.annotations['{CHAIN_ANNOTATION}']")},
                            }]}},
                            {"name": "tmp", "emptyDir": {}},
                        ],
                    },
                },
            },
        });
        serde_json::from_value(job).map_err(|error| error.to_string())
    }
}

impl Profiling {
    /// Returns the Jobs to create.
    pub(super) fn writes(&self) -> impl Iterator<Item = Write> {
        self.jobs.iter().map(|job| Write::CreateJob(Box::new(job.clone())))
    }

    /// Sets the condition of a chain, and removes it from chains that are not measured.
    pub(super) fn tell(&self, chain: &Chain, status: &mut ChainStatus, now: Timestamp) {
        let new = match self.states.get(&full_name(chain)) {
            None if self.is_on => return,
            None | Some(None) => {
                status.conditions.retain(|condition| condition.name != CONDITION);
                return;
            }
            Some(Some(State::Profiled)) => (CONDITION, true, "Profiled", ""),
            Some(Some(State::Running(text))) => (CONDITION, false, "Profiling", &**text),
            Some(Some(State::Failed(text))) => (CONDITION, false, "ProfileFailed", &**text),
        };
        set_condition(&mut status.conditions, now, new, chain.metadata.generation);
        if !new.1 && status.reason.is_empty() {
            status.reason = new.2.to_owned();
        }
    }
}

/// Name of the Job that measures this generation of a chain on a machine, and of its Profile: that of the chain, a
/// hyphen, and ten digits. The policy of the Jobs' account relies on this form.
fn job_name(chain: &Chain, machine: &str) -> String {
    let mut hash = DefaultHasher::new();
    (chain.uid(), chain.metadata.generation, machine).hash(&mut hash);
    format!("{}-{:010x}", chain.name_any(), hash.finish() >> 24)
}

fn outcome(job: &Job) -> Outcome {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    let holds = |name: &str| {
        let mut conditions = conditions.into_iter().flatten();
        conditions.find(|condition| condition.type_ == name && condition.status == "True")
    };
    match (holds("Failed"), holds("Complete")) {
        (Some(failed), _) => Outcome::Failed(failed.message.clone().unwrap_or_default()),
        (None, Some(_)) => Outcome::Complete,
        (None, None) => Outcome::Running,
    }
}

fn failure(namespace: &str, job: &str, message: &str) -> String {
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    format!(
        "{job}: {message}. See kubectl -n {namespace} logs job/{job}, then change the chain, or measure it by hand and \
         apply a Profile"
    )
}

/// Text of the chain's condition about a Job that failed, and is gone.
fn failed_before(chain: &Chain, job: &str) -> Option<String> {
    let conditions = &chain.status.as_ref()?.conditions;
    let failed = conditions
        .iter()
        .find(|condition| condition.name == CONDITION && condition.reason == "ProfileFailed")?;
    let mut texts = failed.message.split(BETWEEN);
    texts.find(|text| text.starts_with(job)).map(str::to_owned)
}

fn is_usable(server: &RackServer, servers: &Servers) -> bool {
    let name = server.name_any();
    servers.last_seen(&name).is_some() && !servers.is_lost(&name) && !server.spec.unschedulable
}

/// Number of instances on each server.
fn loads(objects: &Objects) -> HashMap<String, usize> {
    let mut loads = HashMap::new();
    for instance in &objects.instances {
        *loads.entry(instance.spec.server.clone()).or_default() += 1;
    }
    loads
}
