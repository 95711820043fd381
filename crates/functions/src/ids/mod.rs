//! `Ids`: packets, streams and messages of HTTP, TLS and DNS against Suricata's rules, which tell or drop.
//!
//! The rules and what asks them are [`tailwater_ids`]'s; here is what makes a network function of it: the connections
//! are the flow table's, the memory of streams is a `stock` that all instances share, alerts are written by a thread of their own,
//! and rules are replaced while workers run.

mod eve;
mod function;
mod sources;
mod table;

pub use eve::Eve;
pub use function::Ids;
pub use sources::{Classes, Loaded, Sources};
pub use table::{IdsError, IdsTable, Options};

#[cfg(test)]
mod tests;
