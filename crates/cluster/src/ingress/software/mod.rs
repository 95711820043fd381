//! Software data plane of the ingress, where there is no OpenFlow switch: forwards packets between kernel interfaces by
//! the same rules.
//!
//! It is a [`Switch`] in this process, so everything in front of it is the same: mappers, rows, make before break,
//! moves, adoption after a restart.
//!
//! - [`table`]: rules compiled for look-ups, replaced as a whole between two batches;
//! - [`forwarder`]: the data path, a thread on each core;
//! - [`control`]: the thread that takes commands and monitors ports;
//! - [`store`]: the file of the rules in force, from which a new process goes on.

mod bridge;
mod control;
mod counters;
mod flow_cache;
mod forwarder;
mod key;
mod store;
mod table;
#[cfg(test)]
mod tests;

pub use control::SoftwareFigures;
pub use store::StoreError;

use super::openflow::PortDescription;
use super::rule::PortNumber;
use super::switch::{Busy, Switch, SwitchCommand, SwitchEvent};
use crate::notices::Notices;
use bridge::Bridge;
use control::{Control, Latest};
use counters::MOST_CORES;
use forwarder::{BUFFERS, CoreState, Forwarder, Shared};
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use tailwater_api::{PortName, PortSetup, PortsSpec};
use tailwater_chain::live::Live;
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::cores::pin_to;
use tailwater_dataplane::interfaces::{InterfaceConfig, InterfacePorts};
use tailwater_dataplane::packet_socket::InterfaceError;
use tailwater_dataplane::port::{OpenError, Port, PortRequirements};
use tailwater_net::Nanos;
use tailwater_net::toeplitz::SYMMETRIC_KEY;
use tokio::sync::mpsc;

/// Most ports.
pub const MOST_PORTS: usize = 32;
/// Commands that wait at most: writes, of which the steering loop has one at a time, and packets.
const COMMANDS: usize = 64;
/// Events that wait at most, and packets in either direction between cores and steering loop.
const EVENTS: usize = 1024;

/// Configuration of a software data plane.
#[derive(Clone, Debug)]
pub struct SoftwareConfig {
    /// Ports, kernel interfaces. The first has the number 1, and a port's name is that of its interface.
    pub ports: Vec<PortName>,
    /// Cores that forward, one thread each. None: one thread, on any core.
    pub cores: Vec<usize>,
    /// Idle time after which a core sleeps, and the time it sleeps; `None` for never.
    pub nap: Option<Nanos>,
    /// File of the rules in force, by which the next process goes on with the same rows.
    pub state: Option<PathBuf>,
    /// Most rules.
    pub max_rules: u32,
}

