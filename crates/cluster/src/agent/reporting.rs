//! Signs of life for the ingress.

use super::local::{LocalLoad, LocalServer};
use crate::notices::Notices;
use crate::reports::{AgentReport, FlowClass, InstanceReport, Security, send};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tailwater_policy::server::ClassLoad;
use tokio::net::lookup_host;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep};

/// Time between looks at the load of the server's chains, which is measured a few times a second.
const LOADS: Duration = Duration::from_millis(100);
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

/// Report of a chain that an agent has applied.
fn of_load(load: LocalLoad) -> Option<InstanceReport> {
    let class = |load: &ClassLoad| FlowClass {
        destination: match load.class.destination() {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        },
        source_bits: load.class.hash().into(),
        packets: load.packets,
    };
    load.name.contains("--").then(|| InstanceReport {
        offered: load.counters.offered,
        processed: load.counters.processed,
        late: load.counters.late,
        busy_nanos: load.counters.busy.0,
        measured_nanos: load.measured.0,
        classes: load.classes.iter().map(class).collect(),
        name: load.name,
    })
}

/// Reads the load of the server's chains again and again, for the reports.
pub(super) async fn measure<S: LocalServer + 'static>(server: S, report: watch::Sender<AgentReport>, notices: Notices) {
    let server = Arc::new(Mutex::new(server));
    let mut looks = interval(LOADS);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = None;
    loop {
        looks.tick().await;
        let server = Arc::clone(&server);
        let read = move || server.lock().unwrap_or_else(PoisonError::into_inner).loads();
        let Ok(read) = tokio::task::spawn_blocking(read).await else {
            return;
        };
        let line = read
            .as_ref()
            .err()
            .map(|error| format!("the load of chains is not known: {error}"));
        if let Some(line) = line.as_ref().filter(|line| told.as_ref() != Some(*line)) {
            notices.warn(line);
        }
        told = line;
        let instances: Vec<InstanceReport> = read.unwrap_or_default().into_iter().filter_map(of_load).collect();
        report.send_if_modified(|report| {
            let is_new = report.instances != instances;
            report.instances = instances;
            is_new
        });
    }
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
