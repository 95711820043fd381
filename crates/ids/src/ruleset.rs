//! Compiled rule set: rules sorted by the hooks at which they are evaluated.

use crate::buffer::{Buffer, Moment};
use crate::port_groups::PortGroups;
use crate::prefilter::Group;
use crate::rule::{App, Bit, Direction, Field, PacketTest, Protocol, Rule};
use crate::signature::{Place, Signature, Transport, app, is_anchored};
use crate::station::{Station, Waiting, fast_content};
use std::collections::BTreeMap;
use std::net::IpAddr;
use tailwater_net::{FlowKey, protocol};

pub use crate::signature::{BitNames, RuleSetError};

/// Compiled rule set.
#[derive(Debug)]
pub struct RuleSet {
    pub(crate) signatures: Vec<Signature>,
    stations: Vec<Station>,
    any_stream_rules: bool,
    tcp_ports: PortGroups,
    udp_ports: PortGroups,
}

impl RuleSet {
    /// Compiles rules. They are evaluated in the given order, except that actions sort first: `pass`, then `drop`.
    /// Rules that set flowbits precede those that test them.
    ///
    /// # Errors
    /// There are too many flowbit names or contents.
    pub fn new(mut rules: Vec<Rule>, names: &mut BitNames) -> Result<RuleSet, RuleSetError> {
        rules.sort_by_key(|rule| (rule.header.action, rank(rule)));
        let all_places: Vec<Vec<Place>> = rules.iter().map(places).collect();
        let tcp_ports = port_groups(&rules, &all_places, Transport::Tcp);
        let udp_ports = port_groups(&rules, &all_places, Transport::Udp);
        let ports_in = |place: Place| match place.transport() {
            Transport::Tcp => Some(&tcp_ports),
            Transport::Udp => Some(&udp_ports),
            _ => None,
        };
        let mut waiting: BTreeMap<Place, Waiting> = BTreeMap::new();
        let mut signatures = Vec::with_capacity(rules.len());
        for (i, (rule, places)) in rules.into_iter().zip(all_places).enumerate() {
            for place in places {
                let waiting = waiting.entry(place).or_default();
                waiting.add(i as u32, &rule, place, ports_in(place));
            }
            signatures.push(Signature::new(rule, names)?);
        }
        let mut stations = Vec::with_capacity(Place::COUNT);
        for place in ALL {
            let waiting = waiting.remove(&place).unwrap_or_default();
            stations.push(waiting.station(place, &signatures, ports_in(place))?);
        }
        let any_stream_rules = ALL[Place::StreamToServer as usize..]
            .iter()
            .any(|place| stations[*place as usize].is_asked());
        Ok(RuleSet {
            signatures,
            stations,
            any_stream_rules,
            tcp_ports,
            udp_ports,
        })
    }

    /// Returns the number of rules.
    pub fn len(&self) -> usize {
        self.signatures.len()
    }

    /// Returns `true` if there are no rules.
    pub fn is_empty(&self) -> bool {
        self.signatures.is_empty()
    }

    /// Returns the rule with an index.
    pub fn rule(&self, place: u32) -> Option<&Rule> {
        self.signatures.get(place as usize).map(|signature| &signature.rule)
    }

    /// Returns the bytes of memory of the prefilters.
    pub fn prefilter_bytes(&self) -> usize {
        let groups = self.stations.iter().flat_map(|station| &station.groups);
        groups.flatten().map(Group::memory_bytes).sum()
    }

    /// Returns the port group of a connection, which selects the prefilters' searches.
    pub(crate) fn port_group(&self, key: &FlowKey, direction: Direction) -> u8 {
        let (server, client) = match direction {
            Direction::ToServer => (key.destination_port(), key.source_port()),
            Direction::ToClient => (key.source_port(), key.destination_port()),
        };
        match key.protocol() {
            protocol::TCP => self.tcp_ports.of(server, client),
            protocol::UDP => self.udp_ports.of(server, client),
            _ => 0,
        }
    }

    /// Returns the prefilters of a hook.
    #[inline]
    pub(crate) fn groups(&self, place: Place, direction: Direction) -> &[Group] {
        &self.stations[place as usize].groups[direction.index()]
    }

    /// Returns `true` if any rule is evaluated at a hook.
    #[inline]
    pub(crate) fn has_rules_at(&self, place: Place) -> bool {
        self.stations[place as usize].is_asked()
    }

    /// Returns `true` if any rule is evaluated on streams or messages.
    #[inline]
    pub(crate) fn has_stream_rules(&self) -> bool {
        self.any_stream_rules
    }

    /// Returns `true` if a rule at a hook applies to packets without payload and with these TCP flags.
    #[inline]
    pub(crate) fn has_rules_without_payload(&self, place: Place, flags: u8) -> bool {
        self.stations[place as usize].unfiltered.has_for(flags)
    }

