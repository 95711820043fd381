//! `DnsGuard`: response-rate limiting for DNS, so that name servers cannot be used for reflection attacks. It also
//! drops unsolicited responses, to protect the targets of such attacks.
//!
//! 1. `message`: classification of a packet (query, kind of response, fragment), and its accounts.
//! 2. `ledger`: lock-free table of accounts by hash, of a fixed size, shared by all instances.
//! 3. `account`: encoding of an account: a debt repaid over time, bytes to spend, or waiting queries.
//! 4. `truncate`: truncation of a response, so that the client retries over TCP.

mod account;
mod account_table;
mod explain;
mod function;
mod kind;
mod message;
mod rules;
mod spec;
mod truncate;

pub use function::DnsGuard;
pub use kind::KIND;
pub use rules::{
    Amplification, DnsGuardTable, Fragments, GuardRules, Limits, MAX_EXEMPT, MAX_PORTS, MAX_RATE, Mode, Sizes,
};
pub use spec::DnsGuardConfig;

#[cfg(test)]
mod tests;
