//! Simulations of what runs live.

use crate::{BUFFERS, Cell, RING, SPIN, WINDOW};
use std::sync::Arc;
use tailwater_policy::capacity::CapacityProfile;
use tailwater_policy::catalog::Policy;
use tailwater_sim::policies::Steered;
use tailwater_sim::{
    ChainModel, ChainReport, ChainRun, Rack, RackPolicy, Recording, RunOptions, Workload, simulate,
};

/// One server with two cores, the first of them dedicated.
pub fn simulate_cell(
    cell: &Cell,
    policy: &str,
    profile: &CapacityProfile,
    recording: &Arc<Recording>,
) -> ChainReport {
    let slo = cell.spec().slo.budget();
    let named = Policy::named(policy).expect("a policy");
    let mut rack = Rack::of_one(2);
    rack.servers[0].ring = RING as u32;
    rack.servers[0].buffers = BUFFERS;
    rack.timing.spin = SPIN;
    let chain = ChainRun {
        model: ChainModel::from_profile(profile).expect("a profile with costs"),
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
