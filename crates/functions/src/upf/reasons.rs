//! Why packets are dropped, and what is counted of others.

/// The names of reasons, in the order of their numbers.
pub(super) const REASONS: &[&str] = &[
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

/// By a tunnel that no session has.
pub(super) const UNKNOWN_TEID: u8 = 0;
/// Neither by a tunnel, nor of any session.
pub(super) const UNKNOWN_USER: u8 = 1;
/// No GTP-U, or a length that is not the packet's.
pub(super) const MALFORMED: u8 = 2;
/// A fragment of a tunnel's packet.
pub(super) const FRAGMENT: u8 = 3;
/// A message, or an extension header, that is not known.
pub(super) const UNSUPPORTED: u8 = 4;
/// What is in a tunnel's packet is no IP packet.
pub(super) const INNER_MALFORMED: u8 = 5;
/// The packet inside is of another address than the session's.
pub(super) const NOT_ITS_ADDRESS: u8 = 6;
/// The packet's QFI is not its rule's.
pub(super) const WRONG_QFI: u8 = 7;
/// Its rule lets nothing pass.
pub(super) const GATE_CLOSED: u8 = 8;
/// No rule matches.
pub(super) const NO_RULE: u8 = 9;
/// Beyond the rate of its rule.
pub(super) const OVER_RATE: u8 = 10;
/// Beyond the session's rate.
pub(super) const OVER_SESSION_RATE: u8 = 11;
/// Encapsulated, it would be longer than the MTU.
pub(super) const TOO_BIG: u8 = 12;
/// The session has no tunnel to its user.
pub(super) const NO_TUNNEL: u8 = 13;
/// The packet's buffer has no room for the headers.
pub(super) const NO_ROOM: u8 = 14;
/// A message for this end, which goes no further.
pub(super) const SIGNALLING: u8 = 15;
/// Congestion on the way that the packet inside cannot tell of (RFC 6040).
pub(super) const CONGESTION: u8 = 16;

/// The names of what is counted, in the order of their places.
pub(super) const NOTES: &[&str] = &[
    "decapsulated",
    "encapsulated",
    "echo-answered",
    "error-indications",
    "too-big-told",
    "wrong-qfi-passed",
    "end-markers",
    "peer-errors",
];
pub(super) const DECAPSULATED: usize = 0;
pub(super) const ENCAPSULATED: usize = 1;
pub(super) const ECHO_ANSWERED: usize = 2;
pub(super) const ERRORS_SENT: usize = 3;
pub(super) const TOO_BIG_TOLD: usize = 4;
pub(super) const WRONG_QFI_PASSED: usize = 5;
pub(super) const END_MARKERS: usize = 6;
pub(super) const PEER_ERRORS: usize = 7;
