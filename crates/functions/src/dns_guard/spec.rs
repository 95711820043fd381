//! Configuration of `dnsGuard`.

use crate::dns_guard::{Amplification, Fragments, GuardRules, Limits, MAX_EXEMPT, MAX_PORTS, MAX_RATE, Mode, Sizes};
use crate::kind::Context;
use ipnet::IpNet;
use tailwater_api::error::SpecError;
use tailwater_api::located::{Fields, Located};
use tailwater_api::schema::{Field, Map, PREFIX, Rule, Type};
use tailwater_api::values::{duration, prefix};
use tailwater_net::Nanos;

/// Maximum number of accounts, and of waiting queries: 256 MiB each.
const MOST_ACCOUNTS: u64 = 1 << 24;
/// Maximum of `amplification.burst` in bytes.
const MOST_BURST: u64 = 1 << 24;

const CLIENTS: Type = Type::List(&Type::Text(&PREFIX), 1, MAX_EXEMPT);
const SECOND: Nanos = Nanos::from_secs(1);
/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new("ports", Type::List(&PORT, 1, MAX_PORTS), "UDP ports of the servers.").or("[53]"),
        Field::new(
            "servers",
            CLIENTS,
            "Servers whose responses, and queries to whom, are limited.",
        )
        .otherwise("all"),
        Field::new("clients", CLIENTS, "Protected clients.")
            .otherwise("all")
            .only_if("mode", "strict"),
        Field::new("exempt", CLIENTS, "Clients without limits.").otherwise("none"),
        Field::new("limits", Type::Map(&LIMITS), "Limits per second and client prefix.")
            .otherwise("none")
            .example("{responses: 100}"),
        Field::new(
            "amplification",
            Type::Map(&AMPLIFICATION),
            "Limit of response bytes per query byte of a client prefix.",
        )
        .otherwise("none"),
        Field::new(
            "window",
            Type::Duration(SECOND, Nanos::from_secs(3600)),
            "Longest time without traffic until a prefix over its limit has its limit again.",
        )
        .or("15s"),
        Field::new("prefixes", Type::Map(&PREFIXES), "Prefix lengths of a client."),
        Field::new(
            "slip",
            Type::Whole(0, 10),
            "Of responses beyond a limit, every n-th is sent truncated; 0: none.",
        )
        .or("2"),
        Field::new(
            "leak",
            Type::Whole(0, 1000),
            "Of these, every n-th passes unchanged; 0: none.",
        )
        .or("0"),
        Field::new(
            "mode",
            Type::Words(&["limit", "strict"]),
            "`strict`: responses require a query.",
        )
        .or("limit"),
        Field::new(
            "queryTimeout",
            Type::Duration(Nanos::from_millis(100), Nanos::from_secs(60)),
            "Time for which a query waits for its response.",
        )
        .or("5s")
        .only_if("mode", "strict"),
        Field::new(
            "fragments",
            Type::Words(&["follow", "drop", "pass"]),
            "Later fragments of UDP datagrams: dropped if the first one was; all dropped; none.",
        )
        .or("follow"),
        Field::new(
            "accounts",
            Type::Whole(1024, MOST_ACCOUNTS),
            "Number of accounts, 16 bytes each; as many byte accounts with `amplification`.",
        )
        .or("65536"),
        Field::new(
            "queries",
            Type::Whole(1024, MOST_ACCOUNTS),
            "Waiting queries, 16 bytes each.",
        )
        .or("65536")
        .only_if("mode", "strict"),
    ],
    rules: &[Rule::AtLeastOne(&["limits", "amplification", "mode"])],
    ..Map::PLAIN
};
const PORT: Type = Type::Whole(1, 65_535);
const LIMIT: Type = Type::Whole(1, MAX_RATE as u64);
static LIMITS: Map = Map {
    fields: &[
        Field::new("responses", LIMIT, "Answers, by name and type.").otherwise("none"),
        Field::new("nodata", LIMIT, "Answers that a name has no such type, by name.").otherwise("none"),
        Field::new("referrals", LIMIT, "Referrals, by zone.").otherwise("none"),
        Field::new(
            "nxdomains",
            LIMIT,
            "Answers that the name does not exist, by the zone (its SOA record), or by name without one.",
        )
        .otherwise("none"),
        Field::new("errors", LIMIT, "All other response codes, and unreadable responses.").otherwise("none"),
        Field::new(
            "all",
            LIMIT,
            "All responses; at least four times the largest of the others.",
        )
        .otherwise("none"),
        Field::new("queries", LIMIT, "Queries to the servers; those beyond are dropped.").otherwise("none"),
    ],
    ..Map::PLAIN
};
static AMPLIFICATION: Map = Map {
    fields: &[
        Field::new("ratio", Type::Whole(1, 1000), "Response bytes per query byte.")
            .required()
            .example("10"),
        Field::new(
            "burst",
            Type::Whole(512, MOST_BURST),
            "Bytes available before a query, and the most that a prefix accumulates.",
        )
        .or("65536"),
    ],
    ..Map::PLAIN
};
static PREFIXES: Map = Map {
    fields: &[
        Field::new("ipv4", Type::Whole(8, 32), "Prefix length of an IPv4 client.").or("24"),
        Field::new("ipv6", Type::Whole(8, 128), "Prefix length of an IPv6 client.").or("56"),
    ],
    ..Map::PLAIN
};

