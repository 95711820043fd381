//! A rule that is ready to be asked, and where it is asked.

use crate::buffer::BufferKey;
use crate::evaluate::Checks;
use crate::rule::{App, Bit, Direction, FlagsMode, FlagsTest, PacketTest, Protocol, Rule, Test};
use std::collections::HashMap;

/// When rules are asked, and of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(crate) enum Place {
    /// The first packet of a connection in a direction.
    FlowStart,
    /// A packet of TCP.
    PacketTcp,
    /// A packet of UDP.
    PacketUdp,
    /// A packet of ICMP.
    PacketIcmp,
    /// Another packet.
    PacketOther,
    /// New bytes to a server.
    StreamToServer,
    /// New bytes to a client.
    StreamToClient,
    /// An HTTP request's head.
    Request,
    /// An HTTP request as a whole.
    RequestBody,
    /// An HTTP response's head.
    Response,
    /// An HTTP response as a whole.
    ResponseBody,
    /// A TLS ClientHello.
    ClientHello,
    /// A certificate of a TLS server's.
    Certificate,
    /// A question of a DNS request.
    DnsQuery,
}

impl Place {
    pub(crate) const COUNT: usize = Place::DnsQuery as usize + 1;

    /// What packets there are of, if of one protocol only.
    pub(crate) fn transport(self) -> Transport {
        match self {
            Place::FlowStart | Place::PacketOther | Place::DnsQuery => Transport::Any,
            Place::PacketUdp => Transport::Udp,
            Place::PacketIcmp => Transport::Icmp,
            Place::PacketTcp
            | Place::StreamToServer
            | Place::StreamToClient
            | Place::Request
            | Place::RequestBody
            | Place::Response
            | Place::ResponseBody
            | Place::ClientHello
            | Place::Certificate => Transport::Tcp,
        }
    }

    /// Where new bytes of a stream are looked at.
    pub(crate) fn stream(direction: Direction) -> Place {
        match direction {
            Direction::ToServer => Place::StreamToServer,
            Direction::ToClient => Place::StreamToClient,
        }
    }
}

/// Bits of connections, by name. The numbers stay when rules change.
#[derive(Clone, Debug, Default)]
pub struct BitNames(HashMap<String, u16>);

impl BitNames {
    /// A name's number, above 0.
    fn number(&mut self, name: &str) -> Option<u16> {
        if let Some(number) = self.0.get(name) {
            return Some(*number);
        }
        let number = u16::try_from(self.0.len() + 1).ok()?;
        self.0.insert(name.to_owned(), number);
        Some(number)
    }
}

/// What a rule does with bits of a connection.
#[derive(Debug)]
pub(crate) struct BitStep {
    pub(crate) what: Bit,
    pub(crate) bits: Vec<u16>,
}

/// A rule, ready to be asked.
#[derive(Debug)]
pub(crate) struct Signature {
    /// All but its tests of buffers.
    pub(crate) rule: Rule,
    pub(crate) checks: Vec<Checks>,
    /// What must be so of the connection's bits.
    pub(crate) asks: Vec<BitStep>,
    /// What is done when the rule matches.
    pub(crate) sets: Vec<BitStep>,
    /// The protocol above TCP or UDP.
    pub(crate) app: Option<App>,
    /// The transport protocols.
    pub(crate) transport: Transport,
    /// Whether tests are a matter of the stream's start.
    pub(crate) from_start: bool,
}

/// Which transport protocols a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Any,
    Tcp,
    Udp,
    Icmp,
    /// What carries protocols above.
    TcpOrUdp,
}

/// Why rules cannot be made ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSetError(pub(crate) String);

impl std::fmt::Display for RuleSetError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RuleSetError {}

/// The protocol above TCP or UDP that a rule is about.
pub(crate) fn app(rule: &Rule) -> Option<App> {
    match rule.header.protocol {
        Protocol::App(app) => Some(app),
        _ => rule.parts.iter().find_map(|part| part.buffer.buffer.app()),
    }
}

/// Whether tests of the payload are a matter of where it begins or ends.
pub(crate) fn is_anchored(rule: &Rule) -> bool {
    let payload = rule.parts.iter().filter(|part| part.buffer == BufferKey::PAYLOAD);
    payload.flat_map(|part| &part.tests).any(|test| match test {
        Test::Content(content) => content.place.is_anchored() && !content.place.is_relative(),
        Test::Size(_) => true,
        test => !test.is_relative() && !matches!(test, Test::Pattern { .. }),
    })
}

impl Signature {
    pub(crate) fn new(rule: Rule, names: &mut BitNames) -> Result<Signature, RuleSetError> {
        let (mut asks, mut sets) = (Vec::new(), Vec::new());
        for bit in &rule.bits {
            let bits = bit.names.iter().map(|name| names.number(name));
            let bits = bits
                .collect::<Option<Vec<u16>>>()
                .ok_or_else(|| RuleSetError(format!("rules name more than {} bits of flows", u16::MAX)))?;
            let step = BitStep { what: bit.what, bits };
            match bit.what {
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
            asks,
            sets,
            app,
            transport,
            from_start,
        })
    }

    /// Whether a packet with these flags can match, whatever its others are.
    pub(crate) fn may_have_flags(&self, flags: u8) -> bool {
        let mut tests = self.rule.packet.iter().filter_map(|test| match test {
            PacketTest::Flags(test) => Some(test),
            _ => None,
        });
        tests.all(|test| (0..4).any(|high| flags_match(test, flags | high << 6)))
    }
}

/// Whether TCP flags are as a test wants them.
pub(crate) fn flags_match(test: &FlagsTest, flags: u8) -> bool {
    let flags = flags & !test.ignored;
    match test.mode {
        FlagsMode::Exactly => flags == test.flags,
        FlagsMode::AllOf => flags & test.flags == test.flags,
        FlagsMode::AnyOf => flags & test.flags != 0,
        FlagsMode::NoneOf => flags & test.flags == 0,
    }
}
