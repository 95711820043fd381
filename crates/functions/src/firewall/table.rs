//! What all workers of a firewall share.

use super::connection::Connection;
use super::known::{Connections, Datagrams};
use super::rule_set::{RuleSet, RuleSetError};
use super::rules::{Action, Rule, Zone};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_chain::commons::{Commons, SharedNumbers};
use tailwater_chain::function::Lifetimes;
use tailwater_chain::live::Live;
use tailwater_net::{FlowKey, Nanos, protocol};

/// How long connections last without packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP until both SYNs are acknowledged.
    pub handshake: Nanos,
    /// TCP after that.
    pub established: Nanos,
    /// TCP after a FIN.
    pub closing: Nanos,
    /// TCP after both FINs are acknowledged.
    pub time_wait: Nanos,
    /// TCP after a reset.
    pub closed: Nanos,
    /// UDP without an answer.
    pub udp: Nanos,
    /// UDP with one.
    pub udp_answered: Nanos,
    /// ICMP echo.
    pub icmp: Nanos,
    /// Other protocols without an answer.
    pub other: Nanos,
    /// Other protocols with one.
    pub other_answered: Nanos,
    /// How long a refusal is remembered.
    pub denied: Nanos,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        let seconds = Nanos::from_secs;
        Timeouts {
            handshake: seconds(30),
            // RFC 5382 REQ-5.
            established: seconds(7440),
            closing: seconds(120),
            time_wait: seconds(60),
            closed: seconds(10),
            udp: seconds(30),
            // RFC 4787 REQ-5: at least two minutes.
            udp_answered: seconds(180),
            icmp: seconds(30),
            other: seconds(60),
            other_answered: seconds(600),
            denied: seconds(10),
        }
    }
}

/// What happens to fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragments {
    /// They are dropped.
    Drop,
    /// They pass, whatever the rules say.
    Pass,
    /// The first, which has the ports, is decided about, and the others of the datagram follow it.
    FirstDecides,
}

/// The most TCP connections whose handshakes are under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfOpen {
    /// In all.
    pub total: u32,
    /// To one address.
    pub per_destination: u32,
}

/// How a firewall works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether TCP segments out of the window pass, and are counted. Resets out of it never do.
    pub liberal: bool,
    /// Whether TCP connections may be picked up in the middle.
    pub midstream: bool,
    /// What happens to fragments.
    pub fragments: Fragments,
    /// Whether IPv6 neighbour discovery and multicast listener messages pass without a rule.
    pub neighbour_discovery: bool,
    /// Limits for handshakes; `None` for half of the flow table, and no limit for an address.
    pub half_open: Option<HalfOpen>,
    /// How long connections last.
    pub timeouts: Timeouts,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            liberal: false,
            midstream: false,
            fragments: Fragments::FirstDecides,
            neighbour_discovery: true,
            half_open: None,
            timeouts: Timeouts::default(),
        }
    }
}

/// Counters of half-open connections by destination: addresses that share one are limited together.
const DESTINATIONS: usize = 1 << 16;
/// Fragmented datagrams that are known of at a time.
const DATAGRAMS: usize = 1 << 16;

/// Handshakes under way, of all workers.
#[derive(Debug)]
pub(super) struct Handshakes {
    limit: HalfOpen,
    /// All of them, and those of each destination behind.
    counts: SharedNumbers,
    seed: u64,
}

impl Handshakes {
    /// The numbers that this takes.
    const WORDS: usize = 1 + DESTINATIONS;

    fn total(&self) -> &AtomicU64 {
        &self.counts[0]
    }

    fn counter(&self, destination: IpAddr) -> &AtomicU64 {
        let key = match destination {
            IpAddr::V4(address) => FlowKey::v4(address, address, 0, 0, 0),
            IpAddr::V6(address) => FlowKey::v6(address, address, 0, 0, 0),
        };
        &self.counts[1 + key.hash(self.seed) as usize % DESTINATIONS]
    }

    /// Counts one more, if there may be one.
    pub(super) fn begin(&self, destination: IpAddr) -> bool {
        let counter = self.counter(destination);
        // One too many for a moment, when several cores come at once, is as good as refused.
        if self.total().fetch_add(1, Ordering::Relaxed) < self.limit.total.into() {
            if counter.fetch_add(1, Ordering::Relaxed) < self.limit.per_destination.into() {
                return true;
            }
            counter.fetch_sub(1, Ordering::Relaxed);
        }
        self.total().fetch_sub(1, Ordering::Relaxed);
        false
    }