/// Cause why the data plane cannot start.
#[derive(Debug, thiserror::Error)]
pub enum SoftwareError {
    /// There are too many ports or cores, or none, or a port is none of the kernel's.
    #[error("{0}")]
    Config(String),
    /// An interface cannot be used.
    #[error("{0}")]
    Interface(#[from] InterfaceError),
    /// A port cannot be opened.
    #[error("port {port}: {source}")]
    Port {
        /// Its name.
        port: String,
        /// Cause.
        source: OpenError,
    },
    /// The file of the rules is none.
    #[error("{}: {source}", path.display())]
    State {
        /// Its path.
        path: PathBuf,
        /// Cause.
        source: StoreError,
    },
    /// A thread cannot be started.
    #[error("threads cannot be started: {0}")]
    Threads(#[from] std::io::Error),
}

/// Software data plane. Its threads end when this is dropped, and packets are not forwarded any more.
#[derive(Debug)]
pub struct SoftwareSwitch {
    commands: Option<SyncSender<SwitchCommand>>,
    events: mpsc::Receiver<SwitchEvent>,
    figures: SoftwareFigures,
    control: Option<JoinHandle<()>>,
}

impl SoftwareSwitch {
    /// Opens the ports, and forwards by the rules of the state file from now on.
    ///
    /// # Errors
    /// A port cannot be used, or the state file has another content. Nothing is forwarded then.
    pub fn start(config: SoftwareConfig, notices: Notices) -> Result<SoftwareSwitch, SoftwareError> {
        if config.ports.is_empty() || config.ports.len() > MOST_PORTS || config.cores.len() > MOST_CORES {
            let text = format!("expected 1 to {MOST_PORTS} ports, and at most {MOST_CORES} cores");
            return Err(SoftwareError::Config(text));
        }
        let clock = Clock::start();
        let cores = config.cores.len().max(1);
        let mut ports = config
            .ports
            .iter()
            .map(|port| find(port, &clock))
            .collect::<Result<Vec<_>, _>>()?;
        let mut of_cores: Vec<Vec<_>> = (0..cores).map(|_| Vec::new()).collect();
        let mut descriptions = Vec::new();
        for (at, (port, name)) in ports.iter_mut().zip(&config.ports).enumerate() {
            let need = PortRequirements {
                workers: cores as u16,
                auxiliary: 0,
                buffers: BUFFERS,
                rss_key: SYMMETRIC_KEY,
            };
            let pools = port.open_shared(&need).map_err(|source| SoftwareError::Port {
                port: name.to_string(),
                source,
            })?;
            let queues = port.queues(clock.now());
            for (own, queue_and_pool) in of_cores.iter_mut().zip(queues.into_iter().zip(pools)) {
                own.push(queue_and_pool);
            }
            descriptions.push(PortDescription {
                number: at as PortNumber + 1,
                name: name.interface().unwrap_or_default().to_owned(),
                is_up: port.report().iter().any(|report| report.link.up == Some(true)),
            });
        }
        let rules = match &config.state {
            None => Default::default(),
            Some(path) => store::load(path, &descriptions).map_err(|source| SoftwareError::State {
                path: path.clone(),
                source,
            })?,
        };
        let shared = Arc::new(Shared {
            rules: Live::new(table::FlowTable::default()),
            bridge: Bridge::new(),
            cores: (0..cores).map(|_| CoreState::default()).collect(),
            is_ending: false.into(),
            clock,
            nap: config.nap,
        });
        let (commands, from_steering) = sync_channel(COMMANDS);
        let (to_steering, events) = mpsc::channel(EVENTS);
        let (to_core, injected) = sync_channel(EVENTS);
        let latest = Arc::new(Mutex::new(Latest::default()));
        let mut control = Control {
            shared: Arc::clone(&shared),
            ports,
            descriptions: descriptions.into_iter().map(Some).collect(),
            rules: Default::default(),
            counters: Default::default(),
            max_rules: config.max_rules,
            state: config.state,
            latest: Arc::clone(&latest),
            notices,
            commands: from_steering,
            events: to_steering.clone(),
            injected: to_core,
            cores: Vec::new(),
        };
        // Rules that do not fit any more are made anew by the steering loop.
        let _ = control.publish(rules);
        let mut injected = Some(injected);
        for (number, ports) in of_cores.into_iter().enumerate() {
            let core = config.cores.get(number).copied();
            let forwarder = Forwarder::new((number, &shared), ports, to_steering.clone(), injected.take());
            let warnings = control.notices.clone();
            let run = move || {
                if let Some(Err(error)) = core.map(pin_to) {
                    // It forwards on another core.
                    warnings.warn(&error.to_string());
                }
                forwarder.run();
            };
            let started = Builder::new().name(format!("ingress-{number}")).spawn(run);
            match started {
                Ok(thread) => control.cores.push(thread),
                Err(error) => {
                    shared.is_ending.store(true, std::sync::atomic::Ordering::Relaxed);
                    return Err(error.into());
                }
            }
        }
        let control = Builder::new()
            .name("ingress-control".to_owned())
            .spawn(move || control.run())?;
        Ok(SoftwareSwitch {
            commands: Some(commands),
            events,
            figures: SoftwareFigures { shared, latest },
            control: Some(control),
        })
    }

    /// Returns the counters, which stay readable.
    pub fn figures(&self) -> SoftwareFigures {
        self.figures.clone()
    }
}

fn find(port: &PortName, clock: &Clock) -> Result<InterfacePorts, SoftwareError> {
    if !port.is_kernel() {
        let text = format!("port {port}: expected a kernel interface, such as interface=eth1");
        return Err(SoftwareError::Config(text));
    }
    let config = InterfaceConfig {
        ports: PortsSpec {
            entry: port.clone(),
            exit: None,
            set_up: PortSetup::default(),
        },
        ring: None,
        duration: None,
        naps: None,
    };
    Ok(InterfacePorts::find(config, clock.clone())?)
}

impl Drop for SoftwareSwitch {
    fn drop(&mut self) {
        // The control thread must not wait for room.
        self.events.close();
        drop(self.commands.take());
        if let Some(control) = self.control.take() {
            // A panic has been printed.
            let _ = control.join();
        }
    }
}

impl Switch for SoftwareSwitch {
    fn command(&mut self, command: SwitchCommand) -> Result<(), Busy> {
        match &self.commands {
            Some(commands) => commands.try_send(command).map_err(|_| Busy),
            None => Err(Busy),
        }
    }

    async fn event(&mut self) -> Option<SwitchEvent> {
        self.events.recv().await
    }
}
