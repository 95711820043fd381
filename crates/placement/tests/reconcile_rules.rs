//! Rules of a reconciliation, one test for each: order, moves, consolidation, and what a scheduler knows beyond curves.

use std::cell::RefCell;
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_placement::admit::{Answer, Reason};
use tailwater_placement::cluster::{Cluster, ServerKind};
use tailwater_placement::curve::{CacheCurve, LoadCurve};
use tailwater_placement::plan::{Instance, Placed, Plan, Resource};
use tailwater_placement::reconcile::{Course, Earlier, Reconciled, reconcile};
use tailwater_placement::schedule::{Request, Scheduler};
use tailwater_placement::slo::{ChainProfile, Curves, Slo, Target};
use tailwater_placement::tailwater::Tailwater;

/// Returns servers of this many cores, named `server-0` and so on.
fn cluster(servers: usize, cores: u16) -> Cluster {
    let kind = ServerKind {
        machine: "m".into(),
        nodes: 1,
        cores,
        ways: 8,
        way_bytes: 10,
        classes: 8,
    };
    Cluster::uniform(kind, servers).expect("a cluster")
}

/// Returns an SLO of a chain with 97 packets per second for each instance.
fn slo(name: &str, throughput: f64) -> Slo {
    let curves = Curves {
        machine: "m".into(),
        cores: 1,
        cache: CacheCurve::new(vec![(10, 100.0)]).expect("a curve"),
        load: LoadCurve::new(vec![(1.0, Nanos(1000))]).expect("a curve"),
    };
    Slo {
        name: name.into(),
        chain: Arc::new(ChainProfile {
            name: "c".into(),
            configuration: None,
            traffic: Some("here".into()),
            percentile: None,
            curves: vec![curves],
        }),
        target: Target::Reserved { throughput },
        latency: Nanos(1000),
        cap: None,
        spread: false,
        apart: None,
    }
}

/// Returns the stored state of an SLO with an instance of one way on each of these servers.
fn earlier(slo: &Slo, servers: &[usize]) -> Earlier {
    let instance = |&server: &usize| Instance {
        server,
        node: 0,
        ways: 1,
    };
    let placed = Placed {
        slo: slo.clone(),
        instances: servers.iter().map(instance).collect(),
        cheapest: Default::default(),
    };
    Earlier::new(&placed, &cluster(9, 1))
}

fn courses(outcome: &Reconciled) -> Vec<(Course, bool, usize)> {
    let answers = outcome.answers.iter();
    answers
        .map(|answer| {
            (
                answer.course,
                matches!(answer.answer, Answer::Admitted(_)),
                answer.moved,
            )
        })
        .collect()
}

#[test]
fn additional_instances_have_not_moved() {
    let state = [earlier(&slo("s", 90.0), &[1])];
    let more = slo("s", 190.0);
    let outcome = reconcile(&cluster(3, 1), &state, &[more], &[], &Tailwater);
    assert_eq!(courses(&outcome), [(Course::Changed, true, 0)]);
    assert_eq!(outcome.plan.get("s").map(|placed| placed.instances.len()), Some(2));
}

#[test]
fn repairs_come_first_then_changes_then_new_slos() {
    let place = |cores| {
        let state = [earlier(&slo("changed", 90.0), &[0]), earlier(&slo("lost", 90.0), &[8])];
        let wanted = [slo("new", 90.0), slo("changed", 190.0), slo("lost", 90.0)];
        courses(&reconcile(&cluster(1, cores), &state, &wanted, &[], &Tailwater))
    };
    let all = |admitted: [bool; 3], moved| {
        let [new, changed, lost] = admitted;
        [
            (Course::New, new, 0),
            (Course::Changed, changed, 0),
            (Course::Repaired, lost, moved),
        ]
    };
    // The old terms of the change stay in force.
    assert_eq!(place(1), all([false, false, false], 0));
    assert_eq!(place(2), all([false, false, true], 1));
    assert_eq!(place(3), all([false, true, true], 1));
    assert_eq!(place(4), all([true, true, true], 1));
}

#[test]
fn curves_of_other_traffic_are_of_another_chain() {
    let wanted = slo("s", 90.0);
    let same = earlier(&wanted, &[0]);
    let place = |state: Earlier| {
        courses(&reconcile(
            &cluster(1, 1),
            &[state],
            std::slice::from_ref(&wanted),
            &[],
            &Tailwater,
        ))
    };
    assert_eq!(place(same.clone()), [(Course::Kept, true, 0)]);
    let others = [
        Earlier {
            traffic: Some("elsewhere".into()),
            ..same.clone()
        },
        Earlier {
            percentile: Some(50.0),
            ..same.clone()
        },
        Earlier {
            chain: "d".into(),
            ..same
        },
    ];
    for other in others {
        assert_eq!(place(other.clone()), [(Course::Repaired, true, 0)], "{other:?}");
    }
}

/// Scheduler that places each SLO on the first open server without any, and on the first with room if there is none.
struct Spreading(bool);

