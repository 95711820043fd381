//! Configuration of `dnsGuard`.

use crate::dns_guard::{Amplification, Fragments, GuardRules, Limits, MAX_EXEMPT, MAX_PORTS, MAX_RATE, Mode, Sizes};
use crate::kind::Context;
use ipnet::IpNet;
use tailwater_api::error::SpecError;
use tailwater_api::located::{Fields, Located};
use tailwater_api::values::{duration, prefix};
use tailwater_net::Nanos;

/// Maximum number of accounts, and of waiting queries: 256 MiB each.
const MOST_ACCOUNTS: u64 = 1 << 24;
/// Maximum of `amplification.burst` in bytes.
const MOST_BURST: u64 = 1 << 24;

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
        let fields = node.fields(&[
            "ports",
            "servers",
            "clients",
            "exempt",
            "limits",
            "amplification",
            "window",
            "prefixes",
            "slip",
            "leak",
            "mode",
            "queryTimeout",
            "fragments",
            "accounts",
            "queries",
        ])?;
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
    let fields = node.fields(&[
        "responses",
        "nodata",
        "referrals",
        "nxdomains",
        "errors",
        "all",
        "queries",
    ])?;
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
    let fields = node.fields(&["ratio", "burst"])?;
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
    let fields = node.fields(&["ipv4", "ipv6"])?;
    let bits = |name, most, usual| fields.optional(name).map_or(Ok(usual), |node| node.whole(8..=most));
    Ok([bits("ipv4", 32, 24)? as u8, bits("ipv6", 128, 56)? as u8])
}
