//! Agent of a server: applies the server's instances to its data plane, and reports their state.
//!
//! The server is `tailwater serve`, with its stored generation, admission and control socket; the API server is one
//! more source of its configuration. Without the API server, and without a controller, the server goes on with what it
//! has, and an agent that starts then changes nothing before it has seen its instances.

mod local;
mod plan;
mod pods;
mod reporting;
mod socket;

pub use local::{LocalChain, LocalCondition, LocalError, LocalLoad, LocalPhase, LocalServer};
pub use plan::{AgentStep, Attempt, Attempts, Key, key_of, name_of, status, steps};
pub use reporting::ReportsConfig;
pub use socket::ControlSocket;

use crate::figures::differs;
use crate::notices::Notices;
use crate::reports::AgentReport;
use crate::resources::{
    ChainInstance, DRAIN_FINALIZER, InstanceStatus, Profile, RackServer, ServerSpec, ServerStatus, server_lease,
    set_condition,
};
use crate::watching::{Watched, watch_into};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// Name of the agent as a writer of fields.
const MANAGER: &str = "tailwater-agent";
/// Longest time of a request to the API server.
const REQUEST: Duration = Duration::from_secs(10);
/// Signs of life from one registration to the next.
const REGISTER: u64 = 30;
/// Time after which an instance that the server refused is tried again.
const AGAIN: SignedDuration = SignedDuration::from_secs(5);

/// Configuration of an agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Name of the server, as instances name it: that of its node.
    pub server: String,
    /// Namespace of the servers' leases.
    pub namespace: String,
    /// Time between renewals of the server's lease.
    pub heartbeat: Duration,
    /// Time between looks at the server's chains.
    pub period: Duration,
    /// Time after which figures are reported though they have hardly changed.
    pub refresh: Duration,
    /// Resources that the server offers.
    pub facts: ServerStatus,
    /// Signs of life for the ingress.
    pub reports: ReportsConfig,
    /// Folder of the sockets by which functions in pods join: [`POD_DIRECTORY`](crate::resources::POD_DIRECTORY).
    pub pods: PathBuf,
}

/// Runs the agent until `stop` is set. `connect` makes connections to the server, of which there are three: changes do
/// not hold up reports.
pub async fn run<S: LocalServer + 'static>(
    client: Client,
    config: AgentConfig,
    connect: impl Fn() -> S,
    notices: Notices,
    stop: watch::Receiver<bool>,
) {
    let config = Arc::new(config);
    let changed = Arc::new(Notify::new());
    let selected = watcher::Config::default().fields(&format!("spec.server={}", config.server));
    let (instances, watching) = watch_into(Api::all(client.clone()), selected, &changed, &notices);
    let (figures, reported_figures) = watch::channel(AgentReport {
        server: config.server.clone(),
        instances: Vec::new(),
    });
    let reporting = reporting::run(config.reports.clone(), reported_figures, notices.clone());
    let measures = !config.reports.to.is_empty();
    let loads = reporting::measure(connect(), figures, notices.clone());
    let measuring = async {
        match measures {
            true => loads.await,
            false => std::future::pending().await,
        }
    };
    let agent = Agent {
        client: client.clone(),
        config: Arc::clone(&config),
        instances,
        reader: Arc::new(Mutex::new(connect())),
        writer: Arc::new(Mutex::new(connect())),
        attempts: Arc::default(),
        reported_chains: None,
        reported: HashMap::new(),
        notices: notices.clone(),
    };
    let mut ending = stop.clone();
    tokio::select! {
        () = watching => {}
        () = reporting => {}
        () = measuring => {}
        () = heartbeat(client, config, notices) => {}
        () = agent.run(&changed, stop) => {}
        _ = ending.wait_for(|stop| *stop) => {}
    }
}

