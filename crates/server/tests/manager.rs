//! Requests to the manager: all or nothing, in order, and what the statuses and events say.

mod common;

use common::{ModelMachine, manifest, server, yaml};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tailwater_api::document::Document;
use tailwater_api::server::{DESCRIPTION, ServerSpec};
use tailwater_net::Nanos;
use tailwater_server::generation::{Store, StoredGeneration};
use tailwater_server::{
    Applied, ApplyRequest, ChainState, ConditionStatus, ControlError, Manager, Manifest, Outcome, Phase,
};

/// Store in memory that can be full.
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

struct Rig {
    manager: Manager<ModelMachine, Memory>,
    machine: ModelMachine,
    memory: Memory,
    now: u64,
}

impl Rig {
    fn new(fields: &str) -> Rig {
        Rig::on(fields, Memory::default())
    }

    fn on(fields: &str, memory: Memory) -> Rig {
        let machine = ModelMachine::default();
        let mut manager = Manager::new(server(fields), machine.clone(), memory.clone(), Nanos(1), drop);
        let stored = memory.0.lock().unwrap().0.clone();
        manager.resume(stored, Nanos(1));
        Rig {
            manager,
            machine,
            memory,
            now: 1,
        }
    }

    fn tick(&mut self) -> Nanos {
        self.now += 1;
        Nanos(self.now)
    }

    fn apply(&mut self, texts: &[String]) -> Result<Vec<Applied>, ControlError> {
        let request = ApplyRequest {
            manifests: texts.iter().map(|text| manifest(text)).collect(),
            ..ApplyRequest::default()
        };
        let now = self.tick();
        self.manager.apply(&request, now)
    }

    fn outcomes(&mut self, texts: &[String]) -> Vec<Outcome> {
        self.apply(texts)
            .unwrap()
            .iter()
            .map(|applied| applied.outcome)
            .collect()
    }

    fn observe(&mut self) {
        let now = self.tick();
        self.manager.observe(now);
    }

    fn phases(&self) -> Vec<(String, Phase)> {
        let snapshot = self.manager.snapshot();
        snapshot
            .chains
            .iter()
            .map(|(name, status)| (name.clone(), status.phase))
            .collect()
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.machine.state().log)
    }

    fn last_event(&self) -> String {
        let snapshot = self.manager.snapshot();
        let event = snapshot.events.after(0).last().unwrap();
        format!(
            "{} {} {}",
            event.chain.as_deref().unwrap_or("-"),
            event.reason,
            event.message
        )
    }
}

fn edge(latency: &str) -> String {
    yaml("edge", "10.0.0.0/8", "[acl: {}, forward: {}]", latency)
}

fn core(functions: &str) -> String {
    yaml("core", "192.168.0.0/16", functions, "1ms")
}

#[test]
fn a_chain_lives_from_pending_to_gone() {
    let mut rig = Rig::new("");
    assert_eq!(rig.outcomes(&[edge("100us")]), [Outcome::Created]);
    assert_eq!(rig.phases(), [("edge".into(), Phase::Starting)]);
    rig.observe();
    rig.observe();
    assert_eq!(rig.phases(), [("edge".into(), Phase::Running)]);
    assert!(rig.manager.snapshot().is_ready());
    assert_eq!(rig.outcomes(&[edge("100us")]), [Outcome::Unchanged]);
    // Settings: functions keep their state. The objective is missed from now on.
    assert_eq!(rig.outcomes(&[edge("50us")]), [Outcome::Configured]);
    rig.observe();
    let status = rig.manager.snapshot().chains["edge"].clone();
    assert_eq!(status.objective_met().status, ConditionStatus::False);
    assert_eq!(status.objective_met().message, "p99 90us, objective 50us");
    assert_eq!(rig.last_event(), "edge ObjectiveMissed p99 90us, objective 50us");
    let replaced = yaml("edge", "10.0.0.0/8", "[forward: {}]", "100us");
    assert_eq!(rig.outcomes(&[replaced]), [Outcome::Replaced]);
    let now = rig.tick();
    rig.manager.delete(&["edge".to_owned()], false, now).unwrap();
    assert_eq!(rig.phases(), [("edge".into(), Phase::Draining)]);
    assert_eq!(
        rig.log(),
        ["start edge", "change edge", "replace edge edge", "drain edge"]
    );
    rig.observe();
    rig.observe();
    rig.observe();
    assert_eq!(rig.phases(), []);
    assert_eq!(rig.last_event(), "edge Gone ");
    assert_eq!(rig.manager.generation(), 4);
}

