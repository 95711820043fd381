//! The network functions, their configuration in chain specs, and building chains of them.
//!
//! A function is one directory, and its [kind] is one line of the [registry]. In the directory, `spec.rs` has the
//! fields and their parser, `function.rs` the processing of packets, `kind.rs` building and updates while a chain runs.
//! [`spec`] reads chain specs, [`build`] makes the chains that workers run.

pub mod accounting;
pub mod acl;
pub mod bpf_filter;
pub mod build;
pub mod classifier;
pub mod count;
pub mod dns_guard;
pub mod encrypt;
#[cfg(test)]
mod explanations;
mod exporter;
pub mod external;
pub mod firewall;
pub mod flow_stats;
pub mod forward;
pub mod ids;
pub mod ip_forward;
pub mod ipsec;
pub mod kind;
pub mod library;
pub mod load_balancer;
pub mod mirror;
pub mod nat;
mod origin;
pub mod out_file;
pub mod own;
pub mod policer;
pub mod registry;
pub mod reload;
mod rewrite;
pub mod spec;
mod stream_pool;
pub mod synthetic;
pub mod tunnel;
pub mod upf;
pub mod url_filter;
pub mod wan_optimizer;
pub mod wasm;
pub mod xdp;
