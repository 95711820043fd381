//! Drop reasons and counters.

/// Names of the drop reasons, in order of their numbers.
pub(super) const DROP_REASONS: &[&str] = &[
    "unknown-teid",
    "unknown-user",
    "malformed",
    "fragment",
    "unsupported",
    "inner-malformed",
    "not-its-address",
    "wrong-qfi",
    "gate-closed",
    "no-rule",
    "over-rate",
    "over-session-rate",
    "too-big",
    "no-tunnel",
    "no-room",
    "signalling",
    "congestion",
];

/// The TEID belongs to no session.
pub(super) const UNKNOWN_TEID: u8 = 0;
/// A packet outside tunnels belongs to no session.
pub(super) const UNKNOWN_USER: u8 = 1;
/// Not GTP-U, or the length disagrees with the packet's.
pub(super) const MALFORMED: u8 = 2;
/// A fragment of an outer packet.
pub(super) const FRAGMENT: u8 = 3;
/// Unknown message or extension header.
pub(super) const UNSUPPORTED: u8 = 4;
/// The payload of a G-PDU is not an IP packet.
pub(super) const INNER_MALFORMED: u8 = 5;
/// The inner packet's UE address is not the session's.
pub(super) const NOT_ITS_ADDRESS: u8 = 6;
/// The packet's QFI is not its rule's.
pub(super) const WRONG_QFI: u8 = 7;
/// The gate of its rule is closed.
pub(super) const GATE_CLOSED: u8 = 8;
/// No rule matches.
pub(super) const NO_RULE: u8 = 9;
/// The rate of its rule is exceeded.
pub(super) const OVER_RATE: u8 = 10;
/// The session's rate is exceeded.
pub(super) const OVER_SESSION_RATE: u8 = 11;
/// The encapsulated packet would exceed the MTU.
pub(super) const TOO_BIG: u8 = 12;
/// The session has no tunnel to its UE.
pub(super) const NO_TUNNEL: u8 = 13;
/// The buffer has no room for the headers.
pub(super) const NO_ROOM: u8 = 14;
/// A message for this endpoint, which is consumed.
pub(super) const SIGNALLING: u8 = 15;
/// Congestion was marked on the path, and the inner packet is not ECN-capable (RFC 6040).
pub(super) const CONGESTION: u8 = 16;

/// Names of the counters, in order of their indices.
pub(super) const COUNTERS: &[&str] = &[
    "decapsulated",
    "encapsulated",
    "echo-answered",
    "error-indications",
    "too-big-told",
    "wrong-qfi-passed",
    "end-markers",
    "peer-errors",
    "usage-unwritten",
];
pub(super) const DECAPSULATED: usize = 0;
pub(super) const ENCAPSULATED: usize = 1;
pub(super) const ECHO_ANSWERED: usize = 2;
pub(super) const ERRORS_SENT: usize = 3;
pub(super) const TOO_BIG_TOLD: usize = 4;
pub(super) const WRONG_QFI_PASSED: usize = 5;
pub(super) const END_MARKERS: usize = 6;
pub(super) const PEER_ERRORS: usize = 7;
pub(super) const USAGE_UNWRITTEN: usize = 8;
