//! Controllers and agents of model servers, against an API server.

use super::api_server::{ADMIN, ApiServer};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tailwater_api::chain::{ChainDocument, DESCRIPTION};
use tailwater_api::document::Document;
use tailwater_cluster::Notices;
use tailwater_cluster::agent::{
    self, AgentConfig, LocalChain, LocalCondition, LocalError, LocalPhase, LocalServer, ReportsConfig,
};
use tailwater_cluster::controller::{
    self, BetterPlans, ChainFacts, ChainReader, ControllerConfig, DocumentReader, ProfilingConfig,
};
use tailwater_cluster::leader::ElectionConfig;
use tailwater_cluster::resources::{Chain, ChainInstance, InstanceFigures, InstancePhase, ServerStatus, definitions};
use tailwater_net::Nanos;
use tailwater_placement::curve::{CacheCurve, LoadCurve};
use tailwater_placement::improve::Saving;
use tailwater_placement::rack::{RackOptions, TailwaterScaling};
use tailwater_placement::slo::Curves;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Namespace of the leases.
const SYSTEM: &str = "tailwater";
/// Machine of all servers.
const MACHINE: &str = "model";
/// Packets per second of a whole core of a chain.
pub const CORE_RATE: f64 = 1e6;

/// Server without a data plane: it runs what is applied.
#[derive(Clone, Default)]
pub struct ModelServer(Arc<Mutex<Model>>);

/// State of a model server.
#[derive(Default)]
pub struct Model {
    /// Manifests of its chains.
    pub chains: BTreeMap<String, String>,
    /// Packets per second that each chain is offered.
    pub offered: f64,
    /// Share of the time of its cores that each chain spends on packets.
    pub busy: Option<f64>,
    /// Why flows cannot leave it with all of their state, if they cannot.
    pub bound: Option<String>,
    /// Reason for which it refuses everything, if it does.
    pub refuses: Option<String>,
    /// Chains that were applied, in order, each time that they changed.
    pub applied: Vec<String>,
    /// Chains that were removed, in order.
    pub removed: Vec<String>,
}

impl ModelServer {
    /// Its state.
    pub fn model(&self) -> std::sync::MutexGuard<'_, Model> {
        self.0.lock().unwrap()
    }
}

/// Checks a manifest as a server does, but for functions.
fn check(manifest: &str) -> Result<(), String> {
    let document = Document::parse(manifest, "chain", DESCRIPTION).map_err(|error| error.to_string())?;
    ChainDocument::new(&document, Path::new("/"))
        .map(drop)
        .map_err(|error| error.to_string())
}

impl LocalServer for ModelServer {
    fn apply(&mut self, name: &str, manifest: &str, _profiles: &[String], _force: bool) -> Result<(), LocalError> {
        let mut model = self.model();
        if let Some(reason) = &model.refuses {
            return Err(LocalError::Refused(reason.clone()));
        }
        check(manifest).map_err(LocalError::Refused)?;
        if model.chains.insert(name.to_owned(), manifest.to_owned()).as_deref() != Some(manifest) {
            model.applied.push(name.to_owned());
        }
        Ok(())
    }

    fn delete(&mut self, name: &str) -> Result<(), LocalError> {
        let mut model = self.model();
        if model.chains.remove(name).is_some() {
            model.removed.push(name.to_owned());
        }
        Ok(())
    }

    fn list(&mut self) -> Result<Vec<LocalChain>, LocalError> {
        let model = self.model();
        let chains = model.chains.keys().enumerate().map(|(number, name)| LocalChain {
            name: name.clone(),
            phase: LocalPhase::Running,
            conditions: vec![LocalCondition {
                name: "ObjectiveMet".to_owned(),
                holds: Some(true),
                reason: "Met".to_owned(),
                message: String::new(),
            }],
            cores: vec![number as u32],
            latency: Some(Nanos::from_micros(42)),
            figures: Some(InstanceFigures {
                offered: model.offered,
                latency_nanos: 42_000,
                packets: [0; 4],
                busy: model.busy,
            }),
            bound_state: model.bound.clone(),
            ..LocalChain::default()
        });
        Ok(chains.collect())
    }
}

/// Reads chains, and gives each that has a profile the same curves.
struct ModelReader;

impl ChainReader for ModelReader {
    fn read(&self, manifest: &str) -> Result<ChainFacts, String> {
        DocumentReader.read(manifest)
    }

