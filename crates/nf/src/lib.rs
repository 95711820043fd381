//! The NetworkFunction trait, flow-local state, chain specs and the function library.

pub mod accounting;
pub mod acl;
pub mod batch;
pub mod buffer;
pub mod build;
pub mod chain;
pub mod chunks;
pub mod encrypt;
mod flow_memory;
pub mod flow_table;
mod flow_wheel;
pub mod forward;
pub mod function;
pub mod ip_forward;
pub mod ipsec;
pub mod library;
pub mod line;
pub mod load_balancer;
pub mod nat;
pub mod parcel;
pub mod policer;
pub mod region;
mod rewrite;
pub mod spec;
pub mod tunnel;
pub mod url_filter;
