//! ResQ's greedy admission: number of instances from a fair share of cache, cache way by way, first fit (§5.3.1).

use tailwater_placement::choices::dealt;
use tailwater_placement::plan::{Instance, Plan};
use tailwater_placement::schedule::{MAX_INSTANCES, Request, Scheduler, Trial};

/// ResQ's greedy algorithm. Several kinds of servers are tried in turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResqGreedy;

impl Scheduler for ResqGreedy {
    fn name(&self) -> &'static str {
        "resq-greedy"
    }

    fn place(&self, plan: &Plan, request: &Request) -> Option<Vec<Instance>> {
        let mut trial = Trial::new(plan, &request.slo);
        request.demand.offers.iter().find_map(|offer| {
            let kind = &plan.cluster().kinds()[offer.kind];
            // 1: the number of instances needed if each had a fair share.
            let fair = kind.ways * offer.cores / kind.cores;
            let fair = fair.clamp(offer.least_ways(), kind.ways);
            let count = (request.demand.need / offer.rate(fair)).ceil().max(1.0);
            if count > MAX_INSTANCES as f64 {
                return None;
            }
            // 2: one more way for each in turn, until they suffice.
            let most = kind.ways;
            let ways = dealt(count as usize, |w| offer.rate(w), most, &request.demand)?;
            // 3: largest first, each on the first server with room.
            trial.clear();
            for ways in ways {
                let slot = offer.slot(ways);
                let (room, _) = trial.fitting(slot).next()?;
                trial.take(room, slot);
            }
            Some(trial.instances())
        })
    }
}
