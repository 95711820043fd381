//! Intrusion detection: Suricata's rule language, and rule matching on packets, streams and messages.
//!
//! [`language`] parses text into [rules](rule::Rule), from which a [`RuleSet`](ruleset::RuleSet) is compiled. A
//! worker's [`Inspector`](inspector::Inspector) evaluates it on packets. The caller supplies each packet's
//! [`Connection`](connection::Connection), and memory for streams through [`Slots`](slots::Slots). This crate looks up
//! no flows, reads no clock, writes no files and starts no threads.
//!
//! The cost of a packet, of the stream bytes it completes and of the messages in them is bounded. All fast patterns are
//! searched at once, candidate rules are evaluated with a budget, and memory is limited to the slots supplied.

pub mod address;
mod address_index;
pub mod alert;
mod app;
pub mod buffer;
pub mod connection;
mod dense;
mod detect;
mod dns;
mod evaluate;
mod follow;
mod http;
mod http2;
pub mod inspector;
pub mod interval;
pub mod language;
mod literal;
pub mod packet;
pub mod pattern;
mod phases;
mod port_groups;
mod prefilter;
pub mod rule;
mod rule_evaluator;
pub mod ruleset;
mod settings;
mod signature;
mod signature_group;
pub mod slots;
mod stream;
pub mod threshold;
pub mod transfer;
mod tunnels;
mod unit;
mod x509;
