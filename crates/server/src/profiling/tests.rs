//! A server that measures profiles, on a machine whose profiles, measurements and windows are the test's.

use super::*;
use crate::chain::Manifest;
use crate::details::CoreDetails;
use crate::generation::{Store, StoredGeneration};
use crate::machine::{ChainObservation, ChainState, PacketRates, Refusal, WindowWork};
use crate::request::Outcome;
use crate::status::ConditionStatus;
use crate::{Capacity, Promise};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use tailwater_api::document::Document;
use tailwater_api::server::{DESCRIPTION, ServerSpec};
use tailwater_placement::curve::{CacheCurve, LoadCurve};
use tailwater_placement::slo::{Curves, ISOLATED};

/// State of the machine, shared with the test.
#[derive(Debug, Default)]
struct State {
    /// Packets per second of a whole core, by chain: those of the profiles that are there.
    profiles: BTreeMap<String, f64>,
    /// The same, as the next measurement finds them.
    real: BTreeMap<String, f64>,
    /// Chain whose profile is being measured.
    measuring: Option<String>,
    /// Result of the measurement, if it has ended.
    result: Option<Result<(), Refusal>>,
    has_core: bool,
    log: Vec<String>,
    windows: BTreeMap<String, (WindowWork, f64, Option<bool>)>,
    running: Vec<String>,
}

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
            cores: vec![1, 2],
            cache_bytes: 1 << 20,
        }
    }

    fn curves(&self, chain: &AppliedChain) -> Result<Option<Arc<Curves>>, Refusal> {
        let curves = |rate: &f64| {
            Arc::new(Curves {
                machine: "m".into(),
                cores: 1,
                cache: CacheCurve::new(vec![(1024, rate / ISOLATED)]).unwrap(),
                load: LoadCurve::new(vec![(0.5, Nanos(10_000)), (1.0, Nanos(100_000))]).unwrap(),
            })
        };
        Ok(self.state().profiles.get(&chain.name).map(curves))
    }

    fn profiling_core(&self) -> Result<u32, Refusal> {
        match self.state().has_core {
            true => Ok(7),
            false => Err(Refusal::new("no core to measure on")),
        }
    }

    fn begin_profile(&mut self, chain: &AppliedChain) -> Result<u32, Refusal> {
        let core = self.profiling_core()?;
        let mut state = self.state();
        assert_eq!(state.measuring, None, "one at a time");
        state.log.push(format!("measure {}", chain.name));
        state.measuring = Some(chain.name.clone());
        Ok(core)
    }

    fn poll_profile(&mut self) -> Option<Result<(), Refusal>> {
        let mut state = self.state();
        let result = state.result.take()?;
        let name = state.measuring.take().unwrap();
        if result.is_ok() {
            let rate = state.real[&name];
            state.profiles.insert(name, rate);
        }
        Some(result)
    }

    fn cancel_profile(&mut self) {
        let mut state = self.state();
        state.log.push("cancel".to_owned());
        state.measuring = None;
    }

    fn check(&self, _: &AppliedChain, _: &[&AppliedChain]) -> Result<(), Refusal> {
        Ok(())
    }

    fn start(&mut self, chain: &AppliedChain) -> Result<(), Refusal> {
        let mut state = self.state();
        state.running.push(chain.name.clone());
        state.log.push(format!("start {}", chain.name));
        Ok(())
    }

    fn replace(&mut self, old: &str, chain: &AppliedChain) -> Result<(), Refusal> {
        let core = chain.placement.cores[0];
        self.state().log.push(format!("replace {old} on core {core}"));
        Ok(())
    }

    fn drain(&mut self, name: &str) -> Result<(), Refusal> {
        self.state().running.retain(|running| running != name);
        Ok(())
    }

    fn cores(&self) -> Vec<CoreDetails> {
        Vec::new()
    }

    fn observe(&mut self) -> Vec<ChainObservation> {
        let state = self.state();
        let observe = |name: &String| {
            let mut observation = ChainObservation::new(name, ChainState::Running);
            if let Some((work, offered, met)) = state.windows.get(name) {
                observation.work = Some(*work);
                observation.latency.met = *met;
                observation.rates = Some(PacketRates {
                    offered: *offered,
                    ..PacketRates::default()
                });
            }
            observation
        };
        state.running.iter().map(observe).collect()
    }
}

struct Nowhere;

impl Store for Nowhere {
    fn store_after(&mut self, _: &StoredGeneration, carry_out: &mut dyn FnMut() -> bool) -> io::Result<()> {
        carry_out();
        Ok(())
    }
}

