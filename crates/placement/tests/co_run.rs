//! Placement by predicted contention, with a predictor whose predictions are known, and with SLOMO's.

use std::collections::BTreeMap;
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_placement::admit::{Answer, Nearest, Reason};
use tailwater_placement::check::check;
use tailwater_placement::cluster::{Cluster, ServerKind};
use tailwater_placement::co_run::conflict::{Cause, conflicts};
use tailwater_placement::co_run::predictor::{Band, Binding, CoRunPredictor, Effect, Member};
use tailwater_placement::co_run::scheduler::CoRunScheduler;
use tailwater_placement::co_run::shared::shared;
use tailwater_placement::co_run::slomo::{ChainModel, Slomo, SlomoError};
use tailwater_placement::curve::{CacheCurve, LoadCurve};
use tailwater_placement::plan::Resource;
use tailwater_placement::reconcile::{Course, Earlier, Reconciled, reconcile};
use tailwater_placement::schedule::Scheduler;
use tailwater_placement::slo::{ChainProfile, Curves, Slo, Target};
use tailwater_placement::tailwater::Tailwater;
use tailwater_predict::metric::Resource as Shared;
use tailwater_predict::{
    Campaign, ContentionModel, Key, Kind, Metric, Observation, Schema, Source, TrainOptions, Vector,
};

/// Relative half-width of the toy's intervals.
const WIDTH: f64 = 0.05;

