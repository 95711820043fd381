//! What a rule says, as it was read.

use crate::address::{AddressSet, PortSet};
use crate::buffer::BufferKey;
use crate::pattern::Expression;
use std::ops::RangeInclusive;
use std::sync::Arc;

pub use crate::app::App;
pub use crate::direction::Direction;

/// What happens to what a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// It passes, and no other rule is asked.
    Pass,
    /// It is dropped.
    Drop,
    /// It is dropped, and counted apart.
    Reject,
    /// It is told.
    Alert,
}

/// What traffic a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Every packet.
    Ip,
    /// TCP: its payload as a stream, and packet by packet where places in it are named.
    Tcp,
    /// TCP, packet by packet.
    TcpPacket,
    /// UDP.
    Udp,
    /// ICMP and ICMPv6.
    Icmp,
    /// A protocol above, which is recognised by what is said, not by port.
    App(App),
}

/// From whom to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// What happens.
    pub action: Action,
    /// What traffic it is about.
    pub protocol: Protocol,
    /// Senders' addresses.
    pub source: Arc<AddressSet>,
    /// Senders' ports.
    pub source_ports: Arc<PortSet>,
    /// Whether it may as well be the other way round.
    pub both_ways: bool,
    /// Receivers' addresses.
    pub destination: Arc<AddressSet>,
    /// Receivers' ports.
    pub destination_ports: Arc<PortSet>,
}

/// What the connection must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Which way the packet goes.
    pub direction: Option<Direction>,
    /// Whether both ends have spoken.
    pub established: Option<bool>,
    /// Whether the payload is looked at as a stream only, or packet by packet only.
    pub stream: Option<bool>,
}

impl Flow {
    /// The ways that packets may go.
    pub fn directions(&self) -> &'static [Direction] {
        match self.direction {
            Some(Direction::ToServer) => &[Direction::ToServer],
            Some(Direction::ToClient) => &[Direction::ToClient],
            None => &[Direction::ToServer, Direction::ToClient],
        }
    }
}

/// Flags of a TCP header that a test is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlagsTest {
    /// The flags named.
    pub flags: u8,
    /// Flags that are not looked at.
    pub ignored: u8,
    /// How they are compared.
    pub mode: FlagsMode,
}

/// How flags are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagsMode {
    /// These and no others.
    Exactly,
    /// These, and perhaps others.
    AllOf,
    /// One of these at least.
    AnyOf,
    /// None of these.
    NoneOf,
}

/// A number of a packet's headers.
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
    /// Bytes of the stream so far, of a direction.
    StreamSize(Direction),
}

/// A test of a packet's headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PacketTest {
    /// TCP flags.
    Flags(FlagsTest),
    /// A number lies within a range, or not.
    Number {
        /// Which number.
        field: Field,
        /// The range.
        range: RangeInclusive<u64>,
        /// Whether it must lie outside.
        negated: bool,
    },
    /// Source and destination address are the same.
    SameAddress,
}

/// Where bytes must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Not in front of this byte.
    pub offset: u32,
    /// Within so many bytes from `offset` on.
    pub depth: Option<u32>,
    /// So far behind the end of the test in front, or farther.
    pub distance: Option<i32>,
    /// Not more than so far behind it, counted from `distance` on, ends included.
    pub within: Option<i32>,
    /// At the buffer's end.
    pub at_end: bool,
}

impl Place {
    /// Whether it is counted from the end of the test in front.
    #[inline]
    pub fn is_relative(&self) -> bool {
        self.distance.is_some() || self.within.is_some()
    }

    /// Whether it is a matter of the buffer's start or end.
    pub fn is_anchored(&self) -> bool {
        self.offset > 0 || self.depth.is_some() || self.at_end
    }
}

/// Bytes that must be there, or must not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The bytes; lower case if letters of both cases are the same.
    pub bytes: Vec<u8>,
    /// Whether letters of both cases are the same.
    pub nocase: bool,
    /// Whether they must not be there.
    pub negated: bool,
    /// Where.
    pub place: Place,
    /// Whether the rule wants them looked for first.
    pub fast: bool,
}

/// How two numbers compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Less.
    Less,
    /// Less or the same.
    AtMost,
    /// The same.
    Equal,
    /// Greater.
    Greater,
    /// Greater or the same.
    AtLeast,
    /// They have bits in common.
    And,
    /// They differ, or with one operand exclusively.
    Or,
}