    /// Calls `each` on the rules of a hook without a prefilter.
    #[inline]
    pub(crate) fn unfiltered(&self, place: Place, ends: [IpAddr; 2], flags: u8, each: impl FnMut(u32)) {
        let of_flow = place == Place::FlowStart;
        let unfiltered = &self.stations[place as usize].unfiltered;
        unfiltered.each(of_flow.then_some(ends), flags, each);
    }
}

const ALL: [Place; Place::COUNT] = [
    Place::FlowStart,
    Place::PacketTcp,
    Place::PacketUdp,
    Place::PacketIcmp,
    Place::PacketOther,
    Place::StreamToServer,
    Place::StreamToClient,
    Place::Request,
    Place::RequestBody,
    Place::Response,
    Place::ResponseBody,
    Place::ClientHello,
    Place::Certificate,
    Place::DnsQuery,
];

/// Returns the sort key that puts rules that set flowbits before those that test them.
fn rank(rule: &Rule) -> u8 {
    let asks = rule
        .bits
        .iter()
        .any(|bit| matches!(bit.what, Bit::IsSet | Bit::IsNotSet));
    let sets = rule
        .bits
        .iter()
        .any(|bit| !matches!(bit.what, Bit::IsSet | Bit::IsNotSet));
    match (sets, asks) {
        (true, false) => 0,
        (true, true) => 1,
        (false, _) => 2,
    }
}

/// Where a rule is asked.
fn places(rule: &Rule) -> Vec<Place> {
    let app = app(rule);
    let buffers = || rule.parts.iter().map(|part| part.buffer.buffer);
    if let Some(moment) = buffers().filter(|b| b.app().is_some()).map(Buffer::moment).max() {
        let both = |request, response| match rule.flow.direction {
            Some(Direction::ToServer) => vec![request],
            Some(Direction::ToClient) => vec![response],
            None => vec![request, response],
        };
        return match (app, moment) {
            (Some(App::Tls), _) if rule.flow.direction == Some(Direction::ToServer) => {
                vec![Place::ClientHello]
            }
            (Some(App::Tls), _) => vec![Place::Certificate],
            (Some(App::Dns), _) => vec![Place::DnsQuery],
            (_, Moment::Body) => both(Place::RequestBody, Place::ResponseBody),
            _ => both(Place::Request, Place::Response),
        };
    }
    let packets = match rule.header.protocol {
        Protocol::Tcp | Protocol::TcpPacket => vec![Place::PacketTcp],
        Protocol::Udp => vec![Place::PacketUdp],
        Protocol::Icmp => vec![Place::PacketIcmp],
        Protocol::App(App::Dns) => vec![Place::PacketTcp, Place::PacketUdp],
        Protocol::App(_) => vec![Place::PacketTcp],
        Protocol::Ip => vec![
            Place::PacketTcp,
            Place::PacketUdp,
            Place::PacketIcmp,
            Place::PacketOther,
        ],
    };
    if rule.parts.is_empty() {
        let asks = rule
            .bits
            .iter()
            .any(|bit| matches!(bit.what, Bit::IsSet | Bit::IsNotSet));
        let alone = rule.packet.is_empty() && !asks && app.is_none();
        let plain = alone && rule.flow.established.is_none();
        return match plain {
            true => vec![Place::FlowStart],
            false => packets,
        };
    }
    let streams = match rule.flow.direction {
        Some(direction) => vec![Place::stream(direction)],
        None => vec![Place::StreamToServer, Place::StreamToClient],
    };
    let of_packet = rule.packet.iter().any(|test| {
        let stream = |field: &Field| matches!(field, Field::StreamSize(_));
        !matches!(test, PacketTest::Number { field, .. } if stream(field))
    });
    match (rule.header.protocol, rule.flow.stream) {
        (Protocol::Udp | Protocol::Icmp | Protocol::Ip | Protocol::TcpPacket, _) | (_, Some(false)) => packets,
        (Protocol::App(App::Dns), _) => [vec![Place::PacketUdp], streams].concat(),
        (_, Some(true)) => streams,
        _ if of_packet => packets,
        (Protocol::Tcp, _) if is_anchored(rule) => [packets, streams].concat(),
        _ => streams,
    }
}

/// Builds the port groups of a protocol's connections from its packet and stream rules.
fn port_groups(rules: &[Rule], places: &[Vec<Place>], of: Transport) -> PortGroups {
    let of_protocol = rules.iter().zip(places).filter(|(_, places)| {
        let mut places = places.iter();
        places.any(|place| place.transport() == of)
    });
    let filtered = of_protocol.filter(|(rule, _)| fast_content(rule).is_some());
    PortGroups::new(filtered.map(|(rule, _)| (&rule.header, rule.flow.directions())))
}
