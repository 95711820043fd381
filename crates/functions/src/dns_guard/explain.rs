//! Explanations of the guard's decisions on traced packets.

use super::message::ResponseKind;
use super::rules::{CompiledRules, Fragments, GuardRules};
use ipnet::IpNet;
use std::net::IpAddr;
use tailwater_chain::batch::Verdict;
use tailwater_chain::function::{Explanation, TracedPacket};

/// Basis of a decision: accounts change with each packet, so that it cannot be found later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Basis {
    /// Neither port is a DNS server's.
    #[default]
    NotDns,
    /// Fragment without ports.
    LaterFragment,
    /// Query to a server without limits, or of an exempt client.
    UnlimitedQuery,
    /// Query that is charged to its client prefix.
    Query {
        /// It exceeds the limit.
        beyond: bool,
    },
    /// Response of a server without limits, or to an exempt client.
    UnlimitedResponse,
    /// Response that no query waits for.
    Unsolicited,
    /// Response within its limits.
    Within(ResponseKind),
    /// Response beyond the limit of its kind, or of all kinds together; with the number of such responses in a row.
    Beyond {
        kind: ResponseKind,
        of_all: bool,
        number: u64,
    },
    /// Response that exceeds the bytes that its client prefix has left.
    Bytes(ResponseKind),
}

/// Explains the decision on a packet to or from a DNS server.
pub(super) fn explain(basis: Basis, rules: &CompiledRules, traced: &TracedPacket<'_>, text: &mut Explanation) {
    let rules = &rules.rules;
    let dropped = matches!(traced.packet().verdict, Verdict::Drop(_));
    let (client, query_client) = (traced.key.destination(), traced.key.source());
    match basis {
        Basis::NotDns => text.add(format_args!("not DNS")),
        Basis::LaterFragment if dropped && rules.fragments == Fragments::Follow => {
            text.add(format_args!("later fragment, its first one was dropped"));
        }
        Basis::LaterFragment => text.add(format_args!("later fragment")),
        Basis::UnlimitedQuery => text.add(format_args!("query without limit")),
        Basis::Query { beyond } => {
            text.add(format_args!("query of {}", prefix(rules, query_client)));
            match rules.limits.queries {
                Some(limit) if beyond => text.add_part(format_args!("beyond queries {limit}/s")),
                Some(limit) => text.add_part(format_args!("within queries {limit}/s")),
                None => {}
            }
        }
        Basis::UnlimitedResponse => text.add(format_args!("response without limit")),
        Basis::Unsolicited => text.add(format_args!("no query of {client} waits for the response")),
        Basis::Within(kind) => {
            text.add(format_args!("{} to {}", name(kind), prefix(rules, client)));
            match limit(rules, kind) {
                (of, Some(limit)) => text.add_part(format_args!("within {of} {limit}/s")),
                (of, None) => text.add_part(format_args!("no limit of {of}")),
            }
        }
        Basis::Beyond { kind, of_all, number } => {
            text.add(format_args!("{} to {}", name(kind), prefix(rules, client)));
            let (of, limit) = match of_all {
                true => ("all", rules.limits.all),
                false => limit(rules, kind),
            };
            text.add_part(format_args!("beyond {of} {}/s", limit.unwrap_or_default()));
            text.add_part(format_args!("number {number} in a row"));
            if dropped {
                return;
            }
            let (exception, every) = match rules.leak > 0 && number.is_multiple_of(rules.leak.into()) {
                true => ("leak", rules.leak),
                false => ("slip", rules.slip),
            };
            text.add_part(format_args!("let through by {exception} {every}"));
        }
        Basis::Bytes(kind) => {
            let (name, prefix) = (name(kind), prefix(rules, client));
            text.add(format_args!(
                "{name} to {prefix}, beyond the bytes that its queries earned"
            ));
        }
    }
}

/// Client prefix whose accounts are charged.
fn prefix(rules: &GuardRules, client: IpAddr) -> IpNet {
    let (length, most) = match client {
        IpAddr::V4(_) => (rules.prefixes[0], 32),
        IpAddr::V6(_) => (rules.prefixes[1], 128),
    };
    IpNet::new_assert(client, length.min(most)).trunc()
}

fn name(kind: ResponseKind) -> &'static str {
    match kind {
        ResponseKind::Answer => "answer",
        ResponseKind::NoData => "nodata",
        ResponseKind::Referral => "referral",
        ResponseKind::NxDomain => "nxdomain",
        ResponseKind::Error => "error",
    }
}

/// Name of a limit in the spec, and its rate.
fn limit(rules: &GuardRules, kind: ResponseKind) -> (&'static str, Option<u32>) {
    let limits = &rules.limits;
    match kind {
        ResponseKind::Answer => ("responses", limits.responses),
        ResponseKind::NoData => ("nodata", limits.nodata),
        ResponseKind::Referral => ("referrals", limits.referrals),
        ResponseKind::NxDomain => ("nxdomains", limits.nxdomains),
        ResponseKind::Error => ("errors", limits.errors),
    }
}