/// A number in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberAt {
    /// How many bytes; with `text`, at most as many as there are digits.
    pub bytes: u32,
    /// Where.
    pub offset: i64,
    /// Whether that is counted from the end of the test in front.
    pub relative: bool,
    /// Whether the last byte is the most significant.
    pub little: bool,
    /// Digits of this base, instead of a binary number.
    pub text: Option<u32>,
}

/// A test of a buffer.
#[derive(Clone, Debug)]
pub enum Test {
    /// Bytes.
    Content(Content),
    /// A regular expression.
    Pattern {
        /// The expression.
        expression: Arc<Expression>,
        /// Whether it begins where the test in front ended.
        relative: bool,
        /// Whether it must not match.
        negated: bool,
    },
    /// There are so many bytes.
    DataAt {
        /// How many.
        bytes: u32,
        /// Counted from the end of the test in front.
        relative: bool,
        /// There are not.
        negated: bool,
    },
    /// A number compares so with a value.
    Compare {
        /// The number.
        number: NumberAt,
        /// How it is compared.
        comparison: Comparison,
        /// With what.
        value: u64,
        /// Whether it must not.
        negated: bool,
    },
    /// What follows is counted from a place that a number tells.
    Jump {
        /// The number.
        number: NumberAt,
        /// By how much it is multiplied.
        multiplier: u32,
        /// Whether it is made a multiple of four.
        align: bool,
        /// Counted from the buffer's start, instead of the number's end.
        from_start: bool,
        /// What is added.
        more: i64,
    },
    /// The buffer has so many bytes.
    Size(RangeInclusive<u64>),
}

impl Test {
    /// Whether it is counted from the end of the test in front.
    #[inline]
    pub fn is_relative(&self) -> bool {
        match self {
            Test::Content(content) => content.place.is_relative(),
            Test::Pattern { relative, .. } | Test::DataAt { relative, .. } => *relative,
            Test::Compare { number, .. } | Test::Jump { number, .. } => number.relative,
            Test::Size(_) => false,
        }
    }
}

/// Tests of one buffer, in order.
#[derive(Clone, Debug)]
pub struct Part {
    /// The buffer.
    pub buffer: BufferKey,
    /// The tests.
    pub tests: Vec<Test>,
}

/// What is noted of a connection, or asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bit {
    /// Note it.
    Set,
    /// Forget it.
    Unset,
    /// Note it if it is not, forget it if it is.
    Toggle,
    /// It is noted.
    IsSet,
    /// It is not.
    IsNotSet,
}

/// What a rule does with notes of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowBit {
    /// What.
    pub what: Bit,
    /// Which: any of them, where it is asked.
    pub names: Vec<String>,
}

/// Whose matches are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Track {
    /// One sender's.
    Source,
    /// One receiver's.
    Destination,
    /// One pair's.
    Both,
    /// All of the rule.
    Rule,
}

/// When a match is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThresholdKind {
    /// The first `count` within the time.
    Limit,
    /// Every one that completes `count`.
    Threshold,
    /// The one that completes `count`, once within the time.
    Both,
    /// All after `count` within the time (`detection_filter`).
    Filter,
}

/// How often matches are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    /// When.
    pub kind: ThresholdKind,
    /// Whose are counted together.
    pub track: Track,
    /// How many.
    pub count: u32,
    /// In what time.
    pub seconds: u32,
}

/// What is told of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Generator.
    pub generator: u32,
    /// Number.
    pub sid: u32,
    /// Revision.
    pub revision: u32,
    /// What it is about.
    pub message: String,
    /// Its class.
    pub class: String,
    /// How grave it is, from 1 on, if the rule says so itself.
    pub priority: Option<u8>,
    /// Keys and values.
    pub metadata: Vec<(String, String)>,
}

/// A rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Where it stands: the line of its file, from 1.
    pub line: u32,
    /// From whom to whom.
    pub header: Header,
    /// What the connection must be.
    pub flow: Flow,
    /// Tests of packet headers.
    pub packet: Vec<PacketTest>,
    /// Tests of buffers.
    pub parts: Vec<Part>,
    /// Notes of connections.
    pub bits: Vec<FlowBit>,
    /// How often matches are told.
    pub thresholds: Vec<Threshold>,
    /// Whether matches are never told.
    pub silent: bool,
    /// What is told of it.
    pub about: About,
}
