//! Rigs.

pub mod api_server;
pub mod rack;
