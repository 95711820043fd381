//! Flow descriptions: the subset of RFC 6733's IPFilterRule that 3GPP uses for packet filters (TS 29.212 §5.4.2).

use super::direction::LinkDirection;
use crate::acl::{Action, Rule};
use ipnet::IpNet;
use std::ops::RangeInclusive;
use tailwater_api::error::{nearest, quoted};
use tailwater_api::values::{ports_of, prefix_of, protocol_of};

/// Filter for packets between a UE and others, both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flows {
    /// Match rules for uplink and downlink packets.
    rules: [Rule; 2],
}

impl Flows {
    /// Returns the match rule for this direction. Its action is ignored.
    #[inline]
    pub(super) fn of(&self, direction: LinkDirection) -> &Rule {
        &self.rules[direction.at()]
    }
}

/// Syntax error of a flow description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    /// Expected and actual text.
    pub message: String,
    /// Suggested correction.
    pub suggestion: Option<String>,
}

/// Any port.
const ANY: RangeInclusive<u16> = 0..=u16::MAX;

/// One end of a flow description.
struct End {
    /// Prefix; `None` is the UE, or any address.
    prefix: Option<IpNet>,
    ports: RangeInclusive<u16>,
}

/// Parses a description: `permit out PROTOCOL from ADDRESS [PORTS] to assigned [PORTS]`, in terms of downlink packets.
///
/// # Errors
/// Names the first word that is wrong.
pub fn parse(text: &str) -> Result<Flows, FilterError> {
    let mut words = text.split_whitespace().peekable();
    let expect = |words: &mut std::iter::Peekable<std::str::SplitWhitespace<'_>>, word| {
        let found = words.next();
        if found == Some(word) {
            return Ok(());
        }
        let what = format!("\"{word}\", as in \"permit out udp from 198.51.100.0/24 53 to assigned\"");
        Err(wrong(&what, found, [word]))
    };
    expect(&mut words, "permit")?;
    expect(&mut words, "out")?;
    let protocol = match words.next() {
        Some("ip") => None,
        Some(word) => Some(protocol_of(word).map_err(|expected| {
            let what = format!("ip, or {}", expected.what);
            FilterError {
                suggestion: expected.suggestion,
                ..wrong(&what, Some(word), [])
            }
        })?),
        None => return Err(wrong("a protocol, or ip for all", None, [])),
    };
    expect(&mut words, "from")?;
    let remote = end(&mut words)?;
    expect(&mut words, "to")?;
    let user = end(&mut words)?;
    if user.prefix.is_some() {
        let message = "expected the user as the destination (assigned, or any), found an address";
        return Err(FilterError {
            message: message.to_owned(),
            suggestion: Some("assigned".to_owned()),
        });
    }
    if let Some(more) = words.next() {
        return Err(wrong("nothing more", Some(more), []));
    }
    let ports = remote.ports != ANY || user.ports != ANY;
    if ports && !matches!(protocol, Some(6 | 17 | 132)) {
        let message = "expected ports only with tcp, udp or sctp, found them with another protocol";
        return Err(FilterError {
            message: message.to_owned(),
            suggestion: None,
        });
    }
    let down = Rule {
        source: remote.prefix,
        destination: None,
        source_ports: remote.ports,
        destination_ports: user.ports,
        protocol,
        action: Action::Allow,
    };
    let up = Rule {
        source: None,
        destination: down.source,
        source_ports: down.destination_ports.clone(),
        destination_ports: down.source_ports.clone(),
        ..down
    };
    Ok(Flows { rules: [up, down] })
}

fn end<'a>(words: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>) -> Result<End, FilterError> {
    let word = words.next();
    let prefix = match word {
        Some("any" | "assigned") => None,
        Some(text) => Some(prefix_of(text).map_err(|expected| {
            let what = format!("any, assigned, or {}", expected.what);
            FilterError {
                suggestion: expected.suggestion,
                ..wrong(&what, word, ["any", "assigned"])
            }
        })?),
        None => return Err(wrong("an address, any or assigned", None, [])),
    };
    let ports = match words.next_if(|word| *word != "to") {
        None => ANY,
        Some(text) => ports_of(text).map_err(|expected| FilterError {
            suggestion: expected.suggestion,
            ..wrong(&expected.what, Some(text), [])
        })?,
    };
    Ok(End { prefix, ports })
}

