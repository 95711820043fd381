//! Intrusion detection: Suricata's rule language, streams and protocols, and what of them a rule matches.
//!
//! Text becomes [rules](rule::Rule) ([`language`]), rules become a [`RuleSet`](ruleset::RuleSet), and a worker's
//! [`Inspector`](inspector::Inspector) asks these about its packets. It is told of which
//! [`Connection`](connection::Connection) each is, and has memory for streams lent by [`Slots`](slots::Slots):
//! nothing here looks flows up, reads a clock, writes a file or starts a thread.
//!
//! What a packet, the bytes that it completes in a stream, or a message in those costs is bounded: contents are looked
//! for all at once, what they stand for is evaluated with a budget, and memory is what was lent.

pub mod address;
mod address_index;
pub mod alert;
mod app;
mod asker;
pub mod buffer;
pub mod connection;
mod dense;
mod direction;
mod dns;
mod evaluate;
mod follow;
mod http;
pub mod inspector;
pub mod interval;
pub mod language;
mod literal;
pub mod packet;
pub mod pattern;
mod port_groups;
mod prefilter;
pub mod rule;
pub mod ruleset;
mod settings;
mod signature;
pub mod slots;
mod station;
mod stream;
pub mod threshold;
mod tls;
mod unit;
mod x509;
