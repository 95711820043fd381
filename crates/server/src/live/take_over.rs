//! Take-over of the data plane by another process, and from one.

use super::deferred::reach;
use super::ended::{CarriedCounts, EndedChain};
use super::running::RunningChain;
use super::{LiveMachine, ServerPort};
use crate::chain::AppliedChain;
use crate::machine::{PacketCounts, Refusal};
use crate::take_over::fields::{
    ChainFlows, ChainOffer, FinalCounts, FunctionOffer, HandedOver, MachineOffer, PortOffer, SocketOffer, StateOffer,
    TakenOver,
};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::absolute;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailwater_chain::chain::{Chain, TransferError, TransferFunction, TransferState};
use tailwater_dataplane::clock::{Clock, ClockOrigin};
use tailwater_dataplane::core_host::{CoreHost, HostError};
use tailwater_dataplane::port::{PassedSockets, QueuePosition, round_robin};
use tailwater_dataplane::shared_port::SharedPort;
use tailwater_dataplane::{IsolationConfig, RunPlan};
use tailwater_net::Nanos;

/// Time in which a chain answers, although it is loaded.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Time within which all chains have processed what they have, before a take-over.
const QUIET_TIMEOUT: Duration = Duration::from_secs(2);
/// Time within which a chain's flows are imported.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(20);
/// Most bytes of a chain's flows.
const MOST_BYTES: usize = 16 << 30;

fn value(value: impl Serialize) -> Result<Value, Refusal> {
    serde_json::to_value(value).map_err(|error| Refusal::new(error.to_string()))
}

impl LiveMachine {
    /// Same as [`new`](LiveMachine::new), on a host with the [clock](LiveMachine::clock_of) of the machine that is to
    /// be taken over. Packets wait in the ports until that has happened.
    ///
    /// # Errors
    /// If a port cannot be opened.
    pub fn paused(
        host: Arc<CoreHost>,
        ports: Vec<ServerPort>,
        predecessor: &MachineOffer,
        on_end: impl FnMut(EndedChain) + Send + 'static,
    ) -> Result<LiveMachine, HostError> {
        host.share_cores(true);
        LiveMachine::open(host, ports, (true, Nanos(predecessor.origin)), on_end)
    }

    /// Clock of a machine that is to be taken over.
    ///
    /// # Errors
    /// It cannot be continued here.
    pub fn clock_of(predecessor: &MachineOffer) -> Result<Clock, Refusal> {
        let origin: Result<ClockOrigin, _> = serde_json::from_value(predecessor.clock.clone());
        let clock = origin.ok().and_then(|origin| Clock::continuing(&origin));
        clock.ok_or_else(|| Refusal::new("the clock of the running server cannot be continued"))
    }

    pub(super) fn offer(&mut self) -> Result<MachineOffer, Refusal> {
        let ports = self.ports.iter().map(|(name, port)| {
            let traffic = port.identity().map(value).transpose()?;
            let passed = sockets_of(name, port)?;
            let sockets = match passed.interfaces.is_empty() {
                true => None,
                false => Some(SocketOffer {
                    interfaces: value(&passed.interfaces)?,
                    descriptors: passed.descriptors.len() as u32,
                }),
            };
            Ok((name.clone(), PortOffer { traffic, sockets }))
        });
        let running = self.chains.iter().filter(|(_, chain)| chain.runs());
        let chains = running.map(|(name, chain)| Ok((name.clone(), offer_of(name, chain)?)));
        let deferred = self.taking_over.waiting().map(|chain| {
            let offer = ChainOffer {
                is_external: true,
                appends: true,
                ..ChainOffer::default()
            };
            Ok((chain.name.clone(), offer))
        });
        Ok(MachineOffer {
            clock: value(self.host.clock().origin())?,
            origin: self.origin.0,
            ports: ports.collect::<Result<_, Refusal>>()?,
            chains: chains.chain(deferred).collect::<Result<_, Refusal>>()?,
        })
    }

