//! A server behind its control socket.

use super::local::{LocalChain, LocalCondition, LocalError, LocalLoad, LocalPhase, LocalServer};
use crate::figures::class_load;
use crate::resources::InstanceFigures;
use std::path::PathBuf;
use tailwater_net::Nanos;
use tailwater_placement::rack::busy_shares;
use tailwater_policy::server::ServerCounters;
use tailwater_server::control::generated::{self as message, ConditionStatus, Phase};
use tailwater_server::control::{Client, ClientError};

/// Server behind its control socket. Connects when it is first needed, and again after an error.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    client: Option<Client>,
}

impl ControlSocket {
    /// Server at this socket. Does not connect yet.
    pub fn new(path: PathBuf) -> ControlSocket {
        ControlSocket { path, client: None }
    }

    fn call<T>(&mut self, call: impl FnOnce(&mut Client) -> Result<T, ClientError>) -> Result<T, ClientError> {
        if self.client.is_none() {
            self.client = Some(Client::connect(&self.path)?);
        }
        let result = call(self.client.as_mut().expect("connected above"));
        if matches!(result, Err(ClientError::Connection(_) | ClientError::NoServer { .. })) {
            self.client = None;
        }
        result
    }
}

fn error(error: ClientError) -> LocalError {
    match error {
        ClientError::Invalid(reason) | ClientError::NotFound(reason) | ClientError::Refused(reason) => {
            LocalError::Refused(reason)
        }
        other => LocalError::Unreachable(other.to_string()),
    }
}

impl LocalServer for ControlSocket {
    fn apply(&mut self, name: &str, manifest: &str, _profiles: &[String], force: bool) -> Result<(), LocalError> {
        let manifest = message::Manifest {
            source: format!("chain {name}"),
            path: String::new(),
            yaml: manifest.to_owned(),
        };
        let request = message::ApplyRequest {
            manifests: vec![manifest],
            dry_run: false,
            force,
        };
        self.call(|client| client.apply(request)).map(drop).map_err(error)
    }

    fn delete(&mut self, name: &str) -> Result<(), LocalError> {
        let request = message::DeleteRequest {
            names: vec![name.to_owned()],
            dry_run: false,
        };
        match self.call(|client| client.delete(request)) {
            Ok(_) | Err(ClientError::NotFound(_)) => Ok(()),
            Err(other) => Err(error(other)),
        }
    }

    fn loads(&mut self) -> Result<Vec<LocalLoad>, LocalError> {
        let response = self.call(|client| client.loads()).map_err(error)?;
        Ok(response.chains.into_iter().map(local_load).collect())
    }

    fn list(&mut self) -> Result<Vec<LocalChain>, LocalError> {
        let response = self.call(|client| client.list()).map_err(error)?;
        let mut chains: Vec<LocalChain> = response.chains.into_iter().map(local_chain).collect();
        set_busy_shares(&mut chains);
        Ok(chains)
    }
}

fn local_chain(chain: message::Chain) -> LocalChain {
    let phase = match chain.phase() {
        Phase::Unspecified | Phase::Pending | Phase::Starting => LocalPhase::Starting,
        Phase::Running => LocalPhase::Running,
        Phase::Draining | Phase::Drained => LocalPhase::Draining,
        Phase::Failed => LocalPhase::Failed,
    };
    let latency = chain.latency.and_then(|latency| latency.p99_nanos).map(Nanos);
    let packets = chain.packets.unwrap_or_default();
    let figures = chain.rates.map(|rates| InstanceFigures {
        offered: rates.offered,
        latency_nanos: latency.map_or(0, |latency| latency.0),
        packets: [packets.offered, packets.delivered, packets.dropped, packets.lost],
        // Cores in use, until those of others are known.
        busy: Some(rates.cores),
    });
    let conditions = chain.conditions.into_iter().map(|condition| LocalCondition {
        holds: match condition.status() {
            ConditionStatus::True => Some(true),
            ConditionStatus::False => Some(false),
            ConditionStatus::Unknown | ConditionStatus::Unspecified => None,
        },
        name: condition.r#type,
        reason: condition.reason,
        message: condition.message,
    });
    LocalChain {
        phase,
        conditions: conditions.collect(),
        cores: chain.cores.map(|cores| cores.dedicated).unwrap_or_default(),
        latency,
        figures,
        name: chain.name,
        reason: chain.reason,
        bound_state: Some(chain.bound_state).filter(|reason| !reason.is_empty()),
    }
}

/// Sets the chains' shares of their cores' time from the cores that they use.
fn set_busy_shares(chains: &mut [LocalChain]) {
    let used = |chain: &LocalChain| chain.figures.and_then(|figures| figures.busy).unwrap_or_default();
    let uses: Vec<(&[u32], f64)> = chains.iter().map(|chain| (&*chain.cores, used(chain))).collect();
    let shares = busy_shares(&uses);
    for (chain, share) in chains.iter_mut().zip(shares) {
        if let Some(figures) = &mut chain.figures {
            figures.busy = Some(share);
        }
    }
}

fn local_load(load: message::ChainLoad) -> LocalLoad {
    let classes = load.classes.iter();
    LocalLoad {
        measured: Nanos(load.measured_nanos),
        counters: ServerCounters {
            offered: load.offered,
            processed: load.processed,
            busy: Nanos(load.busy_nanos),
            late: load.late,
        },
        classes: classes
            .filter_map(|class| class_load(&class.destination, class.source_bits, class.packets))
            .collect(),
        name: load.name,
    }
}
