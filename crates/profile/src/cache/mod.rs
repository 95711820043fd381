//! Control of a chain's share of the last-level cache during measurements, and this machine's caches.

mod control;
mod geometry;
mod pirate;
mod resctrl;

pub use control::{CacheControl, CacheError, Method, ShareResult};
pub use geometry::{Caches, sharing};
pub use pirate::Pirate;
pub use resctrl::Partitioned;
