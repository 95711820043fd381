//! Chains that start only at the end of a take-over: their state in Redis has one owner, which is the running server
//! until then.

use super::ended::CarriedCounts;
use crate::chain::AppliedChain;
use crate::machine::{ChainObservation, ChainState, Refusal};
use std::collections::BTreeMap;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tailwater_api::{RedisAddress, StateSpec};

/// Longest wait for Redis, before anything stops.
const PATIENCE: Duration = Duration::from_secs(1);

/// State of a take-over by this machine.
#[derive(Debug, Default)]
pub(super) struct TakingOver {
    /// It has not taken over yet. Functions continue the files that they write.
    pub(super) is_pending: bool,
    /// Chains that wait for it.
    chains: BTreeMap<String, AppliedChain>,
    /// Chains that could not start then.
    failed: BTreeMap<String, FailedChain>,
}

/// Chain that could not start at the end of a take-over.
#[derive(Debug)]
struct FailedChain {
    reason: String,
    /// Its counts in the process that this one has taken over from.
    carried: CarriedCounts,
}

impl TakingOver {
    /// State of a machine that takes over if it `is_pending`.
    pub(super) fn new(is_pending: bool) -> TakingOver {
        TakingOver {
            is_pending,
            ..TakingOver::default()
        }
    }

    /// Returns `true` if a chain has to wait.
    pub(super) fn defers(&self, chain: &AppliedChain) -> bool {
        self.is_pending && chain.settings.state.is_some()
    }

    /// Chains that wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &AppliedChain> {
        self.chains.values()
    }

    /// Returns `true` if the chain of this name waits.
    pub(super) fn has(&self, name: &str) -> bool {
        self.chains.contains_key(name)
    }

    /// Forgets a chain that could not start. Returns its counts in the process that this one has taken over from.
    pub(super) fn forget(&mut self, name: &str) -> CarriedCounts {
        self.failed
            .remove(name)
            .map_or(CarriedCounts::default(), |failed| failed.carried)
    }

    /// Lets a chain wait.
    pub(super) fn add(&mut self, chain: &AppliedChain) {
        self.chains.insert(chain.name.clone(), chain.clone());
    }

    /// Takes the chains that have waited out.
    pub(super) fn take(&mut self) -> BTreeMap<String, AppliedChain> {
        std::mem::take(&mut self.chains)
    }

    /// Notes the reason for which a chain could not start.
    pub(super) fn fail(&mut self, name: String, reason: String) {
        let carried = CarriedCounts::default();
        self.failed.insert(name, FailedChain { reason, carried });
    }

    /// Notes why a chain that could not start could not do so again, if it is one.
    pub(super) fn fail_again(&mut self, name: &str, refusal: &Refusal) {
        if let Some(failed) = self.failed.get_mut(name) {
            failed.reason = refusal.to_string();
        }
    }

    /// Notes the counts of a chain in the process that this one has taken over from, if it could not start.
    pub(super) fn carry(&mut self, name: &str, carried: CarriedCounts) {
        if let Some(failed) = self.failed.get_mut(name) {
            failed.carried = carried;
        }
    }

    /// States of the chains that do not run yet, or could not start.
    pub(super) fn observations(&self) -> impl Iterator<Item = ChainObservation> {
        let waiting = self.chains.keys();
        let waiting = waiting.map(|name| ChainObservation::new(name, ChainState::Starting));
        let failed = self.failed.iter().map(|(name, failed)| {
            let mut observation = ChainObservation::new(name, ChainState::Failed(failed.reason.clone()));
            observation.packets = failed.carried.packets;
            observation
        });
        waiting.chain(failed)
    }
}

/// Connects to a store once.
pub(super) fn reach(state: &StateSpec) -> io::Result<()> {
    match &state.redis.address {
        RedisAddress::Socket(path) => UnixStream::connect(path).map(drop),
        RedisAddress::Tcp(host, port) | RedisAddress::Tls { host, port, .. } => {
            let mut last = io::ErrorKind::NotFound.into();
            for address in (host.as_str(), *port).to_socket_addrs()? {
                match TcpStream::connect_timeout(&address, PATIENCE) {
                    Ok(_) => return Ok(()),
                    Err(error) => last = error,
                }
            }
            Err(last)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::PacketCounts;

    /// They were 0 until the chain ran again.
    #[test]
    fn a_failed_chain_shows_the_packets_of_the_process_before() {
        let packets = PacketCounts {
            offered: 10,
            delivered: 7,
            dropped: 2,
            lost: 1,
        };
        let mut taking_over = TakingOver::new(true);
        taking_over.fail("edge".to_owned(), "no Redis".to_owned());
        let carried = CarriedCounts {
            packets,
            ..CarriedCounts::default()
        };
        taking_over.carry("edge", carried.clone());
        taking_over.carry("other", carried.clone());
        taking_over.fail_again("edge", &Refusal::new("still no Redis"));
        let observed: Vec<_> = taking_over.observations().collect();
        assert_eq!(observed.len(), 1);
        assert_eq!(observed[0].packets, packets);
        assert!(matches!(&observed[0].state, ChainState::Failed(reason) if reason == "still no Redis"));
        // They go on in the chain once it starts.
        assert_eq!(taking_over.forget("edge"), carried);
        assert_eq!(taking_over.forget("edge"), CarriedCounts::default());
    }
}
