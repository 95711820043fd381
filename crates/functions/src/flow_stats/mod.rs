//! `FlowStats`: packets and bytes of each flow, exported as IPFIX (RFC 7011) while the flow lasts and when it ends.

mod function;
mod ipfix;
mod kind;
mod losses;
mod outlet;
mod record;
mod retry;
mod session;
mod sink;
mod spec;
mod table;

pub use function::FlowStats;
pub use ipfix::MESSAGE_BYTES;
pub use kind::KIND;
pub use outlet::{Options, Outlet, Transport};
pub use record::{EndReason, FlowRecord};
pub use spec::FlowStatsConfig;
pub use table::FlowStatsTable;
