//! Interface to the controller that leases ways.

use tailwater_net::Nanos;
use tailwater_placement::lease::{Grant, Request};

/// Controller that grants leases, or a connection to it.
pub trait Controller {
    /// Sends a request, if there is one, and returns the grants received since the last call.
    fn exchange(&mut self, now: Nanos, request: Option<&Request>) -> Vec<Grant>;
}

/// No controller: no leases.
impl Controller for () {
    fn exchange(&mut self, _: Nanos, _: Option<&Request>) -> Vec<Grant> {
        Vec::new()
    }
}