#[test]
fn a_drained_chain_stays_until_it_is_applied_again() {
    let mut rig = Rig::new("");
    rig.outcomes(&[edge("1ms"), core("[forward: {}]")]);
    rig.observe();
    let now = rig.tick();
    rig.manager.drain("edge", now).unwrap();
    rig.observe();
    rig.observe();
    rig.observe();
    assert_eq!(
        rig.phases(),
        [("core".into(), Phase::Running), ("edge".into(), Phase::Drained)]
    );
    assert!(rig.manager.snapshot().is_ready());
    // Also after a restart.
    let mut rig = Rig::on("", rig.memory.clone());
    assert_eq!(rig.log(), ["start core"]);
    assert_eq!(
        rig.phases(),
        [("core".into(), Phase::Starting), ("edge".into(), Phase::Drained)]
    );
    let generation = rig.manager.generation();
    let now = rig.tick();
    rig.manager.drain("edge", now).unwrap();
    assert_eq!(rig.manager.generation(), generation);
    assert_eq!(rig.outcomes(&[edge("1ms")]), [Outcome::Created]);
    assert_eq!(rig.log(), ["start edge"]);
}

#[test]
fn a_failed_step_undoes_the_ones_before_it() {
    let mut rig = Rig::new("");
    rig.outcomes(&[edge("1ms"), core("[forward: {}]")]);
    rig.observe();
    rig.observe();
    rig.log();
    let (before, phases) = (rig.machine.live(), rig.phases());
    let request = [
        edge("2ms"),
        core("[acl: {}]"),
        yaml("new", "172.16.0.0/12", "[forward: {}]", "1ms"),
    ];
    for fail_after in 0..3 {
        rig.machine.state().fail_after = Some(fail_after);
        let error = rig.apply(&request).unwrap_err();
        assert!(
            matches!(&error, ControlError::Failed(text) if text.contains("injected failure of")),
            "{error}"
        );
        assert_eq!((rig.machine.live(), rig.phases()), (before.clone(), phases.clone()));
        assert_eq!(rig.manager.generation(), 1);
        rig.observe();
        rig.observe();
    }
    assert_eq!(
        rig.log(),
        [
            "change edge",
            "change edge",
            "change edge",
            "replace core core",
            "replace core core",
            "change edge"
        ]
    );
    rig.observe();
    rig.observe();
    let outcomes = [Outcome::Configured, Outcome::Replaced, Outcome::Created];
    assert_eq!(rig.outcomes(&request), outcomes);
}

/// Chains were restarted, and lost their flows, by a request that was refused.
#[test]
fn a_full_disk_is_found_before_anything_is_touched() {
    let mut rig = Rig::new("");
    rig.outcomes(&[edge("1ms"), core("[forward: {}]")]);
    rig.observe();
    let (before, steps) = (rig.machine.live(), rig.machine.state().log.len());
    rig.memory.0.lock().unwrap().1 = true;
    let now = rig.tick();
    let errors = [
        rig.apply(&[edge("2ms"), core("[acl: {}]")]).unwrap_err(),
        rig.manager.delete(&["edge".to_owned()], false, now).unwrap_err(),
        rig.manager.drain("edge", now).unwrap_err(),
    ];
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("the generation cannot be written"), "{text}");
    }
    assert_eq!((rig.machine.live(), rig.machine.state().log.len()), (before, steps));
    rig.observe();
    assert!(rig.manager.snapshot().is_ready());
    rig.memory.0.lock().unwrap().1 = false;
    rig.manager.drain("edge", now).unwrap();
}

#[test]
fn a_step_that_cannot_be_undone_is_a_failed_chain() {
    let mut rig = Rig::new("");
    rig.outcomes(&[edge("1ms"), core("[forward: {}]")]);
    rig.observe();
    rig.machine.state().fail_after = Some(1);
    rig.machine.state().fail_on = true;
    rig.apply(&[edge("2ms"), core("[acl: {}]")]).unwrap_err();
    rig.machine.state().fail_after = None;
    assert_eq!(rig.phases()[1], ("edge".into(), Phase::Failed));
    assert!(!rig.manager.snapshot().is_ready());
    assert_eq!(
        rig.last_event(),
        "edge NotUndone cannot undo: injected failure of change edge"
    );
}

