//! The division of a server's cache among on-demand instances: what holds for anything that is seen, and what becomes
//! of a server in a closed loop.

mod closed_loop;
mod invariants;
mod rig;
