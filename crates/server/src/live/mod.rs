//! Data plane of this machine: chains that share its ports and dedicated cores.
//!
//! Each chain is a run of its own, with its own counters, windows and report, on a share of the cores. One thread per
//! chain, off the data cores, watches it.

mod apart;
mod classes;
mod deferred;
mod details;
mod ended;
mod external;
mod figures;
mod news;
mod observed_losses;
mod offloading;
mod options;
mod outputs;
mod port_losses;
mod profiling;
mod reading;
mod running;
mod samples;
mod starting;
mod succession;
mod take_over;
mod unattributed;

pub use ended::{EndedChain, final_counts};
pub use figures::{ChainFigures, Figures};
pub use profiling::Profiler;
pub use reading::ReadIsolated;
pub use running::window_latency;

use crate::admission::Capacity;
use crate::chain::AppliedChain;
use crate::details::{CoreDetails, PortDetails};
use crate::machine::{ChainObservation, ChainState, Machine, MachineNote, Refusal};
use crate::take_over::fields::{FinalCounts, HandedOver, MachineOffer, TakenOver};
use deferred::TakingOver;
use port_losses::PortLosses;
use profiling::core_to_profile;
use reading::{ChainReader, cores_of};
use running::RunningChain;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tailwater_api::IsolationMode;
use tailwater_dataplane::IsolationConfig;
use tailwater_dataplane::core_host::{CoreHost, HostError};
use tailwater_dataplane::kept_packets::KeptConfig;
use tailwater_dataplane::port::Port;
use tailwater_dataplane::shared_port::{SharedPort, SharedPortConfig};
use tailwater_files::regular_only;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_placement::slo::Curves;
use tailwater_policy::core::MakeMapper;
use unattributed::judge_report;

/// Time within which a chain has drained: twice its objective, at most half a second, and what its end takes.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Port of a server, ready to be opened.
pub struct ServerPort {
    /// Port.
    pub port: Box<dyn Port>,
    /// Configuration.
    pub config: SharedPortConfig,
}

/// Packets of a worker in its own queue or on auxiliary cores, at most, for chains with the first workers of a port.
/// Further packets wait in its ring. For later ones than these the port's buffers might not suffice: they use no
/// auxiliary cores.
const OFFLOADED: [(usize, u32); 2] = [(4, 2048), (16, 512)];

/// Makes the mappers by which a chain uses auxiliary cores; `None` if it does not. The flag is set if its functions run
/// in processes of their own.
pub type MakeOffloading = Box<dyn Fn(&ChainSpec, bool) -> Result<Option<MakeMapper>, String> + Send>;

/// The same, without its content in debug output.
struct Offloading(MakeOffloading);

impl std::fmt::Debug for Offloading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Offloading")
    }
}

/// Data plane of this machine.
#[derive(Debug)]
pub struct LiveMachine {
    host: Arc<CoreHost>,
    ports: BTreeMap<String, Arc<SharedPort>>,
    chains: BTreeMap<String, RunningChain>,
    /// Replaced chains that process their last packets.
    leaving: Vec<RunningChain>,
    on_end: OnEnd,
    offloading: Option<Offloading>,
    profiles: Option<Profiles>,
    reader: ChainReader,
    profiler: Option<Box<dyn Profiler>>,
    /// Folder to keep late, lost and dropped packets in.
    keep_packets: Option<KeptConfig>,
    figures: Figures,
    /// Wall-clock time at which the host's clock was 0.
    origin: Nanos,
    /// News of the ports.
    notes: Vec<MachineNote>,
    losses: PortLosses,
    /// Chains started in the change under way, if there is one.
    started: Option<Vec<String>>,
    taking_over: TakingOver,
}

/// Receives each chain at its end.
type ReportReceiver = Box<dyn FnMut(EndedChain) + Send>;

/// The same, without its content in debug output.
struct OnEnd(ReportReceiver);

