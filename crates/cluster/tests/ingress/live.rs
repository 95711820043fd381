//! An ingress that runs in the test, and what it is told.

use std::time::Duration;
use tailwater_api::chain::Match;
use tailwater_cluster::ingress::{
    ChainReport, ChainRoute, FromServers, Input, OpenFlowSwitch, Output, PortReference, Readiness, Server,
    ServerReport, SessionConfig, SteeringConfig, Switch, Unmatched, run,
};
use tailwater_net::Nanos;
use tailwater_policy::server::{IngressConfig, ServerCounters, ServerNumber};
use tokio::sync::{mpsc, oneshot};

/// Number of the uplink's port; those of servers follow.
pub const UPLINK: u32 = 1;

/// Running ingress.
pub struct Ingress {
    pub inputs: mpsc::Sender<Input>,
    outputs: mpsc::Receiver<Output>,
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

impl Ingress {
    pub fn new(endpoint: &str, config: SteeringConfig, known: Vec<Input>) -> Ingress {
        let switch = OpenFlowSwitch::start(endpoint.parse().unwrap(), SessionConfig::default());
        Ingress::of(switch, config, known)
    }

    /// Ingress of any switch.
    pub fn of(switch: impl Switch + 'static, config: SteeringConfig, known: Vec<Input>) -> Ingress {
        let (inputs, from_owner) = mpsc::channel(64);
        let (to_owner, outputs) = mpsc::channel(64);
        let (stop, stopped) = oneshot::channel();
        let stopped = async {
            let _ = stopped.await;
        };
        let task = tokio::spawn(run(config, known, switch, from_owner, to_owner, stopped));
        Ingress {
            inputs,
            outputs,
            stop,
            task,
        }
    }

    /// Returns the outputs up to one for which this is true.
    pub async fn until(&mut self, is_it: impl Fn(&Output) -> bool) -> Vec<Output> {
        let mut seen = Vec::new();
        loop {
            let next = tokio::time::timeout(Duration::from_secs(20), self.outputs.recv()).await;
            let Ok(Some(output)) = next else {
                panic!("it never came: {seen:?}");
            };
            let found = is_it(&output);
            seen.push(output);
            if found {
                return seen;
            }
        }
    }

    /// Waits until the switch has applied changes.
    pub async fn written(&mut self) -> Vec<Output> {
        self.until(|output| matches!(output, Output::RulesWritten { .. })).await
    }

    pub async fn send(&self, input: Input) {
        self.inputs.send(input).await.unwrap();
    }

    /// Ends the ingress. The switch keeps its rules.
    pub async fn stop(self) {
        let _ = self.stop.send(());
        self.task.await.unwrap();
    }
}

/// Settings without reports of servers.
pub fn config() -> SteeringConfig {
    SteeringConfig {
        owner: 7,
        from_servers: FromServers::Ports(vec![UPLINK]),
        unmatched: Unmatched::Drop,
        lost_after: None,
        transfer: Nanos::ZERO,
        audit: Some(Nanos::from_millis(200)),
        ..SteeringConfig::default()
    }
}

/// Server with this number, on the port `sN`.
pub fn server(number: ServerNumber, readiness: Readiness) -> Input {
    Input::Server(Server {
        number,
        mac: mac(number),
        port: PortReference::Name(format!("s{number}")),
        readiness,
    })
}

pub fn mac(number: ServerNumber) -> [u8; 6] {
    [2, 0, 0, 0, 0, number as u8]
}

/// Chain of 10.0.0.0/8 on these servers, by NetBlaze's mapper: each new prefix of 16 bits takes a new server, while
/// there is one.
pub fn chain(name: &str, servers: &[ServerNumber]) -> ChainRoute {
    ChainRoute {
        name: name.to_owned(),
        matching: Match {
            destinations: vec!["10.0.0.0/8".parse().unwrap()],
            ..Match::default()
        },
        servers: servers.iter().map(|server| (*server, 4)).collect(),
        mapping: IngressConfig {
            prefix_v4: 16,
            prefix_v6: 48,
            threshold: 0,
            table: 0,
            flow_hash: true,
            rebalance: false,
            scale_in: false,
        },
    }
}

/// The chain by Tailwater's mapper.
pub fn balanced(name: &str, servers: &[ServerNumber]) -> ChainRoute {
    let mut chain = chain(name, servers);
    chain.mapping.rebalance = true;
    chain
}

/// Report of a server's dedicated cores.
pub fn dedicated(server: ServerNumber, chain: &str, dedicated: u16) -> Input {
    Input::Report(ServerReport {
        server,
        chains: vec![ChainReport {
            chain: chain.to_owned(),
            counters: ServerCounters::default(),
            measured: None,
            dedicated,
            classes: Vec::new(),
        }],
    })
}
