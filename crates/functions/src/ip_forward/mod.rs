//! `IpForward`: longest-prefix match over full routing tables, TTL handling, and MAC addresses of next hops.
//!
//! [`RouteTable`] is immutable and shared by all workers. A change of routes builds a new table. [`linear`] is the
//! plain implementation with which tests and the fuzz target compare it.

mod error;
pub mod function;
mod kind;
pub mod linear;
mod memory;
mod prefixes;
pub mod route;
pub mod routes_file;
mod spec;
pub mod table;
mod v4;
mod v6;

pub use error::TableError;
pub use function::IpForward;
pub use kind::KIND;
pub use route::{NextHop, Route, Target};
pub use spec::IpForwardConfig;
pub use table::RouteTable;

#[cfg(test)]
mod tests;
