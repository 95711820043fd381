//! Model of a machine, and servers on it.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use tailwater_api::document::Document;
use tailwater_api::server::{DESCRIPTION, ServerSpec};
use tailwater_net::Nanos;
use tailwater_placement::slo::Curves;
use tailwater_server::details::CoreDetails;
use tailwater_server::{
    AppliedChain, Capacity, ChainObservation, ChainState, CoreUse, LatencyObservation, Machine, Manifest, PacketCounts,
    PacketRates, Refusal,
};

/// Chain of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Running {
    pub chain: AppliedChain,
    pub state: ChainState,
    pub offered: u64,
}

/// State of the model, shared with the test.
#[derive(Debug, Default)]
pub struct State {
    pub chains: BTreeMap<String, Running>,
    /// Steps that were carried out, such as `start a`.
    pub log: Vec<String>,
    /// Number of the next steps that succeed before one fails.
    pub fail_after: Option<usize>,
    /// Undoing fails, too.
    pub fail_on: bool,
    /// Names of chains that do not fit, unless they are forced.
    pub too_large: BTreeSet<String>,
    /// Chains drain at once.
    pub drains_at_once: bool,
    /// Cores, if chains are placed on them.
    pub capacity: Capacity,
    /// Curves of chains, from their profiles.
    pub curves: BTreeMap<String, Arc<Curves>>,
    /// 99th percentile of latency of chains, if it is not 90 us.
    pub p99: BTreeMap<String, Nanos>,
    /// A change by several steps is under way.
    pub is_changing: bool,
}

/// Machine that runs nothing: states advance when it is observed.
#[derive(Clone, Debug, Default)]
pub struct ModelMachine(Arc<Mutex<State>>);

impl ModelMachine {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Names and texts of chains that run or start.
    pub fn live(&self) -> BTreeMap<String, String> {
        let state = self.state();
        let live = state
            .chains
            .values()
            .filter(|running| matches!(running.state, ChainState::Starting | ChainState::Running));
        live.map(|running| (running.chain.name.clone(), running.chain.manifest.yaml.clone()))
            .collect()
    }
}

impl State {
    /// Counts a step, which may have to fail.
    fn step(&mut self, text: String) -> Result<(), Refusal> {
        match &mut self.fail_after {
            Some(0) => {
                if !self.fail_on {
                    self.fail_after = None;
                }
                return Err(Refusal::new(format!("injected failure of {text}")));
            }
            Some(left) => *left -= 1,
            None => {}
        }
        self.log.push(text);
        Ok(())
    }

    fn insert(&mut self, chain: &AppliedChain) {
        let running = Running {
            chain: chain.clone(),
            state: ChainState::Starting,
            offered: 0,
        };
        self.chains.insert(chain.name.clone(), running);
    }
}

impl Machine for ModelMachine {
    fn capacity(&self) -> Capacity {
        self.state().capacity.clone()
    }

    fn curves(&self, chain: &AppliedChain) -> Result<Option<Arc<Curves>>, Refusal> {
        Ok(self.state().curves.get(&chain.name).cloned())
    }

    fn check(&self, chain: &AppliedChain, beside: &[&AppliedChain]) -> Result<(), Refusal> {
        assert!(beside.iter().all(|other| other.name != chain.name && !other.drained));
        if chain.manifest.yaml.contains("alow") {
            return Err(Refusal::wrong("found alow"));
        }
        match self.state().too_large.contains(&chain.name) && !chain.forced {
            true => Err(Refusal::new("needs 2 cores, 1 is left; would fit with 1 core less")),
            false => Ok(()),
        }
    }

    fn begin_change(&mut self, _: bool) {
        assert!(!std::mem::replace(&mut self.state().is_changing, true));
    }

    fn complete_change(&mut self) {
        assert!(std::mem::take(&mut self.state().is_changing));
    }

    fn start(&mut self, chain: &AppliedChain) -> Result<(), Refusal> {
        let mut state = self.state();
        let old = state.chains.get(&chain.name).map(|running| running.state.clone());
        assert!(
            !matches!(old, Some(ChainState::Starting | ChainState::Running)),
            "{} runs already",
            chain.name
        );
        state.step(format!("start {}", chain.name))?;
        state.insert(chain);
        Ok(())
    }

