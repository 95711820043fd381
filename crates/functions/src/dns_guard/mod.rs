//! `DnsGuard`: rates of DNS responses, so that name servers are of no use to who reflects floods off them, and responses that
//! nobody asked for kept away from who would get such a flood.
//!
//! 1. `message`: what a packet is (a query, a response of some sort, a fragment of one), and which accounts it is on.
//! 2. `ledger`: accounts by their hash, in a table of a fixed size that all instances share, without locks.
//! 3. `account`: what an account's number means: a debt that time pays back, bytes to spend, queries that wait.
//! 4. `truncate`: a response made one that says only: ask again by TCP.

mod account;
mod function;
mod ledger;
mod message;
mod rules;
mod truncate;

pub use function::DnsGuard;
pub use rules::{
    Amplification, DnsGuardTable, Fragments, GuardRules, Limits, MAX_EXEMPT, MAX_PORTS, MAX_RATE, Mode, Sizes,
};

#[cfg(test)]
mod tests;
