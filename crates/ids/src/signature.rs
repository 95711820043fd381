//! Compiled rules, and the hooks at which they are evaluated.

use crate::evaluate::Checks;
use crate::rule::{App, Bit, Direction, FlagsMode, FlagsTest, PacketTest, Rule};

/// Hook: point of packet processing at which rules are evaluated, and the data they see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(crate) enum Hook {
    /// First packet of a connection in a direction.
    FlowStart,
    /// TCP packet.
    PacketTcp,
    /// UDP packet.
    PacketUdp,
    /// ICMP packet.
    PacketIcmp,
    /// Any other packet.
    PacketOther,
    /// New stream bytes to the server.
    StreamToServer,
    /// New stream bytes to the client.
    StreamToClient,
    /// Head of an HTTP request.
    Request,
    /// Complete HTTP request.
    RequestBody,
    /// Head of an HTTP response.
    Response,
    /// Complete HTTP response.
    ResponseBody,
    /// TLS ClientHello.
    ClientHello,
    /// Certificate of a TLS server.
    Certificate,
    /// Question of a DNS request.
    DnsQuery,
    /// Packet that shows a connection's application protocol, in each direction.
    Detected,
    /// Message to the server of a protocol without buffers of its own.
    MessageToServer,
    /// Message to the client of a protocol without buffers of its own.
    MessageToClient,
}

impl Hook {
    pub(crate) const COUNT: usize = Hook::MessageToClient as usize + 1;

    /// Returns the transport protocol of the hook's packets, if there is only one.
    pub(crate) fn transport(self) -> Transport {
        match self {
            Hook::FlowStart | Hook::PacketOther | Hook::DnsQuery | Hook::Detected => Transport::Any,
            Hook::PacketUdp => Transport::Udp,
            Hook::PacketIcmp => Transport::Icmp,
            Hook::PacketTcp
            | Hook::StreamToServer
            | Hook::StreamToClient
            | Hook::Request
            | Hook::RequestBody
            | Hook::Response
            | Hook::ResponseBody
            | Hook::ClientHello
            | Hook::Certificate
            | Hook::MessageToServer
            | Hook::MessageToClient => Transport::Tcp,
        }
    }

    /// Returns the hook for messages of a direction.
    pub(crate) fn message(direction: Direction) -> Hook {
        match direction {
            Direction::ToServer => Hook::MessageToServer,
            Direction::ToClient => Hook::MessageToClient,
        }
    }

    /// Returns the hook for new stream bytes of a direction.
    pub(crate) fn stream(direction: Direction) -> Hook {
        match direction {
            Direction::ToServer => Hook::StreamToServer,
            Direction::ToClient => Hook::StreamToClient,
        }
    }
}

/// Operation on a connection's flowbits.
#[derive(Debug)]
pub(crate) struct BitStep {
    pub(crate) operation: Bit,
    pub(crate) bits: Vec<u16>,
}

/// Compiled rule.
#[derive(Debug)]
pub(crate) struct Signature {
    /// Rule without its buffer tests.
    pub(crate) rule: Rule,
    pub(crate) checks: Vec<Checks>,
    /// Flowbit conditions.
    pub(crate) bit_conditions: Vec<BitStep>,
    /// Flowbit changes on a match.
    pub(crate) bit_changes: Vec<BitStep>,
    /// Application protocol.
    pub(crate) app: Option<App>,
    /// Transport protocols.
    pub(crate) transport: Transport,
    /// `true` if a test depends on the stream's start.
    pub(crate) from_start: bool,
}

impl Signature {
    /// Returns `true` if a packet with these flags may match, whatever its other properties.
    pub(crate) fn may_have_flags(&self, flags: u8) -> bool {
        let mut tests = self.rule.packet.iter().filter_map(|test| match test {
            PacketTest::Flags(test) => Some(test),
            _ => None,
        });
        tests.all(|test| (0..4).any(|high| flags_match(test, flags | high << 6)))
    }
}

/// Transport protocols a rule applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Any,
    Tcp,
    Udp,
    Icmp,
    /// Transports that carry application protocols.
    TcpOrUdp,
}

/// Reason rules cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSetError(pub(crate) String);

impl std::fmt::Display for RuleSetError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RuleSetError {}

/// Returns `true` if TCP flags satisfy a test.
pub(crate) fn flags_match(test: &FlagsTest, flags: u8) -> bool {
    let flags = flags & !test.ignored;
    match test.mode {
        FlagsMode::Exactly => flags == test.flags,
        FlagsMode::AllOf => flags & test.flags == test.flags,
        FlagsMode::AnyOf => flags & test.flags != 0,
        FlagsMode::NoneOf => flags & test.flags == 0,
    }
}