    fn replace(&mut self, old: &str, chain: &AppliedChain) -> Result<(), Refusal> {
        let mut state = self.state();
        assert!(state.chains.contains_key(old), "{old} is not there");
        state.step(format!("replace {old} {}", chain.name))?;
        state.chains.remove(old);
        state.insert(chain);
        Ok(())
    }

    fn change(&mut self, chain: &AppliedChain) -> Result<(), Refusal> {
        let mut state = self.state();
        state.step(format!("change {}", chain.name))?;
        let running = state.chains.get_mut(&chain.name).expect("the chain runs");
        running.chain = chain.clone();
        Ok(())
    }

    fn drain(&mut self, name: &str) -> Result<(), Refusal> {
        let mut state = self.state();
        state.step(format!("drain {name}"))?;
        let at_once = state.drains_at_once;
        match state.chains.get_mut(name) {
            None => return Err(Refusal::new("there is no such chain")),
            Some(running) if at_once || matches!(running.state, ChainState::Failed(_)) => {
                running.state = ChainState::Ended
            }
            Some(running) => running.state = ChainState::Draining,
        }
        Ok(())
    }

    fn cores(&self) -> Vec<CoreDetails> {
        Vec::new()
    }

    fn share_cores(&mut self, shares: bool) {
        self.state().log.push(format!("share cores: {shares}"));
    }

    fn observe(&mut self) -> Vec<ChainObservation> {
        let mut state = self.state();
        assert!(!state.is_changing, "a change is not completed");
        let State { chains, p99, .. } = &mut *state;
        let observed = chains.values_mut().map(|running| {
            let p99 = p99.get(&running.chain.name).copied().unwrap_or(Nanos(90_000));
            let mut observation = ChainObservation::new(&running.chain.name, running.state.clone());
            if running.state == ChainState::Running {
                running.offered += 100;
                observation.latency = LatencyObservation {
                    p50: Some(Nanos(20_000)),
                    p99: Some(p99),
                    objective: running.chain.settings.slo.budget(),
                    met: Some(p99 <= running.chain.settings.slo.budget()),
                    ..LatencyObservation::default()
                };
                observation.total = LatencyObservation {
                    p50: Some(Nanos(10_000)),
                    p99: Some(Nanos(70_000)),
                    ..observation.latency
                };
                observation.rates = Some(PacketRates {
                    offered: 2000.0,
                    delivered: 1900.0,
                    dropped: 0.0,
                    lost: 100.0,
                    cores: 0.25,
                });
            }
            observation.packets = PacketCounts {
                offered: running.offered,
                delivered: running.offered - running.offered / 100,
                dropped: running.offered / 100,
                lost: 0,
            };
            observation.cores = CoreUse {
                dedicated: vec![1],
                auxiliary: 0.25,
            };
            running.state = match &running.state {
                ChainState::Starting => ChainState::Running,
                ChainState::Draining => ChainState::Ended,
                state => state.clone(),
            };
            observation
        });
        let observed: Vec<ChainObservation> = observed.collect();
        let ended = observed
            .iter()
            .filter(|observation| observation.state == ChainState::Ended);
        for observation in ended {
            state.chains.remove(&observation.name);
        }
        observed
    }
}

/// Server with two ports and these further fields.
pub fn server(fields: &str) -> ServerSpec {
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Server\nmetadata: {{name: edge-1}}\nspec:\n  cores: 1\n  ports:\n  \
         - {{name: north, traffic: bursty}}\n  - {{name: east, traffic: bursty}}\n{fields}"
    );
    let document = Document::parse(&text, "server.yaml", DESCRIPTION).unwrap();
    ServerSpec::new(&document, Path::new("/")).unwrap()
}

/// Text of a chain on port `north` for a destination, with these functions and this objective.
pub fn yaml(name: &str, destination: &str, functions: &str, latency: &str) -> String {
    format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: {name}}}\nspec:\n  port: north\n  match: \
         {{destinations: [{destination}]}}\n  slo: {{latency: {latency}}}\n  functions: {functions}\n"
    )
}

/// Manifest without a file.
pub fn manifest(yaml: &str) -> Manifest {
    Manifest {
        source: "standard input".to_owned(),
        path: None,
        yaml: yaml.to_owned(),
    }
}