/// Limits of DNS responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsGuardConfig {
    /// Rules, which can change while packets pass.
    pub rules: GuardRules,
    /// Sizes of the tables.
    pub sizes: Sizes,
}

impl DnsGuardConfig {
    pub(super) fn parse(node: &Located<'_>, _: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_of(&FIELDS)?;
        let mode = match fields.optional("mode") {
            None => Mode::Limit,
            Some(node) => node.word(&[("limit", Mode::Limit), ("strict", Mode::Strict)])?,
        };
        for name in ["clients", "queryTimeout", "queries"] {
            if let (Mode::Limit, Some(field)) = (mode, fields.optional(name)) {
                return Err(field.error(format!("expected {name} only with mode: strict")));
            }
        }
        let limits = fields.optional("limits").map(|node| limits(&node));
        let limits = limits.transpose()?.unwrap_or_default();
        let amplification = fields.optional("amplification");
        let amplification = amplification.map(|node| amplified(&node)).transpose()?;
        if mode == Mode::Limit && amplification.is_none() && limits == Limits::default() {
            let message = "expected limits, an amplification or mode: strict, found none";
            return Err(fields.error(message));
        }
        let whole = |name, range: std::ops::RangeInclusive<u64>, usual: u64| {
            fields.optional(name).map_or(Ok(usual), |node| node.whole(range))
        };
        let time = |name, range, usual| fields.optional(name).map_or(Ok(usual), |node| duration(&node, range));
        let second = Nanos::from_secs(1);
        let rules = GuardRules {
            ports: ports(&fields)?,
            servers: prefixes(&fields, "servers")?,
            clients: prefixes(&fields, "clients")?,
            exempt: prefixes(&fields, "exempt")?,
            limits,
            amplification,
            window: time("window", second..=Nanos::from_secs(3600), Nanos::from_secs(15))?,
            prefixes: client_prefixes(&fields)?,
            slip: whole("slip", 0..=10, 2)? as u16,
            leak: whole("leak", 0..=1000, 0)? as u16,
            mode,
            query_timeout: time(
                "queryTimeout",
                Nanos::from_millis(100)..=Nanos::from_secs(60),
                Nanos::from_secs(5),
            )?,
            fragments: match fields.optional("fragments") {
                None => Fragments::Follow,
                Some(node) => node.word(&[
                    ("follow", Fragments::Follow),
                    ("drop", Fragments::Drop),
                    ("pass", Fragments::Pass),
                ])?,
            },
        };
        let sizes = Sizes {
            accounts: whole("accounts", 1024..=MOST_ACCOUNTS, 65_536)? as usize,
            queries: whole("queries", 1024..=MOST_ACCOUNTS, 65_536)? as usize,
        };
        Ok(DnsGuardConfig { rules, sizes })
    }
}

fn limits(node: &Located<'_>) -> Result<Limits, SpecError> {
    let fields = node.fields_of(&LIMITS)?;
    let rate = |name| {
        let node = fields.optional(name);
        let rate = node.map(|node| node.whole(1..=MAX_RATE.into()));
        Ok(rate.transpose()?.map(|rate| rate as u32))
    };
    Ok(Limits {
        responses: rate("responses")?,
        nodata: rate("nodata")?,
        referrals: rate("referrals")?,
        nxdomains: rate("nxdomains")?,
        errors: rate("errors")?,
        all: rate("all")?,
        queries: rate("queries")?,
    })
}

fn amplified(node: &Located<'_>) -> Result<Amplification, SpecError> {
    let fields = node.fields_of(&AMPLIFICATION)?;
    let ratio = fields.required("ratio", "the ratio of response bytes to query bytes")?;
    let burst = fields.optional("burst");
    Ok(Amplification {
        ratio: ratio.whole(1..=1000)? as u32,
        burst: burst.map_or(Ok(65_536), |burst| burst.whole(512..=MOST_BURST))? as u32,
    })
}

fn ports(fields: &Fields<'_>) -> Result<Vec<u16>, SpecError> {
    let Some(node) = fields.optional("ports") else {
        return Ok(vec![53]);
    };
    let ports = node.list("ports", MAX_PORTS)?;
    let port = |node: &Located<'_>| node.whole(1..=u16::MAX.into()).map(|port| port as u16);
    ports.iter().map(port).collect()
}

fn prefixes(fields: &Fields<'_>, name: &str) -> Result<Vec<IpNet>, SpecError> {
    let Some(node) = fields.optional(name) else {
        return Ok(Vec::new());
    };
    let prefixes = node.list("IP prefixes", MAX_EXEMPT)?;
    prefixes.iter().map(prefix).collect()
}

/// Parses prefix lengths for IPv4 and IPv6 addresses.
fn client_prefixes(fields: &Fields<'_>) -> Result<[u8; 2], SpecError> {
    let Some(node) = fields.optional("prefixes") else {
        return Ok([24, 56]);
    };
    let fields = node.fields_of(&PREFIXES)?;
    let bits = |name, most, usual| fields.optional(name).map_or(Ok(usual), |node| node.whole(8..=most));
    Ok([bits("ipv4", 32, 24)? as u8, bits("ipv6", 128, 56)? as u8])
}
