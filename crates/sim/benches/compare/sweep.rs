//! Sweep of every policy's knobs, on training seeds.
//!
//! One knob after the other, from the published values: a value is kept if its score over the training cells is better.
//! The score of a run is its cores as a multiple of the oracle's, plus one for each percentage point of late packets
//! beyond the objective's one per cent, up to ten. A score is the mean over cells and seeds.

use super::cells::{Cache, Cell};
use super::contenders::{Values, knobs};
use super::runs::{Profiles, bound, run};
use std::sync::Arc;
use tailwater_sim::Recording;

/// Training cells. Their seeds are used nowhere else.
const CELLS: [&str; 4] = ["chain-2 backbone 100", "chain-2 backbone 200", "840 ns", "load 80 %"];
const SEEDS: std::ops::Range<u64> = 9001..9003;
/// Points of lateness that count at most.
const MOST: f64 = 10.0;
/// Improvement that is more than chance.
const BETTER: f64 = 0.01;

struct Training {
    cell: Cell,
    packets: Arc<Recording>,
    bound: f64,
}

/// Sweeps policies, and prints a line of JSON for each value tried and each choice.
pub fn sweep(policies: &[&'static str], quick: bool) {
    let (mut cache, mut profiles, mut training) = (Cache::default(), Profiles::default(), Vec::new());
    let cells = if quick { &CELLS[..1] } else { &CELLS[..] };
    for seed in if quick { SEEDS.start..SEEDS.start + 1 } else { SEEDS } {
        for name in cells {
            let cell = Cell::named(name);
            let packets = cache.packets(&cell, seed);
            let bound = bound(&cell, seed, &packets).cores;
            training.push(Training { cell, packets, bound });
        }
    }
    for policy in policies {
        one(policy, &training, &mut profiles);
    }
}

fn one(policy: &'static str, training: &[Training], profiles: &mut Profiles) {
    let mut best = Values::published(policy);
    let mut least = score(&best, training, profiles);
    println!("{{\"policy\": \"{policy}\", \"published\": {least:.4}}}");
    for (number, knob) in knobs(policy).iter().enumerate() {
        for &value in knob.others {
            let mut tried = best.clone();
            tried.values[number] = value;
            if policy == "quadrant" && tried.values[2] >= tried.values[3] {
                continue;
            }
            let score = score(&tried, training, profiles);
            println!(
                "{{\"policy\": \"{policy}\", \"knob\": \"{}\", \"value\": {value}, \"score\": {score:.4}}}",
                knob.name
            );
            if score < least - BETTER {
                (best, least) = (tried, score);
            }
        }
    }
    let chosen: Vec<String> = knobs(policy)
        .iter()
        .zip(&best.values)
        .map(|(knob, value)| format!("\"{}\": {value}", knob.name))
        .collect();
    println!(
        "{{\"policy\": \"{policy}\", \"chosen\": {{{}}}, \"score\": {least:.4}}}",
        chosen.join(", ")
    );
}

fn score(values: &Values, training: &[Training], profiles: &mut Profiles) -> f64 {
    let scores = training.iter().map(|training| {
        let profile = profiles.trained(&training.cell);
        let outcome = run(values, &training.cell, &training.packets, &profile);
        let late = (100.0 * outcome.late - 1.0).clamp(0.0, MOST);
        outcome.cores / training.bound + late
    });
    scores.sum::<f64>() / training.len() as f64
}