#[test]
fn a_chain_that_fails_runs_again_when_it_is_applied_again() {
    let mut rig = Rig::new("");
    rig.outcomes(&[edge("1ms")]);
    rig.observe();
    rig.machine.state().chains.get_mut("edge").unwrap().state = ChainState::Failed("out of memory".into());
    rig.observe();
    assert_eq!(rig.phases(), [("edge".into(), Phase::Failed)]);
    assert_eq!(rig.manager.snapshot().chains["edge"].reason, "out of memory");
    assert_eq!(rig.last_event(), "edge Failed out of memory");
    let events = rig.manager.snapshot().events.last();
    rig.observe();
    assert_eq!(rig.manager.snapshot().events.last(), events);
    assert_eq!(rig.outcomes(&[edge("1ms")]), [Outcome::Created]);
    rig.observe();
    rig.observe();
    assert_eq!(rig.phases(), [("edge".into(), Phase::Running)]);
    // Deleted while it has failed: nothing is left in the machine, either.
    rig.machine.state().chains.get_mut("edge").unwrap().state = ChainState::Failed("again".into());
    rig.observe();
    let now = rig.tick();
    rig.manager.delete(&["edge".to_owned()], false, now).unwrap();
    rig.observe();
    assert_eq!(rig.phases(), []);
    assert!(rig.machine.state().chains.is_empty());
}

#[test]
fn a_chain_that_the_machine_lost_has_failed() {
    let mut rig = Rig::new("");
    rig.outcomes(&[edge("1ms")]);
    rig.observe();
    rig.machine.state().chains.clear();
    rig.observe();
    assert_eq!(
        rig.manager.snapshot().chains["edge"].reason,
        "the data plane does not run it any more"
    );
}

#[test]
fn requests_are_checked_as_a_whole() {
    let mut rig = Rig::new("");
    let other = yaml("other", "10.0.0.0/8", "[forward: {}]", "1ms");
    let error = rig.apply(&[edge("1ms"), other.clone()]).unwrap_err().to_string();
    assert_eq!(
        error,
        "chains \"edge\" and \"other\" on port \"north\": spec.match of both is equally specific for destination \
         10.0.0.0/8; make one of them more specific"
    );
    rig.outcomes(&[edge("1ms")]);
    assert!(matches!(
        rig.apply(std::slice::from_ref(&other)),
        Err(ControlError::Invalid(_))
    ));
    // Another port, or a longer prefix.
    rig.outcomes(&[
        other.replace("north", "east"),
        yaml("longer", "10.0.0.0/9", "[forward: {}]", "1ms"),
    ]);
    let generation = rig.manager.generation();
    for (text, expected) in [
        (
            edge("fast"),
            "standard input:7:18: spec.slo.latency: expected a duration",
        ),
        (
            edge("1ms").replace("north", "south"),
            "standard input: spec.port: expected one of the server's ports north, east",
        ),
        (
            edge("1ms").replace("  port: north\n", ""),
            "spec.port: missing, expected one of the server's ports north, east",
        ),
        (
            edge("1ms").replace("port: north", "ports: {entry: net_null0}"),
            "spec.ports: expected spec.port",
        ),
        ("kind: Chain".to_owned(), "apiVersion: missing"),
    ] {
        let error = rig.apply(&[core("[forward: {}]"), text]).unwrap_err();
        assert!(
            matches!(&error, ControlError::Invalid(found) if found.contains(expected)),
            "{error}\n{expected}"
        );
    }
    let error = rig
        .apply(&[core("[forward: {}]"), core("[acl: {}]")])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("expected a name that no other chain has, found \"core\""),
        "{error}"
    );
    // All errors, one line each.
    let error = rig.apply(&[edge("fast"), core("[]")]).unwrap_err().to_string();
    assert_eq!(error.lines().count(), 2, "{error}");
    let now = rig.tick();
    let missing = rig.manager.delete(&["edge".into(), "none".into()], false, now);
    assert_eq!(missing, Err(ControlError::NotFound("chain \"none\" not found".into())));
    assert!(matches!(rig.manager.drain("none", now), Err(ControlError::NotFound(_))));
    assert_eq!((rig.manager.generation(), rig.machine.live().len()), (generation, 3));
}

