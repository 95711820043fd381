//! How long and how exactly plans are searched for.

use std::time::Duration;

/// How long and how exactly to search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// After this, for all parts together, the solver is not called again, and told to stop where it is: it looks at
    /// its clock between its own steps, which it may exceed by. What is not solved by then is placed as
    /// [`Tailwater`](crate::tailwater::Tailwater) does; counting choices and placing takes time of its own, milliseconds for thousands of SLOs.
    pub time: Duration,
    /// Threads of the solver.
    pub threads: u32,
    /// No closer to the bound than this part of it.
    pub gap: f64,
    /// SLOs are divided into parts of no more than these, each on servers of its own.
    pub part: usize,
}

impl Default for Effort {
    /// A minute on two cores, to the last server, 1,000 SLOs together.
    fn default() -> Self {
        Effort {
            time: Duration::from_secs(60),
            threads: 2,
            gap: 0.0,
            part: 1000,
        }
    }
}
