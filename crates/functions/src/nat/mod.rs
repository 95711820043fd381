//! `Nat`: source address and port translation of TCP and UDP over IPv4.
//!
//! An internal host's connection gets an external address (always the same for a host, RFC 4787 REQ-2) and port. The
//! port is chosen so that the return traffic's RSS hash falls into the bucket that owns the connection. The hash is
//! linear over XOR, so a table built at the start lists the ports that cause each change of bucket. Both directions are
//! flows of one bucket, opened and ended together. Each finds its translation with the chain's one look-up: there is no
//! second table, and cores share nothing.
//!
//! A return tuple includes the remote address and port. An external port therefore serves many connections to different
//! remote ends at once (address and port dependent mapping, RFC 4787 §4.1).

mod function;
mod kind;
mod spec;

pub use function::{Nat, NatRules, NatTable};
pub use kind::KIND;
pub use spec::NatConfig;