/// It was refused as if it did not fit, which is another exit code.
#[test]
fn a_wrong_configuration_of_a_function_is_a_wrong_request() {
    let mut rig = Rig::new("");
    rig.machine.state().too_large.insert("edge".to_owned());
    let wrong = core("[acl: {default: alow}]");
    let error = rig.apply(std::slice::from_ref(&wrong)).unwrap_err();
    assert_eq!(error, ControlError::Invalid("chain \"core\": found alow".to_owned()));
    let error = rig.apply(&[edge("1ms")]).unwrap_err();
    assert!(matches!(error, ControlError::Refused(_)), "{error}");
    let both = rig.apply(&[edge("1ms"), wrong]).unwrap_err();
    assert!(matches!(both, ControlError::Invalid(_)), "{both}");
}

#[test]
fn a_chain_that_does_not_fit_runs_only_by_force() {
    let mut rig = Rig::new("");
    rig.machine.state().too_large.insert("edge".into());
    let error = rig.apply(&[core("[forward: {}]"), edge("1ms")]).unwrap_err();
    let expected = "chain \"edge\": needs 2 cores, 1 is left; would fit with 1 core less";
    assert_eq!(error, ControlError::Refused(expected.into()));
    assert!(rig.machine.live().is_empty());
    let mut request = ApplyRequest {
        manifests: vec![manifest(&edge("1ms"))],
        dry_run: true,
        force: true,
    };
    rig.manager.apply(&request, Nanos(5)).unwrap();
    assert!(rig.machine.live().is_empty() && rig.manager.generation() == 0);
    request.dry_run = false;
    rig.manager.apply(&request, Nanos(6)).unwrap();
    assert!(rig.manager.snapshot().chains["edge"].chain.forced);
    // Also after a restart.
    let restarted = Rig::on("", rig.memory.clone());
    assert_eq!(restarted.machine.live().len(), 1);
}

#[test]
fn files_own_their_chains() {
    let file = |name: &str, yaml: String| Manifest {
        source: format!("chains/{name}"),
        path: Some(format!("/chains/{name}").into()),
        yaml,
    };
    let mut rig = Rig::new("  watch: true\n");
    rig.outcomes(&[core("[forward: {}]")]);
    rig.manager
        .apply_listed(&[file("edge.yaml", edge("1ms"))], Nanos(10))
        .unwrap();
    let error = rig.apply(&[edge("2ms")]).unwrap_err().to_string();
    assert_eq!(
        error,
        "chain \"edge\" comes from a watched folder; change chains/edge.yaml"
    );
    let error = rig
        .manager
        .delete(&["edge".into()], true, Nanos(11))
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "chain \"edge\" comes from a watched folder; remove chains/edge.yaml"
    );
    let taken = rig
        .manager
        .apply_listed(&[file("c.yaml", core("[acl: {}]"))], Nanos(12))
        .unwrap_err()
        .to_string();
    assert!(
        taken.starts_with("chains/c.yaml: chain \"core\" was applied as standard input"),
        "{taken}"
    );
    // Applying the file itself is the same as watching it.
    let request = ApplyRequest {
        manifests: vec![file("edge.yaml", edge("2ms"))],
        ..ApplyRequest::default()
    };
    assert_eq!(
        rig.manager.apply(&request, Nanos(13)).unwrap()[0].outcome,
        Outcome::Configured
    );
    rig.manager.drain("edge", Nanos(14)).unwrap();
    let generation = rig.manager.generation();
    rig.manager
        .apply_listed(&[file("edge.yaml", edge("2ms"))], Nanos(15))
        .unwrap();
    assert_eq!(rig.manager.generation(), generation);
    // Renamed: one step, without a gap.
    rig.manager
        .apply_listed(&[file("edge.yaml", edge("3ms"))], Nanos(16))
        .unwrap();
    rig.log();
    let renamed = edge("3ms").replace("name: edge", "name: rim");
    rig.manager
        .apply_listed(&[file("rim.yaml", renamed)], Nanos(17))
        .unwrap();
    assert_eq!(rig.log(), ["replace edge rim"]);
    rig.observe();
    assert_eq!(
        rig.phases(),
        [("core".into(), Phase::Starting), ("rim".into(), Phase::Starting)]
    );
    rig.manager.apply_listed(&[], Nanos(18)).unwrap();
    assert_eq!(rig.log(), ["drain rim"]);
}

