//! Signs of life for the ingress.

use super::local::LocalChain;
use crate::notices::Notices;
use crate::reports::{AgentReport, InstanceReport, Security, send};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{interval, sleep};

/// Time between look-ups of names.
const LOOK_UP: Duration = Duration::from_secs(2);
/// Wait after a connection has failed.
const RETRY: Duration = Duration::from_millis(200);

/// Signs of life of an agent for the ingress.
#[derive(Clone, Debug)]
pub struct ReportsConfig {
    /// Addresses with ports. All that a name stands for get reports.
    pub to: Vec<String>,
    /// Time between them.
    pub period: Duration,
    /// Security of the connections.
    pub security: Security,
}

impl Default for ReportsConfig {
    fn default() -> ReportsConfig {
        ReportsConfig {
            to: Vec::new(),
            period: Duration::from_millis(50),
            security: Security::None,
        }
    }
}

/// Figures of a chain that an agent has applied.
pub(super) fn of_chain(chain: &LocalChain) -> Option<InstanceReport> {
    let [offered, delivered, dropped, lost] = chain.figures?.packets;
    chain.name.contains("--").then(|| InstanceReport {
        name: chain.name.clone(),
        offered,
        processed: delivered + dropped,
        late: lost,
        busy_nanos: 0,
    })
}

/// Reports to all addresses, which are looked up again and again.
pub(super) async fn run(config: ReportsConfig, report: watch::Receiver<AgentReport>, notices: Notices) {
    let mut connections: HashMap<SocketAddr, AbortHandle> = HashMap::new();
    // Ends them when it is dropped.
    let mut tasks = JoinSet::new();
    let mut looks = interval(LOOK_UP);
    loop {
        looks.tick().await;
        let mut found = Vec::new();
        let mut is_complete = true;
        for name in &config.to {
            match lookup_host(name).await {
                Ok(addresses) => found.extend(addresses),
                Err(error) => {
                    is_complete = false;
                    notices.warn(&format!("{name} is not found: {error}"));
                }
            }
        }
        // While names cannot be looked up, addresses stay.
        connections.retain(|address, task| {
            let stays = !is_complete || found.contains(address);
            if !stays {
                task.abort();
            }
            stays
        });
        for address in found {
            connections.entry(address).or_insert_with(|| {
                let (config, report, notices) = (config.clone(), report.clone(), notices.clone());
                tasks.spawn(keep(address, config, report, notices))
            });
        }
        while tasks.try_join_next().is_some() {}
    }
}

/// Keeps a connection to one address.
async fn keep(address: SocketAddr, config: ReportsConfig, report: watch::Receiver<AgentReport>, notices: Notices) {
    let mut told = None;
    loop {
        if let Err(error) = send(&address.to_string(), &config.security, config.period, &report).await {
            let line = format!("reports to {address}: {error}");
            // The same again and again is told once.
            if told.as_ref() != Some(&line) {
                notices.warn(&line);
                told = Some(line);
            }
        }
        sleep(RETRY).await;
    }
}
