//! Control thread of the software data plane: takes commands, compiles rules, publishes them to the cores, and monitors
//! the ports.

use super::counters::{REASONS, RuleCounters};
use super::forwarder::{Injected, Shared};
use super::store;
use super::table::{Counters, FlowTable};
use crate::ingress::diff::apply;
use crate::ingress::openflow::{ErrorMessage, FlowStatistics, PortDescription};
use crate::ingress::rows::RuleSet;
use crate::ingress::rule::{Action, FlowRule};
use crate::ingress::switch::{SwitchCommand, SwitchEvent, SwitchState};
use crate::notices::Notices;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tailwater_dataplane::interfaces::InterfacePorts;
use tailwater_dataplane::port::Port;
use tailwater_dataplane::report::PortReport;
use tokio::sync::mpsc;

/// Interval at which ports are monitored.
const TICK: Duration = Duration::from_millis(10);
/// Wait between two looks at the cores' versions.
const STEP: Duration = Duration::from_micros(20);
/// Error of a rule that the data plane cannot have: *bad match*, *bad field*.
const UNSUPPORTED: ErrorMessage = ErrorMessage { kind: 4, code: 6 };

/// Counters of a software data plane, for metrics. They can be read at any time.
#[derive(Clone, Debug)]
pub struct SoftwareFigures {
    pub(super) shared: Arc<Shared>,
    pub(super) latest: Arc<Mutex<Latest>>,
}

/// State as of the last change.
#[derive(Debug, Default)]
pub(super) struct Latest {
    rules: Vec<(FlowRule, Arc<RuleCounters>)>,
    ports: Vec<PortReport>,
}

impl SoftwareFigures {
    /// Rules in force, with their counters.
    pub fn rules(&self) -> Vec<FlowStatistics> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.rules.iter().map(|(rule, own)| statistics(rule, own)).collect()
    }

    /// Dropped packets by reason.
    pub fn drops(&self) -> Vec<(&'static str, u64)> {
        let sum = |reason| self.shared.cores.iter().map(|core| core.drops.get(reason)).sum();
        REASONS.iter().enumerate().map(|(at, name)| (*name, sum(at))).collect()
    }

    /// Ports with their counters, not older than a fraction of a second.
    pub fn ports(&self) -> Vec<PortReport> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.ports.clone()
    }
}

fn statistics(rule: &FlowRule, counters: &RuleCounters) -> FlowStatistics {
    let (packets, bytes) = counters.sum();
    FlowStatistics {
        rule: rule.clone(),
        packets,
        bytes,
    }
}

/// Control thread.
pub(super) struct Control {
    pub shared: Arc<Shared>,
    pub ports: Vec<InterfacePorts>,
    /// Of each port, `None` once it is gone.
    pub descriptions: Vec<Option<PortDescription>>,
    pub rules: RuleSet,
    pub counters: Counters,
    pub max_rules: u32,
    pub state: Option<PathBuf>,
    pub latest: Arc<Mutex<Latest>>,
    pub notices: Notices,
    pub commands: Receiver<SwitchCommand>,
    pub events: mpsc::Sender<SwitchEvent>,
    pub injected: SyncSender<Injected>,
    pub cores: Vec<JoinHandle<()>>,
}

/// The other side has ended.
struct Ended;

impl Control {
    /// Runs until there are no more commands, then ends the cores.
    pub fn run(mut self) {
        let _ = self.serve();
        self.shared.is_ending.store(true, Ordering::Relaxed);
        for core in self.cores.drain(..) {
            // A panic has been printed.
            let _ = core.join();
        }
    }

    fn send(&self, event: SwitchEvent) -> Result<(), Ended> {
        self.events.blocking_send(event).map_err(|_| Ended)
    }

    fn serve(&mut self) -> Result<(), Ended> {
        self.send(SwitchEvent::Connected(SwitchState {
            datapath: 0,
            ports: self.descriptions.iter().flatten().cloned().collect(),
            rules: self.statistics(),
            max_rules: self.max_rules,
        }))?;
        let mut looked = Instant::now();
        loop {
            match self.commands.recv_timeout(TICK.saturating_sub(looked.elapsed())) {
                Ok(command) => self.command(command)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(Ended),
            }
            if looked.elapsed() >= TICK {
                looked = Instant::now();
                self.monitor()?;
            }
            if self.has_failed() {
                let reason = "a core of the software data plane has failed".to_owned();
                self.send(SwitchEvent::Disconnected { reason })?;
                return Err(Ended);
            }
        }
    }

