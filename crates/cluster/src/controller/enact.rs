//! Changes of objects, carried out.

use super::objects::{Objects, full_name, sorted};
use super::writes::{Key, Write};
use crate::notices::Notices;
use crate::resources::{Chain, ChainInstance, Function, RackServer, ServerPool, Slo};
use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Requests to the API server at a time.
const AT_A_TIME: usize = 32;
/// Longest time of a request.
const REQUEST: Duration = Duration::from_secs(5);
/// Longest time for which the watch of instances may lag behind this controller's own writes.
const LAG: Duration = Duration::from_secs(10);

/// Carries out changes, and remembers the instances that it wrote until the watch has them.
pub(super) struct Enactor {
    client: Client,
    recorder: Recorder,
    notices: Notices,
    /// Instances as this controller wrote them, and when.
    own: HashMap<String, (Arc<ChainInstance>, Instant)>,
}

/// Outcome of a change.
enum Done {
    Written(Box<ChainInstance>),
    Deleted(String),
    Other,
    Failed(String),
}

impl Enactor {
    pub(super) fn new(client: Client, notices: Notices) -> Enactor {
        let reporter = Reporter {
            controller: "tailwater-controller".to_owned(),
            instance: None,
        };
        Enactor {
            recorder: Recorder::new(client.clone(), reporter),
            client,
            notices,
            own: HashMap::new(),
        }
    }

    /// Returns objects with this controller's own writes, as far as its watch does not have them yet: decisions on an
    /// older state would be made twice.
    pub(super) fn with_own_writes(&mut self, objects: &Objects) -> Objects {
        let mut objects = objects.clone();
        let mut index: HashMap<String, usize> = HashMap::new();
        for (at, instance) in objects.instances.iter().enumerate() {
            index.insert(full_name(&**instance), at);
        }
        self.own.retain(|_, (_, at)| at.elapsed() < LAG);
        let mut added = Vec::new();
        self.own.retain(|name, (own, _)| match index.get(name) {
            Some(&at) if is_newer(own, &objects.instances[at]) => {
                objects.instances[at] = Arc::clone(own);
                true
            }
            Some(_) => false,
            None => {
                added.push(Arc::clone(own));
                true
            }
        });
        objects.instances.extend(added);
        objects.instances = sorted(objects.instances);
        objects
    }

    /// Carries out changes, many at a time.
    pub(super) async fn enact(&mut self, writes: Vec<Write>) {
        let (client, recorder) = (&self.client, &self.recorder);
        let calls = writes.into_iter().map(|write| async move {
            match timeout(REQUEST, carry_out(client, recorder, write)).await {
                Ok(Ok(done)) => done,
                Ok(Err(error)) => failed(&error),
                Err(_) => Done::Failed("no answer of the API server".to_owned()),
            }
        });
        let done: Vec<Done> = futures::stream::iter(calls).buffered(AT_A_TIME).collect().await;
        for done in done {
            match done {
                Done::Written(instance) => {
                    self.own
                        .insert(full_name(&*instance), (Arc::new(*instance), Instant::now()));
                }
                Done::Deleted(name) => drop(self.own.remove(&name)),
                Done::Other => {}
                Done::Failed(reason) => self.notices.warn(&reason),
            }
        }
    }
}

/// Returns `true` if the first of two states of an object is the newer one.
fn is_newer(one: &ChainInstance, other: &ChainInstance) -> bool {
    let version = |instance: &ChainInstance| {
        instance
            .resource_version()
            .and_then(|version| version.parse::<u64>().ok())
    };
    one.uid() == other.uid() && version(one) > version(other)
}

fn failed(error: &kube::Error) -> Done {
    match error {
        // The object is gone, or another write was faster: the next round sees it.
        kube::Error::Api(status) if [404, 409].contains(&status.code) => Done::Other,
        error => Done::Failed(error.to_string()),
    }
}