/// Registers the server, and renews its lease.
async fn heartbeat(client: Client, config: Arc<AgentConfig>, notices: Notices) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), &config.namespace);
    let mut beats = 0u64;
    let mut ticks = interval(config.heartbeat);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let beat = async {
            // Now and then again: somebody may have deleted the object.
            if beats.is_multiple_of(REGISTER) {
                register(&client, &config).await?;
            }
            beats += 1;
            renew(&leases, &config).await
        };
        match timeout(REQUEST, beat).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => notices.warn(&format!("the lease of this server is not renewed: {error}")),
            Err(_) => notices.warn("the lease of this server is not renewed: no answer of the API server"),
        }
    }
}

/// Creates the server's object, and writes what it offers.
async fn register(client: &Client, config: &AgentConfig) -> kube::Result<()> {
    let api: Api<RackServer> = Api::all(client.clone());
    let found = match api.get_opt(&config.server).await? {
        Some(found) => found,
        None => {
            let server = RackServer::new(&config.server, ServerSpec::default());
            api.create(&PostParams::default(), &server).await?
        }
    };
    let mut status = ServerStatus {
        conditions: found.status.map(|status| status.conditions).unwrap_or_default(),
        ..config.facts.clone()
    };
    let ready = ("Ready", true, "AgentReady", "the agent reports");
    set_condition(
        &mut status.conditions,
        Timestamp::now(),
        ready,
        found.metadata.generation,
    );
    let mut status = serde_json::to_value(status).map_err(kube::Error::SerdeError)?;
    // It is reported when it changes.
    status.as_object_mut().map(|fields| fields.remove("chains"));
    let patch = Patch::Merge(json!({ "status": status }));
    api.patch_status(&config.server, &PatchParams::default(), &patch)
        .await
        .map(drop)
}

