//! Linear scan: the plain definition of a match, and the oracle for tests of the classifier.

use super::rule::Rule;
use ipnet::IpNet;
use std::net::IpAddr;
use tailwater_net::flow::FlowKey;

/// Returns `true` if every field of the rule matches the key.
pub fn matches(rule: &Rule, key: &FlowKey) -> bool {
    address_matches(rule.source, key.source())
        && address_matches(rule.destination, key.destination())
        && rule.source_ports.contains(&key.source_port())
        && rule.destination_ports.contains(&key.destination_port())
        && rule.protocol.is_none_or(|protocol| protocol == key.protocol())
}

/// Returns the index of the first rule that matches.
pub fn classify(rules: &[Rule], key: &FlowKey) -> Option<u32> {
    let index = rules.iter().position(|rule| matches(rule, key))?;
    u32::try_from(index).ok()
}

/// Returns `true` if the prefix contains the address. A prefix contains only addresses of its own IP version.
fn address_matches(prefix: Option<IpNet>, address: IpAddr) -> bool {
    prefix.is_none_or(|prefix| prefix.contains(&address))
}
