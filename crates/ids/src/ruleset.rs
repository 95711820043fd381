//! Compiled rule set: rules sorted by the hooks at which they are evaluated.

use crate::buffer::{Buffer, BufferKey, Moment};
use crate::evaluate::Checks;
use crate::port_groups::PortGroups;
use crate::prefilter::Group;
use crate::rule::{App, Bit, Direction, Field, PacketTest, Protocol, Rule, Test};
use crate::signature::{BitStep, Hook, Signature, Transport};
use crate::signature_group::{SignatureGroup, SignatureGroupBuilder, fast_content};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use tailwater_net::{FlowKey, protocol};

pub use crate::signature::RuleSetError;

/// Flowbit numbers by name. Numbers are preserved when rules are reloaded.
#[derive(Clone, Debug, Default)]
pub struct BitNames(HashMap<String, u16>);

impl BitNames {
    /// Returns a name's number, at least 1, or `None` if there are too many names.
    fn number(&mut self, name: &str) -> Option<u16> {
        if let Some(number) = self.0.get(name) {
            return Some(*number);
        }
        let number = u16::try_from(self.0.len() + 1).ok()?;
        self.0.insert(name.to_owned(), number);
        Some(number)
    }
}

/// Compiled rule set.
#[derive(Debug)]
pub struct RuleSet {
    pub(crate) signatures: Vec<Signature>,
    signature_groups: Vec<SignatureGroup>,
    any_stream_rules: bool,
    any_ja3_rules: bool,
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
        let all_places: Vec<Vec<Hook>> = rules.iter().map(hooks).collect();
        let tcp_ports = port_groups(&rules, &all_places, Transport::Tcp);
        let udp_ports = port_groups(&rules, &all_places, Transport::Udp);
        let ports_in = |place: Hook| match place.transport() {
            Transport::Tcp => Some(&tcp_ports),
            Transport::Udp => Some(&udp_ports),
            _ => None,
        };
        let mut waiting: BTreeMap<Hook, SignatureGroupBuilder> = BTreeMap::new();
        let mut signatures = Vec::with_capacity(rules.len());
        for (i, (rule, places)) in rules.into_iter().zip(all_places).enumerate() {
            for place in places {
                let waiting = waiting.entry(place).or_default();
                waiting.add(i as u32, &rule, place, ports_in(place));
            }
            signatures.push(Signature::new(rule, names)?);
        }
        let mut stations = Vec::with_capacity(Hook::COUNT);
        for place in ALL {
            let waiting = waiting.remove(&place).unwrap_or_default();
            stations.push(waiting.station(place, &signatures, ports_in(place))?);
        }
        let any_stream_rules = ALL[Hook::StreamToServer as usize..]
            .iter()
            .any(|place| stations[*place as usize].has_rules());
        let is_ja3 = |key: BufferKey| matches!(key.buffer, Buffer::Ja3Hash | Buffer::Ja3String);
        let mut checks = signatures.iter().flat_map(|signature: &Signature| &signature.checks);
        let any_ja3_rules = checks.any(|checks| is_ja3(checks.buffer));
        Ok(RuleSet {
            any_ja3_rules,
            signatures,
            signature_groups: stations,
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
        let groups = self.signature_groups.iter().flat_map(|station| &station.groups);
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
    pub(crate) fn groups(&self, place: Hook, direction: Direction) -> &[Group] {
        &self.signature_groups[place as usize].groups[direction.index()]
    }

    /// Returns `true` if any rule is evaluated at a hook.
    #[inline]
    pub(crate) fn has_rules_at(&self, place: Hook) -> bool {
        self.signature_groups[place as usize].has_rules()
    }

    /// Returns `true` if any rule tests the fingerprint of a ClientHello.
    #[inline]
    pub(crate) fn has_ja3_rules(&self) -> bool {
        self.any_ja3_rules
    }

    /// Returns `true` if any rule is evaluated on streams or messages.
    #[inline]
    pub(crate) fn has_stream_rules(&self) -> bool {
        self.any_stream_rules
    }

    /// Returns `true` if a rule at a hook applies to packets without payload and with these TCP flags.
    #[inline]
    pub(crate) fn has_rules_without_payload(&self, place: Hook, flags: u8) -> bool {
        self.signature_groups[place as usize].unfiltered.has_for(flags)
    }

    /// Calls `each` on the rules of a hook without a prefilter.
    #[inline]
    pub(crate) fn unfiltered(&self, place: Hook, ends: [IpAddr; 2], flags: u8, each: impl FnMut(u32)) {
        let of_flow = place == Hook::FlowStart;
        let unfiltered = &self.signature_groups[place as usize].unfiltered;
        unfiltered.each(of_flow.then_some(ends), flags, each);
    }
}

const ALL: [Hook; Hook::COUNT] = [
    Hook::FlowStart,
    Hook::PacketTcp,
    Hook::PacketUdp,
    Hook::PacketIcmp,
    Hook::PacketOther,
    Hook::StreamToServer,
    Hook::StreamToClient,
    Hook::Request,
    Hook::RequestBody,
    Hook::Response,
    Hook::ResponseBody,
    Hook::ClientHello,
    Hook::Certificate,
    Hook::DnsQuery,
    Hook::Detected,
    Hook::MessageToServer,
    Hook::MessageToClient,
];

/// Returns the sort key that puts rules that set flowbits before those that test them.
fn rank(rule: &Rule) -> u8 {
    let asks = rule
        .bits
        .iter()
        .any(|bit| matches!(bit.operation, Bit::IsSet | Bit::IsNotSet));
    let sets = rule
        .bits
        .iter()
        .any(|bit| !matches!(bit.operation, Bit::IsSet | Bit::IsNotSet));
    match (sets, asks) {
        (true, false) => 0,
        (true, true) => 1,
        (false, _) => 2,
    }
}

/// Returns the application protocol a rule applies to.
fn app(rule: &Rule) -> Option<App> {
    match rule.header.protocol {
        Protocol::App(app) => Some(app),
        _ => rule.parts.iter().find_map(|part| part.buffer.buffer.app()),
    }
}

/// Returns `true` if payload tests depend on the payload's start or end.
fn is_anchored(rule: &Rule) -> bool {
    let payload = rule.parts.iter().filter(|part| part.buffer == BufferKey::PAYLOAD);
    payload.flat_map(|part| &part.tests).any(|test| match test {
        Test::Content(content) => content.position.is_anchored() && !content.position.is_relative(),
        Test::Size(_) => true,
        test => !test.is_relative() && !matches!(test, Test::Pattern { .. }),
    })
}

/// Returns the hooks at which a rule is evaluated.
fn hooks(rule: &Rule) -> Vec<Hook> {
    let app = app(rule);
    let buffers = || rule.parts.iter().map(|part| part.buffer.buffer);
    let both = |request, response| match rule.flow.direction {
        Some(Direction::ToServer) => vec![request],
        Some(Direction::ToClient) => vec![response],
        None => vec![request, response],
    };
    let moment = buffers().filter(|b| b.app().is_some()).map(Buffer::moment).max();
    if moment.is_none() && rule.packet.iter().any(|test| matches!(test, PacketTest::HttpEvent(_))) {
        // An anomaly is found in the head, or at the body's end.
        let heads = both(Hook::Request, Hook::Response);
        return [heads, both(Hook::RequestBody, Hook::ResponseBody)].concat();
    }
    if let Some(moment) = moment {
        return match (app, moment) {
            (Some(App::Tls), _) if rule.flow.direction == Some(Direction::ToServer) => {
                vec![Hook::ClientHello]
            }
            (Some(App::Tls), _) => vec![Hook::Certificate],
            (Some(App::Dns), _) => vec![Hook::DnsQuery],
            (_, Moment::Body) => both(Hook::RequestBody, Hook::ResponseBody),
            _ => both(Hook::Request, Hook::Response),
        };
    }
    let packets = match rule.header.protocol {
        Protocol::Tcp | Protocol::TcpPacket => vec![Hook::PacketTcp],
        Protocol::Udp => vec![Hook::PacketUdp],
        Protocol::Icmp => vec![Hook::PacketIcmp],
        Protocol::App(App::Dns) => vec![Hook::PacketTcp, Hook::PacketUdp],
        Protocol::App(_) => vec![Hook::PacketTcp],
        Protocol::Ip => vec![Hook::PacketTcp, Hook::PacketUdp, Hook::PacketIcmp, Hook::PacketOther],
    };
    if rule.parts.is_empty() {
        let asks = rule
            .bits
            .iter()
            .any(|bit| matches!(bit.operation, Bit::IsSet | Bit::IsNotSet));
        let alone = rule.packet.is_empty() && !asks;
        return match app {
            Some(_) if alone => vec![Hook::Detected],
            None if alone && rule.flow.established.is_none() => vec![Hook::FlowStart],
            _ => packets,
        };
    }
    let streams = match rule.flow.direction {
        Some(direction) => vec![Hook::stream(direction)],
        None => vec![Hook::StreamToServer, Hook::StreamToClient],
    };
    let of_packet = rule.packet.iter().any(|test| {
        let stream = |field: &Field| matches!(field, Field::StreamSize(_));
        !matches!(test, PacketTest::Number { field, .. } if stream(field))
    });
    match (rule.header.protocol, rule.flow.stream) {
        (Protocol::Udp | Protocol::Icmp | Protocol::Ip | Protocol::TcpPacket, _) | (_, Some(false)) => packets,
        (Protocol::App(App::Dns), _) => [vec![Hook::PacketUdp], streams].concat(),
        (_, Some(true)) => streams,
        _ if of_packet => packets,
        // Positions count from the start of a packet, a stream or a message.
        (Protocol::App(App::Smb | App::Dcerpc | App::Ftp | App::Smtp), _) if is_anchored(rule) => {
            let messages = both(Hook::MessageToServer, Hook::MessageToClient);
            [packets, streams, messages].concat()
        }
        (Protocol::Tcp | Protocol::App(_), _) if is_anchored(rule) => [packets, streams].concat(),
        _ => streams,
    }
}

/// Builds the port groups of a protocol's connections from its packet and stream rules.
fn port_groups(rules: &[Rule], places: &[Vec<Hook>], of: Transport) -> PortGroups {
    let of_protocol = rules.iter().zip(places).filter(|(_, places)| {
        let mut places = places.iter();
        places.any(|place| place.transport() == of)
    });
    let filtered = of_protocol.filter(|(rule, _)| fast_content(rule).is_some());
    PortGroups::new(filtered.map(|(rule, _)| (&rule.header, rule.flow.directions())))
}

impl Signature {
    fn new(rule: Rule, names: &mut BitNames) -> Result<Signature, RuleSetError> {
        let (mut asks, mut sets) = (Vec::new(), Vec::new());
        for bit in &rule.bits {
            let bits = bit.names.iter().map(|name| names.number(name));
            let bits = bits.collect::<Option<Vec<u16>>>().ok_or_else(|| {
                RuleSetError(format!(
                    "expected at most {} flowbits in all rules, found more",
                    u16::MAX
                ))
            })?;
            let step = BitStep {
                operation: bit.operation,
                bits,
            };
            match bit.operation {
                Bit::IsSet | Bit::IsNotSet => asks.push(step),
                _ => sets.push(step),
            }
        }
        let app = app(&rule);
        let transport = match rule.header.protocol {
            Protocol::Ip => Transport::Any,
            Protocol::Tcp | Protocol::TcpPacket => Transport::Tcp,
            Protocol::Udp => Transport::Udp,
            Protocol::Icmp => Transport::Icmp,
            Protocol::App(_) => Transport::TcpOrUdp,
        };
        let checks = rule.parts.iter().map(Checks::new).collect();
        let from_start = is_anchored(&rule);
        Ok(Signature {
            rule: Rule {
                parts: Vec::new(),
                ..rule
            },
            checks,
            bit_conditions: asks,
            bit_changes: sets,
            app,
            transport,
            from_start,
        })
    }
}
