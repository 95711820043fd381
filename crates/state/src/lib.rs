//! Flow state in Redis, which survives the failure of a function, core or server.
//!
//! Functions keep using state in the flow table. Behind it, each worker's [`Keeper`](keeper::Keeper) reads the store's
//! state of new flows, for all flows of a batch at a time, and writes the functions' changes. A packet leaves only
//! after the change it caused is acknowledged (Quadrant's output commit). [`Commits`](commits::Commits) decides which
//! packets wait and which leave, without clock or I/O. One thread per worker talks to [Redis](redis). Requests and
//! answers pass through [rings](link).
//!
//! The data path allocates nothing and takes no lock. Its only system call wakes a sleeping thread, at most once per
//! batch.

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
