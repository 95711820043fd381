//! Plans with the fewest servers: ResQ's mixed-integer program, solved by HiGHS (ResQ appendix A).
//!
//! Listing 1 multiplies variables: an instance's cache with where it is, a piece of its curve with its cache. Here
//! it is linear, and says the same. Caches are given by whole ways, so an SLO has finitely many
//! [choices](crate::choices), and a NUMA node finitely many *patterns* of instances by size. Variables count how many
//! SLOs of a sort take each choice, and how many nodes have each pattern. Which of equal SLOs has which instance on
//! which of equal servers is no variable, so there are no symmetric solutions to search through; it is settled
//! afterwards.
//!
//! Patterns are found as they are needed: the linear program tells what instances of each size are worth, and a
//! knapsack which pattern is worth more than a server costs. The linear program without such patterns is a lower
//! bound, and the whole-numbered solution over the patterns found is the plan.
//!
//! SLOs that must be on different servers are left out of the program, so its bound holds for them, too; their
//! instances are dealt out afterwards, and those that find no place go to further servers.

mod effort;
mod model;
mod patterns;
mod rounding;

use crate::bound::{Cheapest, whole};
use crate::cluster::Cluster;
use crate::plan::Plan;
use crate::schedule::{Request, place_all};
use crate::tailwater::Tailwater;
use std::time::Instant;

pub use effort::Effort;
pub use model::SolveError;

/// A plan, and how good it is.
#[derive(Clone, Debug)]
pub struct Optimised {
    /// The plan.
    pub plan: Plan,
    /// The bound on servers, before rounding up; that of [`bound`](crate::bound) alone, where the time was too short.
    pub bound: f64,
    /// Whether the solver was stopped by its time.
    pub out_of_time: bool,
    /// In how many parts it was solved.
    pub parts: usize,
}

impl Optimised {
    /// Fewer servers than this cannot hold the SLOs.
    pub fn least(&self) -> usize {
        whole(self.bound)
    }

    /// How many servers too many there are at most, as a part of the bound.
    pub fn gap(&self) -> f64 {
        (self.plan.active() as f64 / self.least().max(1) as f64 - 1.0).max(0.0)
    }
}

/// A plan for SLOs, all of which a cluster holds, with as few servers as can be found.
///
/// # Errors
/// The solver failed, or found no plan on the cluster in its time.
pub fn optimise(cluster: &Cluster, requests: &[Request], effort: Effort) -> Result<Optimised, SolveError> {
    let began = Instant::now();
    let mut plan = Plan::new(cluster.clone());
    let mut cheapest = Cheapest::default();
    requests.iter().for_each(|r| cheapest.add(&r.cheapest));
    let parts = requests.len().div_ceil(effort.part.max(1)).max(1);
    let mut bound = cheapest.servers();
    let mut out_of_time = false;
    let mut left = Vec::new();
    for number in 0..parts {
        // Every so-manyth SLO: each part has the same mix.
        let part: Vec<&Request> = requests.iter().skip(number).step_by(parts).collect();
        // An even part of the time that is left.
        let spent = began.elapsed();
        let time = effort.time.saturating_sub(spent) / (parts - number) as u32;
        let Some(solution) = model::solve(cluster, &part, &plan, Effort { time, ..effort })? else {
            out_of_time = true;
            left.extend(part);
            continue;
        };
        out_of_time |= solution.out_of_time;
        let prices = |slot| solution.prices.of(slot);
        let all = requests.iter();
        let by_prices = all.map(|r| crate::bound::cheapest(&r.demand, &r.choices, prices));
        bound = bound.max(by_prices.sum());
        left.extend(rounding::assign(&mut plan, &part, &solution));
    }
    place_all(&Tailwater, &mut plan, left).map_err(|_| SolveError::NoPlan)?;
    Ok(Optimised {
        plan,
        bound,
        out_of_time,
        parts,
    })
}
