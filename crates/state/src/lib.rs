//! Flow state that outlives a function, a core or a server: kept in Redis.
//!
//! Functions go on with state in the flow table. Behind it, a worker's [`Keeper`](keeper::Keeper) reads what the store
//! knows of flows that are new here, for all flows of a batch at a time, and writes what functions change; a packet
//! leaves only after the change it caused is acknowledged (Quadrant's output commit). [`Commits`](commits::Commits)
//! decides which packets wait and which leave, without clock or input or output. A thread for each worker speaks to
//! [Redis](redis); requests go there and back by [rings](link).
//!
//! On the data path nothing is allocated and nothing locked, and there is no system call but, once a batch, the one
//! that wakes a thread that sleeps.

#![forbid(unsafe_code)]

mod buckets;
pub mod commits;
pub mod counters;
pub mod keeper;
pub mod keys;
pub mod link;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(not(feature = "redis"))]
#[path = "no_redis.rs"]
pub mod redis;
pub mod request;