impl std::fmt::Debug for OnEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnEnd")
    }
}

/// Profiles of this machine.
struct Profiles {
    cache_bytes: u64,
    source: ProfileSource,
}

type ProfileSource = Box<dyn Fn(&ChainSpec) -> Result<Option<Curves>, String> + Send>;

impl std::fmt::Debug for Profiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Profiles")
    }
}

impl LiveMachine {
    /// Opens the ports on the cores of `host`. Reports of chains that have ended go to `on_end`.
    ///
    /// # Errors
    /// If a port cannot be opened.
    pub fn new(
        host: Arc<CoreHost>,
        ports: Vec<ServerPort>,
        on_end: impl FnMut(EndedChain) + Send + 'static,
    ) -> Result<LiveMachine, HostError> {
        let origin = ended::origin_of(host.clock());
        LiveMachine::open(host, ports, (false, origin), on_end)
    }

    fn open(
        host: Arc<CoreHost>,
        ports: Vec<ServerPort>,
        (is_paused, origin): (bool, Nanos),
        on_end: impl FnMut(EndedChain) + Send + 'static,
    ) -> Result<LiveMachine, HostError> {
        let open = |ServerPort { port, config }: ServerPort| {
            let name = config.name.clone();
            let port = match is_paused {
                true => host.open_paused_port(port, config)?,
                false => host.open_port(port, config)?,
            };
            Ok((name, port))
        };
        let ports = ports.into_iter().map(open).collect::<Result<_, HostError>>()?;
        Ok(LiveMachine {
            host,
            ports,
            chains: BTreeMap::new(),
            leaving: Vec::new(),
            on_end: OnEnd(Box::new(on_end)),
            offloading: None,
            profiles: None,
            reader: ChainReader::default(),
            profiler: None,
            keep_packets: None,
            figures: Figures::default(),
            origin,
            notes: Vec::new(),
            losses: PortLosses::default(),
            started: None,
            taking_over: TakingOver::new(is_paused),
        })
    }

    /// Finds chains' curves by `source`, which gets a chain with its functions; `cache_bytes` is the cache that
    /// all cores share.
    #[must_use]
    pub fn with_profiles(
        mut self,
        cache_bytes: u64,
        source: impl Fn(&ChainSpec) -> Result<Option<Curves>, String> + Send + 'static,
    ) -> LiveMachine {
        self.profiles = Some(Profiles {
            cache_bytes,
            source: Box::new(source),
        });
        self
    }

    /// Ports, in the order of their names.
    pub fn ports(&self) -> Vec<Arc<SharedPort>> {
        self.ports.values().cloned().collect()
    }

    /// Figures of the chains that run, for readers on other threads.
    pub fn figures(&self) -> Figures {
        self.figures.clone()
    }

    /// Shows the chains that run now to readers on other threads.
    fn show(&self) {
        let chains = self.chains.values().filter(|chain| !chain.is_finished());
        self.figures.replace(chains.map(RunningChain::figures).collect());
    }

    /// Waits for a chain's end, and reports it.
    fn tell_end(&mut self, mut chain: RunningChain) {
        let end = chain.join();
        if let Some(mut report) = end.report {
            ended::add_to_report(&mut report, &chain.carried);
            let port_lost = chain.carried.port_lost + chain.port_losses.since_start();
            judge_report(&mut report, port_lost);
            (self.on_end.0)(EndedChain {
                name: chain.name().to_owned(),
                cores: chain.cores().to_vec(),
                report,
                port_lost,
                failure: end.failure,
            });
        }
    }

    /// Collects chains that have left.
    fn reap(&mut self) {
        let ended = succession::take_ended(&mut self.leaving, &mut self.chains);
        ended.into_iter().for_each(|gone| self.tell_end(gone));
    }