    /// One is over. Never below zero: a process that was killed in between may have counted one of the two only.
    pub(super) fn end(&self, destination: IpAddr) {
        for count in [self.counter(destination), self.total()] {
            let less = |count: u64| count.checked_sub(1);
            // Nothing is left to be taken away.
            let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> u64 {
        self.total().load(Ordering::Relaxed)
    }
}

/// Rules and connections of a firewall, shared by all workers. Rules can be replaced while these run.
#[derive(Debug)]
pub struct FirewallTable {
    pub(super) rules: Live<RuleSet>,
    pub(super) options: Options,
    pub(super) connections: Connections,
    pub(super) datagrams: Datagrams,
    pub(super) handshakes: Handshakes,
    pub(super) zones: Vec<Zone>,
    default: Action,
}

impl FirewallTable {
    /// A firewall with these rules, for up to `capacity` connections. What no rule matches has the `default`.
    /// `seed` keys its hashes.
    ///
    /// # Errors
    /// If the rules are too many, or too intricate.
    pub fn new(
        (zones, rules, default): (&[Zone], &[Rule], Action),
        options: Options,
        capacity: usize,
        seed: u64,
    ) -> Result<FirewallTable, RuleSetError> {
        let commons = Commons::of_this_process();
        FirewallTable::with_commons((zones, rules, default), options, (capacity, seed), &commons)
    }

    /// As [`new`](Self::new), for one of several processes: all of them have `commons` of
    /// [these bytes](Self::shared_bytes), in which are the connections and handshakes that all know of, and the key of their
    /// hashes, which the first of them draws.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn sharing(
        rules: (&[Zone], &[Rule], Action),
        options: Options,
        capacity: usize,
        commons: &Commons,
    ) -> Result<FirewallTable, RuleSetError> {
        let seed = &commons.take(1)[0];
        let drawn = RandomState::new().hash_one(capacity).max(1);
        let seed = match seed.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => drawn,
            Err(there) => there,
        };
        FirewallTable::with_commons(rules, options, (capacity, seed), commons)
    }

    /// The bytes of what processes share whose connections are so many.
    pub fn shared_bytes(capacity: usize) -> usize {
        let taken = [
            1,
            Connections::words(capacity),
            Datagrams::words(DATAGRAMS),
            Handshakes::WORDS,
        ];
        taken.map(Commons::bytes_of).iter().sum()
    }

    /// The bytes of what is kept of a connection.
    pub const STATE_BYTES: usize = size_of::<Connection>();

    fn with_commons(
        (zones, rules, default): (&[Zone], &[Rule], Action),
        options: Options,
        (capacity, seed): (usize, u64),
        commons: &Commons,
    ) -> Result<FirewallTable, RuleSetError> {
        Ok(FirewallTable {
            rules: Live::new(RuleSet::new(zones, rules, default)?),
            options,
            connections: Connections::new(capacity, seed, commons),
            datagrams: Datagrams::new(DATAGRAMS, seed, commons),
            handshakes: Handshakes {
                limit: options.half_open.unwrap_or(HalfOpen {
                    total: capacity as u32 / 2,
                    per_destination: u32::MAX,
                }),
                counts: commons.take(Handshakes::WORDS),
                seed,
            },
            zones: zones.to_vec(),
            default,
        })
    }

    /// Replaces the rules under the running workers, which decide anew about every connection with its next
    /// packet. Returns the number of the new version.
    ///
    /// # Errors
    /// As [`new`](Self::new); the rules stay as they were.
    pub fn replace(&self, rules: &[Rule]) -> Result<u32, RuleSetError> {
        Ok(self.put(self.prepare(rules)?))
    }

    /// Makes a version of the rules ready.
    ///
    /// # Errors
    /// As [`replace`](Self::replace).
    pub(crate) fn prepare(&self, rules: &[Rule]) -> Result<RuleSet, RuleSetError> {
        self.rules.free_unheld();
        RuleSet::new(&self.zones, rules, self.default)
    }

    /// Puts a version in force.
    pub(crate) fn put(&self, rules: RuleSet) -> u32 {
        self.rules.replace(rules)
    }

    /// Forgets what all cores know of a connection, and what it counts for.
    pub(super) fn forget(&self, key: &FlowKey, connection: &Connection) {
        use super::connection::{HALF_OPEN, LISTED};
        if connection.has(LISTED) {
            self.connections.remove(key);
        }
        if connection.has(HALF_OPEN) {
            let initiators = connection.initiators(key);
            self.handshakes.end(initiators.destination());
        }
    }
}

impl Lifetimes for Timeouts {
    fn idle_timeout(&self, _: &FlowKey, state: &[u8]) -> Nanos {
        let connection: Connection = bytemuck::pod_read_unaligned(&state[..size_of::<Connection>()]);
        connection.timeout(self)
    }
}

impl Lifetimes for FirewallTable {
    fn idle_timeout(&self, key: &FlowKey, state: &[u8]) -> Nanos {
        self.options.timeouts.idle_timeout(key, state)
    }
}

/// Whether packets of a flow with this key are ICMP messages that are no echo: their flow is only that they have the
/// same ends.
#[inline]
pub(super) fn is_icmp(protocol: u8) -> bool {
    matches!(protocol, protocol::ICMP | protocol::ICMPV6)
}
