//! IP forwarding: longest-prefix match over full routing tables, hop counts, next hops' MAC
//! addresses.
//!
//! [`RouteTable`] is built once and shared by all workers; a change of routes is a new table.
//! [`linear`] says the same in the plainest way: tests and the fuzz target compare the two.

pub mod function;
pub mod linear;
mod memory;
pub mod route;
pub mod routes_file;
pub mod table;
mod v4;
mod v6;

pub use function::IpForward;
pub use route::{NextHop, Route, Target};
pub use table::{RouteTable, TableError};

#[cfg(test)]
mod tests;
