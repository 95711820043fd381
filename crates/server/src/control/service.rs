//! The calls of the control API.

use super::access::Role;
use super::generated as message;
use super::generated::control_server::Control;
use super::limits::Limits;
use super::messages;
use super::streams::{self, Stream};
use super::traces;
use crate::configuration::ControlError;
use crate::request::{Applied, Command, Request};
use crate::status::{ChainStatus, Phase, Snapshot};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};
use tailwater_net::Nanos;
use tokio::sync::{Semaphore, oneshot, watch};
use tonic::{Response, Status};

/// Maximum number of a chain's events in its description.
const EVENTS: usize = 20;

type Answer<T> = Result<Response<T>, Status>;

/// Answers of the server.
#[derive(Clone)]
pub(super) struct Service {
    snapshot: watch::Receiver<Arc<Snapshot>>,
    commands: SyncSender<Command>,
    followers: Arc<Semaphore>,
}

impl Service {
    pub(super) fn new(
        snapshot: watch::Receiver<Arc<Snapshot>>,
        commands: SyncSender<Command>,
        limits: &Limits,
    ) -> Service {
        Service {
            snapshot,
            commands,
            followers: Arc::new(Semaphore::new(limits.followers)),
        }
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.borrow())
    }

    fn chain(&self, name: &str) -> Result<message::Chain, Status> {
        let snapshot = self.snapshot();
        let chain = snapshot.chains.get(name).map(|chain| messages::chain(chain));
        chain.ok_or_else(|| messages::status(&ControlError::no_chain(name)))
    }

    /// Passes a request of an operator to the manager, and waits for the result and the number of the generation.
    async fn change<T>(&self, call: &tonic::Request<T>, request: Request) -> Result<(Vec<Applied>, u64), Status> {
        operators_only(call, "change chains")?;
        let (reply, result) = oneshot::channel();
        let command = Command {
            request,
            reply: Box::new(|result| drop(reply.send(result))),
        };
        self.commands.try_send(command).map_err(|error| match error {
            TrySendError::Full(_) => Status::unavailable("too many requests are waiting"),
            TrySendError::Disconnected(_) => Status::unavailable("the server is ending"),
        })?;
        let result = result.await.map_err(|_| Status::unavailable("the server is ending"))?;
        result.map_err(|error| messages::status(&error))
    }
}

/// Refuses calls of those who may only read.
fn operators_only<T>(call: &tonic::Request<T>, may: &str) -> Result<(), Status> {
    match call.extensions().get::<Role>() {
        Some(Role::Operator) => Ok(()),
        _ => Err(Status::permission_denied(format!(
            "only root and the user of the server may {may}"
        ))),
    }
}

#[tonic::async_trait]
impl Control for Service {
    type EventsStream = Stream<message::Event>;
    type TracePacketsStream = Stream<message::TraceUpdate>;
    type WatchStream = Stream<message::ChainChange>;

    async fn apply(&self, call: tonic::Request<message::ApplyRequest>) -> Answer<message::ApplyResponse> {
        let request = messages::apply_request(call.get_ref());
        let (applied, generation) = self.change(&call, Request::Apply(request)).await?;
        Ok(Response::new(message::ApplyResponse {
            applied: applied.into_iter().map(messages::applied).collect(),
            generation,
        }))
    }

    async fn get(&self, call: tonic::Request<message::GetRequest>) -> Answer<message::Chain> {
        self.chain(&call.get_ref().name).map(Response::new)
    }

    async fn list(&self, _: tonic::Request<message::ListRequest>) -> Answer<message::ListResponse> {
        let snapshot = self.snapshot();
        Ok(Response::new(message::ListResponse {
            chains: snapshot.chains.values().map(|chain| messages::chain(chain)).collect(),
            generation: snapshot.generation,
            ports: snapshot.ports.iter().map(messages::port).collect(),
        }))
    }

    async fn loads(&self, _: tonic::Request<message::LoadsRequest>) -> Answer<message::LoadsResponse> {
        let snapshot = self.snapshot();
        let running = snapshot.chains.values().filter(|chain| chain.phase == Phase::Running);
        let chains = running.filter_map(|chain| messages::load(chain)).collect();
        Ok(Response::new(message::LoadsResponse { chains }))
    }