/// Results of applies, in their order.
type Answers = Arc<Mutex<Vec<String>>>;

struct Rig {
    machine: Fake,
    manager: Manager<Fake, Nowhere>,
    queue: ProfileQueue,
    answers: Answers,
    now: Nanos,
}

const AUTO: &str = "  admission: {profiles: /p, profile: auto}\n";
const HALF: &str = "500kpps";

impl Rig {
    fn new(admission: &str) -> Rig {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Server\nmetadata: {{name: s}}\nspec:\n  cores: 1\n  \
             ports: [{{name: a, traffic: bursty}}]\n{admission}"
        );
        let document = Document::parse(&text, "s.yaml", DESCRIPTION).unwrap();
        let spec = ServerSpec::new(&document, Path::new("/")).unwrap();
        let machine = Fake::default();
        machine.state().has_core = true;
        Rig {
            manager: Manager::new(spec, machine.clone(), Nowhere, Nanos(1), drop),
            machine,
            queue: ProfileQueue::default(),
            answers: Answers::default(),
            now: Nanos::from_secs(1),
        }
    }

    fn request(chains: &[(&str, &str)]) -> ApplyRequest {
        let manifest = |(at, (name, throughput)): (usize, &(&str, &str))| Manifest {
            source: "x".to_owned(),
            path: None,
            // Chains of a test have the same match only if they have the same name.
            yaml: format!(
                "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: {name}}}\nspec:\n  match: \
                 {{sources: [10.{}.{at}.0/24]}}\n  slo: {{latency: 1ms, throughput: {throughput}}}\n  functions: \
                 [{{forward: }}]\n",
                name.as_bytes()[0]
            ),
        };
        ApplyRequest {
            manifests: chains.iter().enumerate().map(manifest).collect(),
            ..ApplyRequest::default()
        }
    }

    fn send(&mut self, request: ApplyRequest) {
        let answers = Arc::clone(&self.answers);
        let answer = move |reply: Reply| {
            let said = match reply {
                Ok((applied, generation)) => {
                    let created = applied.iter().filter(|applied| applied.outcome != Outcome::Unchanged);
                    format!("{} changed, generation {generation}", created.count())
                }
                Err(error) => error.to_string(),
            };
            answers.lock().unwrap().push(said);
        };
        self.queue.apply(&mut self.manager, request, Box::new(answer), self.now);
    }

    fn apply(&mut self, chains: &[(&str, &str)]) {
        self.send(Rig::request(chains));
    }

    /// One round of the server's loop.
    fn round(&mut self) {
        self.now += Nanos::from_millis(100);
        self.manager.observe(self.now);
        self.queue.add_drifted(self.manager.take_drifted(self.now));
        let _ = self.queue.step(&mut self.manager, self.now);
    }

    /// Ends the measurement that runs, and lets the server go on.
    fn measured(&mut self, result: Result<(), &str>) {
        self.machine.state().result = Some(result.map_err(Refusal::new));
        self.round();
        self.round();
    }

    fn answers(&self) -> Vec<String> {
        std::mem::take(&mut self.answers.lock().unwrap())
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.machine.state().log)
    }

    fn real(&self, name: &str, rate: f64) {
        self.machine.state().real.insert(name.to_owned(), rate);
    }

    /// Reasons of the events of a chain.
    fn events(&self, name: &str) -> Vec<&'static str> {
        let about = self
            .manager
            .events()
            .after(0)
            .filter(|event| event.chain.as_deref() == Some(name));
        about.map(|event| event.reason).collect()
    }

    fn last_message(&self, reason: &str) -> String {
        let with = self.manager.events().after(0).filter(|event| event.reason == reason);
        with.last().map(|event| event.message.clone()).unwrap_or_default()
    }

    fn promise(&self, name: &str) -> (u32, Promise) {
        let placement = &self.manager.configuration().chains[name].placement;
        (placement.cores[0], placement.promise)
    }

    fn kept(&self, name: &str) -> (ConditionStatus, &'static str) {
        let snapshot = self.manager.snapshot();
        let condition = snapshot.chains[name].promise_kept();
        (condition.status, condition.reason)
    }

    /// Admits a chain that runs by a profile of a million packets per second.
    fn run(&mut self, name: &str, throughput: &str) {
        self.real(name, 1e6);
        self.machine.state().profiles.insert(name.to_owned(), 1e6);
        self.apply(&[(name, throughput)]);
        self.round();
        assert_eq!(self.answers().len(), 1);
        self.log();
    }

    /// Windows of a chain, in each of which a packet costs so many nanoseconds.
    fn windows(&mut self, name: &str, cost: u64, count: usize) {
        for _ in 0..count {
            let mut state = self.machine.state();
            let index = state.windows.get(name).map_or(0, |(work, ..)| work.index + 1);
            let work = WindowWork {
                index,
                busy: Nanos(cost * 3200),
                batches: 100,
                packets: 3200,
            };
            state.windows.insert(name.to_owned(), (work, 100_000.0, Some(true)));
            drop(state);
            self.round();
            // A window counts once.
            self.round();
        }
    }
}

