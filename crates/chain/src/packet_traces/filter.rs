//! Filters of packets, in the part of the language of pcap-filter(7) that flow keys can decide.

use super::node::{End, Node};
use super::quick::Quick;
use crate::batch::Batch;
use std::net::IpAddr;
use tailwater_net::FlowKey;

/// Longest filter, in bytes.
const LONGEST: usize = 1024;

/// Deepest nesting.
const DEEPEST: usize = 32;

/// Condition on the addresses, ports and protocol of a packet, as it arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketFilter {
    pub(super) node: Node,
    /// Test that most packets fail which do not match.
    pub(super) quick: Quick,
}

/// Filter that cannot be understood: a line for the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FilterError(String);

impl PacketFilter {
    /// Parses a filter such as `tcp port 443 and (src net 10.0.0.0/8 or host 192.0.2.1)`. An empty one matches all.
    ///
    /// # Errors
    /// One line that names what was expected, and what was found.
    pub fn parse(text: &str) -> Result<PacketFilter, FilterError> {
        if text.len() > LONGEST {
            return Err(FilterError(format!(
                "expected at most {LONGEST} bytes, found {}",
                text.len()
            )));
        }
        let spaced = text.replace('(', " ( ").replace(')', " ) ").replace('!', " ! ");
        let mut words = Words {
            words: spaced.split_whitespace().map(str::to_owned).collect(),
            at: 0,
        };
        if words.words.is_empty() {
            return Ok(PacketFilter::all());
        }
        let node = words.either(0)?;
        match words.peek() {
            None => Ok(PacketFilter::new(node)),
            Some(word) => Err(FilterError(format!(
                "expected \"and\", \"or\" or the end, found \"{word}\""
            ))),
        }
    }

    /// Filter that all packets match.
    pub fn all() -> PacketFilter {
        PacketFilter::new(Node::All)
    }

    fn new(node: Node) -> PacketFilter {
        let quick = Quick::new(&node);
        PacketFilter { node, quick }
    }

    /// Returns `false` if no packet of this batch matches.
    #[inline]
    pub(super) fn may_match_some(&self, batch: &Batch) -> bool {
        self.quick.may_match_some(batch)
    }

    /// Returns `true` if packets of this flow match.
    pub(super) fn matches(&self, key: &FlowKey) -> bool {
        self.quick.may_match(key) && self.node.matches(key)
    }
}

struct Words {
    words: Vec<String>,
    at: usize,
}

impl Words {
    fn peek(&self) -> Option<&str> {
        self.words.get(self.at).map(String::as_str)
    }

    /// Takes the next word if it is one of these.
    fn take(&mut self, any: &[&str]) -> bool {
        let is_one = self.peek().is_some_and(|word| any.contains(&word));
        self.at += usize::from(is_one);
        is_one
    }

    /// Takes the next word.
    fn next(&mut self, expected: &str) -> Result<String, FilterError> {
        let word = self.peek().map(str::to_owned);
        self.at += 1;
        word.ok_or_else(|| FilterError(format!("expected {expected}, found the end")))
    }

    fn either(&mut self, depth: usize) -> Result<Node, FilterError> {
        if depth > DEEPEST {
            return Err(FilterError(format!(
                "expected at most {DEEPEST} levels of parentheses and \"not\""
            )));
        }
        let mut node = self.both(depth)?;
        while self.take(&["or", "||"]) {
            node = Node::Either(Box::new(node), Box::new(self.both(depth)?));
        }
        Ok(node)
    }

    fn both(&mut self, depth: usize) -> Result<Node, FilterError> {
        let mut node = self.one(depth)?;
        while self.take(&["and", "&&"]) {
            node = Node::Both(Box::new(node), Box::new(self.one(depth)?));
        }
        Ok(node)
    }

    fn one(&mut self, depth: usize) -> Result<Node, FilterError> {
        if depth > DEEPEST {
            return Err(FilterError(format!(
                "expected at most {DEEPEST} levels of parentheses and \"not\""
            )));
        }
        if self.take(&["not", "!"]) {
            return Ok(Node::Not(Box::new(self.one(depth + 1)?)));
        }
        if self.take(&["("]) {
            let node = self.either(depth + 1)?;
            return match self.take(&[")"]) {
                true => Ok(node),
                false => Err(FilterError(format!(
                    "expected \")\", found {}",
                    self.peek().map_or("the end".to_owned(), |word| format!("\"{word}\""))
                ))),
            };
        }
        let word = self.next("a condition")?;
        let protocol = match word.as_str() {
            "ip" => Some(Node::Version(4)),
            "ip6" => Some(Node::Version(6)),
            "tcp" => Some(Node::Protocol(6)),
            "udp" => Some(Node::Protocol(17)),
            "icmp" => Some(Node::Protocol(1)),
            "icmp6" => Some(Node::Protocol(58)),
            "sctp" => Some(Node::Protocol(132)),
            "esp" => Some(Node::Protocol(50)),
            "gre" => Some(Node::Protocol(47)),
            _ => None,
        };
        let Some(protocol) = protocol else {
            return self.primitive(&word);
        };
        // `tcp port 80`, `ip host A`: the protocol qualifies what follows.
        let qualifies = ["src", "dst", "host", "net", "port", "portrange"];
        if self.peek().is_some_and(|word| qualifies.contains(&word)) {
            let word = self.next("a condition")?;
            return Ok(Node::Both(Box::new(protocol), Box::new(self.primitive(&word)?)));
        }
        Ok(protocol)
    }