    /// Notes news of the ports, and counts packets that they have lost.
    fn monitor_ports(&mut self) {
        for (name, port) in &self.ports {
            port.monitor(&mut |line| {
                self.notes.push(MachineNote {
                    severity: news::severity_of(&line),
                    chain: None,
                    reason: "PortChanged",
                    message: format!("port {name}: {line}"),
                });
            });
        }
    }
}

impl Machine for LiveMachine {
    fn capacity(&self) -> Capacity {
        Capacity {
            cores: self.host.cores().map(|core| core as u32).collect(),
            // Unknown caches are those that suffice for all.
            cache_bytes: self.profiles.as_ref().map_or(u64::MAX, |profiles| profiles.cache_bytes),
        }
    }

    fn curves(&self, chain: &AppliedChain) -> Result<Option<Arc<Curves>>, Refusal> {
        let Some(profiles) = &self.profiles else {
            return Ok(None);
        };
        if chain.settings.isolation.mode != IsolationMode::None {
            return Err(Refusal::new(
                "has spec.slo.throughput and spec.isolation: profiles are of functions in one process; apply it with \
                 --force",
            ));
        }
        let (spec, joining) = self.reader.read(chain)?;
        if joining.is_some() || spec.externals().next().is_some() {
            return Err(Refusal::new(
                "has spec.slo.throughput and functions outside of this process, of which there are no profiles; apply \
                 it with --force",
            ));
        }
        // A pipe among the profiles would keep the server from all other changes.
        let found = regular_only(|| (profiles.source)(&spec)).map_err(Refusal::new)?;
        Ok(found.map(Arc::new))
    }

    fn profiling_core(&self) -> Result<u32, Refusal> {
        core_to_profile(self.profiler.as_deref(), self.host.auxiliary())
    }

    fn begin_profile(&mut self, chain: &AppliedChain) -> Result<u32, Refusal> {
        let core = self.profiling_core()?;
        let (spec, _) = self.reader.read(chain)?;
        if let Some(profiler) = &mut self.profiler {
            profiler.begin(chain, &spec, core as usize).map_err(Refusal::new)?;
        }
        Ok(core)
    }

    fn poll_profile(&mut self) -> Option<Result<(), Refusal>> {
        let result = self.profiler.as_mut()?.poll()?;
        Some(result.map_err(Refusal::new))
    }

    fn cancel_profile(&mut self) {
        if let Some(profiler) = &mut self.profiler {
            profiler.cancel();
        }
    }

    fn check(&self, chain: &AppliedChain, _: &[&AppliedChain]) -> Result<(), Refusal> {
        self.port(chain)?;
        let plan = self.plan(chain, Some(&chain.name))?;
        let isolation = plan.config().isolation.as_ref();
        // A process would refuse the same at its start.
        let tried = isolation.map_or(Ok(()), IsolationConfig::try_out);
        tried.map_err(|error| Refusal::new(error.to_string()))?;
        let replaced = self.succeeded(&chain.name, chain);
        replaced.map_or(Ok(()), |old| succession::check(old, &plan))?;
        let cores = plan.config().cores.len();
        match self.chains.get(&chain.name) {
            Some(running) if external::share_interfaces(running, plan.spec(), cores) => Ok(()),
            _ => external::try_out(plan.spec(), cores),
        }
    }

    fn begin_change(&mut self, is_first: bool) {
        self.started.get_or_insert_default();
        self.ports.values().for_each(|port| port.begin_change(is_first));
    }

    fn complete_change(&mut self) {
        self.ports.values().for_each(|port| port.end_change());
        // Their packets come from now on.
        for name in self.started.take().unwrap_or_default() {
            if let Some(chain) = self.chains.get_mut(&name) {
                chain.port_losses.restart();
            }
        }
    }

    fn start(&mut self, chain: &AppliedChain) -> Result<(), Refusal> {
        LiveMachine::start(self, chain)
    }

    fn replace(&mut self, old: &str, chain: &AppliedChain) -> Result<(), Refusal> {
        LiveMachine::replace(self, old, chain)
    }

