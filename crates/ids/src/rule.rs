//! Parsed rules.

use crate::address::{AddressSet, PortSet};
use crate::buffer::BufferKey;
use crate::pattern::Expression;
use std::ops::RangeInclusive;
use std::sync::Arc;

pub use crate::app::App;
pub use tailwater_streams::direction::Direction;
pub use tailwater_streams::http::anomalies::Anomalies;

/// Action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Let the packet pass, and evaluate no further rules.
    Pass,
    /// Drop the packet.
    Drop,
    /// Drop the packet, and count it separately.
    Reject,
    /// Raise an alert.
    Alert,
}

/// Protocol a rule applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Every packet.
    Ip,
    /// TCP: the payload as a stream, and packet by packet where positions are given.
    Tcp,
    /// TCP, packet by packet.
    TcpPacket,
    /// UDP.
    Udp,
    /// ICMP and ICMPv6.
    Icmp,
    /// An application protocol, detected from content and not by port.
    App(App),
}

/// Header of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Action.
    pub action: Action,
    /// Protocol.
    pub protocol: Protocol,
    /// Source addresses.
    pub source: Arc<AddressSet>,
    /// Source ports.
    pub source_ports: Arc<PortSet>,
    /// `true` if source and destination may also be swapped.
    pub both_ways: bool,
    /// Destination addresses.
    pub destination: Arc<AddressSet>,
    /// Destination ports.
    pub destination_ports: Arc<PortSet>,
}

/// Conditions on the connection (`flow`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Direction of the packet.
    pub direction: Option<Direction>,
    /// Required state: established (both ends have sent packets) or not.
    pub established: Option<bool>,
    /// `true`: the payload is tested only as a stream; `false`: only packet by packet.
    pub stream: Option<bool>,
}

impl Flow {
    /// Returns the directions packets may have.
    pub fn directions(&self) -> &'static [Direction] {
        match self.direction {
            Some(Direction::ToServer) => &[Direction::ToServer],
            Some(Direction::ToClient) => &[Direction::ToClient],
            None => &[Direction::ToServer, Direction::ToClient],
        }
    }
}

/// Test of TCP flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlagsTest {
    /// Flags named.
    pub flags: u8,
    /// Flags ignored.
    pub ignored: u8,
    /// Comparison mode.
    pub mode: FlagsMode,
}

/// Comparison mode of TCP flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagsMode {
    /// Exactly these flags.
    Exactly,
    /// All of these flags, and possibly others.
    AllOf,
    /// At least one of these flags.
    AnyOf,
    /// None of these flags.
    NoneOf,
}

/// Numeric field of a packet's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Bytes of payload.
    PayloadSize,
    /// ICMP type.
    IcmpType,
    /// ICMP code.
    IcmpCode,
    /// Identifier of an ICMP echo.
    IcmpId,
    /// Sequence number of an ICMP echo.
    IcmpSequence,
    /// Time to live, or hop limit.
    TimeToLive,
    /// IPv4 identification.
    Identification,
    /// Protocol number.
    IpProtocol,
    /// TCP sequence number.
    Sequence,
    /// TCP acknowledgement number.
    Acknowledgement,
    /// TCP window.
    Window,
    /// Bytes of the stream so far, in a direction.
    StreamSize(Direction),
}

/// Test of a packet's headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PacketTest {
    /// TCP flags.
    Flags(FlagsTest),
    /// A number within a range, or outside it.
    Number {
        /// Field.
        field: Field,
        /// Range.
        range: RangeInclusive<u64>,
        /// If `true`, the number must be outside the range.
        negated: bool,
    },
    /// Source and destination addresses are equal.
    SameAddress,
    /// The HTTP message has one of these anomalies (`app-layer-event`).
    HttpEvent(Anomalies),
}

/// Position constraints of a content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PositionConstraint {
    /// Earliest start in the buffer.
    pub offset: u32,
    /// Length of the search range, from `offset` on.
    pub depth: Option<u32>,
    /// Smallest distance from the previous test's end to the start.
    pub distance: Option<i32>,
    /// Largest number of bytes from `distance` to the content's end.
    pub within: Option<i32>,
    /// If `true`, the content must be at the buffer's end.
    pub at_end: bool,
}

impl PositionConstraint {
    /// Returns `true` if the position is relative to the previous test's end.
    #[inline]
    pub fn is_relative(&self) -> bool {
        self.distance.is_some() || self.within.is_some()
    }

    /// Returns `true` if the position depends on the buffer's start or end.
    pub fn is_anchored(&self) -> bool {
        self.offset > 0 || self.depth.is_some() || self.at_end
    }
}

/// Bytes that must be present, or absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Bytes; in lower case if `nocase`.
    pub bytes: Vec<u8>,
    /// If `true`, the comparison is case-insensitive.
    pub nocase: bool,
    /// If `true`, the bytes must be absent.
    pub negated: bool,
    /// Position constraints.
    pub position: PositionConstraint,
    /// If `true`, the rule selects this content as its fast pattern.
    pub fast: bool,
}

