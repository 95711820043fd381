//! Ingress of a rack on Kubernetes: the [ingress](crate::ingress), with chains and instances from the API server.
//!
//! To the ingress, each instance is a server of its own: the switch writes the instance's MAC address into packets, by
//! which its server knows their chain. Servers tell directly that they live; an instance whose server is silent loses
//! its rows at once, before the controller knows.
//!
//! Whether packets are steered to an instance is part of its status: one that drains is deleted when there are none.

mod feed;

pub use feed::{AgentReport, Feed};

use crate::controller::chains::Chains;
use crate::controller::{DocumentReader, Objects};
use crate::ingress::{self, Input, LossCause, Output, SteeringConfig, Switch};
use crate::notices::Notices;
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
use tokio::time::{interval, timeout};

/// Most messages that wait between the ingress and this part.
const WAITING: usize = 4096;
/// Interval at which objects are looked at though nothing has changed.
const LOOK: Duration = Duration::from_secs(5);
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
    switch: impl Switch + Send + 'static,
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
        let mut steered = Steered::new(client.clone(), notices.clone());
        let mut look = interval(LOOK);
        loop {
            let next: Vec<Input> = tokio::select! {
                () = changed.notified() => update(&mut feed, &mut read, &objects()),
                _ = look.tick() => update(&mut feed, &mut read, &objects()),
                Some(report) = reports.recv() => feed.report(&report),
                output = outputs.recv() => match output {
                    None => break,
                    Some(output) => {
                        steered.note(&feed, &output);
                        Vec::new()
                    }
                },
            };
            for input in next {
                if inputs.send(input).await.is_err() {
                    break;
                }
            }
            steered.tell(&feed).await;
        }
        let _ = steering.await;
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

/// What instances' statuses say of the ingress: packets are steered to them, or not.
struct Steered {
    client: Client,
    notices: Notices,
    /// By instance's number, as the ingress has told.
    now: BTreeMap<ServerNumber, bool>,
    told: BTreeMap<String, bool>,
}

impl Steered {
    fn new(client: Client, notices: Notices) -> Steered {
        Steered {
            client,
            notices,
            now: BTreeMap::new(),
            told: BTreeMap::new(),
        }
    }

    /// Takes an output of the ingress.
    fn note(&mut self, feed: &Feed, output: &Output) {
        let name = |number| feed.name_of(number).unwrap_or("an instance that is gone").to_owned();
        match output {
            Output::ServerUsable(server) => drop(self.now.insert(*server, true)),
            Output::ServerDrained(server) => drop(self.now.insert(*server, false)),
            Output::ServerLost { server, cause } => {
                self.now.insert(*server, false);
                let why = match cause {
                    LossCause::PortDown => "its switch port is down, or does not exist",
                    LossCause::Silent => "its server is silent",
                    LossCause::NotReady => "it is not ready any more",
                };
                self.notices
                    .warn(&format!("instance {} has no packets: {why}", name(*server)));
            }
            Output::Disconnected { reason } => self.notices.warn(&format!("the switch is away: {reason}")),
            Output::Problem(problem) => self.notices.warn(&problem.to_string()),
            _ => {}
        }
    }

    /// Writes what has changed.
    async fn tell(&mut self, feed: &Feed) {
        let known: BTreeMap<&str, ServerNumber> = feed.instances().collect();
        self.told.retain(|name, _| known.contains_key(&**name));
        self.now.retain(|number, _| known.values().any(|known| known == number));
        for (name, number) in known {
            let Some(steered) = self.now.get(&number).copied() else {
                continue;
            };
            if self.told.get(name) == Some(&steered) {
                continue;
            }
            let (namespace, short) = name.split_once('/').unwrap_or_default();
            let api: Api<ChainInstance> = Api::namespaced(self.client.clone(), namespace);
            let patch = Patch::Merge(json!({"status": {"steered": steered}}));
            match timeout(REQUEST, api.patch_status(short, &PatchParams::default(), &patch)).await {
                Ok(Ok(_)) => drop(self.told.insert(name.to_owned(), steered)),
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => {}
                Ok(Err(error)) => self.notices.warn(&format!("instance {name}: {error}")),
                Err(_) => self.notices.warn("no answer of the API server"),
            }
        }
    }
}
