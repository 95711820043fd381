//! `tailwater_nf.h` in Rust: the same types, field by field, documented there.
//!
//! The crate's tests compile a C program that prints size and offset of each field.

use std::os::raw::{c_char, c_int, c_void};

/// Version of the header.
pub const ABI_VERSION: u32 = 2;
/// Maximum number of drop reasons.
pub const MAX_DROP_REASONS: usize = 15;
/// Maximum number of counters.
pub const MAX_COUNTERS: usize = 32;
/// Maximum size of a flow's state, in bytes.
pub const MAX_STATE_BYTES: usize = 1024;
/// Size of an [`Explanation`] in bytes.
pub const MAX_EXPLANATION: usize = 192;
/// [`Packet::flow`] in a chain without flow table.
pub const NO_FLOW: u32 = u32::MAX;

/// [`Packet::flags`]: first packet of its flow in this function.
pub const NEW_FLOW: u8 = 1;
/// [`Packet::flags`]: the function changed headers or length.
pub const REWRITTEN: u8 = 2;

/// [`Packet::verdict`]: the packet is forwarded. Drop reason `r` is encoded as `r + 1`.
pub const FORWARD: u8 = 0;

/// [`Function::flags`]: the function neither reads nor writes payload.
pub const HEADERS_ONLY: u32 = 1;
/// [`Function::flags`]: the function changes addresses or ports.
pub const REWRITES_FLOWS: u32 = 2;

/// `struct tw_flow_key`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct FlowKey {
    pub words: [u64; 5],
}

/// `struct tw_packet`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Packet {
    pub frame: *mut u8,
    pub state: *mut c_void,
    pub key: *const FlowKey,
    pub arrival_ns: u64,
    pub length: u32,
    pub flow: u32,
    pub rss_hash: u32,
    pub network_offset: u16,
    pub transport_offset: u16,
    pub payload_offset: u16,
    pub end: u16,
    pub headroom: u16,
    pub tailroom: u16,
    pub ip_version: u8,
    pub fragment: u8,
    pub flags: u8,
    pub verdict: u8,
    pub reserved: u32,
}

/// `struct tw_batch`.
#[derive(Debug)]
#[repr(C)]
pub struct Batch {
    pub packets: *mut Packet,
    pub counters: *mut u64,
    pub count: u32,
    pub reserved: u32,
}

/// `struct tw_ended_flow`.
#[derive(Debug)]
#[repr(C)]
pub struct EndedFlow {
    pub key: *const FlowKey,
    pub state: *const c_void,
}

/// `struct tw_error`.
#[derive(Debug)]
#[repr(C)]
pub struct Error {
    pub message: [c_char; 512],
    pub field: [c_char; 128],
}

/// `struct tw_explanation`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Explanation {
    pub text: [c_char; MAX_EXPLANATION],
}

/// `struct tw_drop_reason`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DropReason {
    pub name: *const c_char,
    pub is_loss: u32,
}

/// `configure` of a [`Function`].
pub type Configure = unsafe extern "C" fn(*const c_char, usize, *mut *mut c_void, *mut Error) -> c_int;
/// `release` and `stop` of a [`Function`].
pub type End = unsafe extern "C" fn(*mut c_void);
/// `start` of a [`Function`].
pub type Start = unsafe extern "C" fn(*const c_void) -> *mut c_void;
/// `process` of a [`Function`].
pub type Process = unsafe extern "C" fn(*mut c_void, *mut Batch) -> c_int;
/// `flows_ended` of a [`Function`].
pub type FlowsEnded = unsafe extern "C" fn(*mut c_void, *const EndedFlow, u32, *mut u64);
/// `explain` of a [`Function`].
pub type Explain = unsafe extern "C" fn(*const c_void, *const Packet, *mut Explanation);

/// `struct tw_function`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Function {
    pub abi_version: u32,
    pub size: u32,
    pub name: *const c_char,
    pub flags: u32,
    pub state_bytes: u32,
    pub drop_reasons: *const DropReason,
    pub counters: *const *const c_char,
    pub drop_reason_count: u32,
    pub counter_count: u32,
    pub configure: Option<Configure>,
    pub release: Option<End>,
    pub start: Option<Start>,
    pub stop: Option<End>,
    pub process: Option<Process>,
    pub flows_ended: Option<FlowsEnded>,
    pub state_version: u32,
    pub reserved: u32,
    pub explain: Option<Explain>,
}

// SAFETY: the description is never written; its pointers refer to static data of its library.
unsafe impl Sync for Function {}
// SAFETY: as above.
unsafe impl Sync for DropReason {}
