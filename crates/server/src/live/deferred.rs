//! Chains that start only at the end of a take-over: their state in Redis has one owner, which is the running server
//! until then.

use super::LiveMachine;
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

impl LiveMachine {
    /// Checks a chain that starts at the end of the take-over.
    pub(super) fn defer(&mut self, chain: &AppliedChain) -> Result<(), Refusal> {
        self.port(chain)?;
        self.plan(chain, Some(&chain.name))?;
        if let Some(state) = &chain.settings.state {
            reach(state).map_err(|error| Refusal::new(format!("spec.state.redis: {error}")))?;
        }
        self.taking_over.chains.insert(chain.name.clone(), chain.clone());
        Ok(())
    }

    /// Starts the chains that have waited. The running server has processed all packets, and stored what they changed.
    pub(super) fn start_deferred(&mut self) {
        for (name, chain) in std::mem::take(&mut self.taking_over.chains) {
            match self.launch(&chain, None) {
                Ok(started) => drop(self.chains.insert(name, started)),
                Err(refusal) => drop(self.taking_over.failed.insert(name, refusal.to_string())),
            }
        }
        self.taking_over.is_pending = false;
    }
}

/// Connects to a store once.
fn reach(state: &StateSpec) -> io::Result<()> {
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
