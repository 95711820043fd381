//! `LoadBalancer`: spreads flows to virtual services over backends by Maglev hashing (Eisenbud et al., "Maglev: A Fast
//! and Reliable Software Network Load Balancer", NSDI 2016).
//!
//! A flow's backend is chosen on its first packet and kept in the flow state as a number. The number means the same
//! destination in every version of the table. So a change of backends moves a flow only if its own backend is down or
//! gone. Balancers with the same services choose alike for new flows, independent of their state.

mod function;
mod kind;
mod maglev;
mod spec;
mod table;

pub use function::LoadBalancer;
pub use kind::KIND;
pub use maglev::{DEFAULT_TABLE_SIZE, is_prime};
pub use spec::LoadBalancerConfig;
pub use table::{
    Backend, BackendState, Destination, LoadBalancerTable, MAX_BACKENDS, MAX_SERVICES, MAX_WEIGHT, Service,
    ServiceTable, TableError, most_backends,
};

#[cfg(test)]
mod tests;
