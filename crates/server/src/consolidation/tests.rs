//! Plans with fewer cores on a machine that only notes what it is told.

use super::*;
use crate::chain::{AppliedChain, Manifest};
use crate::details::CoreDetails;
use crate::generation::StoredGeneration;
use crate::machine::{ChainObservation, ChainState, Refusal};
use crate::request::ApplyRequest;
use crate::{Capacity, Promise};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tailwater_api::document::Document;
use tailwater_api::server::{DESCRIPTION, ServerSpec};
use tailwater_placement::curve::{CacheCurve, LoadCurve};
use tailwater_placement::slo::{Curves, ISOLATED};

#[derive(Debug, Default)]
struct State {
    /// Cores, by chain.
    running: BTreeMap<String, u32>,
    log: Vec<String>,
    /// Chain that cannot be moved.
    stuck: Option<String>,
}

/// Machine with four cores; a packet of any chain takes 1 us.
#[derive(Clone, Debug, Default)]
struct Fake(Arc<Mutex<State>>);

impl Fake {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl Machine for Fake {
    fn capacity(&self) -> Capacity {
        Capacity {
            cores: vec![1, 2, 3, 4],
            cache_bytes: 1 << 20,
        }
    }

    fn curves(&self, _: &AppliedChain) -> Result<Option<Arc<Curves>>, Refusal> {
        Ok(Some(Arc::new(Curves {
            machine: "m".into(),
            cores: 1,
            cache: CacheCurve::new(vec![(1024, 1e6 / ISOLATED)]).unwrap(),
            load: LoadCurve::new(vec![(0.5, Nanos(10_000)), (1.0, Nanos(100_000))]).unwrap(),
        })))
    }

    fn check(&self, _: &AppliedChain, _: &[&AppliedChain]) -> Result<(), Refusal> {
        Ok(())
    }

    fn start(&mut self, chain: &AppliedChain) -> Result<(), Refusal> {
        let core = chain.placement.cores[0];
        self.state().running.insert(chain.name.clone(), core);
        Ok(())
    }

    fn replace(&mut self, old: &str, chain: &AppliedChain) -> Result<(), Refusal> {
        let core = chain.placement.cores[0];
        let mut state = self.state();
        if state.stuck.as_deref() == Some(old) {
            return Err(Refusal::new("it is stuck"));
        }
        state.log.push(format!("{old} to {core}"));
        state.running.insert(chain.name.clone(), core);
        Ok(())
    }

    fn drain(&mut self, name: &str) -> Result<(), Refusal> {
        self.state().running.remove(name);
        Ok(())
    }

    fn cores(&self) -> Vec<CoreDetails> {
        Vec::new()
    }

    fn observe(&mut self) -> Vec<ChainObservation> {
        let state = self.state();
        let running = state.running.keys();
        running
            .map(|name| ChainObservation::new(name, ChainState::Running))
            .collect()
    }
}

struct Nowhere;

impl Store for Nowhere {
    fn store_after(&mut self, _: &StoredGeneration, carry_out: &mut dyn FnMut() -> bool) -> io::Result<()> {
        carry_out();
        Ok(())
    }
}

struct Rig {
    machine: Fake,
    manager: Manager<Fake, Nowhere>,
    now: Nanos,
}

impl Rig {
    fn new(fields: &str) -> Rig {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Server\nmetadata: {{name: s}}\nspec:\n  cores: 1-4\n  \
             ports: [{{name: a, traffic: bursty}}]\n  admission: {{profiles: /p{fields}}}\n"
        );
        let document = Document::parse(&text, "s.yaml", DESCRIPTION).unwrap();
        let spec = ServerSpec::new(&document, Path::new("/")).unwrap();
        let machine = Fake::default();
        Rig {
            manager: Manager::new(spec, machine.clone(), Nowhere, Nanos(1), drop),
            machine,
            now: Nanos::from_secs(1),
        }
    }

    /// Applies chains with this throughput each: they spread over the cores.
    fn apply(&mut self, names: &[&str], throughput: &str) {
        let manifest = |name: &&str| Manifest {
            source: "x".to_owned(),
            path: None,
            yaml: format!(
                "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: {name}}}\nspec:\n  match: \
                 {{sources: [10.{}.0.0/16]}}\n  slo: {{latency: 1ms, throughput: {throughput}}}\n  functions: \
                 [{{forward: }}]\n",
                name.as_bytes()[0]
            ),
        };
        let request = ApplyRequest {
            manifests: names.iter().map(manifest).collect(),
            ..ApplyRequest::default()
        };
        self.manager.apply(&request, self.now).unwrap();
        self.manager.observe(self.now);
    }

