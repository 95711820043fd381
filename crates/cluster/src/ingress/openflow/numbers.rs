//! Numbers of the protocol.

use super::wire::HEADER;

/// Version on the wire of OpenFlow 1.3.
pub const VERSION: u8 = 4;
/// Number that says that a switch has not buffered a packet.
pub const NO_BUFFER: u32 = u32::MAX;
/// The table that Tailwater's rules are in.
pub const TABLE: u8 = 0;
/// Experimenter of ONF's extensions to OpenFlow 1.3, among them bundles (extension 230).
pub const ONF: u32 = 0x4f4e_4600;
/// Experimenter types of bundles.
pub const BUNDLE_CONTROL: u32 = 2300;
pub const BUNDLE_ADD: u32 = 2301;
/// Flags of a bundle: all of it or nothing, and in order.
pub const ATOMIC_ORDERED: u16 = 3;
/// Bytes of an error's data that are kept: the header of the message it is about.
pub const ERROR_DATA: usize = HEADER;
/// Longest name of a port.
pub const PORT_NAME: usize = 16;
/// Bits of a port's configuration and state that say that it is down.
pub const PORT_DOWN: u32 = 1;
pub const LINK_DOWN: u32 = 1;
/// Length of a port description.
pub const PORT_DESCRIPTION: usize = 64;
/// Element of a hello that has the bitmap of versions.
pub const VERSION_BITMAP: u16 = 1;

/// Types of messages.
pub mod kind {
    pub const HELLO: u8 = 0;
    pub const ERROR: u8 = 1;
    pub const ECHO_REQUEST: u8 = 2;
    pub const ECHO_REPLY: u8 = 3;
    pub const EXPERIMENTER: u8 = 4;
    pub const FEATURES_REQUEST: u8 = 5;
    pub const FEATURES_REPLY: u8 = 6;
    pub const SET_CONFIG: u8 = 9;
    pub const PACKET_IN: u8 = 10;
    pub const PORT_STATUS: u8 = 12;
    pub const PACKET_OUT: u8 = 13;
    pub const FLOW_MOD: u8 = 14;
    pub const MULTIPART_REQUEST: u8 = 18;
    pub const MULTIPART_REPLY: u8 = 19;
    pub const BARRIER_REQUEST: u8 = 20;
    pub const BARRIER_REPLY: u8 = 21;
}

/// Types of multipart messages.
pub mod multipart {
    pub const FLOW: u16 = 1;
    pub const TABLE_FEATURES: u16 = 12;
    pub const PORT_DESCRIPTIONS: u16 = 13;
}
