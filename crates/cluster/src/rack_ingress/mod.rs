//! Ingress of a rack on Kubernetes: the [OpenFlow one](crate::ingress), with chains and instances from the API server.
//!
//! To the ingress, each instance is a server of its own: the switch writes the instance's MAC address into packets, by
//! which its server knows their chain. Servers tell directly that they live; an instance whose server is silent loses
//! its rows at once, before the controller knows.
//!
//! Whether packets are steered to an instance is part of its status: one that drains is deleted when there are none.

mod feed;
mod telling;

pub use feed::Feed;

use crate::controller::chains::Chains;
use crate::controller::slos::with_any_slo;
use crate::controller::{DocumentReader, Objects};
use crate::ingress::{self, Input, LossCause, Output, SteeringConfig, Switch};
use crate::notices::Notices;
use crate::reports::AgentReport;
use crate::watching::watch_into;
use kube::runtime::watcher;
use kube::{Api, Client};
use std::sync::Arc;
use std::time::Duration;
use tailwater_policy::server::IngressConfig;
use telling::{Said, Steered, tell};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::interval;

/// Most messages that wait between the ingress and this part.
const WAITING: usize = 4096;
/// Interval at which objects are looked at though nothing has changed.
const LOOK: Duration = Duration::from_secs(5);

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
    let objects = || {
        let mut chains = crate::controller::sorted(chains.all());
        with_any_slo(&mut chains);
        Objects {
            chains,
            instances: crate::controller::sorted(instances.all()),
            servers: crate::controller::sorted(servers.all()),
            ..Objects::default()
        }
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
        let (mut said, mut is_told) = (Said::default(), true);
        let (steered, to_tell) = watch::channel(Steered::new());
        let telling = tokio::spawn(tell(client.clone(), to_tell, notices.clone()));
        let mut look = interval(LOOK);
        loop {
            let next: Vec<Input> = tokio::select! {
                () = changed.notified() => {
                    is_told = false;
                    update(&mut feed, &mut read, &objects())
                }
                _ = look.tick() => {
                    is_told = false;
                    update(&mut feed, &mut read, &objects())
                }
                Some(report) = reports.recv() => feed.report(&report),
                output = outputs.recv() => match output {
                    None => break,
                    Some(output) => {
                        warn(&feed, &output, &notices);
                        is_told &= !said.take(&output);
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
            if !std::mem::replace(&mut is_told, true) {
                let now = said.of(&feed);
                steered.send_if_modified(|before| {
                    let has_changed = *before != now;
                    *before = now;
                    has_changed
                });
            }
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

/// Warns of what an operator should see in an output of the ingress.
fn warn(feed: &Feed, output: &Output, notices: &Notices) {
    match output {
        Output::ServerLost { server, cause } => {
            // One that was removed in good order is missed by nobody.
            let Some(name) = feed.name_of(*server) else { return };
            let why = match cause {
                LossCause::PortDown => "its switch port is down, or does not exist",
                LossCause::Silent => "its server is silent",
                LossCause::NotReady => "it is not ready any more",
            };
            notices.warn(&format!("instance {name} has no packets: {why}"));
        }
        Output::ChainRefused { chain, why, is_steered } => {
            let so = match is_steered {
                true => "it is steered by its spec.match of before",
                false => "it has no packets",
            };
            notices.warn(&format!("chain {chain}: {why}; {so}"));
        }
        Output::Disconnected { reason } => notices.warn(&format!("the switch is away: {reason}")),
        Output::Problem(problem) => notices.warn(&problem.to_string()),
        _ => {}
    }
}
