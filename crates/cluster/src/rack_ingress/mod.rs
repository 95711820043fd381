//! Ingress of a rack on Kubernetes: the [OpenFlow one](crate::ingress), with chains and instances from the API server.
//!
//! To the ingress, each instance is a server of its own: the switch writes the instance's MAC address into packets, by
//! which its server knows their chain. Servers tell directly that they live; an instance whose server is silent loses
//! its rows at once, before the controller knows.
//!
//! Whether packets are steered to an instance is part of its status: one that drains is deleted when there are none.

mod feed;

pub use feed::Feed;

use crate::controller::chains::Chains;
use crate::controller::{DocumentReader, Objects};
use crate::ingress::{self, Input, LossCause, Output, SteeringConfig, Switch};
use crate::notices::Notices;
use crate::reports::AgentReport;
use crate::resources::ChainInstance;
use crate::watching::watch_into;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tailwater_policy::server::{IngressConfig, ServerNumber};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{interval, sleep, timeout};

/// Most messages that wait between the ingress and this part.
const WAITING: usize = 4096;
/// Interval at which objects are looked at though nothing has changed.
const LOOK: Duration = Duration::from_secs(5);
/// Wait after a request to the API server has failed.
const RETRY: Duration = Duration::from_secs(1);
/// Longest time of a request to the API server.
const REQUEST: Duration = Duration::from_secs(5);

/// Configuration of a rack's ingress.
#[derive(Clone, Debug)]
pub struct RackIngressConfig {
    /// Steering and its switch.
    pub steering: SteeringConfig,
    /// Mapper of every chain.
    pub mapping: IngressConfig,
}

/// Runs the ingress until `stop` is set. The switch's rules stay in force after that.
pub async fn run(
    client: Client,
    config: RackIngressConfig,
    switch: impl Switch + 'static,
    mut reports: mpsc::Receiver<AgentReport>,
    notices: Notices,
    stop: watch::Receiver<bool>,
) {
    let changed = Arc::new(Notify::new());
    let everything = watcher::Config::default;
    let (chains, watch_chains) = watch_into(Api::all(client.clone()), everything(), &changed, &notices);
    let (instances, watch_instances) = watch_into(Api::all(client.clone()), everything(), &changed, &notices);
    let (servers, watch_servers) = watch_into(Api::all(client.clone()), everything(), &changed, &notices);
    let objects = || Objects {
        chains: crate::controller::sorted(chains.all()),
        instances: crate::controller::sorted(instances.all()),
        servers: crate::controller::sorted(servers.all()),
        ..Objects::default()
    };
    let steering = async {
        // Rows that the switch has can only be kept for instances that are known.
        chains.ready().await;
        instances.ready().await;
        servers.ready().await;
        let mut read = Chains::new(Arc::new(DocumentReader));
        let mut feed = Feed::new(config.mapping);
        let now = objects();
        read.read(&now);
        let known = feed.update(&now, &read);
        let (inputs, to_ingress) = mpsc::channel(WAITING);
        let (to_owner, mut outputs) = mpsc::channel(WAITING);
        let mut ending = stop.clone();
        let end = async move {
            let _ = ending.wait_for(|stop| *stop).await;
        };
        let steering = tokio::spawn(ingress::run(config.steering, known, switch, to_ingress, to_owner, end));
        let (steered, to_tell) = watch::channel(Steered::new());
        let telling = tokio::spawn(tell(client.clone(), to_tell, notices.clone()));
        let mut look = interval(LOOK);
        loop {
            let next: Vec<Input> = tokio::select! {
                () = changed.notified() => update(&mut feed, &mut read, &objects()),
                _ = look.tick() => update(&mut feed, &mut read, &objects()),
                Some(report) = reports.recv() => feed.report(&report),
                output = outputs.recv() => match output {
                    None => break,
                    Some(output) => {
                        note(&feed, &output, &steered, &notices);
                        Vec::new()
                    }
                },
            };
            if feed.is_exhausted() {
                notices.warn("there have been too many instances for one ingress: it ends, and a new one goes on");
                break;
            }
            for input in next {
                if inputs.send(input).await.is_err() {
                    break;
                }
            }
            steered.send_if_modified(|steered| {
                let before = steered.len();
                steered.retain(|name, _| feed.instances().any(|(known, _)| known == name));
                steered.len() != before
            });
        }
        drop(inputs);
        let _ = steering.await;
        telling.abort();
    };
    let watching = futures::future::join3(watch_chains, watch_instances, watch_servers);
    let mut ending = stop.clone();
    tokio::select! {
        _ = watching => {}
        () = steering => {}
        // The loop ends with the ingress; before it has begun there is nothing to end.
        () = async {
            let _ = ending.wait_for(|stop| *stop).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
        } => {}
    }
}

fn update(feed: &mut Feed, read: &mut Chains, objects: &Objects) -> Vec<Input> {
    read.read(objects);
    feed.update(objects, read)
}

/// Whether packets are steered to instances, by namespace and name.
type Steered = BTreeMap<String, bool>;

/// Takes an output of the ingress.
fn note(feed: &Feed, output: &Output, steered: &watch::Sender<Steered>, notices: &Notices) {
    let set = |number: ServerNumber, is_steered: bool| {
        if let Some(name) = feed.name_of(number) {
            steered.send_modify(|steered| {
                steered.insert(name.to_owned(), is_steered);
            });
        }
    };
    match output {
        Output::ServerUsable(server) => set(*server, true),
        Output::ServerDrained(server) => set(*server, false),
        Output::ServerLost { server, cause } => {
            set(*server, false);
            let why = match cause {
                LossCause::PortDown => "its switch port is down, or does not exist",
                LossCause::Silent => "its server is silent",
                LossCause::NotReady => "it is not ready any more",
            };
            let name = feed.name_of(*server).unwrap_or("that is gone");
            notices.warn(&format!("instance {name} has no packets: {why}"));
        }
        Output::Disconnected { reason } => notices.warn(&format!("the switch is away: {reason}")),
        Output::Problem(problem) => notices.warn(&problem.to_string()),
        _ => {}
    }
}

/// Writes into instances' statuses whether packets are steered to them, beside the steering, which must not wait for
/// the API server.
async fn tell(client: Client, mut steered: watch::Receiver<Steered>, notices: Notices) {
    let mut told = Steered::new();
    loop {
        let now = steered.borrow_and_update().clone();
        let mut has_failed = false;
        for (name, is_steered) in &now {
            if told.get(name) == Some(is_steered) {
                continue;
            }
            let (namespace, short) = name.split_once('/').unwrap_or_default();
            let api: Api<ChainInstance> = Api::namespaced(client.clone(), namespace);
            let patch = Patch::Merge(json!({"status": {"steered": is_steered}}));
            match timeout(REQUEST, api.patch_status(short, &PatchParams::default(), &patch)).await {
                Ok(Ok(_)) => {}
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => {}
                Ok(Err(error)) => {
                    notices.warn(&format!("instance {name}: {error}"));
                    has_failed = true;
                    continue;
                }
                Err(_) => {
                    notices.warn("no answer of the API server");
                    has_failed = true;
                    break;
                }
            }
            told.insert(name.clone(), *is_steered);
        }
        told.retain(|name, _| now.contains_key(name));
        if has_failed {
            sleep(RETRY).await;
        } else if steered.changed().await.is_err() {
            return;
        }
    }
}