    async fn figures(&self, call: tonic::Request<message::FiguresRequest>) -> Answer<message::FiguresResponse> {
        let only = &call.get_ref().chain;
        if !only.is_empty() {
            self.chain(only)?;
        }
        let snapshot = self.snapshot();
        let running = || snapshot.chains.values().filter(|chain| chain.phase == Phase::Running);
        let on = |core: u32| {
            let has = |chain: &&Arc<ChainStatus>| {
                let observation = chain.observation.as_ref();
                observation.is_some_and(|observation| observation.cores.dedicated.contains(&core))
            };
            running().filter(has).map(|chain| chain.chain.name.clone()).collect()
        };
        let wanted = running().filter(|chain| only.is_empty() || chain.chain.name == *only);
        Ok(Response::new(message::FiguresResponse {
            chains: wanted.filter_map(|chain| messages::figures(chain)).collect(),
            cores: snapshot
                .cores
                .iter()
                .map(|core| messages::core(core, on(core.core)))
                .collect(),
            unix_nanos: snapshot.cores_read.0,
        }))
    }

    async fn trace_packets(
        &self,
        call: tonic::Request<message::TracePacketsRequest>,
    ) -> Answer<Self::TracePacketsStream> {
        operators_only(&call, "trace packets")?;
        let request = call.get_ref();
        let filter = traces::checked(request)?;
        self.chain(&request.chain)?;
        let snapshot = self.snapshot();
        let observation = snapshot
            .chains
            .get(&request.chain)
            .and_then(|chain| chain.observation.as_ref());
        let chain = observation.and_then(|observation| observation.traces.as_ref());
        let chain =
            chain.ok_or_else(|| Status::failed_precondition(format!("chain {} does not run", request.chain)))?;
        let permit = streams::permit(&self.followers)?;
        let trace = chain.0.begin(filter, request.packets);
        let trace = trace.map_err(|error| Status::failed_precondition(error.to_string()))?;
        Ok(Response::new(traces::stream(trace, Nanos(request.nanos), permit)))
    }

    async fn describe(&self, call: tonic::Request<message::DescribeRequest>) -> Answer<message::DescribeResponse> {
        let name = &call.get_ref().name;
        let chain = self.chain(name)?;
        let snapshot = self.snapshot();
        let about = |event: &&Arc<crate::Event>| event.chain.as_deref() == Some(name);
        let events: Vec<_> = snapshot.events.after(0).filter(about).collect();
        let latest = &events[events.len().saturating_sub(EVENTS)..];
        Ok(Response::new(message::DescribeResponse {
            manifest: snapshot
                .chains
                .get(name)
                .map(|chain| chain.chain.manifest.yaml.clone())
                .unwrap_or_default(),
            chain: Some(chain),
            events: latest.iter().map(|event| messages::event(event)).collect(),
        }))
    }

    async fn delete(&self, call: tonic::Request<message::DeleteRequest>) -> Answer<message::DeleteResponse> {
        let message::DeleteRequest { names, dry_run } = call.get_ref().clone();
        let (_, generation) = self.change(&call, Request::Delete { names, dry_run }).await?;
        Ok(Response::new(message::DeleteResponse { generation }))
    }

    async fn drain(&self, call: tonic::Request<message::DrainRequest>) -> Answer<message::DrainResponse> {
        let name = call.get_ref().name.clone();
        let (_, generation) = self.change(&call, Request::Drain(name)).await?;
        Ok(Response::new(message::DrainResponse { generation }))
    }

    async fn events(&self, call: tonic::Request<message::EventsRequest>) -> Answer<Self::EventsStream> {
        let permit = streams::permit(&self.followers)?;
        Ok(Response::new(streams::events(
            self.snapshot.clone(),
            call.into_inner(),
            permit,
        )))
    }

    async fn watch(&self, call: tonic::Request<message::WatchRequest>) -> Answer<Self::WatchStream> {
        let permit = streams::permit(&self.followers)?;
        Ok(Response::new(streams::changes(
            self.snapshot.clone(),
            call.into_inner().name,
            permit,
        )))
    }

    async fn health(&self, _: tonic::Request<message::HealthRequest>) -> Answer<message::HealthResponse> {
        let snapshot = self.snapshot();
        Ok(Response::new(message::HealthResponse {
            server: snapshot.server.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            generation: snapshot.generation,
            ready: snapshot.is_ready(),
            chains: snapshot.chains.len() as u32,
            running: snapshot.count(Phase::Running) as u32,
            started_unix_nanos: snapshot.started.0,
        }))
    }
}