/// Chains, each with its sensitivity and its pressure. An instance is slowed by its sensitivity times the pressure of
/// all others.
struct Toy(Vec<(&'static str, f64, f64)>);

impl Toy {
    fn slowdown(&self, target: Member, others: &[Member]) -> f64 {
        let pressure: f64 = others.iter().map(|other| self.0[other.0 as usize].2).sum();
        1.0 + self.0[target.0 as usize].1 * pressure
    }
}

impl CoRunPredictor for Toy {
    fn name(&self) -> &'static str {
        "toy"
    }

    fn confidence(&self) -> f64 {
        0.9
    }

    fn member(&self, chain: &str, machine: &str) -> Option<Member> {
        let number = self.0.iter().position(|(name, ..)| *name == chain)?;
        (machine == "m").then_some(Member(number as u32))
    }

    fn alone(&self, _: Member) -> Option<f64> {
        Some(80.0)
    }

    fn effect(&self, target: Member, others: &[Member]) -> Result<Effect, Arc<str>> {
        if others.len() > 6 {
            return Err("too many".into());
        }
        let value = 1.0 / self.slowdown(target, others);
        let throughput = Band {
            low: value / (1.0 + WIDTH),
            value,
            high: (value * (1.0 + WIDTH)).min(1.0),
        };
        let latency = Band {
            low: 1.0 / throughput.high,
            value: 1.0 / throughput.value,
            high: 1.0 / throughput.low,
        };
        Ok(Effect { throughput, latency })
    }

    fn binding(&self, _: Member, _: &[Member]) -> Option<Binding> {
        Some(Binding {
            resource: "memory bandwidth".to_owned(),
            metric: "memoryRead".to_owned(),
        })
    }
}

/// Servers of eight cores and twelve ways.
fn cluster(count: usize) -> Cluster {
    let kind = ServerKind {
        machine: "m".into(),
        nodes: 1,
        cores: 8,
        ways: 12,
        way_bytes: 10,
        classes: 15,
    };
    Cluster::uniform(kind, count).expect("a cluster")
}

/// Chain with 60 packets per second with one way, 100 with four (a loud one has them with one way), and a latency of
/// 100 ns up to half the load, 1,000 at all of it. A node has room for one instance of a soft one.
fn chain(name: &str) -> Arc<ChainProfile> {
    let curves = Curves {
        machine: "m".into(),
        cores: if name == "soft" { 5 } else { 1 },
        cache: CacheCurve::new(match name {
            "loud" => vec![(10, 100.0)],
            _ => vec![(10, 60.0), (40, 100.0)],
        })
        .expect("a curve"),
        load: LoadCurve::new(vec![(0.5, Nanos(100)), (1.0, Nanos(1000))]).expect("a curve"),
    };
    Arc::new(ChainProfile {
        name: name.into(),
        configuration: None,
        traffic: None,
        percentile: None,
        curves: vec![curves],
    })
}

fn slo(name: &str, chain: &Arc<ChainProfile>, throughput: f64) -> Slo {
    Slo {
        name: name.into(),
        chain: chain.clone(),
        target: Target::Reserved { throughput },
        latency: Nanos(10_000),
        cap: None,
        spread: false,
        apart: None,
    }
}

fn place(cluster: &Cluster, earlier: &[Earlier], slos: &[Slo], predictor: &dyn CoRunPredictor) -> Reconciled {
    let mut chains: Vec<Arc<ChainProfile>> = slos.iter().map(|slo| slo.chain.clone()).collect();
    chains.sort_by(|a, b| a.name.cmp(&b.name));
    chains.dedup();
    reconcile(cluster, earlier, slos, &chains, &CoRunScheduler::new(predictor))
}

fn servers(outcome: &Reconciled, name: &str) -> Vec<usize> {
    let instances = &outcome.plan.get(name).expect("a place").instances;
    instances.iter().map(|instance| instance.server).collect()
}

/// Loud chains slow soft and thin ones by half.
fn toy() -> Toy {
    Toy(vec![
        ("loud", 0.0, 1.0),
        ("soft", 0.5, 0.0),
        ("mild", 0.1, 0.1),
        ("thin", 0.5, 0.0),
    ])
}

#[test]
fn chains_share_a_server_only_while_both_objectives_hold() {
    let (loud, soft) = (chain("loud"), chain("soft"));
    // Beside the loud one, the soft one gets 100 / 1.5, of which 1 / 1.05 is sure: 63.5.
    for (objective, used) in [(90.0, 2), (64.0, 2), (63.0, 1)] {
        let slos = [slo("a", &loud, 90.0), slo("b", &soft, objective)];
        let outcome = place(&cluster(4), &[], &slos, &toy());
        assert!(
            outcome
                .answers
                .iter()
                .all(|of| matches!(of.answer, Answer::Admitted(_)))
        );
        assert_eq!(outcome.plan.active(), used, "{objective}");
        // In the other order, the soft one has no more ways than it requires alone.
        let slos = [slo("b", &soft, objective), slo("a", &loud, 90.0)];
        assert_eq!(place(&cluster(4), &[], &slos, &toy()).plan.active(), 2);
        // Without a predictor they share.
        let chains = [loud.clone(), soft.clone()];
        assert_eq!(reconcile(&cluster(4), &[], &slos, &chains, &Tailwater).plan.active(), 1);
    }
}

/// Two instances beside the loud one, or one on a second server: the first takes no server.
#[test]
fn more_instances_are_taken_where_that_saves_a_server() {
    let slos = [slo("a", &chain("loud"), 90.0), slo("b", &chain("thin"), 90.0)];
    let outcome = place(&cluster(4), &[], &slos, &toy());
    assert_eq!(outcome.plan.active(), 1);
    assert_eq!(servers(&outcome, "b").len(), 2, "{:?}", outcome.answers);
}

/// Rates recomputed from the toy alone, for random SLOs.
#[test]
fn every_slo_is_met_beside_all_others() {
    let mut random = 1u64;
    let mut below = move |limit: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % limit
    };
    let toy = toy();
    let chains: Vec<Arc<ChainProfile>> = toy.0.iter().map(|(name, ..)| chain(name)).collect();
    for round in 0..8 {
        let mut slos = Vec::new();
        for number in 0..12 {
            let of = below(4) as usize;
            let mut slo = slo(&format!("{number}"), &chains[of], 20.0 + below(120) as f64);
            slo.spread = below(4) == 0;
            slo.latency = [Nanos(800), Nanos(10_000)][below(2) as usize];
            if below(6) == 0 {
                slo.target = Target::OnDemand { most: 3 };
            }
            slos.push(slo);
        }
        let cluster = cluster(20);
        let outcome = place(&cluster, &[], &slos, &toy);
        let placed: Vec<_> = outcome.plan.placed().collect();
        assert_eq!(check(&cluster, placed.iter().copied()), []);
        assert!(placed.len() >= 10, "round {round}: {}", placed.len());
        for one in &placed {
            let mut sum = 0.0;
            for (number, instance) in one.instances.iter().enumerate() {
                let (mut pressure, mut others) = (0.0, 0);
                for other in &placed {
                    let there = other.instances.iter().enumerate().filter(|(at, of)| {
                        of.server == instance.server && (*at != number || other.slo.name != one.slo.name)
                    });
                    let of = toy
                        .0
                        .iter()
                        .find(|(name, ..)| *name == other.slo.chain.name)
                        .expect("a chain");
                    let count = there.count();
                    (pressure, others) = (pressure + of.2 * count as f64, others + count);
                }
                let of = toy
                    .0
                    .iter()
                    .find(|(name, ..)| *name == one.slo.chain.name)
                    .expect("a chain");
                // Alone, the curves count with their discount.
                let (keeps, discount) = match others {
                    0 => (1.0, 0.97),
                    _ => (1.0 / (1.0 + of.1 * pressure) / (1.0 + WIDTH), 1.0),
                };
                // The toy's latency grows as its time for a packet.
                let limit = one.slo.latency.0 as f64 * keeps;
                let load = match limit {
                    limit if limit >= 1000.0 => 1.0,
                    limit if limit < 100.0 => 0.0,
                    limit => 0.5 + 0.5 * (limit - 100.0) / 900.0,
                };
                let ways = if of.0 == "loud" { 4 } else { instance.ways.min(4) };
                let alone = [60.0, 60.0 + 40.0 / 3.0, 60.0 + 80.0 / 3.0, 100.0][usize::from(ways) - 1];
                sum += alone * keeps * load * discount;
            }
            if let Target::Reserved { throughput } = one.slo.target {
                // A nanosecond of rounding.
                assert!(
                    sum >= throughput * 0.997,
                    "round {round}, {}: {sum} {throughput}",
                    one.slo.name
                );
            }
        }
    }
}