impl Scheduler for Spreading {
    fn name(&self) -> &'static str {
        "spreading"
    }

    fn consolidates(&self) -> bool {
        self.0
    }

    fn place(&self, plan: &Plan, _: &Request) -> Option<Vec<Instance>> {
        let rooms = || plan.rooms().iter().filter(|room| room.holds(1, 1));
        let empty = rooms().find(|room| !plan.is_active(room.server as usize));
        let room = empty.or_else(|| rooms().next())?;
        Some(vec![Instance {
            server: room.server as usize,
            node: room.node,
            ways: 1,
        }])
    }
}

#[test]
fn two_or_more_new_slos_are_placed_together() {
    let names = ["a", "b", "c", "d"].map(|name| slo(name, 90.0));
    let servers = |count: usize, consolidates| {
        let outcome = reconcile(&cluster(4, 2), &[], &names[..count], &[], &Spreading(consolidates));
        // The answers are those of the plan.
        for answer in &outcome.answers {
            let instances = &outcome.plan.get(&answer.name).expect("a place").instances;
            assert_eq!(answer.answer, Answer::Admitted(instances.clone()));
        }
        outcome.plan.active()
    };
    assert_eq!([1, 2, 3, 4].map(|count| servers(count, false)), [1, 2, 3, 4]);
    assert_eq!([1, 2, 3, 4].map(|count| servers(count, true)), [1, 1, 2, 2]);
    // Those that were there stay.
    let state = [earlier(&names[0], &[0]), earlier(&names[1], &[1])];
    let outcome = reconcile(&cluster(4, 2), &state, &names[..2], &[], &Spreading(true));
    assert_eq!(courses(&outcome), [(Course::Kept, true, 0); 2]);
    assert_eq!(outcome.plan.active(), 2);
}

/// Scheduler that says, call by call, which SLOs are not met; the last answer is repeated.
struct Unmet(RefCell<Vec<&'static [&'static str]>>);

impl Unmet {
    fn saying(answers: &[&'static [&'static str]]) -> Unmet {
        Unmet(RefCell::new(answers.iter().rev().copied().collect()))
    }
}

impl Scheduler for Unmet {
    fn name(&self) -> &'static str {
        "unmet"
    }

    fn unmet(&self, plan: &Plan) -> Vec<String> {
        let mut answers = self.0.borrow_mut();
        let names = match answers.len() {
            1 => answers[0],
            _ => answers.pop().unwrap_or_default(),
        };
        let placed = names.iter().filter(|name| plan.get(name).is_some());
        placed.map(|name| (*name).to_owned()).collect()
    }

    fn place(&self, plan: &Plan, request: &Request) -> Option<Vec<Instance>> {
        Tailwater.place(plan, request)
    }
}

#[test]
fn slos_that_are_not_met_beside_others_are_repaired() {
    let wanted = [slo("s", 90.0), slo("t", 90.0)];
    let state = [earlier(&wanted[0], &[0]), earlier(&wanted[1], &[0])];
    let scheduler = Unmet::saying(&[&["s"], &[]]);
    let outcome = reconcile(&cluster(2, 2), &state, &wanted, &[], &scheduler);
    assert_eq!(
        courses(&outcome),
        [(Course::Repaired, true, 0), (Course::Kept, true, 0)]
    );
}

#[test]
fn slos_are_placed_again_for_a_few_rounds_and_then_denied() {
    let wanted = [slo("s", 90.0), slo("t", 90.0)];
    let denied = |answers: &[&'static [&'static str]]| {
        let outcome = reconcile(&cluster(2, 2), &[], &wanted, &[], &Unmet::saying(answers));
        assert!(outcome.plan.get("t").is_some());
        match &outcome.answers[0].answer {
            Answer::Admitted(instances) => {
                assert_eq!(outcome.plan.get("s").map(|placed| &placed.instances), Some(instances));
                None
            }
            Answer::Denied(denial) => {
                assert!(outcome.plan.get("s").is_none());
                Some(denial.reason.clone())
            }
        }
    };
    const S: &[&str] = &["s"];
    // First of all SLOs before the search, then in each of three rounds, and at last.
    assert_eq!(denied(&[&[], S, S, S, &[]]), None);
    let quiet = Reason::Room(vec![Resource::Quiet]);
    assert_eq!(denied(&[&[], S, S, S, S]), Some(quiet));
}

#[test]
fn a_denied_change_stays_denied_when_its_old_terms_are_placed_again() {
    let old = slo("s", 90.0);
    let state = [earlier(&old, &[0])];
    let chains = [old.chain.clone()];
    let scheduler = Unmet::saying(&[&[], &["s"], &[]]);
    let outcome = reconcile(&cluster(1, 1), &state, &[slo("s", 500.0)], &chains, &scheduler);
    assert_eq!(courses(&outcome), [(Course::Changed, false, 0)]);
    assert_eq!(outcome.plan.get("s").map(|placed| &placed.slo), Some(&old));
}