    pub(super) fn descriptors(&self) -> Result<BTreeMap<String, Vec<OwnedFd>>, Refusal> {
        let mut all = BTreeMap::new();
        for (name, port) in &self.ports {
            let passed = sockets_of(name, port)?;
            if !passed.interfaces.is_empty() {
                all.insert(name.clone(), passed.descriptors);
            }
        }
        Ok(all)
    }

    /// Sockets of a port of a machine that is to be taken over, with their descriptors.
    ///
    /// # Errors
    /// The port has none, or they are described otherwise.
    pub fn sockets_of(
        predecessor: &MachineOffer,
        port: &str,
        descriptors: Vec<OwnedFd>,
    ) -> Result<PassedSockets, Refusal> {
        let offer = predecessor.ports.get(port).and_then(|port| port.sockets.as_ref());
        let interfaces = offer.map(|offer| serde_json::from_value(offer.interfaces.clone()));
        match interfaces {
            Some(Ok(interfaces)) => Ok(PassedSockets {
                interfaces,
                descriptors,
            }),
            _ => Err(Refusal::new(format!(
                "port {port}: the sockets of the running server are unknown"
            ))),
        }
    }

    pub(super) fn hand_over(&mut self) -> Result<(HandedOver, Vec<Vec<u8>>), Refusal> {
        let paused_at = self.host.clock().now().0;
        self.ports.values().for_each(|port| port.pause());
        let handed = self.export(paused_at);
        if handed.is_err() {
            self.go_on();
        }
        handed
    }

    /// Goes on after a take-over that has failed.
    pub(super) fn go_on(&mut self) {
        self.hold_flows(false);
        self.ports.values().for_each(|port| port.unpause());
    }

    /// Holds the flows of all chains, or releases them.
    fn hold_flows(&self, are_held: bool) {
        for chain in self.chains.values().filter(|chain| chain.runs()) {
            chain.for_workers(|worker| {
                // A worker that does not answer has died.
                let hold = move |chain: &mut Chain| chain.hold_flows(are_held);
                let _ = chain.on_worker(worker, false, ANSWER_TIMEOUT, hold);
            });
        }
    }

    fn export(&self, paused_at: u64) -> Result<(HandedOver, Vec<Vec<u8>>), Refusal> {
        let until = Instant::now() + QUIET_TIMEOUT;
        let mut handed = HandedOver {
            paused_at,
            ..HandedOver::default()
        };
        let mut parts = Vec::new();
        for (name, chain) in self.chains.iter().filter(|(_, chain)| chain.runs()) {
            let (bytes, flows) = self.export_chain(name, chain, until)?;
            let of_chain = ChainFlows {
                flows,
                bytes: bytes.len() as u64,
            };
            handed.chains.insert(name.clone(), of_chain);
            parts.push(bytes);
        }
        for (name, port) in &self.ports {
            let positions = port.positions();
            let positions = positions.ok_or_else(|| Refusal::new(format!("port {name} has no position")))?;
            handed.positions.insert(name.clone(), value(positions)?);
        }
        Ok((handed, parts))
    }

    /// Flows of a chain's workers, one after another.
    fn export_chain(&self, name: &str, chain: &RunningChain, until: Instant) -> Result<(Vec<u8>, u64), Refusal> {
        let (clock, origin) = (self.host.clock(), self.origin);
        let exported = chain.for_workers(|worker| export_worker((name, worker), chain, (clock, origin), until));
        let (mut bytes, mut flows) = (Vec::new(), 0);
        for exported in exported {
            let (of_worker, number) = exported.unwrap_or_else(|| Err(Refusal::new("its flows cannot be read")))?;
            flows += number;
            match bytes.is_empty() {
                true => bytes = of_worker,
                false => bytes.extend_from_slice(&of_worker),
            }
        }
        Ok((bytes, flows))
    }

    pub(super) fn leave(&mut self) {
        for chain in self.chains.values().filter(|chain| chain.runs()) {
            chain.for_workers(|worker| {
                // One that does not answer has failed.
                let _ = chain.on_worker(worker, true, ANSWER_TIMEOUT, Chain::forget_flows);
            });
        }
        self.ports.values().for_each(|port| port.leave());
    }

