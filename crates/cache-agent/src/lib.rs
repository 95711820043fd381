//! The server agent's on-demand loop (ResQ §5.3). It applies the decisions of
//! [`OnDemand`](tailwater_placement::on_demand::OnDemand) to a cache in each tick, through `resctrl` or to a model.
//!
//! - [`Agent`] combines the policy, the cache mechanism ([`CachePartitioner`]) and the lease. Before each tick it reads
//!   the actual state of the cache. Refused steps are retried. If classes of service run out, the policy lets instances
//!   share. The agent has no clock and no thread, and only the allocator does I/O.
//! - [`Partitions`] partitions a cache through `resctrl`.
//! - [`Memory`] partitions nothing and only stores the allocation, for simulation and dry runs.
//! - [`run`] runs ticks until the end, with measurements, clock and controller as traits, and then removes all classes.

#![forbid(unsafe_code)]

mod agent;
mod controller;
mod drive;
mod lease;
mod memory;
mod partitioner;
mod partitions;

pub use agent::{Agent, Refusal, Seen, Settings, Tick, Watched};
pub use controller::Controller;
pub use drive::{Clock, Source, run};
pub use lease::Local;
pub use memory::Memory;
pub use partitioner::{CachePartitioner, ClassifiedError, Found, Refused, Usage};
pub use partitions::{PartitionError, Partitions};