    /// Steps until `done`, without a bound on the time of a search.
    fn step_until(&mut self, consolidation: &mut Consolidation, done: impl Fn(&Rig, &Consolidation) -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !done(self, consolidation) {
            assert!(Instant::now() < until, "waited too long");
            self.now += Nanos::from_millis(100);
            self.manager.observe(self.now);
            consolidation.step(&mut self.manager, self.now);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Steps until the current generation has been searched.
    fn settle(&mut self, consolidation: &mut Consolidation) {
        consolidation.step(&mut self.manager, self.now);
        self.step_until(consolidation, |rig, search| {
            search.running.is_none() && search.asked == Some(rig.manager.generation())
        });
    }

    fn cores(&self) -> BTreeMap<String, u32> {
        self.machine.state().running.clone()
    }

    fn last(&self, reason: &str) -> Option<String> {
        let events = self.manager.events().after(0).filter(|event| event.reason == reason);
        events.last().map(|event| event.message.clone())
    }
}

/// Moves all chains to core 1.
fn to_the_first() -> Option<FindCores> {
    Some(Arc::new(|_, chains, _| {
        Some(chains.iter().map(|chain| (chain.name.clone(), 1)).collect())
    }))
}

#[test]
fn a_plan_that_frees_enough_cores_is_taken() {
    let mut rig = Rig::new(", consolidate: 2");
    rig.apply(&["a", "b", "c", "d"], "250kpps");
    assert_eq!(rig.cores().into_values().collect::<Vec<_>>(), [1, 2, 3, 4]);
    let mut search = Consolidation::new(to_the_first());
    rig.settle(&mut search);
    // Three of them fit on the core with its headroom.
    let cores: Vec<(String, u32)> = rig.cores().into_iter().collect();
    let expected = [("a", 1), ("b", 1), ("c", 1), ("d", 4)].map(|(name, core)| (name.to_owned(), core));
    assert_eq!(cores, expected);
    assert_eq!(rig.machine.state().log, ["b to 1", "c to 1"]);
    let event = "cores 2, 3 are free, all promises are kept: moved b from core 2 to 1, c from core 3 to 1";
    assert_eq!(rig.last("Consolidated").as_deref(), Some(event));
    let chains = &rig.manager.configuration().chains;
    for chain in chains.values() {
        let placement = &chain.placement;
        assert_eq!(placement.promise, Promise::Promised);
        assert!(placement.predicted.unwrap().core_load <= 0.9, "{placement:?}");
    }
    assert_eq!(chains["b"].placement.cores, [1]);
    // Nothing more is to be gained, and the next generation is searched again.
    let generation = rig.manager.generation();
    rig.settle(&mut search);
    assert_eq!(rig.manager.generation(), generation);
    rig.apply(&["e"], "10kpps");
    rig.settle(&mut search);
    assert_eq!(search.asked, Some(generation + 1));
}

#[test]
fn a_plan_that_frees_too_little_is_not_taken() {
    let mut rig = Rig::new(", consolidate: 3");
    rig.apply(&["a", "b", "c", "d"], "250kpps");
    let before = (rig.cores(), rig.manager.generation());
    let mut search = Consolidation::new(to_the_first());
    rig.settle(&mut search);
    assert_eq!((rig.cores(), rig.manager.generation()), before);
    assert_eq!(rig.last("Consolidated"), None);
}

#[test]
fn a_move_that_fails_undoes_those_before() {
    let mut rig = Rig::new(", consolidate: 1");
    rig.apply(&["a", "b", "c", "d"], "250kpps");
    let before = (rig.cores(), rig.manager.generation());
    rig.machine.state().stuck = Some("c".to_owned());
    let mut search = Consolidation::new(to_the_first());
    rig.settle(&mut search);
    assert_eq!((rig.cores(), rig.manager.generation()), before);
    assert_eq!(rig.machine.state().log, ["b to 1", "b to 2"]);
    let event = "chains stay on their cores: cannot replace chain \"c\": it is stuck";
    assert_eq!(rig.last("NotConsolidated").as_deref(), Some(event));
}

/// A plan for an earlier generation is dropped, and the current one is searched; one search runs at a time, and applies
/// do not wait for it.
#[test]
fn newer_changes_cancel_a_search() {
    let mut rig = Rig::new(", consolidate: 1");
    rig.apply(&["a", "b"], "250kpps");
    let (go, running) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (may_end, begun) = (Arc::clone(&go), Arc::clone(&running));
    let find: FindCores = Arc::new(move |_, chains, _| {
        begun.fetch_add(1, Ordering::SeqCst);
        while chains.len() == 2 && !may_end.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The first search would move all chains, the second nothing.
        (chains.len() == 2).then(|| chains.iter().map(|chain| (chain.name.clone(), 1)).collect())
    });
    let mut search = Consolidation::new(Some(find));
    rig.step_until(&mut search, |_, _| running.load(Ordering::SeqCst) == 1);
    rig.apply(&["c"], "250kpps");
    for _ in 0..5 {
        search.step(&mut rig.manager, rig.now);
    }
    assert_eq!(running.load(Ordering::SeqCst), 1);
    go.store(true, Ordering::SeqCst);
    rig.settle(&mut search);
    assert_eq!(running.load(Ordering::SeqCst), 2);
    assert_eq!(rig.cores().into_values().collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(rig.last("Consolidated"), None);
}

#[test]
fn without_the_field_or_a_solver_nothing_is_searched() {
    let mut rig = Rig::new("");
    rig.apply(&["a", "b"], "250kpps");
    let mut search = Consolidation::new(to_the_first());
    search.step(&mut rig.manager, rig.now);
    assert!(search.running.is_none() && search.asked.is_none());
    let mut rig = Rig::new(", consolidate: 1");
    rig.apply(&["a", "b"], "250kpps");
    let mut search = Consolidation::new(None);
    search.step(&mut rig.manager, rig.now);
    search.step(&mut rig.manager, rig.now);
    let event = "spec.admission.consolidate has no effect: this program has no solver (feature milp)";
    assert_eq!(rig.last("NoSolver").as_deref(), Some(event));
    let told = rig.manager.events().after(0).filter(|event| event.reason == "NoSolver");
    assert_eq!(told.count(), 1);
}

/// With the solver: the fewest cores.
#[cfg(feature = "milp")]
#[test]
fn the_solver_finds_the_fewest_cores() {
    let mut rig = Rig::new(", consolidate: 1");
    rig.apply(&["a", "b", "c", "d"], "400kpps");
    let mut search = Consolidation::new(solver());
    rig.settle(&mut search);
    let cores: BTreeSet<u32> = rig.cores().into_values().collect();
    assert_eq!(cores.len(), 2);
    assert!(rig.last("Consolidated").is_some());
}
