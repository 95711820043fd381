//! `LoadBalancer`: flows to virtual services spread over backends by Maglev hashing (Eisenbud et
//! al., "Maglev: A Fast and Reliable Software Network Load Balancer", NSDI 2016).
//!
//! A flow's backend is chosen on its first packet and kept with the flow, as a number that stands
//! for the same destination in every version of the table: a change of backends moves a flow only
//! if its own backend is down or gone. All balancers with the same services choose alike, whatever
//! they remember.

mod function;
mod maglev;
mod table;

pub use function::LoadBalancer;
pub use maglev::{DEFAULT_TABLE_SIZE, is_prime};
pub use table::{
    Backend, BackendState, Choices, Destination, LoadBalancerTable, MAX_BACKENDS, MAX_SERVICES, MAX_WEIGHT, Service,
    TableError, most_backends,
};

#[cfg(test)]
mod tests;