/// Comparison of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Less than.
    Less,
    /// Less than or equal.
    AtMost,
    /// Equal.
    Equal,
    /// Greater than.
    Greater,
    /// Greater than or equal.
    AtLeast,
    /// Bitwise AND is not zero.
    And,
    /// Bitwise exclusive OR is not zero: the numbers differ (`^`).
    Or,
}

/// Number read from a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberAt {
    /// Number of bytes; with `text`, the largest number of digits.
    pub bytes: u32,
    /// Offset.
    pub offset: i64,
    /// If `true`, the offset is relative to the previous test's end.
    pub relative: bool,
    /// If `true`, the number is little-endian.
    pub little: bool,
    /// Base of a number in text form; `None` for a binary number.
    pub text: Option<u32>,
}

/// Test of a buffer.
#[derive(Clone, Debug)]
pub enum Test {
    /// Content.
    Content(Content),
    /// Regular expression.
    Pattern {
        /// Expression.
        expression: Arc<Expression>,
        /// If `true`, the match must start at the previous test's end or later.
        relative: bool,
        /// If `true`, the expression must not match.
        negated: bool,
    },
    /// Data present at an offset (`isdataat`).
    DataAt {
        /// Offset in bytes.
        bytes: u32,
        /// If `true`, the offset is relative to the previous test's end.
        relative: bool,
        /// If `true`, there must be no data.
        negated: bool,
    },
    /// Comparison of a number with a value (`byte_test`).
    Compare {
        /// Number.
        number: NumberAt,
        /// Comparison.
        comparison: Comparison,
        /// Value.
        value: u64,
        /// If `true`, the comparison must fail.
        negated: bool,
    },
    /// Moves the position of following tests by a number (`byte_jump`).
    Jump {
        /// Number.
        number: NumberAt,
        /// Multiplier of the number.
        multiplier: u32,
        /// If `true`, the result is rounded up to a multiple of four.
        align: bool,
        /// If `true`, the jump starts at the buffer's start, otherwise at the number's end.
        from_start: bool,
        /// Offset added to the result.
        more: i64,
    },
    /// Size of the buffer in bytes.
    Size(RangeInclusive<u64>),
}

impl Test {
    /// Returns `true` if the test is relative to the previous test's end.
    #[inline]
    pub fn is_relative(&self) -> bool {
        match self {
            Test::Content(content) => content.position.is_relative(),
            Test::Pattern { relative, .. } | Test::DataAt { relative, .. } => *relative,
            Test::Compare { number, .. } | Test::Jump { number, .. } => number.relative,
            Test::Size(_) => false,
        }
    }
}

/// Ordered tests of one buffer.
#[derive(Clone, Debug)]
pub struct BufferTests {
    /// Buffer.
    pub buffer: BufferKey,
    /// Tests.
    pub tests: Vec<Test>,
}

/// Operation on flowbits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bit {
    /// Set the bit.
    Set,
    /// Clear the bit.
    Unset,
    /// Toggle the bit.
    Toggle,
    /// Require that a bit is set.
    IsSet,
    /// Require that no bit is set.
    IsNotSet,
}

/// Flowbit option of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowBit {
    /// Operation.
    pub operation: Bit,
    /// Names of the bits; a condition applies to any of them.
    pub names: Vec<String>,
}

/// Scope of a threshold's count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Track {
    /// Per source address.
    Source,
    /// Per destination address.
    Destination,
    /// Per pair of addresses.
    Both,
    /// Per rule.
    Rule,
}

/// Kind of a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThresholdKind {
    /// Alert on the first `count` matches within the time.
    Limit,
    /// Alert on every `count`-th match.
    Threshold,
    /// Alert on the `count`-th match, once within the time.
    Both,
    /// Alert on all matches after `count` within the time (`detection_filter`).
    Filter,
}

/// Rate limit of a rule's alerts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    /// Kind.
    pub kind: ThresholdKind,
    /// Scope of the count.
    pub track: Track,
    /// Number of matches.
    pub count: u32,
    /// Length of the time window, in seconds.
    pub seconds: u32,
}

/// Descriptive options of a rule, shown in alerts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleInfo {
    /// Generator identifier (`gid`).
    pub generator: u32,
    /// Signature identifier (`sid`).
    pub sid: u32,
    /// Revision (`rev`).
    pub revision: u32,
    /// Message (`msg`).
    pub message: String,
    /// Class (`classtype`).
    pub class: String,
    /// Priority, 1 the highest, if the rule sets it.
    pub priority: Option<u8>,
    /// Metadata keys and values.
    pub metadata: Vec<(String, String)>,
}

/// Parsed rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Line in its file, from 1.
    pub line: u32,
    /// Header.
    pub header: Header,
    /// Conditions on the connection.
    pub flow: Flow,
    /// Tests of packet headers.
    pub packet: Vec<PacketTest>,
    /// Tests of buffers.
    pub parts: Vec<BufferTests>,
    /// Flowbit options.
    pub bits: Vec<FlowBit>,
    /// Rate limits of alerts.
    pub thresholds: Vec<Threshold>,
    /// If `true`, matches raise no alert (`noalert`).
    pub silent: bool,
    /// Descriptive options.
    pub about: RuleInfo,
}