#[test]
fn a_denial_by_contention_says_so_and_what_would_fit_fits() {
    let (loud, soft) = (chain("loud"), chain("soft"));
    let mut slos = vec![slo("a", &loud, 700.0), slo("b", &soft, 90.0)];
    let outcome = place(&cluster(1), &[], &slos, &toy());
    // That takes eight instances, one more than the toy predicts.
    assert!(matches!(outcome.answers[0].answer, Answer::Denied(_)));
    slos[0] = slo("a", &loud, 90.0);
    slos[1] = Slo {
        latency: Nanos(100),
        ..slo("b", &soft, 40.0)
    };
    let outcome = place(&cluster(1), &[], &slos, &toy());
    let Answer::Denied(denial) = &outcome.answers[1].answer else {
        panic!("{:?}", outcome.answers[1]);
    };
    let Reason::Room(resources) = &denial.reason else {
        panic!("{denial:?}");
    };
    assert!(resources.contains(&Resource::Quiet), "{resources:?}");
    for nearest in &denial.nearest {
        let fitting = match *nearest {
            Nearest::Throughput(rate) => slo("b", &soft, rate),
            Nearest::Latency(latency) => Slo {
                latency,
                ..slos[1].clone()
            },
        };
        let outcome = place(&cluster(1), &[], &[slos[0].clone(), fitting], &toy());
        assert!(matches!(outcome.answers[1].answer, Answer::Admitted(_)), "{nearest:?}");
    }
    assert!(!denial.nearest.is_empty());
}

#[test]
fn a_conflict_has_the_objective_and_the_prediction() {
    let (loud, soft) = (chain("loud"), chain("soft"));
    let slos = [slo("a", &loud, 90.0), slo("b", &soft, 90.0)];
    let outcome = place(&cluster(4), &[], &slos, &toy());
    let found = conflicts(&outcome.plan, &slos[1], &toy(), 3);
    let [conflict] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(
        (&*conflict.slo, &*conflict.unmet, &conflict.beside[..]),
        ("b", "b", &["a".to_owned()][..])
    );
    assert_eq!(conflict.server, servers(&outcome, "a")[0]);
    let Cause::Rate {
        objective,
        predicted,
        binding,
        ..
    } = &conflict.cause
    else {
        panic!("{conflict:?}");
    };
    assert_eq!(*objective, 90.0);
    assert!((predicted.value - 100.0 / 1.5).abs() < 1e-9 && predicted.low < 64.0 && predicted.high > 69.0);
    assert_eq!(binding.as_ref().map(|of| &*of.metric), Some("memoryRead"));
    // The other way round: the loud one would be met, the soft one not.
    let found = conflicts(&outcome.plan, &slos[0], &toy(), 3);
    assert_eq!((&*found[0].slo, &*found[0].unmet), ("a", "b"));
    // One that is not in the plan.
    let more = conflicts(&outcome.plan, &slo("c", &loud, 90.0), &toy(), 3);
    assert!(more.iter().all(|of| of.slo == "c" && of.unmet == "b"), "{more:?}");
    assert_eq!(more.len(), 1);
}