    fn primitive(&mut self, word: &str) -> Result<Node, FilterError> {
        let (end, kind) = match word {
            "src" => (End::Source, self.next("host, net, port or portrange")?),
            "dst" => (End::Destination, self.next("host, net, port or portrange")?),
            _ => (End::Any, word.to_owned()),
        };
        match kind.as_str() {
            "host" | "net" => {
                let text = self.next("an address")?;
                address(&text, end)
            }
            "port" => {
                let port = number(&self.next("a port")?, "a port")?;
                Ok(Node::Ports(end, port, port))
            }
            "portrange" => {
                let text = self.next("ports such as 8000-8080")?;
                let (first, last) = text.split_once('-').unwrap_or((&text, ""));
                let (first, last) = (number(first, "a port")?, number(last, "ports such as 8000-8080")?);
                Ok(Node::Ports(end, first, last))
            }
            "proto" if end == End::Any => {
                let protocol: u16 = number(&self.next("a protocol number")?, "a protocol number")?;
                let protocol = u8::try_from(protocol);
                let protocol = protocol.map_err(|_| FilterError("expected a protocol number up to 255".to_owned()))?;
                Ok(Node::Protocol(protocol))
            }
            // `src 10.0.0.1`
            other if end != End::Any => address(other, end),
            other => Err(FilterError(format!(
                "expected host, net, port, portrange, src, dst, proto, a protocol, \"not\" or \"(\", found \"{other}\""
            ))),
        }
    }
}

fn address(text: &str, end: End) -> Result<Node, FilterError> {
    let wrong = || {
        FilterError(format!(
            "expected an address such as 192.0.2.1 or 10.0.0.0/8, found \"{text}\""
        ))
    };
    let (address, bits) = text
        .split_once('/')
        .map_or((text, None), |(address, bits)| (address, Some(bits)));
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Ok(most), |bits| bits.parse().map_err(|_| wrong()))?;
    if bits > most {
        return Err(wrong());
    }
    Ok(Node::Address(end, address, bits))
}

fn number(text: &str, expected: &str) -> Result<u16, FilterError> {
    text.parse()
        .map_err(|_| FilterError(format!("expected {expected}, found \"{text}\"")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn key(source: [u8; 4], source_port: u16, destination: [u8; 4], destination_port: u16, protocol: u8) -> FlowKey {
        FlowKey::v4(
            Ipv4Addr::from(source),
            Ipv4Addr::from(destination),
            protocol,
            source_port,
            destination_port,
        )
    }

    fn matches(filter: &str, key: &FlowKey) -> bool {
        PacketFilter::parse(filter).unwrap().matches(key)
    }

    #[test]
    fn filters_mean_what_tcpdump_s_do() {
        let web = key([10, 1, 2, 3], 40_000, [192, 0, 2, 1], 443, 6);
        let name = key([192, 0, 2, 1], 53, [10, 1, 2, 3], 5000, 17);
        let ping = key([10, 1, 2, 3], 7, [192, 0, 2, 1], 7, 1);
        let six = FlowKey::v6(Ipv6Addr::LOCALHOST, "2001:db8::5".parse().unwrap(), 6, 1, 443);
        for (filter, expected) in [
            ("", [true, true, true, true]),
            ("tcp", [true, false, false, true]),
            ("tcp port 443", [true, false, false, true]),
            ("port 443 or udp", [true, true, false, true]),
            ("dst port 443 and ip", [true, false, false, false]),
            ("src net 10.0.0.0/8", [true, false, true, false]),
            ("src 10.1.2.3", [true, false, true, false]),
            ("host 192.0.2.1 and not udp", [true, false, true, false]),
            ("not (tcp or udp)", [false, false, true, false]),
            ("!tcp && !udp", [false, false, true, false]),
            // ICMP's identifier is no port.
            ("port 7", [false, false, false, false]),
            ("portrange 50-60", [false, true, false, false]),
            ("net 2001:db8::/32", [false, false, false, true]),
            ("ip6 dst port 443", [false, false, false, true]),
            ("proto 1", [false, false, true, false]),
            ("net 0.0.0.0/0", [true, true, true, false]),
            // "and" binds first.
            ("udp or tcp and port 80", [false, true, false, false]),
        ] {
            let found = [&web, &name, &ping, &six].map(|key| matches(filter, key));
            assert_eq!(found, expected, "{filter}");
        }
    }

    #[test]
    fn wrong_filters_are_told() {
        let deep = "(".repeat(500);
        let nots = "not ".repeat(200);
        for (filter, expected) in [
            ("port", "expected a port, found the end"),
            ("port x", "expected a port, found \"x\""),
            ("port 70000", "expected a port, found \"70000\""),
            ("tcp udp", "expected \"and\", \"or\" or the end, found \"udp\""),
            ("(tcp", "expected \")\", found the end"),
            ("tcp)", "found \")\""),
            ("host 10.0.0.0/33", "10.0.0.0/33"),
            ("host example.com", "example.com"),
            ("src", "found the end"),
            ("vlan 5", "found \"vlan\""),
            ("proto 256", "up to 255"),
            (&deep, "levels"),
            (&nots, "levels"),
            (&"x".repeat(2000), "at most 1024 bytes"),
        ] {
            let error = PacketFilter::parse(filter).unwrap_err().to_string();
            assert!(error.contains(expected), "{filter}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_filter_or_an_error(text in "[a-z0-9.:/() !|&-]{0,60}") {
            let _ = PacketFilter::parse(&text);
        }
    }
}
