//! State shared by all workers of a firewall.

use super::connection::Connection;
use super::options::{HalfOpen, Options, Timeouts};
use super::rule_set::{RuleSet, RuleSetError};
use super::rules::{Action, Rule, Zone};
use super::shared_tables::{Connections, Datagrams};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_chain::function::Lifetimes;
use tailwater_chain::live::Live;
use tailwater_chain::shared_counters::{CounterArray, SharedCounters};
use tailwater_net::{FlowKey, Nanos, protocol};

/// Number of counters of half-open connections by destination. Addresses that share a counter are limited together.
const DESTINATIONS: usize = 1 << 16;
/// Number of fragmented datagrams remembered at a time.
const DATAGRAMS: usize = 1 << 16;

/// Counters of half-open connections of all workers.
#[derive(Debug)]
pub(super) struct HalfOpenCounters {
    limit: HalfOpen,
    /// The total, followed by the counters of the destinations.
    counts: CounterArray,
    seed: u64,
}

impl HalfOpenCounters {
    /// Number of shared words.
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

    /// Counts another half-open connection. Returns `false` if a limit is reached.
    pub(super) fn begin(&self, destination: IpAddr) -> bool {
        let counter = self.counter(destination);
        // Concurrent cores may exceed the count briefly. A connection rejected because of that is acceptable.
        if self.total().fetch_add(1, Ordering::Relaxed) < self.limit.total.into() {
            if counter.fetch_add(1, Ordering::Relaxed) < self.limit.per_destination.into() {
                return true;
            }
            counter.fetch_sub(1, Ordering::Relaxed);
        }
        self.total().fetch_sub(1, Ordering::Relaxed);
        false
    }

    /// Counts a half-open connection less. The counters never fall below zero: a killed process may have counted only
    /// one of the two.
    pub(super) fn end(&self, destination: IpAddr) {
        for count in [self.counter(destination), self.total()] {
            let less = |count: u64| count.checked_sub(1);
            // The update fails only if the counter is already zero.
            let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> u64 {
        self.total().load(Ordering::Relaxed)
    }
}

/// Tables that all workers of a firewall write, in their processes' shared counters if these are several.
#[derive(Debug)]
pub(super) struct SharedTables {
    pub(super) connections: Connections,
    datagrams: Datagrams,
    pub(super) handshakes: HalfOpenCounters,
}

impl SharedTables {
    /// Tables of processes that [share](FirewallTable::sharing) these counters, from which none have been taken here.
    pub(super) fn sharing(options: Options, capacity: usize, shared_counters: &SharedCounters) -> SharedTables {
        let seed = shared_counters.take_seed();
        SharedTables::new(options, (capacity, seed), shared_counters)
    }

    fn new(options: Options, (capacity, seed): (usize, u64), shared_counters: &SharedCounters) -> SharedTables {
        SharedTables {
            connections: Connections::new(capacity, seed, shared_counters),
            datagrams: Datagrams::new(DATAGRAMS, seed, shared_counters),
            handshakes: HalfOpenCounters {
                limit: options.half_open.unwrap_or(HalfOpen {
                    total: capacity as u32 / 2,
                    per_destination: u32::MAX,
                }),
                counts: shared_counters.take(HalfOpenCounters::WORDS),
                seed,
            },
        }
    }
}

/// Rules and connections of a firewall, shared by all workers. The rules can be replaced while workers run.
#[derive(Debug)]
pub struct FirewallTable {
    pub(super) rules: Live<RuleSet>,
    pub(super) options: Options,
    pub(super) connections: Connections,
    pub(super) datagrams: Datagrams,
    pub(super) handshakes: HalfOpenCounters,
    pub(super) zones: Vec<Zone>,
    default: Action,
}

impl FirewallTable {
    /// Creates a firewall with these zones and rules, for up to `capacity` connections. `default` is the action for
    /// packets that no rule matches. `seed` is the key of the hashes.
    ///
    /// # Errors
    /// If there are too many rules, or if they are too complex to compile.
    pub fn new(
        (zones, rules, default): (&[Zone], &[Rule], Action),
        options: Options,
        capacity: usize,
        seed: u64,
    ) -> Result<FirewallTable, RuleSetError> {
        let shared_counters = SharedCounters::of_this_process();
        let tables = SharedTables::new(options, (capacity, seed), &shared_counters);
        FirewallTable::with_tables((zones, rules, default), options, tables)
    }

    /// Creates a firewall as [`new`](Self::new) does, for one of several processes. All of them use the same
    /// `shared_counters` of [this size](Self::shared_bytes). It holds the shared tables of connections and handshakes,
    /// and the key of the hashes, which the first process draws.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub fn sharing(
        rules: (&[Zone], &[Rule], Action),
        options: Options,
        capacity: usize,
        shared_counters: &SharedCounters,
    ) -> Result<FirewallTable, RuleSetError> {
        FirewallTable::with_tables(
            rules,
            options,
            SharedTables::sharing(options, capacity, shared_counters),
        )
    }

    /// Returns the bytes of state shared by processes with `capacity` connections.
    pub fn shared_bytes(capacity: usize) -> usize {
        let taken = [
            1,
            Connections::words(capacity),
            Datagrams::words(DATAGRAMS),
            HalfOpenCounters::WORDS,
        ];
        taken.map(SharedCounters::bytes_of).iter().sum()
    }

    /// Bytes of flow state per connection.
    pub const STATE_BYTES: usize = size_of::<Connection>();

    fn with_tables(
        (zones, rules, default): (&[Zone], &[Rule], Action),
        options: Options,
        tables: SharedTables,
    ) -> Result<FirewallTable, RuleSetError> {
        Ok(FirewallTable {
            rules: Live::new(RuleSet::new(zones, rules, default)?),
            options,
            connections: tables.connections,
            datagrams: tables.datagrams,
            handshakes: tables.handshakes,
            zones: zones.to_vec(),
            default,
        })
    }

    /// Replaces the rules while workers run. Each connection is decided again on its next packet. Returns the new
    /// version number.
    ///
    /// # Errors
    /// See [`new`](Self::new). The current rules stay in force.
    pub fn replace(&self, rules: &[Rule]) -> Result<u32, RuleSetError> {
        Ok(self.activate(self.prepare(rules)?))
    }

    /// Compiles a version of the rules.
    ///
    /// # Errors
    /// See [`replace`](Self::replace).
    pub(crate) fn prepare(&self, rules: &[Rule]) -> Result<RuleSet, RuleSetError> {
        self.rules.free_unused();
        RuleSet::new(&self.zones, rules, self.default)
    }

    /// Puts a compiled version in force.
    pub(crate) fn activate(&self, rules: RuleSet) -> u32 {
        self.rules.replace(rules)
    }

    /// Removes a connection from the shared table and from the half-open counters.
    pub(super) fn remove_connection(&self, key: &FlowKey, connection: &Connection) {
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

/// Returns `true` for ICMP and ICMPv6.
#[inline]
pub(super) fn is_icmp(protocol: u8) -> bool {
    matches!(protocol, protocol::ICMP | protocol::ICMPV6)
}