#[test]
fn a_chain_without_a_model_has_its_node_for_itself() {
    let (loud, unknown) = (chain("loud"), chain("unknown"));
    let slos = [
        slo("a", &loud, 50.0),
        slo("b", &unknown, 50.0),
        slo("c", &unknown, 50.0),
        slo("d", &loud, 50.0),
    ];
    let outcome = place(&cluster(4), &[], &slos, &toy());
    assert_eq!(outcome.plan.active(), 3);
    assert_eq!(servers(&outcome, "a"), servers(&outcome, "d"));
    let found = conflicts(&outcome.plan, &slos[1], &toy(), 1);
    let Cause::Unpredicted(why) = &found[0].cause else {
        panic!("{found:?}");
    };
    assert_eq!(&**why, "there is no model of chain unknown on machine m");
}

#[test]
fn slos_of_an_earlier_plan_move_apart_when_predictions_say_so() {
    let (loud, soft) = (chain("loud"), chain("soft"));
    let slos = [slo("a", &loud, 90.0), slo("b", &soft, 90.0)];
    let chains = [loud.clone(), soft.clone()];
    let together = reconcile(&cluster(4), &[], &slos, &chains, &Tailwater).plan;
    assert_eq!(together.active(), 1);
    let outcome = place(&cluster(4), &Earlier::all(&together), &slos, &toy());
    assert_eq!(
        (outcome.answers[0].course, outcome.answers[1].course),
        (Course::Kept, Course::Repaired)
    );
    assert_eq!((outcome.answers[0].moved, outcome.answers[1].moved), (0, 1));
    assert_eq!(outcome.plan.active(), 2);
    assert_eq!(CoRunScheduler::new(&toy()).unmet(&outcome.plan), [""; 0]);
    // From there on nothing moves.
    let again = place(&cluster(4), &Earlier::all(&outcome.plan), &slos, &toy());
    assert!(
        again
            .answers
            .iter()
            .all(|of| of.course == Course::Kept && of.moved == 0)
    );
    assert_eq!(again.plan, outcome.plan);
}

/// An SLO that lost an instance gets another one where it is met, beside its own remaining ones, too.
#[test]
fn lost_instances_are_replaced_where_all_are_met() {
    let (loud, soft) = (chain("loud"), chain("soft"));
    let slos = [slo("a", &loud, 90.0), slo("b", &soft, 170.0), slo("c", &loud, 500.0)];
    let before = place(&cluster(4), &[], &slos, &toy());
    let all = Earlier::all(&before.plan);
    let lost = before.plan.get("b").expect("a place").instances[0].server;
    let mut names: Vec<_> = cluster(5).servers().to_vec();
    names.remove(lost);
    let rest = Cluster::new(cluster(1).kinds().to_vec(), names).expect("a cluster");
    let outcome = place(&rest, &all, &slos, &toy());
    assert!(
        outcome
            .answers
            .iter()
            .all(|of| matches!(of.answer, Answer::Admitted(_)))
    );
    assert_eq!(CoRunScheduler::new(&toy()).unmet(&outcome.plan), [""; 0]);
}

#[test]
fn without_partitions_an_instance_has_what_the_others_leave_of_the_cache() {
    let (mild, thin) = (chain("mild"), chain("thin"));
    let cluster = cluster(3);
    let slos: Vec<Slo> = (0..12)
        .map(|at| slo(&at.to_string(), &mild, 60.0))
        .chain([slo("b", &thin, 70.0)])
        .collect();
    let chains = [mild, thin];
    // Partitions of one way carry 60 * 0.97: each SLO takes two ways, and 12 ways suffice for 6.
    let apart = reconcile(&cluster, &[], &slos, &chains, &Tailwater);
    assert_eq!(apart.plan.active(), 3);
    // 80 packets per second alone by the model, less than the curve's 100.
    let alone = |_: &str, _: &str| Some(80.0);
    let all = shared(&cluster, &slos, &chains, alone).expect("a cluster");
    assert_eq!(all.chains[0].on("m").expect("curves").cache.most(), 80.0);
    let outcome = reconcile(&all.cluster, &[], &all.slos, &all.chains, &CoRunScheduler::new(&toy()));
    // Seven instances on a node, since the toy predicts no more than six others.
    assert_eq!(outcome.plan.active(), 2);
    assert!(
        outcome
            .answers
            .iter()
            .all(|of| matches!(of.answer, Answer::Admitted(_)))
    );
    assert_eq!(check(&all.cluster, outcome.plan.placed()), []);
}

