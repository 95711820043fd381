//! NetBlaze's frontier as its authors train it (arXiv 2305.01890, section 3.2): everything runs but
//! the moving of flows, and in each epoch that what had arrived before outlasted, what the core
//! processed is what it can do.

use super::traffic::{Kind, generate};
use super::{Machine, Never, Own, run};
use std::collections::HashSet;
use tailwater_policy::capacity::EpochFrontier;
use tailwater_policy::core::Load;

/// Seeds of the traffic that the frontier is trained with; none of it is used for anything else.
pub const SEEDS: std::ops::Range<u64> = 9000..9003;

pub fn train(machine: &Machine, epoch: u64) -> EpochFrontier {
    let kinds = [
        Kind::Smooth(95),
        Kind::Bursts(80, 150),
        Kind::Minnows(70, 200),
        Kind::Whale(60, 300),
        Kind::Surge(60, 150),
    ];
    let mut frontier = EpochFrontier::new();
    for kind in kinds {
        for seed in SEEDS {
            let traffic = generate(kind, &machine.service, 20_000_000, seed);
            let done = run(&mut Never, machine, &traffic).own;
            observe(&done, epoch, &mut frontier);
        }
    }
    frontier
}

/// Notes what was processed in each epoch that was too short. `done` is in the order of time.
fn observe(done: &[Own], epoch: u64, frontier: &mut EpochFrontier) {
    let mut rest = done;
    while let Some(first) = rest.first() {
        let number = first.end / epoch;
        let count = rest.partition_point(|own| own.end / epoch == number);
        let (processed, later) = rest.split_at(count);
        let violated = later
            .first()
            .is_some_and(|own| own.arrival < number * epoch);
        if violated {
            let flows: HashSet<u32> = processed.iter().map(|own| own.flow).collect();
            frontier.insert(Load {
                flows: flows.len() as u32,
                packets: processed.len() as u32,
            });
        }
        rest = later;
    }
}
