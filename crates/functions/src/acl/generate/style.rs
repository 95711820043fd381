//! Lists as firewalls and gateways have them, which differ from access lists in how many fields they leave open.

use super::{ANY_PORT, RuleSetSpec, Scope, Side, SplitMix64, service};
use crate::acl::rule::{Action, Rule};

/// What a list looks like, after the families of ClassBench's seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Access lists (`acl`): hosts and networks on both sides, as [`RuleSetSpec::generate`] makes them.
    Access,
    /// Firewalls (`fw`): nearly half of the rules from anywhere, many wide ranges of ports.
    Firewall,
    /// Chains of the kernel's filter (`ipc`): a mixture of both.
    Mixed,
}

/// Of a hundred rules, how many leave a side open and how many name a network; the others name hosts.
struct Shares {
    source: [u64; 2],
    destination: [u64; 2],
    /// How many leave ports and protocol open.
    any_service: u64,
}

impl RuleSetSpec {
    /// Rules of a style, all with the action allow, narrow ones in front of wide ones.
    pub fn generate_as(&self, style: Style) -> Vec<Rule> {
        let shares = match style {
            Style::Access => return self.generate(),
            Style::Firewall => Shares {
                source: [45, 25],
                destination: [25, 25],
                any_service: 5,
            },
            Style::Mixed => Shares {
                source: [15, 35],
                destination: [15, 35],
                any_service: 15,
            },
        };
        let mut random = SplitMix64::new(self.seed);
        let sources = Side::new(&mut random, &self.sources, self.rules / 24);
        let destinations = Side::new(&mut random, &self.destinations, self.rules / 12);
        let mut rules: Vec<(usize, Rule)> = Vec::with_capacity(self.rules);
        while rules.len() < self.rules {
            let mut prefix = |side: &Side, [any, network]: [u64; 2]| match random.below(100) {
                kind if kind < any => None,
                kind if kind < any + network => Some(side.prefix(&mut random, Scope::Networks)),
                _ => Some(side.prefix(&mut random, Scope::Hosts)),
            };
            let (source, destination) = (
                prefix(&sources, shares.source),
                prefix(&destinations, shares.destination),
            );
            let open = usize::from(source.is_none()) + usize::from(destination.is_none());
            let (protocol, source_ports, destination_ports) = match random.below(100) {
                kind if kind < shares.any_service && open == 0 => (None, ANY_PORT, ANY_PORT),
                _ if open == 2 => service(&mut random, Scope::Hosts),
                _ => service(&mut random, Scope::Networks),
            };
            let closed = protocol.is_some() && destination_ports != ANY_PORT;
            // What is for everybody and everything would decide about all that follows.
            if open == 2 && !closed {
                continue;
            }
            let bits = [source, destination].map(|net| net.map_or(0, |net| net.prefix_len()));
            let rule = Rule {
                source: source.map(Into::into),
                destination: destination.map(Into::into),
                source_ports,
                destination_ports,
                protocol,
                action: Action::Allow,
            };
            rules.push((usize::from(bits[0]) + usize::from(bits[1]), rule));
        }
        rules.sort_by_key(|(bits, _)| std::cmp::Reverse(*bits));
        rules.into_iter().map(|(_, rule)| rule).collect()
    }
}
