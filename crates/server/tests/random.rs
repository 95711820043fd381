//! Random requests, failures and restarts against a simple model: which chains run, with which text.

mod common;

use common::{ModelMachine, manifest, server, yaml};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use tailwater_net::Nanos;
use tailwater_server::generation::{Store, StoredGeneration};
use tailwater_server::{ApplyRequest, ChainState, ControlError, Manager, Outcome, Phase, Snapshot};

#[derive(Clone, Debug, Default)]
struct Memory(Arc<Mutex<(StoredGeneration, bool)>>);

impl Store for Memory {
    fn store_after(&mut self, generation: &StoredGeneration, carry_out: &mut dyn FnMut() -> bool) -> io::Result<()> {
        let mut inner = self.0.lock().unwrap();
        if inner.1 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if carry_out() {
            inner.0 = generation.clone();
        }
        Ok(())
    }
}

/// Versions of a chain, so that changes are of all kinds.
const VERSIONS: usize = 4;
const CHAINS: usize = 5;

/// Text of a version of a chain. Chains 0 and 1 contradict each other in version 3.
fn text(chain: usize, version: usize) -> String {
    let destination = match version {
        3 => format!("10.{}.0.0/16", chain.max(1)),
        _ => format!("10.{}.0.0/16", 100 + chain),
    };
    let functions = if version == 1 {
        "[acl: {}, forward: {}]"
    } else {
        "[forward: {}]"
    };
    let latency = if version == 2 { "2ms" } else { "1ms" };
    yaml(&format!("c{chain}"), &destination, functions, latency)
}

#[derive(Clone, Debug)]
enum Action {
    Apply(Vec<(usize, usize)>, bool),
    Delete(Vec<usize>),
    Drain(usize),
    Fail(usize),
    Observe,
    Restart,
}

fn action() -> impl Strategy<Value = Action> {
    let chain = 0..CHAINS;
    prop_oneof![
        6 => (prop::collection::vec((chain.clone(), 0..VERSIONS), 1..4), prop::bool::weighted(0.1))
            .prop_map(|(chains, dry)| Action::Apply(chains, dry)),
        2 => prop::collection::vec(chain.clone(), 1..3).prop_map(Action::Delete),
        1 => chain.clone().prop_map(Action::Drain),
        1 => chain.prop_map(Action::Fail),
        4 => Just(Action::Observe),
        1 => Just(Action::Restart),
    ]
}

/// Failure of the machine at a step, or of the disk.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    Step(usize),
    Disk,
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![6 => Just(Fault::None), 2 => (0..3_usize).prop_map(Fault::Step), 1 => Just(Fault::Disk)]
}

/// Chain of the model: its version, and whether it is drained.
type Expected = BTreeMap<usize, (usize, bool)>;

struct World {
    manager: Manager<ModelMachine, Memory>,
    machine: ModelMachine,
    memory: Memory,
    published: Arc<Mutex<Snapshot>>,
    now: u64,
}

impl World {
    fn new(memory: Memory) -> World {
        let machine = ModelMachine::default();
        let published = Arc::new(Mutex::new(Snapshot::default()));
        let publish = Arc::clone(&published);
        let mut manager = Manager::new(server(""), machine.clone(), memory.clone(), Nanos(1), move |snapshot| {
            *publish.lock().unwrap() = snapshot;
        });
        let stored = memory.0.lock().unwrap().0.clone();
        manager.resume(stored, Nanos(1));
        World {
            manager,
            machine,
            memory,
            published,
            now: 1,
        }
    }