async fn carry_out(client: &Client, recorder: &Recorder, write: Write) -> kube::Result<Done> {
    let parameters = PatchParams::default();
    let instances = |key: &Key| Api::<ChainInstance>::namespaced(client.clone(), &key.0);
    match write {
        Write::Create(instance) => {
            let namespace = instance.namespace().unwrap_or_default();
            let api = instances(&(namespace, String::new()));
            let created = api.create(&PostParams::default(), &instance).await?;
            Ok(Done::Written(Box::new(created)))
        }
        Write::Change { key, patch } => {
            let changed = instances(&key).patch(&key.1, &parameters, &Patch::Merge(patch)).await?;
            Ok(Done::Written(Box::new(changed)))
        }
        Write::Delete { key, at_once } => {
            let api = instances(&key);
            if at_once {
                let patch = json!({"metadata": {"finalizers": null}});
                api.patch(&key.1, &parameters, &Patch::Merge(patch)).await?;
            }
            api.delete(&key.1, &DeleteParams::default()).await?;
            Ok(Done::Deleted(format!("{}/{}", key.0, key.1)))
        }
        Write::Status { key, status } => {
            let api = Api::<Chain>::namespaced(client.clone(), &key.0);
            api.patch_status(&key.1, &parameters, &Patch::Merge(json!({ "status": status })))
                .await?;
            Ok(Done::Other)
        }
        Write::CreateJob(job) => {
            let api = Api::<Job>::namespaced(client.clone(), &job.namespace().unwrap_or_default());
            api.create(&PostParams::default(), &job).await?;
            Ok(Done::Other)
        }
        Write::CreatePod { pod, templates } => {
            let namespace = pod.namespace().unwrap_or_default();
            for template in &templates {
                let api = Api::<ResourceClaimTemplate>::namespaced(client.clone(), &namespace);
                match api.create(&PostParams::default(), template).await {
                    // An earlier pod of this name had the same claims.
                    Err(kube::Error::Api(status)) if status.code == 409 => {}
                    result => drop(result?),
                }
            }
            let api = Api::<Pod>::namespaced(client.clone(), &namespace);
            api.create(&PostParams::default(), &pod).await?;
            Ok(Done::Other)
        }
        Write::DeletePod { key, at_once } => {
            let api = Api::<Pod>::namespaced(client.clone(), &key.0);
            let parameters = DeleteParams {
                grace_period_seconds: at_once.then_some(0),
                ..DeleteParams::default()
            };
            api.delete(&key.1, &parameters).await?;
            Ok(Done::Other)
        }
        Write::FunctionStatus { key, status } => {
            let api = Api::<Function>::namespaced(client.clone(), &key.0);
            let patch = Patch::Merge(json!({ "status": status }));
            api.patch_status(&key.1, &parameters, &patch).await?;
            Ok(Done::Other)
        }
        Write::PoolStatus { name, status } => {
            let api = Api::<ServerPool>::all(client.clone());
            let patch = Patch::Merge(json!({ "status": status }));
            api.patch_status(&name, &parameters, &patch).await?;
            Ok(Done::Other)
        }
        Write::SloStatus { key, status } => {
            let api = Api::<Slo>::namespaced(client.clone(), &key.0);
            let patch = Patch::Merge(json!({ "status": status }));
            api.patch_status(&key.1, &parameters, &patch).await?;
            Ok(Done::Other)
        }
        Write::Server { name, conditions } => {
            let api = Api::<RackServer>::all(client.clone());
            let patch = json!({"status": {"conditions": conditions}});
            api.patch_status(&name, &parameters, &Patch::Merge(patch)).await?;
            Ok(Done::Other)
        }
        Write::Event {
            chain,
            warning,
            reason,
            note,
        } => {
            let event = Event {
                type_: if warning { EventType::Warning } else { EventType::Normal },
                reason,
                note: Some(note),
                action: "Reconcile".to_owned(),
                secondary: None,
            };
            recorder.publish(&event, &chain.object_ref(&())).await?;
            Ok(Done::Other)
        }
    }
}
