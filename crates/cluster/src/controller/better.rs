//! Better plans in the background: as few servers as hold the same promises.
//!
//! A plan is computed beside the rounds, on a thread of its own, from the view of one of them. The rounds that follow
//! take it if it saves enough, and move its instances within their limit of moves. It is never in the way of a
//! placement: instances that have changed meanwhile are left out.
//!
//! With the feature `milp`, the solver looks for one, too, for ten seconds at most.

use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_placement::improve::Saving;
use tailwater_placement::rack::{
    RackController, RackOptions, RackView, Rearranged, Rearrangement, ScalingPolicy, consolidated,
};
use tokio::task::JoinHandle;

/// Settings of the search for better plans.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BetterPlans {
    /// Time between searches.
    pub period: Nanos,
    /// Least saving for which a plan is taken.
    pub least: Saving,
}

/// Time limit of the solver.
#[cfg(feature = "milp")]
const SOLVER: std::time::Duration = std::time::Duration::from_secs(10);

/// Returns the plan of the search, or that of the solver if it saves more servers.
#[cfg(feature = "milp")]
fn best_plan(view: &RackView, options: &RackOptions) -> Rearrangement {
    let effort = tailwater_placement::milp::Effort {
        time: SOLVER,
        threads: 1,
        ..Default::default()
    };
    let searched = consolidated(view, options);
    match tailwater_placement::rack::solved(view, options, effort) {
        Ok(solved) if solved.saved(view) > searched.saved(view) => solved,
        // Where it finds nothing in its time, there is the other one.
        _ => searched,
    }
}

/// Returns the plan of the search.
#[cfg(not(feature = "milp"))]
fn best_plan(view: &RackView, options: &RackOptions) -> Rearrangement {
    consolidated(view, options)
}

/// Search for a better plan.
pub(super) struct Search {
    settings: BetterPlans,
    next: Nanos,
    running: Option<JoinHandle<Rearrangement>>,
}

impl Search {
    /// The first search begins after a period.
    pub(super) fn new(settings: BetterPlans) -> Search {
        Search {
            settings,
            next: settings.period,
            running: None,
        }
    }

    /// Takes the plan of a search that has ended, or begins one if it is time. Returns what became of a plan.
    pub(super) async fn step<P: ScalingPolicy>(
        &mut self,
        controller: &mut RackController<P>,
        view: &Arc<RackView>,
        options: RackOptions,
    ) -> Option<Rearranged> {
        if let Some(running) = self.running.take_if(|running| running.is_finished()) {
            let plan = running.await.ok()?;
            return Some(controller.rearrange(view, &plan, self.settings.least));
        }
        if self.running.is_none() && view.now >= self.next && !controller.is_rearranging() {
            self.next = view.now + self.settings.period;
            let view = Arc::clone(view);
            self.running = Some(tokio::task::spawn_blocking(move || best_plan(&view, &options)));
        }
        None
    }
}
