//! Chains that start only at the end of a take-over: their state in Redis has one owner, which is the running server
//! until then.

use crate::chain::AppliedChain;
use crate::machine::{ChainObservation, ChainState};
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
    /// Chains that could not start then, and why.
    failed: BTreeMap<String, String>,
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

    /// Forgets a chain that could not start.
    pub(super) fn forget(&mut self, name: &str) {
        self.failed.remove(name);
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
        self.failed.insert(name, reason);
    }

    /// States of the chains that do not run yet, or could not start.
    pub(super) fn observations(&self) -> impl Iterator<Item = ChainObservation> {
        let waiting = self.chains.keys().map(|name| (name, ChainState::Starting));
        let failed = self.failed.iter();
        let failed = failed.map(|(name, reason)| (name, ChainState::Failed(reason.clone())));
        waiting
            .chain(failed)
            .map(|(name, state)| ChainObservation::new(name, state))
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
