//! Hostile programs against every defence, in a process and in a container.
//!
//! Each attack is tried three ways. With all defences, it must fail. Without those that should stop it, it must
//! succeed. With each of these alone, it must fail by that one. So no listed defence is without effect, and none is
//! missing.

mod cases;
mod leftovers;
mod life;
mod scene;
mod scheduling;
mod start_mode;

use std::collections::BTreeSet;

use cases::{By, Case, Layer};
use scene::Scene;
use start_mode::{StartMode, run, ways};
use tailwater_confine::Confinement;

/// Tries one attack with all sets of defences. Adds a line to `wrong` for each unexpected result.
fn try_case(case: &Case, way: &StartMode, wrong: &mut Vec<String>) {
    let base = case.base();
    let layers: Vec<&(Layer, By)> = case.layers.iter().filter(|(layer, _)| way.has(*layer)).collect();
    let without = |but: Option<Layer>| {
        let mut confinement = base.clone();
        for (layer, _) in &layers {
            if Some(*layer) != but {
                layer.switch_off(&mut confinement);
            }
        }
        confinement
    };
    let name = case.name;
    let mut said = BTreeSet::new();
    let mut attempt = |what: &str, by: Option<&By>, confinement: &Confinement| {
        let scene = Scene::new();
        let outcome = run(way, confinement, &scene, case);
        let succeeded = case.succeeded(&scene, &outcome);
        let right = match by {
            Some(by) => by.fits(&outcome) && !succeeded,
            None => succeeded,
        };
        if right {
            said.insert(format!("{what}: {outcome}"));
        } else {
            let expected = by.map_or("success".to_owned(), |by| format!("{by:?}"));
            wrong.push(format!("{name} with {what}: {outcome}, expected {expected}"));
        }
    };

    // All defences: the first of them stops the attack.
    attempt("everything", Some(&layers[0].1), &base);
    // None of them: the attack is possible at all.
    attempt("nothing in its way", None, &without(None));
    // Each of them alone.
    for (layer, by) in &layers {
        attempt(&format!("{layer:?} alone"), Some(by), &without(Some(*layer)));
    }
    println!("{name} in {way}: {}", said.into_iter().collect::<Vec<_>>().join("; "));
}

#[test]
fn no_attack_succeeds() {
    for way in ways() {
        let mut wrong = Vec::new();
        for case in cases::all() {
            match case.impossible(&way) {
                Some(why) => println!("skipped in part, {} from {way}: {why}", case.name),
                None => try_case(&case, &way, &mut wrong),
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
