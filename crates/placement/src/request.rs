//! SLO to be placed in a plan, with its demand on the cluster.

use crate::bound::MinimumCost;
use crate::choices::{Choices, choices};
use crate::cluster::Cluster;
use crate::demand::{Demand, Unfit};
use crate::slo::{Slo, Target};

/// Maximum number of instances of an SLO.
pub const MAX_INSTANCES: usize = 4096;

/// SLO and its demand on a cluster.
#[derive(Clone, Debug)]
pub struct Request {
    /// SLO to be placed.
    pub slo: Slo,
    /// Demand on the cluster.
    pub demand: Demand,
    /// Choices that meet the demand.
    pub choices: Choices,
    /// Minimum cost.
    pub cheapest: MinimumCost,
}

impl Request {
    /// Returns an SLO with its demand on a cluster.
    ///
    /// # Errors
    /// If no server of the cluster can hold a useful instance.
    pub fn new(slo: Slo, cluster: &Cluster) -> Result<Self, Unfit> {
        let demand = Demand::new(&slo, cluster)?;
        let most = match slo.target {
            Target::Reserved { .. } => MAX_INSTANCES,
            // An on-demand SLO starts with one instance.
            Target::OnDemand { .. } => 1,
        };
        let choices = choices(&demand, most);
        Ok(Request {
            cheapest: MinimumCost::new(&demand, &choices, cluster),
            choices,
            slo,
            demand,
        })
    }
}
