//! Metron's scaling inside Quadrant, a variant that Quadrant's authors compare with (Wang et al., SoCC 2022, section
//! 6.3).
//!
//! The paper states only that Metron's scaling algorithm was ported. Here the flows' shards are its classes: a new flow
//! goes to its shard's owner. A core that lost packets gives half of its shards, with their flows, to a new core. Idle
//! cores merge. The period and delays are Quadrant's, as flow entries are written instead of classes. The thresholds
//! are [`Metron`](super::Metron)'s.

use super::classes::{Classes, Signals};
use super::metron::MetronConfig;
use super::quadrant::CONTROL_LOOP;
use tailwater_policy::flows::{ControlLoop, FlowMapper, FlowPlan, FlowView, NewFlow};
use tailwater_policy::server::CoreNumber;

/// Flow mapper that splits and merges classes of shards, with Quadrant's period.
#[derive(Clone, Debug)]
pub struct QuadrantMetron {
    config: MetronConfig,
    classes: Classes,
}

impl QuadrantMetron {
    /// Creates a mapper with Metron's thresholds, without any observation.
    pub fn new() -> QuadrantMetron {
        let config = MetronConfig {
            period: CONTROL_LOOP.period,
            enforcement_delay: CONTROL_LOOP.report_delay + CONTROL_LOOP.enforcement_delay,
            ..MetronConfig::default()
        };
        QuadrantMetron {
            config,
            classes: Classes::default(),
        }
    }
}

impl Default for QuadrantMetron {
    fn default() -> Self {
        QuadrantMetron::new()
    }
}

impl FlowMapper for QuadrantMetron {
    fn control_loop(&self) -> ControlLoop {
        CONTROL_LOOP
    }

    fn place(&mut self, flow: NewFlow) -> CoreNumber {
        self.classes.owner[usize::from(flow.shard)]
    }

    fn decide(&mut self, view: &FlowView<'_>, plan: &mut FlowPlan) {
        let cores = view.cores.iter().map(|core| Signals {
            active: core.active,
            busy: core.busy,
            lost: core.lost,
        });
        let owner = view.shards.iter().copied();
        let thresholds = self.config.thresholds();
        self.classes.plan(thresholds, view.now, owner, cores, &mut plan.moves);
        plan.reclaim.extend(self.classes.merged);
    }
}