    pub(super) fn import(&mut self, handed: &HandedOver, flows: Vec<(String, Vec<u8>)>) -> Result<TakenOver, Refusal> {
        let mut taken = TakenOver::default();
        for (name, bytes) in flows {
            if self.taking_over.has(&name) {
                continue;
            }
            let failed = |text: &str| Refusal::new(format!("chain {name}: {text}"));
            let chain = self.chains.get(&name).ok_or_else(|| failed("it does not run"))?;
            taken.bytes += bytes.len() as u64;
            let bytes = Arc::new(bytes);
            // No bucket has moved yet.
            let owners = round_robin(chain.cores().len() as u16);
            let imported = chain.for_workers(|worker| {
                let (bytes, clock, origin) = (Arc::clone(&bytes), self.host.clock().clone(), self.origin);
                let import = move |chain: &mut Chain| {
                    let owns = |bucket: u16| usize::from(owners[usize::from(bucket)]) == worker;
                    // Until this process has taken over, flows end in the other one.
                    chain.hold_flows(true);
                    chain.import_flows_of(owns, &bytes, clock.now(), origin)
                };
                chain.on_worker(worker, true, IMPORT_TIMEOUT, import)
            });
            for imported in imported {
                let imported = imported.flatten();
                let imported = imported.ok_or_else(|| failed("its flows took longer than 20 s"))?;
                let imported = imported.map_err(|error| failed(&error.to_string()))?;
                taken.flows += imported.flows;
                taken.refused += imported.refused;
            }
        }
        for (name, positions) in &handed.positions {
            let failed = |text: &str| Refusal::new(format!("port {name}: {text}"));
            let port = self.ports.get(name).ok_or_else(|| failed("it is not open"))?;
            let positions: Result<Vec<QueuePosition>, _> = serde_json::from_value(positions.clone());
            let positions = positions.map_err(|error| failed(&error.to_string()))?;
            if !port.continue_at(positions) {
                return Err(failed("the positions are of other traffic"));
            }
        }
        Ok(taken)
    }

    /// Checks a chain that starts at the end of the take-over.
    pub(super) fn defer(&mut self, chain: &AppliedChain) -> Result<(), Refusal> {
        self.port(chain)?;
        check_isolated_outputs(&self.plan(chain, Some(&chain.name))?)?;
        if let Some(state) = &chain.settings.state {
            reach(state).map_err(|error| Refusal::new(format!("spec.state.redis: {error}")))?;
        }
        self.taking_over.add(chain);
        Ok(())
    }

    /// Starts the chains that have waited. The running server has processed all packets, and stored what they changed.
    fn start_deferred(&mut self) {
        for (name, chain) in self.taking_over.take() {
            match self.launch(&chain, None) {
                Ok(started) => drop(self.chains.insert(name, started)),
                Err(refusal) => self.taking_over.fail(name, refusal.to_string()),
            }
        }
        self.taking_over.is_pending = false;
    }

    /// Begins to receive, once the other process does not any more. Returns the time since `paused_at`, in nanoseconds.
    pub(super) fn begin(&mut self, paused_at: u64) -> u64 {
        // Their packets wait, too.
        self.start_deferred();
        self.ports.values().for_each(|port| port.unpause());
        let gap = self.host.clock().now().0.saturating_sub(paused_at);
        self.hold_flows(false);
        self.show();
        gap
    }

    pub(super) fn add_counts(&mut self, counts: &FinalCounts) {
        for (name, [offered, delivered, dropped, lost]) in &counts.chains {
            let packets = PacketCounts {
                offered: *offered,
                delivered: *delivered,
                dropped: *dropped,
                lost: *lost,
            };
            let late = counts.late.get(name).cloned().unwrap_or_default();
            let port_lost = counts.port_lost.get(name).copied().unwrap_or_default();
            let carried = CarriedCounts {
                packets,
                late,
                port_lost,
            };
            match self.chains.get_mut(name) {
                Some(chain) => chain.carried = carried,
                None => self.taking_over.carry(name, carried),
            }
        }
        for (name, counts) in &counts.ports {
            if let (Some(port), Ok(counts)) = (self.ports.get(name), serde_json::from_value(counts.clone())) {
                port.add_counts(counts);
            }
        }
    }
}

