//! The NetworkFunction trait, flow-local state, chain specs and the function library.

pub mod acl;
pub mod spec;