/// Model of a chain whose throughput alone is 100, and that memory bandwidth slows down; measured beside one
/// competitor.
fn model(function: &str, bandwidth: f64, metric: &str) -> ContentionModel {
    let metrics = vec![Metric::new(metric, "GB/s", Shared::MemoryBandwidth)];
    let schema = Arc::new(Schema::new(Source::Modelled, metrics).expect("metrics"));
    let key = Key {
        function: function.to_owned(),
        configuration: "c".to_owned(),
        traffic: "t".to_owned(),
        machine: "m".to_owned(),
    };
    let mut campaign = Campaign::new(key, schema.clone());
    for at in 0..40u32 {
        let vector = |value| Vector::new(schema.clone(), vec![Some(value)]).expect("a vector");
        let slower = 1.0 + f64::from(at) / 40.0;
        let observation = Observation {
            group: at,
            competitors: at.min(1),
            competition: vector(f64::from(at)),
            throughput: 100.0 / slower,
            p99_us: Some(10.0 * slower * slower),
            own: Some(vector(bandwidth)),
            flagged: false,
        };
        campaign.push(observation).expect("an observation");
    }
    let options = TrainOptions {
        kind: Kind::Ridge,
        folds: 4,
        ..TrainOptions::default()
    };
    ContentionModel::train(&campaign, &options).expect("a model")
}

fn of(chain: &str, model: &ContentionModel) -> ChainModel {
    ChainModel {
        chain: chain.to_owned(),
        machine: "m".to_owned(),
        model: Arc::new(model.clone()),
    }
}

#[test]
fn slomo_predicts_throughput_and_latency_and_says_what_it_cannot() {
    let (nat, ids) = (model("nat", 5.0, "memoryRead"), model("ids", 20.0, "memoryRead"));
    let slomo = Slomo::new(vec![of("nat", &nat), of("ids", &ids)], 0.9).expect("a predictor");
    let member = |chain: &str| slomo.member(chain, "m").expect("a model");
    assert_eq!((slomo.member("nat", "n"), slomo.member("lpm", "m")), (None, None));
    assert_eq!(slomo.effect(member("nat"), &[]), Ok(Effect::NONE));
    let effect = slomo.effect(member("nat"), &[member("ids")]).expect("a prediction");
    // Slower by half: 20 of 40. The straight line through the logarithms is near that.
    assert!((effect.throughput.value - 1.0 / 1.5).abs() < 0.05, "{effect:?}");
    assert!(effect.throughput.low < effect.throughput.value && effect.throughput.value < effect.throughput.high);
    assert!((effect.latency.value - 2.25).abs() < 0.2, "{effect:?}");
    assert!(effect.latency.high > effect.latency.value && effect.latency.low >= 1.0);
    // Kept, and the same again.
    assert_eq!(slomo.effect(member("nat"), &[member("ids")]), Ok(effect));
    assert_eq!(
        slomo.binding(member("nat"), &[member("ids")]).map(|of| of.resource),
        Some("memory bandwidth".to_owned())
    );
    let why = slomo
        .effect(member("nat"), &[member("ids"), member("nat")])
        .expect_err("two were not measured");
    assert!(
        why.starts_with("model of chain nat: the number of co-runners is 2, outside"),
        "{why}"
    );
}

#[test]
fn models_that_do_not_fit_together_are_refused() {
    let nat = model("nat", 5.0, "memoryRead");
    let twice = Slomo::new(vec![of("nat", &nat), of("nat", &nat)], 0.9).err();
    assert!(matches!(twice, Some(SlomoError::Twice { .. })), "{twice:?}");
    let other = model("ids", 5.0, "memoryWrite");
    let mixed = Slomo::new(vec![of("nat", &nat), of("ids", &other)], 0.9)
        .err()
        .map(|error| error.to_string());
    assert!(mixed.is_some_and(|text| text.starts_with("model of chain nat: expected the metric \"memoryRead\"")));
    let sure = Slomo::new(vec![of("nat", &nat)], 0.99)
        .err()
        .map(|error| error.to_string());
    assert!(sure.is_some_and(|text| text.starts_with("model of chain nat: expected a confidence")));
}

/// The order of the others, and repetitions, make no difference.
#[test]
fn a_prediction_depends_on_the_multiset_of_co_runners() {
    let names = ["a", "b", "c"];
    let models: BTreeMap<&str, ContentionModel> = names
        .into_iter()
        .zip([1.0, 2.0, 3.0])
        .map(|(name, own)| (name, model(name, own, "memoryRead")))
        .collect();
    let slomo = Slomo::new(models.iter().map(|(name, model)| of(name, model)).collect(), 0.9).expect("a predictor");
    let [a, b, c] = names.map(|name| slomo.member(name, "m").expect("a model"));
    assert_eq!(slomo.effect(a, &[b, c]), slomo.effect(a, &[c, b]));
    assert_ne!(slomo.effect(a, &[b]), slomo.effect(a, &[c]));
}
