//! Slots of flows; requests of functions for companion flows, and the worker's responses.

use tailwater_net::FlowKey;

/// Slot of a flow, with the generation that tells the flow from others in that slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowSlot {
    /// Slot in the flow table.
    pub flow: u32,
    /// Generation of the flow.
    pub generation: u64,
}

/// Kind of a companion request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompanionRequestKind {
    /// Open a companion flow.
    Open,
    /// As `Open`, or make a flow that the function has not seen the companion.
    Rejoin,
    /// Check that no flow has the key.
    Free,
}

impl CompanionRequestKind {
    pub(super) fn decode(number: u8) -> CompanionRequestKind {
        match number {
            1 => CompanionRequestKind::Rejoin,
            2 => CompanionRequestKind::Free,
            _ => CompanionRequestKind::Open,
        }
    }
}

/// Request of a function for a companion of a packet's flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompanionRequest {
    /// Number of the request, one more than the last.
    pub number: u64,
    /// Kind of the request.
    pub kind: CompanionRequestKind,
    /// Slot of the packet.
    pub at: u16,
    /// RSS hash of the companion's packets.
    pub rss_hash: u32,
    /// Key of the companion.
    pub key: FlowKey,
}

/// Reasons for which the worker opens no companion flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompanionRefusal {
    /// Another flow has the key.
    Taken = 1,
    /// The key belongs to another RSS bucket than the packet's flow.
    OtherBucket = 2,
    /// The flow has a companion.
    HasOne = 3,
    /// The flow table is full, or the request was invalid.
    TableFull = 4,
}

impl CompanionRefusal {
    pub(super) fn decode(number: u8) -> CompanionRefusal {
        match number {
            1 => CompanionRefusal::Taken,
            2 => CompanionRefusal::OtherBucket,
            3 => CompanionRefusal::HasOne,
            _ => CompanionRefusal::TableFull,
        }
    }
}

/// Response of the worker: the companion, or the reason for which there is none.
pub type CompanionResponse = Result<FlowSlot, CompanionRefusal>;