async fn renew(api: &Api<Lease>, config: &AgentConfig) -> kube::Result<()> {
    let spec = LeaseSpec {
        holder_identity: Some(config.server.clone()),
        lease_duration_seconds: Some(config.heartbeat.as_secs().max(1) as i32 * 4),
        renew_time: Some(MicroTime(Timestamp::now())),
        ..LeaseSpec::default()
    };
    let lease = Lease {
        metadata: ObjectMeta {
            name: Some(server_lease(&config.server)),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
    };
    let parameters = PatchParams::apply(MANAGER).force();
    api.patch(&server_lease(&config.server), &parameters, &Patch::Apply(lease))
        .await
        .map(drop)
}

struct Agent<S> {
    client: Client,
    config: Arc<AgentConfig>,
    instances: Watched<ChainInstance>,
    reader: Arc<Mutex<S>>,
    writer: Arc<Mutex<S>>,
    attempts: Arc<Mutex<Attempts>>,
    /// Last reported number of chains.
    reported_chains: Option<usize>,
    /// Last reported status of each instance, and when.
    reported: HashMap<Key, (InstanceStatus, Instant)>,
    notices: Notices,
}

impl<S: LocalServer + 'static> Agent<S> {
    async fn run(mut self, changed: &Notify, stop: watch::Receiver<bool>) {
        // Chains of instances that have not been seen yet must not be removed.
        self.instances.ready().await;
        let mut changing = None;
        while !*stop.borrow() {
            let began = Instant::now();
            if let Some(chains) = self.chains().await {
                let instances = self.instances.all();
                let of_server = instances.iter().map(AsRef::as_ref);
                let runs = |name: &str| chains.iter().any(|chain| chain.name == name);
                if let Err(error) = pods::prepare(&self.config.pods, of_server, runs) {
                    let folder = self.config.pods.display();
                    self.notices
                        .warn(&format!("{folder}: functions in pods cannot join: {error}"));
                }
                if changing.as_ref().is_none_or(tokio::task::JoinHandle::is_finished) {
                    let steps = steps(
                        &instances,
                        &chains,
                        &self.attempts(),
                        (&self.config.pods, Timestamp::now()),
                    );
                    if !steps.is_empty() {
                        changing = Some(self.change(steps, &instances));
                    }
                }
                self.report(&instances, &chains).await;
                self.report_server(chains.len()).await;
            }
            tokio::select! {
                () = sleep(self.config.period.saturating_sub(began.elapsed())) => {}
                () = changed.notified() => {}
            }
        }
    }

    fn attempts(&self) -> std::sync::MutexGuard<'_, Attempts> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chains of the server, if it can be reached.
    async fn chains(&self) -> Option<Vec<LocalChain>> {
        let reader = Arc::clone(&self.reader);
        let list = move || reader.lock().unwrap_or_else(PoisonError::into_inner).list();
        match tokio::task::spawn_blocking(list).await {
            Ok(Ok(chains)) => Some(chains),
            Ok(Err(error)) => {
                self.notices.warn(&error.to_string());
                None
            }
            Err(_) => None,
        }
    }

    /// Carries out steps, one after another, beside the reports.
    fn change(&self, steps: Vec<AgentStep>, instances: &[Arc<ChainInstance>]) -> tokio::task::JoinHandle<()> {
        let (client, notices) = (self.client.clone(), self.notices.clone());
        let (writer, attempts) = (Arc::clone(&self.writer), Arc::clone(&self.attempts));
        let generations: HashMap<Key, i64> = instances
            .iter()
            .map(|instance| (key_of(instance), instance.metadata.generation.unwrap_or_default()))
            .collect();
        tokio::spawn(async move {
            for step in steps {
                if let AgentStep::Release { key } = &step {
                    if let Err(error) = release(&client, key).await {
                        notices.warn(&format!("instance {}/{}: {error}", key.0, key.1));
                    }
                    continue;
                }
                let profiles = match &step {
                    AgentStep::Apply { key, chain, .. } => profiles_of(&client, &key.0, chain).await,
                    _ => Ok(Vec::new()),
                };
                let profiles = match profiles {
                    Ok(profiles) => profiles,
                    Err(error) => {
                        notices.warn(&format!("profiles cannot be read: {error}"));
                        continue;
                    }
                };
                let writer = Arc::clone(&writer);
                let carried_out = tokio::task::spawn_blocking(move || {
                    let mut server = writer.lock().unwrap_or_else(PoisonError::into_inner);
                    let result = match &step {
                        AgentStep::Apply {
                            name, manifest, force, ..
                        } => server.apply(name, manifest, &profiles, *force),
                        AgentStep::Delete { name } => server.delete(name),
                        AgentStep::Release { .. } => Ok(()),
                    };
                    (step, result)
                });
                let Ok((step, result)) = carried_out.await else { return };
                if let Err(error) = &result {
                    notices.warn(&error.to_string());
                }
                if let AgentStep::Apply { key, .. } = step
                    && !matches!(result, Err(LocalError::Unreachable(_)))
                {
                    let attempt = Attempt {
                        generation: generations.get(&key).copied().unwrap_or_default(),
                        refused: result.err().map(|error| error.to_string()),
                        again: Timestamp::now() + AGAIN,
                    };
                    attempts
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .insert(key, attempt);
                }
            }
        })
    }

    /// Reports the number of the server's chains, if it has changed.
    async fn report_server(&mut self, chains: usize) {
        if self.reported_chains == Some(chains) {
            return;
        }
        let api: Api<RackServer> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({"status": {"chains": chains}}));
        let parameters = PatchParams::default();
        let call = api.patch_status(&self.config.server, &parameters, &patch);
        // The heartbeat tells of an API server that is away, and creates the object.
        if let Ok(Ok(_)) = timeout(REQUEST, call).await {
            self.reported_chains = Some(chains);
        }
    }

    /// Reports the states that have changed, and all now and then.
    async fn report(&mut self, instances: &[Arc<ChainInstance>], chains: &[LocalChain]) {
        let by_name: HashMap<&str, &LocalChain> = chains.iter().map(|chain| (&*chain.name, chain)).collect();
        let (now, mut reports) = (Instant::now(), Vec::new());
        {
            let mut attempts = self.attempts();
            attempts.retain(|key, _| instances.iter().any(|instance| key_of(instance) == *key));
            for instance in instances {
                let key = key_of(instance);
                let (chain, mut attempt) = match name_of(instance) {
                    Ok(name) => (by_name.get(&*name).copied(), attempts.get(&key).cloned()),
                    Err(reason) => (
                        None,
                        Some(Attempt {
                            generation: instance.metadata.generation.unwrap_or_default(),
                            refused: Some(reason),
                            again: Timestamp::MAX,
                        }),
                    ),
                };
                let status = status(instance, chain, attempt.take().as_ref(), Timestamp::now());
                let is_due = match self.reported.get(&key) {
                    None => instance.status.as_ref() != Some(&status),
                    Some((before, at)) => is_news(before, &status) || now.duration_since(*at) >= self.config.refresh,
                };
                if is_due {
                    reports.push((key, status));
                }
            }
        }
        self.reported
            .retain(|key, _| instances.iter().any(|instance| key_of(instance) == *key));
        for (key, status) in reports {
            let api: Api<ChainInstance> = Api::namespaced(self.client.clone(), &key.0);
            let patch = Patch::Merge(json!({ "status": status }));
            match timeout(REQUEST, api.patch_status(&key.1, &PatchParams::default(), &patch)).await {
                Ok(Ok(_)) => {
                    self.reported.insert(key, (status, now));
                }
                // It has been deleted meanwhile.
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => {}
                Ok(Err(error)) => self.notices.warn(&format!("instance {}/{}: {error}", key.0, key.1)),
                Err(_) => {
                    self.notices.warn("no answer of the API server");
                    return;
                }
            }
        }
    }
}

