//! Controller of a rack: from chains, servers and their reports to instances.
//!
//! One controller of several [leads](crate::leader). In each round it makes a view of the rack from what the API server
//! has, asks the rack's policy ([`tailwater_placement::rack`]) for actions, and carries them out. It holds nothing that
//! cannot be found again: demand of the last minutes, and times.
//!
//! - [`chains`]: which chains are valid, and what they need;
//! - `definitions`: whether the API server has the kinds of this version;
//! - `devices`: devices that pods claim;
//! - [`view`]: from objects to the policy's view;
//! - [`writes`]: from the policy's plan to changes of objects;
//! - `slos`: objectives that chains share;
//! - [`pools`]: which servers belong to which pools;
//! - [`profiling`]: Jobs that measure profiles;
//! - [`pods`]: pods of the instances' functions;
//! - [`status`]: conditions of chains.

mod better;
pub mod chains;
mod definitions;
mod demand;
mod devices;
mod enact;
mod objects;
pub mod pods;
pub mod pools;
pub mod profiling;
mod seen;
pub(crate) mod slos;
pub mod status;
pub mod view;
mod write;
pub mod writes;

pub use better::BetterPlans;
pub use chains::{ChainFacts, ChainReader, DocumentReader};
pub(crate) use objects::sorted;
pub use objects::{FunctionObjects, Objects, full_name};
pub use profiling::ProfilingConfig;

use crate::leader::{ElectionConfig, campaign};
use crate::notices::Notices;
use crate::resources::{DEFINITION_LABEL, INSTANCE_LABEL, PROFILE_LABEL};
use crate::watching::watch_into;
use better::Search;
use chains::Chains;
use definitions::Definitions;
use enact::Enactor;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::runtime::watcher;
use kube::{Api, Client};
use pools::Pools;
use profiling::{Profiler, Profiling};
use seen::Servers;
use slos::Slos;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailwater_net::Nanos;
use tailwater_placement::rack::{RackController, RackOptions, ScalingPolicy};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use view::Views;

/// Configuration of a controller.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// Election of the leader; its namespace is that of the servers' leases, too.
    pub election: ElectionConfig,
    /// Longest time between rounds.
    pub period: Duration,
    /// Shortest time between rounds.
    pub pause: Duration,
    /// Longest time that an instance drains.
    pub drain: Duration,
    /// Time whose highest demand a chain on demand is given cores for.
    pub peak: Duration,
    /// Search for plans with fewer servers, if there is to be one.
    pub better: Option<BetterPlans>,
    /// Jobs that measure missing profiles, if there are to be any.
    pub profiling: Option<ProfilingConfig>,
    /// Definitions of the kinds of this version.
    pub definitions: Vec<CustomResourceDefinition>,
    /// Limits of the policy.
    pub options: RackOptions,
}

/// Runs the controller until `stop` is set.
pub async fn run(
    client: Client,
    config: ControllerConfig,
    policy: impl Fn() -> Box<dyn ScalingPolicy>,
    reader: Arc<dyn ChainReader>,
    notices: Notices,
    stop: watch::Receiver<bool>,
) {
    let changed = Arc::new(Notify::new());
    let everything = watcher::Config::default;
    let namespace = &config.election.namespace;
    let (chains, watch_chains) = watch_into(Api::all(client.clone()), everything(), &changed, &notices);
    let (instances, watch_instances) = watch_into(Api::all(client.clone()), everything(), &changed, &notices);
    let (servers, watch_servers) = watch_into(Api::all(client.clone()), everything(), &changed, &notices);
    let (profiles, watch_profiles) = watch_into(Api::all(client.clone()), everything(), &changed, &notices);
    let (functions, watch_functions) = watch_into(Api::all(client.clone()), everything(), &changed, &notices);
    let of_functions = watcher::Config::default().labels(INSTANCE_LABEL);
    let (pods, watch_pods) = watch_into(Api::all(client.clone()), of_functions, &changed, &notices);
    let (pools, watch_pools) = watch_into(Api::all(client.clone()), everything(), &changed, &notices);
    let (slos, watch_slos) = watch_into(Api::all(client.clone()), everything(), &changed, &notices);
    let of_profiles = watcher::Config::default().labels(PROFILE_LABEL);
    let (jobs, watch_jobs) = watch_into(Api::all(client.clone()), of_profiles, &changed, &notices);
    // Most clusters have none, or are too old for them: what a pool misses is told in its status.
    let silent = Notices::new(|_| {});
    let (device_classes, watch_classes) = watch_into(Api::all(client.clone()), everything(), &changed, &silent);
    let marked = watcher::Config::default().labels(DEFINITION_LABEL);
    let (definitions, watch_definitions) = watch_into(Api::all(client.clone()), marked, &changed, &silent);
    let watch_rare = futures::future::join(watch_classes, watch_definitions);
    let is_profiling = config.profiling.is_some();
    // Without them the controller needs no rights on Jobs.
    let watch_jobs = async move {
        match is_profiling {
            true => watch_jobs.await,
            false => std::future::pending().await,
        }
    };
    let watch_others = futures::future::join5(watch_functions, watch_pods, watch_pools, watch_jobs, watch_slos);
    let leases = Api::namespaced(client.clone(), namespace);
    // Renewals are no changes.
    let (leases, watch_leases) = watch_into(leases, everything(), &Arc::new(Notify::new()), &notices);
    let objects = objects::Watches {
        chains,
        instances,
        servers,
        pools,
        slos,
        profiles,
        leases,
        functions,
        pods,
        jobs,
        device_classes,
        definitions,
    };
    let (leading, is_leading) = watch::channel(false);
    let rounds = Rounds {
        client: client.clone(),
        config: &config,
        objects,
        reader,
        notices,
        is_leading,
    };
    let mut ending = stop.clone();
    tokio::select! {
        _ = futures::future::join5(watch_chains, watch_instances, watch_servers, watch_profiles, watch_leases) => {}
        _ = watch_others => {}
        _ = watch_rare => {}
        () = rounds.run(&changed, policy) => {}
        _ = ending.wait_for(|stop| *stop) => {}
        () = campaign(client.clone(), &config.election, &leading, stop) => return,
    }
    // The lease is given back.
    let (_stop, stopped) = watch::channel(true);
    campaign(client, &config.election, &leading, stopped).await;
}

