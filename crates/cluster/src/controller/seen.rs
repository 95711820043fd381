//! Servers whose agents renew their leases.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use std::collections::HashMap;
use std::sync::Arc;
use tailwater_net::Nanos;

/// Last renewals of the servers' leases, by this controller's clock.
#[derive(Debug)]
pub struct Servers {
    /// Time without a renewal after which a server counts as lost.
    lost_after: Nanos,
    now: Nanos,
    seen: HashMap<String, (Option<Timestamp>, Nanos)>,
}

impl Servers {
    /// Servers count as lost when their leases have not been renewed for `lost_after`.
    pub fn new(lost_after: Nanos) -> Servers {
        Servers {
            lost_after,
            now: Nanos::ZERO,
            seen: HashMap::new(),
        }
    }

    /// Notes the leases as they are now.
    pub fn see(&mut self, leases: &[Arc<Lease>], now: Nanos) {
        let mut before = std::mem::take(&mut self.seen);
        self.now = now;
        for lease in leases {
            let name = lease.name_any();
            let renewed = lease
                .spec
                .as_ref()
                .and_then(|spec| spec.renew_time.as_ref())
                .map(|time| time.0);
            let since = before
                .remove(&name)
                .filter(|(seen, _)| *seen == renewed)
                .map_or(now, |(_, since)| since);
            self.seen.insert(name, (renewed, since));
        }
    }

    /// Time of the last renewal that this controller has seen. `None` if there is no lease.
    pub fn last_seen(&self, server: &str) -> Option<Nanos> {
        self.seen.get(server).map(|(_, since)| *since)
    }

    /// Returns `true` if a server has not renewed its lease for too long.
    pub fn is_lost(&self, server: &str) -> bool {
        self.last_seen(server)
            .is_some_and(|since| self.now.saturating_sub(since) >= self.lost_after)
    }
}
