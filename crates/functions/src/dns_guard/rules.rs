//! What is limited, and what all instances of a guard share.

use super::account::{MAX_BYTES, SECOND, ticks};
use super::ledger::Ledger;
use ipnet::IpNet;
use std::net::IpAddr;
use tailwater_chain::live::Live;
use tailwater_net::Nanos;

/// The most ports on which DNS is looked for.
pub const MAX_PORTS: usize = 16;
/// The highest rate of a limit, per second.
pub const MAX_RATE: u32 = 100_000;
/// The most prefixes of a list.
pub const MAX_EXEMPT: usize = 256;

/// How many responses of a sort a client prefix may get in a second; `None` for any number. The sorts are those of BIND.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Answers, for each name and type.
    pub responses: Option<u32>,
    /// Answers that a name has nothing of the type, for each name.
    pub nodata: Option<u32>,
    /// Referrals, for each zone that they lead to.
    pub referrals: Option<u32>,
    /// Answers that there is no such name, for each zone that does not have it.
    pub nxdomains: Option<u32>,
    /// Answers with any other response code, and those that cannot be read.
    pub errors: Option<u32>,
    /// Responses of all sorts together.
    pub all: Option<u32>,
    /// Queries.
    pub queries: Option<u32>,
}

/// How many bytes responses to a client prefix may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amplification {
    /// For each byte of its queries.
    pub ratio: u32,
    /// Before it has asked anything, and the most that it can save up by asking.
    pub burst: u32,
}

/// Whether responses must have been asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They need not: rates alone decide.
    Limit,
    /// Each response to a protected client needs a query that waits for it.
    Strict,
}

/// What becomes of fragments of UDP datagrams that are not their first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragments {
    /// They are dropped if their first one was.
    Follow,
    /// They are dropped.
    Drop,
    /// They pass.
    Pass,
}

/// What can be changed while packets pass, but for [`mode`](GuardRules::mode), and whether there is an
/// [`amplification`](GuardRules::amplification).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardRules {
    /// The servers' ports.
    pub ports: Vec<u16>,
    /// Whose responses are limited; empty for all servers.
    pub servers: Vec<IpNet>,
    /// Who is protected from responses that were not asked for; empty for all clients.
    pub clients: Vec<IpNet>,
    /// Clients that have no limits.
    pub exempt: Vec<IpNet>,
    /// Rates.
    pub limits: Limits,
    /// Bytes.
    pub amplification: Option<Amplification>,
    /// How long a client prefix must ask for less than its limit, at most, until it gets it again.
    pub window: Nanos,
    /// Bits of an address that clients of one account have in common, of IPv4 and of IPv6.
    pub prefixes: [u8; 2],
    /// Of responses beyond a limit each so-manieth is sent truncated; 0 for none.
    pub slip: u16,
    /// Of these each so-manieth passes; 0 for none.
    pub leak: u16,
    /// Whether responses must have been asked for.
    pub mode: Mode,
    /// How long a query waits for its response.
    pub query_timeout: Nanos,
    /// What becomes of fragments.
    pub fragments: Fragments,
}

/// Whether an address is in one of these prefixes; in none there are all.
pub(super) fn is_among(prefixes: &[IpNet], address: IpAddr) -> bool {
    prefixes.is_empty() || prefixes.iter().any(|prefix| prefix.contains(&address))
}

/// The rules, with what they amount to in ticks.
#[derive(Debug)]
pub(super) struct InForce {
    pub(super) rules: GuardRules,
    /// Ticks that a response of each [`Sort`](super::message::Sort) takes to be paid for, then one of all sorts, then a
    /// query; 0 where there is no limit.
    pub(super) intervals: [u64; 5],
    pub(super) all: u64,
    pub(super) queries: u64,
    pub(super) window: u64,
    pub(super) query_timeout: u64,
    /// Bits of a client's address that count.
    pub(super) masks: [u128; 2],
}

impl InForce {
    fn new(rules: GuardRules) -> InForce {
        let limits = &rules.limits;
        let interval = |rate: Option<u32>| rate.map_or(0, |rate| SECOND / u64::from(rate.clamp(1, MAX_RATE)));
        let mask = |bits: u8, of: u32| {
            let without = of.saturating_sub(bits.into());
            u128::MAX.checked_shl(without).unwrap_or(0)
        };
        InForce {
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

/// Room for what is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Accounts of client prefixes: one for each prefix, sort and name.
    pub accounts: usize,
    /// Queries that wait for a response.
    pub queries: usize,
}

/// The rules, and the accounts that all instances share.
#[derive(Debug)]
pub struct DnsGuardTable {
    pub(super) live: Live<InForce>,
    pub(super) accounts: Ledger,
    /// Bytes of client prefixes, if these are limited.
    pub(super) credits: Option<Ledger>,
    /// Queries that wait, if responses must have been asked for.
    pub(super) queries: Option<Ledger>,
    /// Datagrams whose first fragment was dropped.
    pub(super) fragments: Ledger,
    pub(super) seed: u64,
}

/// Datagrams whose first fragment was dropped that are remembered.
const FRAGMENTED: usize = 1 << 14;

impl DnsGuardTable {
    /// With no account yet. Without the seed nobody can choose names or addresses whose accounts are in each other's way.
    pub fn new(rules: GuardRules, sizes: Sizes, seed: u64) -> DnsGuardTable {
        DnsGuardTable {
            accounts: Ledger::new(sizes.accounts),
            credits: rules.amplification.map(|_| Ledger::new(sizes.accounts)),
            queries: (rules.mode == Mode::Strict).then(|| Ledger::new(sizes.queries)),
            fragments: Ledger::new(FRAGMENTED),
            live: Live::new(InForce::new(rules)),
            seed,
        }
    }

    /// Puts other rules in force; returns the number of their version. What is owed stays owed. The mode, and whether
    /// there is an amplification, must be as before.
    pub fn replace(&self, rules: GuardRules) -> u32 {
        self.live.replace(InForce::new(rules))
    }
}

const _: () = assert!(MAX_BYTES > 1 << 24, "a burst of 16 MiB fits");
