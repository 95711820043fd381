//! Division of a server's cache among on-demand instances: invariants for any observations, and a server in a closed
//! loop.

mod closed_loop;
mod invariants;
mod rig;
