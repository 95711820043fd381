//! Simulations of the live runs.

use crate::live::{Live, STEP};
use crate::{BUFFERS, Cell, RING, SPIN, WINDOW};
use std::sync::Arc;
use tailwater_baselines::catalog::Policy;
use tailwater_policy::capacity::CapacityProfile;
use tailwater_sim::policies::Steered;
use tailwater_sim::{
    ChainModel, ChainReport, ChainRun, Interruption, Rack, RackPolicy, Recording, RunOptions, SpeedProfile, Workload,
    simulate,
};

/// Knowledge of the machine's speed in a live run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speed {
    /// The speed in each step, and the dedicated core's interruptions.
    EachStep,
    /// The mean speed.
    Mean,
    /// None: the speed was that of training.
    Trained,
}

/// Simulates one server with two cores, the first of them dedicated.
pub fn simulate_cell(
    cell: &Cell,
    policy: &str,
    profile: &CapacityProfile,
    recording: &Arc<Recording>,
    speed: Speed,
    run: &Live,
) -> ChainReport {
    let slo = cell.spec().slo.budget();
    let named = Policy::named(policy).expect("a policy");
    let mut rack = Rack::of_one(2);
    rack.servers[0].ring = RING as u32;
    rack.servers[0].buffers = BUFFERS;
    rack.timing.spin = SPIN;
    let mean = run.mean_pace();
    if speed == Speed::EachStep {
        rack.pace = Some(SpeedProfile {
            step: STEP,
            times: run.pace.iter().map(|pace| pace / mean).collect(),
        });
        let interruption = |&(begins, length): &_| Interruption { begins, length };
        rack.interruptions = vec![run.interruptions.iter().map(interruption).collect()];
    }
    let speed = if speed == Speed::Trained { 1.0 } else { mean };
    let chain = ChainRun {
        model: slowed(ChainModel::from_profile(profile).expect("a profile with costs"), speed),
        slo,
        policy: RackPolicy {
            name: policy.to_owned(),
            steered: Steered::Rack(None),
            core: named.mappers(slo, profile).expect("a mapper"),
            start_cores: Some(1),
        },
        workload: Workload::from(Arc::clone(recording)),
    };
    let options = RunOptions {
        window: WINDOW,
        ..RunOptions::default()
    };
    let mut report = simulate(&rack, vec![chain], &options).expect("a simulation");
    report.chains.swap_remove(0)
}

/// Returns the same chain on a machine that is slower by the factor `times`.
fn slowed(mut model: ChainModel, times: f64) -> ChainModel {
    let costs = &mut model.costs;
    let all = [
        &mut costs.batch,
        &mut costs.packet,
        &mut costs.byte,
        &mut costs.new_flow,
        &mut model.receive_batch,
        &mut model.receive_packet,
        &mut model.ring_packet,
        &mut model.dispatch_packet,
        &mut model.lease_packet,
        &mut model.hand_over_packet,
        &mut model.auxiliary_packet,
        &mut model.decide,
        &mut model.decide_flow,
        &mut model.move_packet,
        &mut model.cold_batch,
        &mut model.cold_packet,
        &mut model.new_batch,
    ];
    all.into_iter().for_each(|cost| *cost *= times);
    model
}