/// Checks that no isolated function of a chain that is to be taken over writes a file: its process would begin it anew,
/// while the running server's still writes it.
pub(super) fn check_isolated_outputs(plan: &RunPlan) -> Result<(), Refusal> {
    let Some(isolation) = &plan.config().isolation else {
        return Ok(());
    };
    let functions = plan.spec().functions.iter();
    let mut isolated = functions.filter(|function| {
        let mut programs = isolation.programs.iter();
        programs.any(|program| program.function == function.name)
    });
    let found = isolated.find_map(|function| Some((&function.name, function.config.outputs().into_iter().next()?.1)));
    found.map_or(Ok(()), |(name, file)| {
        Err(Refusal::new(format!(
            "isolated function {name} writes {}, which processes of two servers cannot do: drain the chain first",
            file.display()
        )))
    })
}

/// Exports the flows of a worker of a chain.
fn export_worker(
    (name, worker): (&str, usize),
    chain: &RunningChain,
    (clock, origin): (&Clock, Nanos),
    until: Instant,
) -> Result<(Vec<u8>, u64), Refusal> {
    let refused = |text: &str| Err(Refusal::temporary(format!("chain {name}: {text}")));
    loop {
        let clock = clock.clone();
        let left = until.saturating_duration_since(Instant::now());
        let export = move |chain: &mut Chain| chain.export_flows(clock.now(), origin, MOST_BYTES);
        match chain.on_worker(worker, true, left, export) {
            None => return refused("packets were in it for longer than 2 s"),
            Some(Ok(exported)) => return Ok(exported),
            // They come back when nothing is left to do there.
            Some(Err(TransferError::Lent(_))) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Some(Err(error)) => return Err(Refusal::new(format!("chain {name}: {error}"))),
        }
    }
}

fn sockets_of(name: &str, port: &SharedPort) -> Result<PassedSockets, Refusal> {
    port.sockets()
        .map_err(|error| Refusal::new(format!("port {name}: its sockets cannot be copied: {error}")))
}

fn offer_of(name: &str, chain: &RunningChain) -> Result<ChainOffer, Refusal> {
    let isolation = chain.plan().config().isolation.as_ref();
    if isolation.is_some_and(IsolationConfig::has_joining) {
        return Err(Refusal::new(format!(
            "chain {name} has functions whose processes have joined the running server: drain it first"
        )));
    }
    if let Some((function, _)) = chain.spec().externals().next() {
        return Err(Refusal::new(format!(
            "chain {name} has the external function {function}, whose packets do not pass over: drain it first"
        )));
    }
    let read = |chain: &mut Chain| (chain.transfer_functions(), chain.has_external_state());
    // All workers have the same functions.
    let read = chain.on_worker(0, false, ANSWER_TIMEOUT, read);
    let (functions, is_external) = read.ok_or_else(|| Refusal::temporary(format!("chain {name} does not answer")))?;
    let files = chain
        .spec()
        .functions
        .iter()
        .flat_map(|function| function.config.outputs());
    let files = files.map(|(_, file)| absolute(&file).unwrap_or(file));
    Ok(ChainOffer {
        functions: functions.into_iter().map(function_offer).collect(),
        is_external,
        appends: true,
        outputs: files.map(|file| file.display().to_string()).collect(),
    })
}

fn function_offer(function: TransferFunction) -> FunctionOffer {
    FunctionOffer {
        name: function.name,
        kind: function.kind.to_owned(),
        state: match function.state {
            TransferState::None => StateOffer::None,
            TransferState::Local => StateOffer::Local,
            TransferState::Portable { version, bytes } => StateOffer::Portable {
                version,
                bytes: bytes as u64,
            },
        },
    }
}
