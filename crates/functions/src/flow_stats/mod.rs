//! `FlowStats`: packets and bytes of each flow, exported as IPFIX (RFC 7011) while the flow lasts and when it ends.

mod export;
mod function;
mod ipfix;
mod kind;
mod record;
mod retry;
mod session;
mod spec;

pub use export::{FlowStatsTable, Options, Outlet, Transport};
pub use function::FlowStats;
pub use ipfix::MESSAGE_BYTES;
pub use kind::KIND;
pub use record::{EndReason, FlowRecord};
pub use spec::FlowStatsConfig;