    fn has_failed(&self) -> bool {
        self.cores.iter().any(JoinHandle::is_finished)
    }

    fn statistics(&self) -> Vec<FlowStatistics> {
        let rules = self.rules.iter();
        let counted = rules.filter_map(|(key, rule)| Some(statistics(rule, self.counters.get(key)?)));
        counted.collect()
    }

    fn command(&mut self, command: SwitchCommand) -> Result<(), Ended> {
        match command {
            SwitchCommand::Write { id, bundles } => {
                let written = bundles.into_iter().try_for_each(|changes| {
                    let mut next = self.rules.clone();
                    apply(&mut next, &changes);
                    self.publish(next)
                });
                self.save();
                self.send(match written {
                    Ok(()) => SwitchEvent::Written { id },
                    Err(error) => SwitchEvent::WriteFailed { id, error },
                })
            }
            SwitchCommand::PacketOut { action, frame } => {
                let target = super::table::target(&action, self.ports.len());
                if let Some(target) = target.filter(|_| !matches!(action, Action::Controller)) {
                    // Where too many wait, a packet is not worth the wait.
                    let _ = self.injected.try_send((target, frame));
                }
                Ok(())
            }
            SwitchCommand::Read => self.send(SwitchEvent::Rules(self.statistics())),
        }
    }

    /// Puts rules into force as a whole. Returns when all cores go by them, and nothing that arrived before is left.
    pub fn publish(&mut self, rules: RuleSet) -> Result<(), ErrorMessage> {
        if rules.len() > self.max_rules as usize {
            return Err(ErrorMessage::TABLE_FULL);
        }
        let cores = self.shared.cores.len();
        let old = |key| self.counters.get(key).cloned();
        let counters: Counters = rules
            .keys()
            .map(|key| {
                (
                    key.clone(),
                    old(key).unwrap_or_else(|| Arc::new(RuleCounters::new(cores))),
                )
            })
            .collect();
        let table = FlowTable::compile(&rules, &counters, self.ports.len()).map_err(|error| {
            self.notices.warn(&error.to_string());
            UNSUPPORTED
        })?;
        let version = self.shared.rules.replace(table);
        let is_behind = |shared: &Shared| {
            let mut cores = shared.cores.iter();
            cores.any(|core| core.version.load(Ordering::Acquire) != version)
        };
        while is_behind(&self.shared) && !self.cores.is_empty() && !self.has_failed() {
            std::thread::sleep(STEP);
        }
        self.shared.rules.free_unused();
        let shown = rules.iter().zip(counters.values());
        let shown = shown.map(|((_, rule), own)| (rule.clone(), Arc::clone(own))).collect();
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).rules = shown;
        (self.rules, self.counters) = (rules, counters);
        Ok(())
    }

    /// Writes the rules for the next process.
    fn save(&self) {
        let Some(path) = &self.state else { return };
        let ports: Vec<PortDescription> = self.descriptions.iter().flatten().cloned().collect();
        if let Err(error) = store::save(path, &ports, &self.rules) {
            self.notices.warn(&format!("--state {}: {error}", path.display()));
        }
    }

    /// Looks at the ports, and reports what has changed.
    fn monitor(&mut self) -> Result<(), Ended> {
        let mut reports = Vec::with_capacity(self.ports.len());
        let mut events = Vec::new();
        for (port, known) in self.ports.iter().zip(&mut self.descriptions) {
            port.monitor(&mut |line| self.notices.warn(&line));
            let Some(report) = port.report().pop() else { continue };
            if let Some(description) = known {
                let is_up = report.link.up == Some(true);
                if report.gone {
                    events.push(SwitchEvent::PortRemoved(description.number));
                    *known = None;
                } else if description.is_up != is_up {
                    description.is_up = is_up;
                    events.push(SwitchEvent::Port(description.clone()));
                }
            }
            reports.push(report);
        }
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).ports = reports;
        events.into_iter().try_for_each(|event| self.send(event))
    }
}
