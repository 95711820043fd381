//! An SLO on its way into a plan, with what it takes on the cluster.

use crate::bound::MinimumCost;
use crate::choices::{Choices, choices};
use crate::cluster::Cluster;
use crate::demand::{Demand, Unfit};
use crate::slo::{Slo, Target};

/// The most instances of an SLO.
pub const MAX_INSTANCES: usize = 4096;

/// An SLO and what it takes on a cluster.
#[derive(Clone, Debug)]
pub struct Request {
    /// The SLO.
    pub slo: Slo,
    /// What it takes.
    pub demand: Demand,
    /// The ways to keep it.
    pub choices: Choices,
    /// What it costs at least.
    pub cheapest: MinimumCost,
}

impl Request {
    /// What an SLO takes on a cluster.
    ///
    /// # Errors
    /// No server can hold an instance that counts.
    pub fn new(slo: Slo, cluster: &Cluster) -> Result<Self, Unfit> {
        let demand = Demand::new(&slo, cluster)?;
        let most = match slo.target {
            Target::Reserved { .. } => MAX_INSTANCES,
            // It begins with one.
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
