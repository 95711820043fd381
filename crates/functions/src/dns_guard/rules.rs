//! Limits of a guard, and the state shared by all its instances.

use super::account::{MAX_BYTES, SECOND, ticks};
use super::account_table::AccountTable;
use ipnet::IpNet;
use std::net::IpAddr;
use tailwater_chain::live::Live;
use tailwater_net::Nanos;

/// Maximum number of DNS ports.
pub const MAX_PORTS: usize = 16;
/// Maximum rate of a limit, per second.
pub const MAX_RATE: u32 = 100_000;
/// Maximum number of prefixes in a list.
pub const MAX_EXEMPT: usize = 256;

/// Limits per client prefix, in packets per second; `None` for no limit. The kinds of responses are those of BIND.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Answers, per name and type.
    pub responses: Option<u32>,
    /// NODATA responses (the name has no record of the type), per name.
    pub nodata: Option<u32>,
    /// Referrals, per zone referred to.
    pub referrals: Option<u32>,
    /// NXDOMAIN responses (the name does not exist), per zone.
    pub nxdomains: Option<u32>,
    /// Responses with any other code, and responses that cannot be parsed.
    pub errors: Option<u32>,
    /// Responses of all kinds together.
    pub all: Option<u32>,
    /// Queries.
    pub queries: Option<u32>,
}

/// Limit on the bytes of responses to a client prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amplification {
    /// Bytes of responses allowed per byte of queries.
    pub ratio: u32,
    /// Initial credit in bytes, and the maximum credit that queries can earn.
    pub burst: u32,
}

/// Treatment of unsolicited responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// No query is required: only rates are limited.
    Limit,
    /// Each response to a protected client requires a waiting query.
    Strict,
}

/// Treatment of later fragments of UDP datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragments {
    /// They are dropped if the first fragment was.
    Follow,
    /// They are dropped.
    Drop,
    /// They pass.
    Pass,
}

/// Rules of a guard. They can be replaced while packets pass, except [`mode`](GuardRules::mode) and the presence of an
/// [`amplification`](GuardRules::amplification) limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardRules {
    /// UDP ports of DNS servers.
    pub ports: Vec<u16>,
    /// Servers whose responses are limited; empty for all servers.
    pub servers: Vec<IpNet>,
    /// Clients protected from unsolicited responses; empty for all clients.
    pub clients: Vec<IpNet>,
    /// Clients without limits.
    pub exempt: Vec<IpNet>,
    /// Rate limits.
    pub limits: Limits,
    /// Byte limit.
    pub amplification: Option<Amplification>,
    /// Maximum time for which a client prefix must stay below its limit until it gets its full rate again.
    pub window: Nanos,
    /// Prefix lengths of IPv4 and IPv6 addresses. Clients in one prefix share their accounts.
    pub prefixes: [u8; 2],
    /// Every `slip`-th response beyond a limit is sent truncated, or unchanged if it is an error; 0 for none.
    pub slip: u16,
    /// Every `leak`-th response beyond a limit passes unchanged; 0 for none.
    pub leak: u16,
    /// Treatment of unsolicited responses.
    pub mode: Mode,
    /// Time for which a query waits for its response.
    pub query_timeout: Nanos,
    /// Treatment of later fragments.
    pub fragments: Fragments,
}

/// Returns `true` if an address is in one of the prefixes. An empty list contains all addresses.
pub(super) fn is_among(prefixes: &[IpNet], address: IpAddr) -> bool {
    prefixes.is_empty() || prefixes.iter().any(|prefix| prefix.contains(&address))
}

/// Rules with their values in ticks.
#[derive(Debug)]
pub(super) struct CompiledRules {
    pub(super) rules: GuardRules,
    /// Ticks in which a response of each [`ResponseKind`](super::message::ResponseKind) is repaid; 0 for no limit.
    /// `all` and `queries` are the same for responses of all kinds and for queries.
    pub(super) intervals: [u64; 5],
    pub(super) all: u64,
    pub(super) queries: u64,
    pub(super) window: u64,
    pub(super) query_timeout: u64,
    /// Masks of the client prefixes, for IPv4 and IPv6.
    pub(super) masks: [u128; 2],
}

impl CompiledRules {
    fn new(rules: GuardRules) -> CompiledRules {
        let limits = &rules.limits;
        let interval = |rate: Option<u32>| rate.map_or(0, |rate| SECOND / u64::from(rate.clamp(1, MAX_RATE)));
        let mask = |bits: u8, of: u32| {
            let without = of.saturating_sub(bits.into());
            u128::MAX.checked_shl(without).unwrap_or(0)
        };
        CompiledRules {
            intervals: [
                interval(limits.responses),
                interval(limits.nodata),
                interval(limits.referrals),
                interval(limits.nxdomains),
                interval(limits.errors),
            ],
            all: interval(limits.all),
            queries: interval(limits.queries),
            window: ticks(rules.window),
            query_timeout: ticks(rules.query_timeout),
            masks: [mask(rules.prefixes[0], 32), mask(rules.prefixes[1], 128)],
            rules,
        }
    }
}

/// Capacities of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Accounts of client prefixes: one per prefix, kind of response and name.
    pub accounts: usize,
    /// Queries that wait for a response.
    pub queries: usize,
}

/// Rules and accounts shared by all instances.
#[derive(Debug)]
pub struct DnsGuardTable {
    pub(super) live: Live<CompiledRules>,
    pub(super) accounts: AccountTable,
    /// Byte accounts of client prefixes, if bytes are limited.
    pub(super) credits: Option<AccountTable>,
    /// Waiting queries, in [`Mode::Strict`].
    pub(super) queries: Option<AccountTable>,
    /// Datagrams whose first fragment was dropped.
    pub(super) fragments: AccountTable,
    pub(super) seed: u64,
}

/// Maximum number of remembered datagrams whose first fragment was dropped.
const MAX_DROPPED_DATAGRAMS: usize = 1 << 14;

impl DnsGuardTable {
    /// Creates a table without accounts. An attacker who does not know `seed` cannot choose names or addresses whose
    /// accounts collide.
    pub fn new(rules: GuardRules, sizes: Sizes, seed: u64) -> DnsGuardTable {
        DnsGuardTable {
            accounts: AccountTable::new(sizes.accounts),
            credits: rules.amplification.map(|_| AccountTable::new(sizes.accounts)),
            queries: (rules.mode == Mode::Strict).then(|| AccountTable::new(sizes.queries)),
            fragments: AccountTable::new(MAX_DROPPED_DATAGRAMS),
            live: Live::new(CompiledRules::new(rules)),
            seed,
        }
    }

    /// Replaces the rules and returns the new version number. Debts are kept. The mode and the presence of an
    /// amplification limit must not change.
    pub fn replace(&self, rules: GuardRules) -> u32 {
        self.live.replace(CompiledRules::new(rules))
    }
}

const _: () = assert!(MAX_BYTES > 1 << 24, "a burst of 16 MiB fits");