    fn curves(&self, _manifest: &str, _file: &str) -> Result<Vec<Curves>, String> {
        Ok(vec![Curves {
            machine: MACHINE.to_owned(),
            cores: 1,
            cache: CacheCurve::new(vec![(1 << 20, CORE_RATE), (2 << 20, CORE_RATE)]).unwrap(),
            load: LoadCurve::new(vec![(0.1, Nanos::from_micros(20)), (1.0, Nanos::from_micros(90))]).unwrap(),
        }])
    }
}

/// Program that runs as a task until it is stopped, or dropped.
pub struct Running {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    /// Folder that it may have created.
    folder: Option<PathBuf>,
}

impl Running {
    /// Lets it end as after a signal.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        let task = &mut self.task;
        task.await.unwrap();
    }
}

/// Like a crash.
impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
        let Some(folder) = &self.folder else { return };
        // It may be about to create it.
        for _ in 0..1000 {
            if self.task.is_finished() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = std::fs::remove_dir_all(folder);
    }
}

/// Warnings of all programs.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Warnings of a program, by its name.
pub fn warnings(name: &str) -> Vec<String> {
    let all = WARNINGS.lock().unwrap();
    all.iter()
        .filter(|line| line.starts_with(&format!("{name}: ")))
        .cloned()
        .collect()
}

fn notices(name: &str) -> Notices {
    let name = name.to_owned();
    Notices::new(move |line| {
        println!("{name}: {line}");
        WARNINGS.lock().unwrap().push(format!("{name}: {line}"));
    })
}

/// Times of a rack's programs.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Time between signs of life of an agent.
    pub heartbeat: Duration,
    /// Time after which a server counts as lost.
    pub lost_after: Duration,
    /// Time between looks of agents at their servers.
    pub period: Duration,
    /// Shortest time between rounds of the controller.
    pub pause: Duration,
    /// The controller looks for plans with fewer servers.
    pub consolidate: bool,
    /// The controller has missing profiles measured, in the namespace `default`.
    pub profiling: bool,
}

/// Fast enough for few servers.
pub const FAST: Pace = Pace {
    heartbeat: Duration::from_millis(300),
    lost_after: Duration::from_secs(2),
    period: Duration::from_millis(200),
    pause: Duration::from_millis(20),
    consolidate: false,
    profiling: false,
};

/// Starts an agent of a model server with some cores.
pub fn start_agent(client: &Client, name: &str, cores: u32, server: &ModelServer) -> Running {
    start_agent_at(FAST, client, name, cores, server)
}

/// Starts agents of this many model servers with some cores each: `node-0` and so on.
pub fn start_agents(client: &Client, servers: usize, cores: u32) -> (Vec<ModelServer>, Vec<Running>) {
    let models: Vec<ModelServer> = (0..servers).map(|_| ModelServer::default()).collect();
    let agent = |(number, model)| start_agent(client, &format!("node-{number}"), cores, model);
    let agents = models.iter().enumerate().map(agent).collect();
    (models, agents)
}

/// Starts an agent of a model server with some cores.
pub fn start_agent_at(pace: Pace, client: &Client, name: &str, cores: u32, server: &ModelServer) -> Running {
    let (stop, stopped) = watch::channel(false);
    let config = AgentConfig {
        server: name.to_owned(),
        namespace: SYSTEM.to_owned(),
        heartbeat: pace.heartbeat,
        period: pace.period,
        refresh: Duration::from_secs(60),
        facts: ServerStatus {
            core_numbers: (0..cores).collect(),
            cores,
            cache_bytes: 32 << 20,
            machine: MACHINE.to_owned(),
            ..ServerStatus::default()
        },
        reports: ReportsConfig::default(),
        pods: pods_folder(name),
    };
    let folder = Some(config.pods.clone());
    let (client, server, notices) = (client.clone(), server.clone(), notices(name));
    let task = tokio::spawn(async move {
        agent::run(client, config, || server.clone(), notices, stopped).await;
    });
    Running { stop, task, folder }
}

/// Folder for the sockets of an agent's functions, which the agent creates if there are any.
pub fn pods_folder(agent: &str) -> PathBuf {
    std::env::temp_dir().join(format!("tailwater-rack-{}-{agent}", std::process::id()))
}

/// Starts a controller.
pub fn start_controller(client: &Client, name: &str) -> Running {
    start_controller_at(FAST, client, name)
}