    fn change(&mut self, chain: &AppliedChain) -> Result<(), Refusal> {
        let cores = cores_of(chain)?;
        if chain.settings.isolation.mode != IsolationMode::None {
            return self.replace(&chain.name, chain);
        }
        let (spec, joining) = self.reader.read_capped(chain)?;
        if joining.is_some() {
            return self.replace(&chain.name, chain);
        }
        let running = self.chains.get_mut(&chain.name);
        let is_same = |running: &RunningChain| running.cores() == cores && external::are_same(running.spec(), &spec);
        let running = running.filter(|running| is_same(running));
        match running.and_then(|running| running.change(&spec)) {
            Some(changed) => changed,
            // Its objective or another setting differs, or its functions cannot change while they run.
            None => self.replace(&chain.name, chain),
        }
    }

    fn drain(&mut self, name: &str) -> Result<(), Refusal> {
        self.taking_over.forget(name);
        let chain = self.chains.get_mut(name);
        let chain = chain.ok_or_else(|| Refusal::new(format!("chain {name} does not run")))?;
        chain.drain();
        Ok(())
    }

    fn notes(&mut self) -> Vec<MachineNote> {
        std::mem::take(&mut self.notes)
    }

    fn cores(&self) -> Vec<CoreDetails> {
        details::of_cores(&self.host)
    }

    fn ports(&self) -> Vec<PortDetails> {
        self.port_details()
    }

    fn observe(&mut self) -> Vec<ChainObservation> {
        self.reap();
        self.monitor_ports();
        self.observe_port_losses();
        self.monitor_externals();
        self.read_flow_samples();
        let mut observations = Vec::new();
        let mut ended = Vec::new();
        for (name, chain) in &mut self.chains {
            let mut observation = chain.observe();
            observation.packets += succession::counts_of_leaving(&mut self.leaving, name);
            if observation.state == ChainState::Ended {
                ended.push(name.clone());
            }
            observations.push(observation);
        }
        observations.extend(self.taking_over.observations());
        for name in ended {
            if let Some(gone) = self.chains.remove(&name) {
                self.tell_end(gone);
            }
        }
        self.show();
        observations
    }

    fn offer(&mut self) -> Result<MachineOffer, Refusal> {
        LiveMachine::offer(self)
    }

    fn descriptors(&mut self) -> Result<BTreeMap<String, Vec<OwnedFd>>, Refusal> {
        LiveMachine::descriptors(self)
    }

    fn hand_over(&mut self) -> Result<(HandedOver, Vec<Vec<u8>>), Refusal> {
        LiveMachine::hand_over(self)
    }

    fn resume(&mut self) {
        self.go_on();
    }

    fn leave(&mut self) {
        LiveMachine::leave(self);
    }

    fn import(&mut self, handed: &HandedOver, flows: Vec<(String, Vec<u8>)>) -> Result<TakenOver, Refusal> {
        LiveMachine::import(self, handed, flows)
    }

    fn begin(&mut self, paused_at: u64) -> u64 {
        LiveMachine::begin(self, paused_at)
    }

    fn add_counts(&mut self, counts: &FinalCounts) {
        LiveMachine::add_counts(self, counts);
    }

    fn share_cores(&mut self, shares: bool) {
        self.host.share_cores(shares);
    }

    fn waited(&self) -> u64 {
        self.ports.values().map(|port| port.waited()).sum()
    }
}

impl Drop for LiveMachine {
    /// Ends all chains, and the cores' threads.
    fn drop(&mut self) {
        self.begin_change(true);
        let chains = std::mem::take(&mut self.chains).into_values();
        let mut chains: Vec<_> = chains.chain(std::mem::take(&mut self.leaving)).collect();
        chains.iter_mut().for_each(RunningChain::drain);
        chains.into_iter().for_each(|chain| self.tell_end(chain));
        self.host.stop();
    }
}
