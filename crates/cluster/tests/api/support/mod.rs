//! Rigs.

pub mod api_server;
mod model;
pub mod rack;
mod real;
