//! Extension module `tailwater._native` of the Python package: chains whose functions run one packet at a time in
//! Python's process, and packets of captures and presets.
//!
//! The package in `python/` wraps it; its types are in `python/tailwater/_native.pyi`. All that measures or simulates
//! is the `tailwater` program's. Wrong input raises `tailwater.InputError`: no panic crosses the boundary.

mod call;
mod chain;
mod errors;
mod packet;
mod runner;
mod source;

use pyo3::prelude::*;

/// Chains and packets.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::chain::Chain;
    #[pymodule_export]
    use crate::packet::Packet;
    #[pymodule_export]
    use crate::source::{Packets, write_capture};
}