    fn act(&mut self, action: &Action, expected: &mut Expected) -> Result<(), ControlError> {
        self.now += 1;
        let now = Nanos(self.now);
        match action {
            Action::Apply(chains, dry_run) => {
                let manifests = chains
                    .iter()
                    .map(|&(chain, version)| manifest(&text(chain, version)))
                    .collect();
                let request = ApplyRequest {
                    manifests,
                    dry_run: *dry_run,
                    force: false,
                };
                let applied = self.manager.apply(&request, now)?;
                for (&(chain, version), applied) in chains.iter().zip(applied) {
                    assert_eq!(applied.name, format!("c{chain}"));
                    let before = expected.get(&chain);
                    if before == Some(&(version, false)) {
                        assert!(matches!(applied.outcome, Outcome::Unchanged | Outcome::Created));
                    } else {
                        assert_ne!(applied.outcome, Outcome::Unchanged);
                    }
                }
                if !dry_run {
                    expected.extend(chains.iter().map(|&(chain, version)| (chain, (version, false))));
                }
            }
            Action::Delete(chains) => {
                let names: Vec<String> = chains.iter().map(|chain| format!("c{chain}")).collect();
                self.manager.delete(&names, false, now)?;
                expected.retain(|chain, _| !chains.contains(chain));
            }
            Action::Drain(chain) => {
                self.manager.drain(&format!("c{chain}"), now)?;
                if let Some((_, drained)) = expected.get_mut(chain) {
                    *drained = true;
                }
            }
            Action::Fail(chain) => {
                if let Some(running) = self.machine.state().chains.get_mut(&format!("c{chain}")) {
                    running.state = ChainState::Failed("injected".into());
                }
                self.manager.observe(now);
            }
            Action::Observe => self.manager.observe(now),
            Action::Restart => *self = World::new(self.memory.clone()),
        }
        Ok(())
    }

    /// Everything agrees with the model: configuration, disk, machine, statuses.
    fn check(&self, expected: &Expected) {
        let texts: BTreeMap<String, (String, bool)> = expected
            .iter()
            .map(|(&chain, &(version, drained))| (format!("c{chain}"), (text(chain, version), drained)))
            .collect();
        let configured = self.manager.configuration();
        let found: BTreeMap<String, (String, bool)> = configured
            .chains
            .iter()
            .map(|(name, chain)| (name.clone(), (chain.manifest.yaml.clone(), chain.drained)))
            .collect();
        assert_eq!(found, texts);
        let stored = self.memory.0.lock().unwrap().0.clone();
        assert_eq!(stored.number, configured.generation);
        let on_disk: BTreeMap<String, (String, bool)> = stored
            .chains
            .into_iter()
            .map(|chain| (chain.name, (chain.manifest.yaml, chain.drained)))
            .collect();
        assert_eq!(on_disk, texts);
        let published = self.published.lock().unwrap();
        let has_failed = |name: &str| {
            published
                .chains
                .get(name)
                .is_some_and(|status| status.phase == Phase::Failed)
        };
        let should_run = texts
            .iter()
            .filter(|(name, (_, drained))| !drained && !has_failed(name));
        let should_run: BTreeMap<String, String> = should_run
            .map(|(name, (text, _))| (name.clone(), text.clone()))
            .collect();
        assert_eq!(self.machine.live(), should_run);
        for name in texts.keys() {
            assert!(published.chains.contains_key(name), "{name} has a status");
        }
        for (name, status) in &published.chains {
            let is_leaving = !texts.contains_key(name);
            assert_eq!(
                is_leaving,
                status.phase == Phase::Draining && !configured.chains.contains_key(name),
                "{name}"
            );
        }
        assert_eq!(published.generation, configured.generation);
    }
}

proptest! {
    // 64 runs of 40 actions.
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_machine_runs_the_generation_or_the_one_before(
        actions in prop::collection::vec((action(), fault()), 40)
    ) {
        let mut world = World::new(Memory::default());
        let mut expected = Expected::new();
        for (action, fault) in &actions {
            match fault {
                Fault::None => {}
                Fault::Step(after) => world.machine.state().fail_after = Some(*after),
                Fault::Disk => world.memory.0.lock().unwrap().1 = true,
            }
            // After an error, nothing has changed.
            let is_restart = matches!(action, Action::Restart);
            if !is_restart {
                let _ = world.act(action, &mut expected);
            }
            world.machine.state().fail_after = None;
            world.memory.0.lock().unwrap().1 = false;
            if is_restart {
                let _ = world.act(action, &mut expected);
            }
            world.check(&expected);
        }
        // In the end, everything that should run does.
        let running = expected.iter().filter(|(_, state)| !state.1);
        let running: Vec<(usize, usize)> = running.map(|(&chain, state)| (chain, state.0)).collect();
        if !running.is_empty() {
            world.act(&Action::Apply(running, false), &mut expected).unwrap();
        }
        for _ in 0..4 {
            world.act(&Action::Observe, &mut expected).unwrap();
        }
        world.check(&expected);
        assert!(world.manager.snapshot().is_ready());
        assert_eq!(world.manager.snapshot().chains.len(), expected.len());
    }
}
