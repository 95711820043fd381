//! Beginning of a server, by itself or by taking over from a running one, and its end by another one.

use super::args::ServeArgs;
use super::errors::not_served;
use crate::error::CliError;
use std::sync::Arc;
use tailwater_api::server::ServerSpec;
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::core_host::{CoreHost, HostError};
use tailwater_dataplane::port::PassedSockets;
use tailwater_dataplane::shared_port::SharedPort;
use tailwater_server::live::{EndedChain, LiveMachine, ServerPort};
#[cfg(feature = "control")]
use tailwater_server::take_over::Predecessor;
use tailwater_server::{LockedState, Paths, Served, Start};

/// Beginning of a server.
pub(super) struct Beginning(Start);

impl Beginning {
    /// Locks the state folder, or connects to the running server.
    ///
    /// # Errors
    /// Another server runs, or, to take over, none.
    pub(super) fn new(args: &ServeArgs, spec: &ServerSpec, paths: &Paths) -> Result<Beginning, CliError> {
        if !args.take_over {
            let locked = LockedState::lock(paths).map_err(not_served)?;
            return Ok(Beginning(Start::Alone(locked)));
        }
        connect(args, spec, paths)
    }

    /// Clock of the server.
    ///
    /// # Errors
    /// That of the running server cannot be continued.
    pub(super) fn clock(&self) -> Result<Clock, CliError> {
        match &self.0 {
            Start::Alone(_) => Ok(Clock::start()),
            #[cfg(feature = "control")]
            Start::TakeOver(predecessor) => {
                let clock = LiveMachine::clock_of(predecessor.machine());
                clock.map_err(|refusal| CliError::Input(refusal.to_string()))
            }
        }
    }

    /// Takes the sockets of a port that the running server has passed; `None` if it has not.
    ///
    /// # Errors
    /// They are described in an unknown way.
    pub(super) fn sockets(&mut self, port: &str) -> Result<Option<PassedSockets>, CliError> {
        match &mut self.0 {
            Start::Alone(_) => {
                let _ = port;
                Ok(None)
            }
            #[cfg(feature = "control")]
            Start::TakeOver(predecessor) => {
                let descriptors = predecessor.take_descriptors(port);
                let passed = descriptors.map(|own| LiveMachine::sockets_of(predecessor.machine(), port, own));
                let passed = passed.transpose();
                passed.map_err(|refusal| CliError::Input(refusal.to_string()))
            }
        }
    }

    /// Opens the ports.
    ///
    /// # Errors
    /// A port cannot be opened.
    pub(super) fn machine(
        &self,
        host: &Arc<CoreHost>,
        ports: Vec<ServerPort>,
        on_end: impl FnMut(EndedChain) + Send + 'static,
    ) -> Result<LiveMachine, HostError> {
        let host = Arc::clone(host);
        match &self.0 {
            Start::Alone(_) => LiveMachine::new(host, ports, on_end),
            #[cfg(feature = "control")]
            Start::TakeOver(predecessor) => LiveMachine::paused(host, ports, predecessor.machine(), on_end),
        }
    }
}

impl From<Beginning> for Start {
    fn from(beginning: Beginning) -> Start {
        beginning.0
    }
}

#[cfg(feature = "control")]
fn connect(args: &ServeArgs, spec: &ServerSpec, paths: &Paths) -> Result<Beginning, CliError> {
    let connected = Predecessor::connect(paths, &spec.metadata.name, args.lose_state);
    let connected = connected.map_err(|error| not_served(error.into()))?;
    if let Some((name, _)) = connected
        .machine()
        .ports
        .iter()
        .find(|(_, port)| port.traffic.is_none())
    {
        return Err(CliError::Input(format!(
            "take-over refused, the running server goes on: port {name} is a device, which one process uses at a \
             time: stop the running server and start this one without --take-over"
        )));
    }
    Ok(Beginning(Start::TakeOver(Box::new(connected))))
}

#[cfg(not(feature = "control"))]
fn connect(_: &ServeArgs, _: &ServerSpec, _: &Paths) -> Result<Beginning, CliError> {
    Err(CliError::Input(
        "--take-over: expected a program built with the feature control".to_owned(),
    ))
}

/// Sends the final counts to the server that has taken over, if one has.
#[cfg(feature = "control")]
pub(super) fn tell(served: &Served, ended: &[EndedChain], ports: &[Arc<SharedPort>]) {
    use crate::output::complain;
    use tailwater_server::live::final_counts;

    let Some(successor) = &served.successor else {
        return;
    };
    complain("notice", &format!("process {} has taken over", successor.process()));
    if let Err(error) = successor.send_counts(final_counts(ended, ports)) {
        complain("warning", &format!("the final counts could not be passed on: {error}"));
    }
}

#[cfg(not(feature = "control"))]
pub(super) fn tell(_: &Served, _: &[EndedChain], _: &[Arc<SharedPort>]) {}
