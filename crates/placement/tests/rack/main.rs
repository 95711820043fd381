//! The rack's controller against a model of servers that admit by themselves: tables, and invariants for any rack.

mod by_busy_share;
mod chains;
mod moves;
mod pools;
mod properties;
mod servers;
mod work;
mod world;
