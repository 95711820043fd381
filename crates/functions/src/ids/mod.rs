//! `Ids`: matches packets, streams and messages of HTTP, TLS and DNS against Suricata rules that alert or drop.
//!
//! [`tailwater_ids`] holds the rule language and the matching engine. This module makes a network function of it:
//!
//! - Connections come from the flow table.
//! - Stream memory is a buffer pool (`stream_pool`) shared by all instances.
//! - A separate thread writes alerts.
//! - Rules are reloaded while workers run.

mod alert_ring;
mod eve;
mod function;
mod host;
mod kind;
mod shared;
mod sources;
mod spec;
mod table;
mod transfer;

pub use eve::Eve;
pub use function::Ids;
pub use kind::KIND;
pub use sources::{Classes, Loaded, Sources};
pub use spec::IdsConfig;
pub use table::{IdsError, IdsTable, Options};

#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use spec::load_rules;
