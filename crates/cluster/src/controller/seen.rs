//! Servers whose agents renew their leases.

use crate::resources::server_lease;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use std::collections::HashMap;
use std::sync::Arc;
use tailwater_net::Nanos;

/// Last renewals of the servers' leases, by this controller's clock. The election's lease, which the leader renews, is
/// among the leases: renewals are seen as long as there is an API server.
#[derive(Debug)]
pub struct Servers {
    /// Time without a renewal after which a server counts as lost.
    lost_after: Nanos,
    /// Time of the latest renewal that was seen of any lease.
    newest: Nanos,
    seen: HashMap<String, (Option<Timestamp>, Nanos)>,
}

impl Servers {
    /// Servers count as lost when their leases have not been renewed for `lost_after`.
    pub fn new(lost_after: Nanos) -> Servers {
        Servers {
            lost_after,
            newest: Nanos::ZERO,
            seen: HashMap::new(),
        }
    }

    /// Notes the leases as they are now.
    pub fn see(&mut self, leases: &[Arc<Lease>], now: Nanos) {
        let mut before = std::mem::take(&mut self.seen);
        let mut is_any_renewed = before.is_empty();
        for lease in leases {
            let name = lease.name_any();
            let renewed = lease
                .spec
                .as_ref()
                .and_then(|spec| spec.renew_time.as_ref())
                .map(|time| time.0);
            let known = before.remove(&name).filter(|(seen, _)| *seen == renewed);
            is_any_renewed |= known.is_none();
            let since = known.map_or(now, |(_, since)| since);
            self.seen.insert(name, (renewed, since));
        }
        if is_any_renewed {
            self.renew(now);
        }
    }

    /// Notes that a renewal was seen. If there was none of any lease for long, the API server was away, or this
    /// controller: nobody was silent in that time.
    fn renew(&mut self, now: Nanos) {
        if now.saturating_sub(self.newest) > Nanos(self.lost_after.0 / 2) {
            for (_, since) in self.seen.values_mut() {
                *since = now;
            }
        }
        self.newest = now;
    }

    /// Time of the last renewal that this controller has seen. `None` if there is no lease.
    pub fn last_seen(&self, server: &str) -> Option<Nanos> {
        self.seen.get(&server_lease(server)).map(|(_, since)| *since)
    }

    /// Returns `true` if a server has not renewed its lease for too long.
    pub fn is_lost(&self, server: &str) -> bool {
        self.last_seen(server)
            .is_some_and(|since| self.newest.saturating_sub(since) >= self.lost_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
    use kube::api::ObjectMeta;

    /// Leases with the seconds of their last renewals.
    fn leases(renewed: [(&str, i64); 3]) -> Vec<Arc<Lease>> {
        let lease = |(name, second): (&str, i64)| {
            Arc::new(Lease {
                metadata: ObjectMeta {
                    name: Some(name.to_owned()),
                    ..ObjectMeta::default()
                },
                spec: Some(LeaseSpec {
                    renew_time: Some(MicroTime(Timestamp::from_second(second).unwrap())),
                    ..LeaseSpec::default()
                }),
            })
        };
        renewed.map(lease).into()
    }

    fn lost(servers: &Servers) -> [bool; 2] {
        ["a", "b"].map(|name| servers.is_lost(name))
    }

    #[test]
    fn a_server_that_alone_does_not_renew_its_lease_is_lost() {
        let mut servers = Servers::new(Nanos::from_secs(5));
        for second in 0..5 {
            servers.see(
                &leases([("server-a", second), ("server-b", 0), ("election", second)]),
                Nanos::from_secs(second as u64),
            );
            assert_eq!(lost(&servers), [false, false]);
        }
        servers.see(
            &leases([("server-a", 5), ("server-b", 0), ("election", 5)]),
            Nanos::from_secs(5),
        );
        assert_eq!(lost(&servers), [false, true]);
        assert_eq!(servers.last_seen("c"), None);
        servers.see(
            &leases([("server-a", 6), ("server-b", 6), ("election", 6)]),
            Nanos::from_secs(6),
        );
        assert_eq!(lost(&servers), [false, false]);
    }

    #[test]
    fn a_server_with_the_name_of_the_election_has_a_lease_of_its_own() {
        let mut servers = Servers::new(Nanos::from_secs(5));
        servers.see(
            &leases([("server-a", 0), ("server-b", 0), ("tailwater-controller", 0)]),
            Nanos::ZERO,
        );
        assert_eq!(servers.last_seen("tailwater-controller"), None);
    }

    #[test]
    fn nobody_is_lost_while_the_api_server_is_away_nor_when_it_returns() {
        let mut servers = Servers::new(Nanos::from_secs(5));
        servers.see(
            &leases([("server-a", 0), ("server-b", 0), ("election", 0)]),
            Nanos::ZERO,
        );
        servers.see(
            &leases([("server-a", 0), ("server-b", 0), ("election", 0)]),
            Nanos::from_secs(60),
        );
        assert_eq!(lost(&servers), [false, false]);
        // The first to renew its lease is not alone for long.
        servers.see(
            &leases([("server-a", 60), ("server-b", 0), ("election", 0)]),
            Nanos::from_secs(60),
        );
        assert_eq!(lost(&servers), [false, false]);
        // It counts from then on.
        for second in 61..65 {
            servers.see(
                &leases([("server-a", second), ("server-b", 0), ("election", second)]),
                Nanos::from_secs(second as u64),
            );
            assert_eq!(lost(&servers), [false, false]);
        }
        servers.see(
            &leases([("server-a", 65), ("server-b", 0), ("election", 65)]),
            Nanos::from_secs(65),
        );
        assert_eq!(lost(&servers), [false, true]);
    }
}