#[test]
fn a_stored_chain_that_cannot_be_read_stays_stored() {
    let mut rig = Rig::new("");
    rig.outcomes(&[edge("1ms"), core("[forward: {}]")]);
    rig.memory.0.lock().unwrap().0.chains[1].manifest.yaml = "kind: Chain2".into();
    let mut rig = Rig::on("", rig.memory.clone());
    assert_eq!(rig.phases(), [("core".into(), Phase::Starting)]);
    assert!(
        rig.last_event()
            .starts_with("edge Unreadable the stored chain cannot be read"),
        "{}",
        rig.last_event()
    );
    let names = |rig: &Rig| -> Vec<String> {
        rig.memory
            .0
            .lock()
            .unwrap()
            .0
            .chains
            .iter()
            .map(|chain| chain.name.clone())
            .collect()
    };
    rig.outcomes(&[yaml("new", "172.16.0.0/12", "[forward: {}]", "1ms")]);
    assert_eq!(names(&rig), ["core", "edge", "new"]);
    rig.manager
        .delete(&["edge".into(), "new".into()], false, Nanos(20))
        .unwrap();
    assert_eq!(names(&rig), ["core"]);
}

#[test]
fn steps_free_resources_before_they_need_them() {
    let file = |yaml: String| manifest(&yaml);
    let a = |latency: &str| yaml("a", "10.1.0.0/16", "[forward: {}]", latency);
    let b = |functions: &str| yaml("b", "10.2.0.0/16", functions, "1ms");
    let c = yaml("c", "10.3.0.0/16", "[forward: {}]", "1ms");
    let d = yaml("d", "10.4.0.0/16", "[forward: {}]", "1ms");
    let mut rig = Rig::new("");
    rig.manager
        .apply_listed(&[file(a("1ms")), file(b("[forward: {}]")), file(c)], Nanos(2))
        .unwrap();
    rig.log();
    rig.manager
        .apply_listed(&[file(d), file(b("[acl: {}]")), file(a("2ms"))], Nanos(3))
        .unwrap();
    assert_eq!(rig.log(), ["drain c", "change a", "replace b b", "start d"]);
}

/// A chain that has failed and cannot be started again does not keep others from being applied.
#[test]
fn applying_one_chain_leaves_another_one_failed() {
    let mut rig = Rig::new("");
    rig.outcomes(&[edge("100us")]);
    rig.observe();
    rig.observe();
    rig.machine.state().chains.get_mut("edge").unwrap().state = ChainState::Failed("out of memory".into());
    rig.observe();
    rig.machine.state().too_large.insert("edge".to_owned());
    rig.log();
    assert_eq!(rig.outcomes(&[core("[forward: {}]")]), [Outcome::Created]);
    assert_eq!(rig.log(), ["start core"]);
    rig.observe();
    assert_eq!(rig.phases()[1], ("edge".into(), Phase::Failed));
    assert!(rig.apply(&[edge("100us")]).is_err());
    rig.machine.state().too_large.clear();
    assert_eq!(rig.outcomes(&[edge("100us")]), [Outcome::Created]);
    assert_eq!(rig.log(), ["start edge"]);
}

#[test]
fn a_match_longer_than_what_repetitions_keep_is_warned_of() {
    for (bits, warned) in [("", true), (", renumberBits: 7", false), (", renumberBits: 0", false)] {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Server\nmetadata: {{name: edge-1}}\nspec:\n  cores: 1\n  \
             ports: [{{name: north, traffic: bursty, repeat: true{bits}}}]\n"
        );
        let document = Document::parse(&text, "server.yaml", DESCRIPTION).unwrap();
        let server = ServerSpec::new(&document, Path::new("/")).unwrap();
        let mut manager = Manager::new(server, ModelMachine::default(), Memory::default(), Nanos(1), drop);
        let destinations = ["10.0.0.0/24", "10.1.0.128/25"];
        let chains = ["a", "b"].into_iter().zip(destinations);
        let manifests = chains.map(|(name, destination)| manifest(&yaml(name, destination, "[forward: ]", "1ms")));
        let request = ApplyRequest {
            manifests: manifests.collect(),
            ..ApplyRequest::default()
        };
        manager.apply(&request, Nanos(2)).unwrap();
        let warnings = manager.events().after(0).filter(|event| event.reason == "Renumbered");
        let warnings: Vec<_> = warnings
            .map(|event| (event.chain.as_deref(), event.message.as_str()))
            .collect();
        let expected = (
            Some("b"),
            "port \"north\" repeats its traffic with other addresses in the last 8 bits, of which 10.1.0.128/25 of \
             spec.match takes only some: renumberBits: 7 of the port keeps them",
        );
        assert_eq!(warnings, if warned { vec![expected] } else { Vec::new() });
    }
}