struct Rounds<'c> {
    client: Client,
    config: &'c ControllerConfig,
    objects: objects::Watches,
    reader: Arc<dyn ChainReader>,
    notices: Notices,
    is_leading: watch::Receiver<bool>,
}

impl Rounds<'_> {
    async fn run(mut self, changed: &Notify, policy: impl Fn() -> Box<dyn ScalingPolicy>) {
        self.objects.ready().await;
        loop {
            if self.is_leading.wait_for(|leads| *leads).await.is_err() {
                return;
            }
            let mut is_leading = self.is_leading.clone();
            tokio::select! {
                // Requests under way are dropped: somebody else may lead.
                _ = is_leading.wait_for(|leads| !*leads) => {}
                () = self.lead(changed, policy()) => {}
            }
        }
    }

    /// Rounds of a term, which begins without any knowledge but that of the API server.
    async fn lead(&self, changed: &Notify, policy: Box<dyn ScalingPolicy>) {
        let began = Instant::now();
        let mut term = Term {
            chains: Chains::new(Arc::clone(&self.reader)),
            servers: Servers::new(self.config.options.lost_after),
            views: Views::new(self.config.drain, self.config.peak),
            controller: RackController::new(self.config.options, policy),
            search: self.config.better.map(Search::new),
            profiler: self.config.profiling.clone().map(Profiler::new),
            enactor: Enactor::new(self.client.clone(), self.notices.clone()),
        };
        loop {
            let now = Nanos(began.elapsed().as_nanos() as u64);
            let round = Instant::now();
            term.round(&self.objects.read(), now, self.config).await;
            let pause = self.config.pause.saturating_sub(round.elapsed());
            sleep(pause).await;
            tokio::select! {
                () = changed.notified() => {}
                () = sleep(self.config.period.saturating_sub(round.elapsed())) => {}
            }
        }
    }
}

/// Knowledge of a leader in its term.
struct Term {
    chains: Chains,
    servers: Servers,
    views: Views,
    controller: RackController<Box<dyn ScalingPolicy>>,
    search: Option<Search>,
    profiler: Option<Profiler>,
    enactor: Enactor,
}

impl Term {
    async fn round(&mut self, objects: &Objects, now: Nanos, config: &ControllerConfig) {
        let mut objects = self.enactor.with_own_writes(objects);
        let slos = Slos::new(&objects);
        slos.resolve(&mut objects.chains);
        self.servers.see(&objects.leases, now);
        self.chains.read(&objects);
        let pools = Pools::new(&objects);
        let view = self.views.view(&objects, &self.chains, (&self.servers, &pools), now);
        let view = Arc::new(view);
        if let Some(search) = &mut self.search {
            search.step(&mut self.controller, &view, config.options).await;
        }
        let plan = self.controller.decide(&view);
        let wall = k8s_openapi::jiff::Timestamp::now();
        let profiling = match &mut self.profiler {
            Some(profiler) => profiler.decide(&objects, &self.chains, (&self.servers, &pools), now),
            None => Profiling::default(),
        };
        let seen = (&self.servers, &pools);
        let definitions = Definitions::new(&objects, &config.definitions);
        let told = (&profiling, &definitions);
        let mut writes = writes::writes(&objects, &self.chains, seen, (&plan, told), wall);
        writes.extend(slos.writes(&objects, wall));
        self.enactor.enact(writes).await;
    }
}
