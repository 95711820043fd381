//! Rigs.

pub mod api_server;
