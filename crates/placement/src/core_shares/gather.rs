//! Chains moved together, so that cores become free.

use super::{Occupant, SharedCores};
use crate::check::Violation;
use std::collections::{BTreeMap, BTreeSet};

/// Move of a chain with one core to another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreMove {
    /// Name of the chain.
    pub chain: String,
    /// Core that it has.
    pub from: u32,
    /// Core that it gets.
    pub to: u32,
}

/// Moves that can be made in this order, and the cores that are without a chain afterwards and were not before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gathering {
    /// Moves.
    pub moves: Vec<CoreMove>,
    /// Numbers of the cores, ascending.
    pub freed: Vec<u32>,
}

impl SharedCores {
    /// Returns those of the moves to the cores of `targets`, by the names of chains, that can be made one after the
    /// other: after each, every promise is kept that was kept before. Chains with several cores, or without a
    /// promise, stay.
    /// Moves without which the same cores become free are left out.
    pub fn gathering(&self, chains: &[Occupant], targets: &BTreeMap<String, u32>) -> Gathering {
        let all = self.all_moves(chains, targets);
        let leaves = all.moves.iter().filter(|one| all.freed.contains(&one.from));
        let needed: BTreeMap<String, u32> = leaves.map(|one| (one.chain.clone(), one.to)).collect();
        let fewer = self.all_moves(chains, &needed);
        if fewer.freed == all.freed { fewer } else { all }
    }

    fn all_moves(&self, chains: &[Occupant], targets: &BTreeMap<String, u32>) -> Gathering {
        let mut now = chains.to_vec();
        let mut broken = self.broken(&now);
        let mut moves = Vec::new();
        let mut left: Vec<(usize, u32)> = (0..now.len())
            .filter_map(|at| Some((at, wanted(&now[at], targets)?)))
            .collect();
        left.retain(|(_, to)| self.cores.contains(to));
        loop {
            let before = left.len();
            left.retain(|&(at, to)| {
                let from = std::mem::replace(&mut now[at].cores, vec![to]);
                let then = self.broken(&now);
                if !then.is_subset(&broken) {
                    now[at].cores = from;
                    return true;
                }
                broken = then;
                moves.push(CoreMove {
                    chain: now[at].name.clone(),
                    from: from[0],
                    to,
                });
                false
            });
            if left.len() == before || left.is_empty() {
                break;
            }
        }
        let used =
            |chains: &[Occupant]| -> BTreeSet<u32> { chains.iter().flat_map(|chain| chain.cores.clone()).collect() };
        Gathering {
            moves,
            freed: used(chains).difference(&used(&now)).copied().collect(),
        }
    }

    /// Names of the chains whose promise is not kept.
    fn broken(&self, chains: &[Occupant]) -> BTreeSet<String> {
        let violations = self.violations(chains).into_iter();
        let names = violations.filter_map(|violation| match violation {
            Violation::Throughput { slo, .. } | Violation::Latency { slo, .. } => Some(slo),
            // Of clusters.
            _ => None,
        });
        names.collect()
    }
}

/// Core that a chain is to get, if it can move and has another one.
fn wanted(chain: &Occupant, targets: &BTreeMap<String, u32>) -> Option<u32> {
    let to = *targets.get(&chain.name)?;
    (chain.claim.is_some() && chain.cores.len() == 1 && chain.cores[0] != to).then_some(to)
}

#[cfg(test)]
mod tests;
