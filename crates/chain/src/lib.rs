//! Chains of network functions and what they are made of: packet buffers and batches, the flow table, the
//! [`NetworkFunction`](function::NetworkFunction) trait, and a [`Chain`](chain::Chain) that passes batches through
//! functions.

pub mod batch;
pub mod branches;
pub mod buffer;
pub mod chain;
mod flow_memory;
pub mod flow_table;
mod flow_wheel;
pub mod function;
pub mod line;
pub mod live;
pub mod packet_traces;
pub mod parcel;
pub mod region;
pub mod rig;
pub mod shared_counters;