/// Returns `true` if a status is to be reported at once.
fn is_news(before: &InstanceStatus, now: &InstanceStatus) -> bool {
    let figures = |status: &InstanceStatus| status.figures.unwrap_or_default();
    let (old, new) = (figures(before), figures(now));
    let plain = |status: &InstanceStatus| InstanceStatus {
        p99: None,
        rate: None,
        figures: None,
        ..status.clone()
    };
    plain(before) != plain(now)
        || before.figures.is_some() != now.figures.is_some()
        || differs(old.offered, new.offered)
        || differs(old.latency_nanos as f64, new.latency_nanos as f64)
        || old.busy.is_some() != new.busy.is_some()
        || differs(old.busy.unwrap_or_default(), new.busy.unwrap_or_default())
}

/// Files of a chain's profiles.
async fn profiles_of(client: &Client, namespace: &str, chain: &str) -> kube::Result<Vec<String>> {
    let api: Api<Profile> = Api::namespaced(client.clone(), namespace);
    let of_chain = ListParams::default().fields(&format!("spec.chain={chain}"));
    let list = timeout(REQUEST, api.list(&of_chain)).await;
    let list = list.map_err(|_| kube::Error::Service("no answer of the API server".into()))??;
    Ok(list.items.into_iter().map(|profile| profile.spec.file).collect())
}

/// Removes the finalizer of an instance whose last packet has left.
async fn release(client: &Client, key: &Key) -> kube::Result<()> {
    let api: Api<ChainInstance> = Api::namespaced(client.clone(), &key.0);
    let Some(instance) = api.get_opt(&key.1).await? else {
        return Ok(());
    };
    let left: Vec<&String> = instance
        .finalizers()
        .iter()
        .filter(|name| *name != DRAIN_FINALIZER)
        .collect();
    let patch = json!({"metadata": {"finalizers": left, "resourceVersion": instance.resource_version()}});
    match api.patch(&key.1, &PatchParams::default(), &Patch::Merge(patch)).await {
        // It is gone, or another write was faster, such as this agent's report: the next round tries again.
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(()),
        result => result.map(drop),
    }
}
