//! Configuration of function isolation.

use super::process::Program;
use std::time::Duration;
use tailwater_chain::batch::MAX_BATCH;
use tailwater_net::Nanos;
use tailwater_policy::isolation::BatchBounds;

/// Configuration of function isolation.
#[derive(Clone, Debug)]
pub struct IsolationConfig {
    /// The programs, in chain order.
    pub programs: Vec<Program>,
    /// `true` if flows are connections, since a function of the chain tracks them.
    pub connections: bool,
    /// `true` if functions follow in the chain, in this process or in other rounds.
    pub followed: bool,
    /// `true` if other packets of the chain bypass these functions through branches. The functions then do not limit
    /// the size of batches that bring them no packets.
    pub passed_by: bool,
    /// Maximum CPU time of a turn; ten times that is the maximum elapsed time.
    pub deadline: Duration,
    /// Maximum time until a program is ready.
    pub patience: Duration,
    /// Bounds of the batch size.
    pub batch: BatchBounds,
    /// `true` if the threads of this process give up the rights that they do not need: those started here, and workers
    /// by [`limit_worker`](super::limit_worker).
    pub limits_server: bool,
}

impl IsolationConfig {
    /// Returns the default bounds for these programs and this latency objective.
    pub fn new(programs: Vec<Program>, objective: Nanos) -> IsolationConfig {
        IsolationConfig {
            programs,
            connections: false,
            followed: false,
            passed_by: false,
            deadline: Duration::from_millis(10),
            patience: Duration::from_secs(30),
            batch: BatchBounds {
                overhead: 0.03,
                objective,
                most: MAX_BATCH,
            },
            limits_server: false,
        }
    }
}