/// Starts a controller.
pub fn start_controller_at(pace: Pace, client: &Client, name: &str) -> Running {
    let (stop, stopped) = watch::channel(false);
    let config = ControllerConfig {
        election: ElectionConfig {
            namespace: SYSTEM.to_owned(),
            name: "tailwater-controller".to_owned(),
            identity: name.to_owned(),
            duration: Duration::from_secs(2),
        },
        period: Duration::from_millis(200),
        pause: pace.pause,
        drain: Duration::from_secs(2),
        peak: Duration::from_secs(2),
        better: pace.consolidate.then(|| BetterPlans {
            period: Nanos::from_secs(1),
            least: Saving::Servers(1),
        }),
        profiling: pace.profiling.then(|| ProfilingConfig {
            image: "tailwater:test".to_owned(),
            namespaces: vec!["default".to_owned()],
            at_a_time: 1,
            time_limit: Duration::from_secs(600),
            cpu: "2".to_owned(),
            memory: "2Gi".to_owned(),
        }),
        definitions: definitions(&[]),
        options: RackOptions {
            lost_after: Nanos(pace.lost_after.as_nanos() as u64),
            hold: Nanos::from_secs(2),
            ..RackOptions::default()
        },
    };
    let (client, notices) = (client.clone(), notices(name));
    let task = tokio::spawn(async move {
        let policy = || Box::new(TailwaterScaling::default()) as Box<_>;
        controller::run(client, config, policy, Arc::new(ModelReader), notices, stopped).await;
    });
    Running {
        stop,
        task,
        folder: None,
    }
}

/// API server with the definitions and the namespace of the leases.
pub async fn rack(server: &ApiServer) -> Client {
    server.define().await;
    let client = server.client(ADMIN);
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = Namespace {
        metadata: ObjectMeta {
            name: Some(SYSTEM.to_owned()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    client
}

/// Chain of these destinations.
pub fn chain(name: &str, destinations: &str, more: &Value) -> Chain {
    let mut spec = json!({
        "match": {"destinations": [destinations]},
        "functions": [{"count": {}}],
        "slo": {"latency": "200us"},
    });
    for (field, value) in more.as_object().unwrap() {
        match (spec.get_mut(field), value) {
            (Some(Value::Object(old)), Value::Object(new)) => old.extend(new.clone()),
            _ => spec[field] = value.clone(),
        }
    }
    let chain = json!({
        "apiVersion": "tailwater.dev/v1alpha1", "kind": "Chain",
        "metadata": {"name": name, "namespace": "default"}, "spec": spec,
    });
    serde_json::from_value(chain).unwrap()
}

/// Creates chains.
pub async fn create(client: &Client, chains: &[Chain]) {
    let api: Api<Chain> = Api::namespaced(client.clone(), "default");
    for chain in chains {
        api.create(&PostParams::default(), chain).await.unwrap();
    }
}

/// All chains.
pub async fn chains(client: &Client) -> BTreeMap<String, Chain> {
    let api: Api<Chain> = Api::all(client.clone());
    let list = api.list(&ListParams::default()).await.unwrap();
    list.items.into_iter().map(|chain| (chain.name_any(), chain)).collect()
}

/// All instances.
pub async fn instances(client: &Client) -> Vec<ChainInstance> {
    let api: Api<ChainInstance> = Api::all(client.clone());
    api.list(&ListParams::default()).await.unwrap().items
}

/// Returns `true` if an instance processes packets.
pub fn runs(instance: &ChainInstance) -> bool {
    instance
        .status
        .as_ref()
        .is_some_and(|status| status.phase == InstancePhase::Running)
}

/// Status and reason of a chain's condition.
pub fn condition(chain: &Chain, name: &str) -> Option<(String, String)> {
    let status = chain.status.as_ref()?;
    let condition = status.conditions.iter().find(|condition| condition.name == name)?;
    Some((
        format!("{} {}", condition.status, condition.reason),
        condition.message.clone(),
    ))
}

/// Waits until something holds, and returns the time that it took.
///
/// # Panics
/// It does not hold within a minute.
pub async fn until<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) -> Duration {
    until_at(Duration::from_millis(50), what, holds).await
}

/// Same, with a look each time that this much has passed: looks at many objects take long.
pub async fn until_at<F: Future<Output = bool>>(pause: Duration, what: &str, holds: impl Fn() -> F) -> Duration {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < Duration::from_secs(60), "not in time: {what}");
        sleep(pause).await;
    }
    began.elapsed()
}