#[test]
fn a_chain_without_a_profile_is_measured_and_then_admitted_as_any_other() {
    let mut rig = Rig::new(AUTO);
    rig.real("a", 1e6);
    rig.apply(&[("a", HALF)]);
    rig.round();
    assert_eq!((rig.answers(), rig.log()), (vec![], vec!["measure a".to_owned()]));
    // It is not in the configuration meanwhile, and others are carried out.
    assert!(rig.manager.configuration().chains.is_empty() && rig.manager.snapshot().chains.is_empty());
    assert_eq!(
        rig.last_message("Profiling"),
        "measures its profile on core 7, for at most 60s"
    );
    rig.machine.state().profiles.insert("b".to_owned(), 1e6);
    rig.apply(&[("b", HALF)]);
    assert_eq!(rig.answers(), ["1 changed, generation 1"]);
    rig.measured(Ok(()));
    assert_eq!(rig.answers(), ["1 changed, generation 2"]);
    assert_eq!(
        (rig.promise("b"), rig.promise("a")),
        ((1, Promise::Promised), (2, Promise::Promised))
    );
    assert_eq!(rig.log(), ["start b", "start a"]);
    assert_eq!(rig.events("a"), ["Profiling", "Profiled", "Started", "Running"]);
    assert_eq!(rig.kept("a"), (ConditionStatus::True, "Kept"));
    // It has a profile now.
    rig.apply(&[("a", "400kpps")]);
    assert_eq!(rig.answers(), ["1 changed, generation 3"]);
}

#[test]
fn all_chains_of_a_request_are_measured_before_any_starts_or_none_does() {
    let mut rig = Rig::new(AUTO);
    rig.real("a", 1e6);
    rig.real("b", 1e6);
    rig.apply(&[("b", HALF), ("a", HALF)]);
    rig.round();
    rig.measured(Ok(()));
    assert_eq!(
        (rig.answers(), rig.log()),
        (vec![], vec!["measure a".to_owned(), "measure b".to_owned()])
    );
    rig.measured(Err("no\npackets"));
    assert_eq!(rig.answers(), ["chain \"b\": cannot be profiled: no packets"]);
    assert!(rig.manager.configuration().chains.is_empty() && rig.log().is_empty());
    assert_eq!(rig.last_message("ProfileFailed"), "no packets");
    // One of them has its profile already.
    rig.apply(&[("b", HALF), ("a", HALF)]);
    rig.round();
    rig.measured(Ok(()));
    assert_eq!(rig.answers(), ["2 changed, generation 1"]);
    assert_eq!(rig.log(), ["measure b", "start a", "start b"]);
}

#[test]
fn a_measured_chain_that_does_not_fit_is_refused_as_any_other() {
    let mut rig = Rig::new(AUTO);
    rig.real("a", 500_000.0);
    rig.apply(&[("a", HALF)]);
    rig.round();
    rig.measured(Ok(()));
    let answers = rig.answers();
    assert!(
        answers[0].starts_with("chain \"a\": needs 1.00 of a core at 500kpps, 0.90 is free"),
        "{answers:?}"
    );
}

#[test]
fn without_a_core_to_measure_on_a_chain_is_refused_but_for_force() {
    let mut rig = Rig::new(AUTO);
    rig.machine.state().has_core = false;
    rig.apply(&[("a", HALF)]);
    rig.round();
    assert_eq!(
        rig.answers(),
        ["chain \"a\": cannot be profiled: no core to measure on"]
    );
    let dry = ApplyRequest {
        dry_run: true,
        ..Rig::request(&[("a", HALF)])
    };
    rig.send(dry);
    let expected = "chain \"a\": has no profile, and cannot be profiled: no core to measure on";
    assert_eq!(rig.answers(), [expected]);
    let forced = ApplyRequest {
        force: true,
        ..Rig::request(&[("a", HALF)])
    };
    rig.send(forced);
    assert_eq!(
        (rig.answers(), rig.log()),
        (vec!["1 changed, generation 1".to_owned()], vec!["start a".to_owned()])
    );
    assert_eq!(rig.promise("a"), (1, Promise::None));
    assert_eq!(rig.kept("a").0, ConditionStatus::Unknown);
}

