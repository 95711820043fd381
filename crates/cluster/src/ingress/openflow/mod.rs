//! OpenFlow 1.3 as the ingress needs it: a codec of few messages.
//!
//! Lengths are checked before anything is read, and nothing is allocated by a number that the peer sent: a message has
//! 65,535 bytes at most, and lists grow by the entries that are there. Errors have the field.
//!
//! Bundles are those of ONF's extension 230, which is how Open vSwitch has them in OpenFlow 1.3.

mod codec;
mod flow;
mod message;
mod numbers;
mod structures;
mod wire;

pub use codec::length_of;
pub use message::{
    BundleStep, ErrorMessage, Features, FlowCommand, FlowMod, FlowStatistics, Message, Multipart, PacketIn,
    PortDescription,
};
pub use wire::{MAX_MESSAGE, OpenFlowError};

#[cfg(test)]
mod tests;
