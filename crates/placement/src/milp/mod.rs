//! Plans with the fewest servers: ResQ's mixed-integer program, solved by HiGHS (ResQ appendix A).
//!
//! Listing 1 multiplies variables: an instance's cache with its location, a piece of its curve with its cache. This
//! equivalent formulation is linear. Caches are assigned in whole ways, so an SLO has finitely many
//! [choices](crate::choices), and a NUMA node finitely many *patterns* of instances by size. Variables count the SLOs
//! of a sort that take each choice, and the nodes that have each pattern. The assignment of equal SLOs to instances on
//! equal servers is not a variable. So there are no symmetric solutions to search, and it is settled afterwards.
//!
//! Patterns are generated on demand (column generation): the linear program gives the price of instances of each size,
//! and a knapsack finds patterns that are worth more than a server costs. Once there are no such patterns, the linear
//! program is a lower bound. The integer solution over the patterns found is the plan.
//!
//! SLOs with anti-affinity rules are treated by the program as if they had none, so its bound holds for them, too.
//! Their instances are distributed afterwards, those without a suitable node go to additional servers, and the plan is
//! [consolidated](crate::consolidate).

mod effort;
mod model;
mod patterns;
mod rounding;

use crate::bound::{MinimumCost, separate_servers, whole};
use crate::cluster::Cluster;
use crate::consolidate::consolidate;
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
    /// Bound on servers, before rounding up. If the time was too short, it is that of [`bound`](crate::bound) alone.
    pub bound: f64,
    /// `true` if the time limit stopped the solver.
    pub out_of_time: bool,
    /// Number of parts that were solved separately.
    pub parts: usize,
}

impl Optimised {
    /// Returns the lower bound on servers, as a whole number.
    pub fn least(&self) -> usize {
        whole(self.bound)
    }

    /// Returns the maximum number of superfluous servers, relative to the bound.
    pub fn gap(&self) -> f64 {
        (self.plan.active() as f64 / self.least().max(1) as f64 - 1.0).max(0.0)
    }
}

/// Returns a plan for SLOs with as few servers as can be found.
///
/// # Errors
/// The solver failed, or found no plan for all SLOs on the cluster in its time.
pub fn optimise(cluster: &Cluster, requests: &[Request], effort: Effort) -> Result<Optimised, SolveError> {
    let began = Instant::now();
    let mut plan = Plan::new(cluster.clone());
    let mut cheapest = MinimumCost::default();
    requests.iter().for_each(|r| cheapest.add(&r.cheapest));
    let parts = requests.len().div_ceil(effort.part.max(1)).max(1);
    let separate = separate_servers(cluster, requests.iter().map(|r| (&r.slo, &r.cheapest)));
    let mut bound = cheapest.servers().max(separate as f64);
    let mut out_of_time = false;
    let mut left = Vec::new();
    for number in 0..parts {
        // Every `parts`-th SLO, so that each part has the same mix.
        let part: Vec<&Request> = requests.iter().skip(number).step_by(parts).collect();
        // An even share of the remaining time.
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
    // The program ignores anti-affinity rules, and its parts do not share servers.
    let all = requests.iter().map(|request| request.slo.name.clone()).collect();
    consolidate(&mut plan, &all, &Tailwater);
    Ok(Optimised {
        plan,
        bound,
        out_of_time,
        parts,
    })
}