#[test]
fn a_dry_run_measures_nothing_and_says_so() {
    let mut rig = Rig::new(AUTO);
    let dry = ApplyRequest {
        dry_run: true,
        ..Rig::request(&[("a", HALF)])
    };
    let applied = rig.manager.apply(&dry, rig.now).unwrap();
    let placement = &applied[0].placement;
    assert_eq!(
        (placement.promise, &*placement.reason),
        (Promise::None, "would be profiled first, on core 7")
    );
    rig.send(dry);
    rig.round();
    assert!(rig.log().is_empty() && rig.manager.configuration().chains.is_empty());
    // Nor does a change that nobody has let wait start it.
    let refused = rig.manager.apply(&Rig::request(&[("a", HALF)]), rig.now).unwrap_err();
    assert_eq!(refused.to_string(), "chain \"a\": has no profile yet");
    // Other servers measure nothing.
    let mut rig = Rig::new("  admission: {profiles: /p}\n");
    rig.apply(&[("a", HALF)]);
    assert!(rig.answers()[0].contains("has spec.slo.throughput and no profile in /p"));
    assert!(rig.log().is_empty());
}

#[test]
fn a_later_request_about_a_chain_takes_the_place_of_one_that_waits() {
    let mut rig = Rig::new(AUTO);
    rig.real("a", 1e6);
    rig.apply(&[("a", HALF)]);
    rig.round();
    rig.apply(&[("a", "400kpps")]);
    let answers = rig.answers();
    assert!(
        answers[0].starts_with("chain \"a\": a later request took the place"),
        "{answers:?}"
    );
    rig.round();
    rig.measured(Ok(()));
    assert_eq!(rig.answers(), ["1 changed, generation 1"]);
    assert_eq!(rig.log(), ["measure a", "cancel", "measure a", "start a"]);
    // Deleted while it waits.
    rig.apply(&[("b", HALF)]);
    rig.round();
    rig.queue.supersede(&mut rig.manager, &["b".to_owned()]);
    rig.round();
    assert_eq!(
        (rig.answers().len(), rig.log()),
        (1, vec!["measure b".to_owned(), "cancel".to_owned()])
    );
    rig.apply(&[("b", HALF)]);
    rig.round();
    let names = ["b", "nobody"].map(str::to_owned);
    let left = rig.queue.withdraw(&mut rig.manager, &names, rig.now);
    assert_eq!(left, ["nobody"], "a chain that was to be created only is gone");
    assert_eq!((rig.answers().len(), rig.log().len()), (1, 2));
    // A wrong request is refused at once, and a chain that is not measured now is not cancelled.
    rig.apply(&[("c", HALF)]);
    rig.apply(&[("d", HALF)]);
    rig.round();
    rig.queue.supersede(&mut rig.manager, &["d".to_owned()]);
    rig.send(ApplyRequest {
        manifests: vec![Manifest {
            yaml: "x".to_owned(),
            ..Rig::request(&[("c", HALF)]).manifests[0].clone()
        }],
        ..ApplyRequest::default()
    });
    assert_eq!((rig.answers().len(), rig.log()), (2, vec!["measure c".to_owned()]));
    // The server ends.
    rig.queue.cancel(&mut rig.manager);
    rig.round();
    assert_eq!((rig.answers().len(), rig.log()), (0, vec!["cancel".to_owned()]));
}

#[test]
fn a_chain_whose_cost_has_drifted_is_told_of() {
    let mut rig = Rig::new("  admission: {profiles: /p}\n");
    rig.run("a", HALF);
    rig.windows("a", 1000, 10);
    assert_eq!(rig.kept("a"), (ConditionStatus::True, "Kept"));
    rig.windows("a", 1500, 7);
    assert_eq!(rig.kept("a"), (ConditionStatus::True, "Kept"));
    rig.windows("a", 1500, 3);
    assert_eq!(rig.kept("a"), (ConditionStatus::False, "Drifted"));
    assert_eq!(
        rig.last_message("Drifted"),
        "a packet costs 1500 ns, its profile predicts 1000 ns"
    );
    // Without auto that is all.
    assert!(rig.log().is_empty());
    rig.windows("a", 1000, 8);
    assert_eq!(rig.kept("a"), (ConditionStatus::True, "Kept"));
    assert_eq!(
        rig.events("a"),
        ["Started", "Running", "ObjectiveMet", "Drifted", "PromiseKept"]
    );
}

