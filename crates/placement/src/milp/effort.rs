//! Limits of the search for plans.

use std::time::Duration;

/// Time, threads and precision of the search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Time limit of the solver, for all parts together. The solver checks it between its steps, and can exceed it by
    /// one step. It is not called again afterwards. [`Tailwater`](crate::tailwater::Tailwater) places the SLOs without
    /// a solution. Counting choices and placing take additional time: milliseconds for thousands of SLOs.
    pub time: Duration,
    /// Threads of the solver.
    pub threads: u32,
    /// Gap to the bound at which the solver stops, relative to its solution.
    pub gap: f64,
    /// Maximum number of SLOs in a part. Each part has servers of its own.
    pub part: usize,
}

impl Default for Effort {
    /// One minute, two threads, no gap, and 1,000 SLOs in a part.
    fn default() -> Self {
        Effort {
            time: Duration::from_secs(60),
            threads: 2,
            gap: 0.0,
            part: 1000,
        }
    }
}