fn wrong<'a>(what: &str, found: Option<&str>, candidates: impl IntoIterator<Item = &'a str>) -> FilterError {
    let quoted = found.map_or("nothing".to_owned(), quoted);
    FilterError {
        message: format!("expected {what}, found {quoted}"),
        suggestion: found.and_then(|word| nearest(word, candidates)).map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::linear::matches;
    use tailwater_net::FlowKey;

    #[test]
    fn descriptions_match_both_directions() {
        let dns = parse("permit out udp from 198.51.100.0/24 53 to assigned").unwrap();
        let (server, user) = ([198, 51, 100, 7].into(), [10, 0, 0, 1].into());
        let down = FlowKey::v4(server, user, 17, 53, 4000);
        assert!(matches(dns.of(LinkDirection::Down), &down));
        assert!(matches(dns.of(LinkDirection::Up), &down.reversed()));
        assert!(!matches(dns.of(LinkDirection::Up), &down));
        assert!(!matches(
            dns.of(LinkDirection::Down),
            &FlowKey::v4(server, user, 6, 53, 1)
        ));
        let range = parse("permit out 6 from any 80-443 to any 1024-65535").unwrap();
        assert!(matches(
            range.of(LinkDirection::Down),
            &FlowKey::v4(server, user, 6, 443, 1024)
        ));
        assert!(!matches(
            range.of(LinkDirection::Down),
            &FlowKey::v4(server, user, 6, 443, 1023)
        ));
        assert!(matches(
            range.of(LinkDirection::Up),
            &FlowKey::v4(user, server, 6, 1024, 80)
        ));
        let all = parse("permit out ip from any to assigned").unwrap();
        assert!(matches(all.of(LinkDirection::Up), &FlowKey::v4(user, server, 1, 0, 0)));
        let v6 = parse("permit out ip from 2001:db8::/32 to assigned").unwrap();
        assert!(!matches(v6.of(LinkDirection::Down), &down));
    }

    #[test]
    fn mistakes_are_told() {
        for (text, expected) in [
            ("", "expected \"permit\""),
            ("deny out ip from any to any", "found \"deny\""),
            ("permit in ip from any to any", "expected \"out\""),
            ("permit out", "expected a protocol, or ip for all, found nothing"),
            (
                "permit out udpp from any to any",
                "expected ip, or a protocol such as tcp",
            ),
            ("permit out udp form any to any", "expected \"from\""),
            (
                "permit out udp from",
                "expected an address, any or assigned, found nothing",
            ),
            (
                "permit out udp from 10.0.0.300 to any",
                "expected any, assigned, or an IP prefix",
            ),
            (
                "permit out udp from any 99999 to any",
                "expected a port from 0 to 65535",
            ),
            ("permit out udp from any 80", "expected \"to\""),
            (
                "permit out udp from any to 10.0.0.1",
                "expected the user as the destination",
            ),
            (
                "permit out udp from any to any 5 6",
                "expected nothing more, found \"6\"",
            ),
            (
                "permit out icmp from any 5 to any",
                "expected ports only with tcp, udp or sctp",
            ),
            (
                "permit out ip from any to any 5",
                "expected ports only with tcp, udp or sctp",
            ),
        ] {
            let message = parse(text).unwrap_err().message;
            assert!(message.contains(expected), "{text}: {message}");
        }
        let suggestion = |text| parse(text).unwrap_err().suggestion;
        assert_eq!(suggestion("permit out udpp from any to any").as_deref(), Some("udp"));
        assert_eq!(suggestion("permit out udp form any to any").as_deref(), Some("from"));
    }
}