#[test]
fn a_chain_that_has_drifted_is_measured_anew_and_moves_to_a_core_on_which_it_fits() {
    let mut rig = Rig::new(AUTO);
    rig.run("a", "300kpps");
    rig.run("b", "250kpps");
    rig.run("c", "200kpps");
    assert_eq!(["a", "b", "c"].map(|name| rig.promise(name).0), [1, 2, 2]);
    rig.run("a", "100kpps");
    // 0.7 of a core: 0.65 would be left on its own, 0.8 are on the other.
    rig.real("c", 1e9 / 3500.0);
    rig.windows("c", 3500, 8);
    assert_eq!(
        (rig.kept("c"), rig.log()),
        ((ConditionStatus::False, "Drifted"), vec!["measure c".to_owned()])
    );
    rig.measured(Ok(()));
    assert_eq!(rig.log(), ["replace c on core 1"]);
    assert_eq!((rig.promise("c"), rig.kept("c").1), ((1, Promise::Promised), "Kept"));
    let predicted = rig.manager.configuration().chains["c"].placement.predicted.unwrap();
    assert!((predicted.cost - 3500.0).abs() < 1e-3 && (predicted.core_load - 0.8).abs() < 1e-6);
    assert_eq!(rig.events("c").last(), Some(&"PromiseKept"));
    // It is compared with its new profile.
    rig.windows("c", 3500, 20);
    assert_eq!(rig.kept("c").1, "Kept");
}

#[test]
fn a_chain_that_does_not_fit_any_more_is_promised_less_or_nothing() {
    let mut rig = Rig::new(AUTO);
    rig.run("a", "800kpps");
    rig.real("a", 500_000.0);
    rig.windows("a", 2000, 8);
    rig.measured(Ok(()));
    assert_eq!(rig.log(), ["measure a", "replace a on core 1"]);
    assert_eq!(rig.kept("a"), (ConditionStatus::False, "Reduced"));
    let claim = rig.manager.configuration().chains["a"].placement.claim.clone().unwrap();
    assert!(
        (449_000.0..450_000.0).contains(&claim.throughput),
        "{}",
        claim.throughput
    );
    assert!(
        rig.last_message("PromiseReduced")
            .starts_with("reduced to 449kpps: needs 1.60 of a core at 800kpps")
    );
    // It is not measured again for some time, and then found to need all and more.
    rig.real("a", 1.0);
    rig.windows("a", 9000, 20);
    assert_eq!(
        (rig.kept("a"), rig.log().len()),
        ((ConditionStatus::False, "Drifted"), 0)
    );
    rig.now += Nanos::from_secs(600);
    rig.round();
    rig.measured(Ok(()));
    assert_eq!(rig.log(), ["measure a", "replace a on core 1"]);
    assert_eq!(
        (rig.kept("a"), rig.promise("a").1),
        ((ConditionStatus::False, "Lost"), Promise::None)
    );
    assert_eq!(rig.events("a").last(), Some(&"PromiseLost"));
}

#[test]
fn a_profile_that_holds_or_cannot_be_measured_changes_nothing() {
    let mut rig = Rig::new(AUTO);
    rig.run("a", HALF);
    rig.windows("a", 1500, 8);
    rig.measured(Err("not measured within 60s"));
    assert_eq!((rig.log(), rig.kept("a").1), (vec!["measure a".to_owned()], "Drifted"));
    assert!(rig.last_message("ProfileFailed").starts_with("not placed anew: "));
    let mut rig = Rig::new(AUTO);
    rig.run("a", HALF);
    rig.windows("a", 1500, 8);
    rig.measured(Ok(()));
    assert_eq!((rig.log(), rig.kept("a").1), (vec!["measure a".to_owned()], "Drifted"));
    assert_eq!(rig.events("a").last(), Some(&"ProfileHolds"));
}

#[test]
fn a_drifted_chain_that_is_replaced_by_an_apply_is_compared_anew() {
    let mut rig = Rig::new("  admission: {profiles: /p}\n");
    rig.run("a", HALF);
    rig.windows("a", 1500, 8);
    assert_eq!(rig.kept("a").1, "Drifted");
    rig.apply(&[("a", "400kpps")]);
    rig.round();
    assert_eq!(rig.kept("a").1, "Kept");
    rig.windows("a", 1500, 8);
    assert_eq!(rig.kept("a").1, "Drifted");
}
