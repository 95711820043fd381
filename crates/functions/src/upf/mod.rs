//! `Upf`: the user plane of a mobile network. Users' packets go through GTP-U tunnels (3GPP TS 29.281), each session's by rules,
//! rates and counters of its own (TS 23.501, TS 29.244); both directions. See the function's page for what it does not do.
//!
//! Sessions are found by the identifier of the tunnel that a packet came by, or by the user's address: one look-up a packet, in an
//! index that workers read while sessions come and go.

pub(crate) mod answer;
pub mod api;
mod capsule;
mod filter;
mod function;
pub mod gtp;
mod index;
pub mod language;
mod lines;
mod reasons;
mod records;
mod replace;
mod services;
mod session;
mod table;
mod usage;

pub use filter::{Flows, NoDescription, parse as parse_flows};
pub use function::Upf;
pub use records::Usage;
pub use replace::{Prepared, Put};
pub use services::{Services, UpfError, start};
pub use session::{
    MAX_ADDRESSES, MAX_PROFILES, MAX_RATES, MAX_RULES, MAX_SESSIONS, Profile, Role, Rule, Session, Treatment, Tunnel,
    Way,
};
pub use table::{Changed, MAX_PEERS, Options, Owner, Refused, UpfTable};

#[cfg(test)]
mod tests;
