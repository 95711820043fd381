//! The switch of a rack of namespaces: Open vSwitch, or the software data plane.

use super::live::Ingress;
use super::ovs::Ovs;
use super::packets::{PORTS, Rack};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use tailwater_cluster::Notices;
use tailwater_cluster::ingress::{Input, SoftwareConfig, SoftwareFigures, SoftwareSwitch, SteeringConfig};
use tailwater_dataplane::cores::available;
use tailwater_net::Nanos;

/// Kind of switch.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    OpenVSwitch,
    Software,
}

/// Switch in the first namespace of a rack.
pub enum RackSwitch {
    OpenVSwitch(Ovs),
    /// The data plane that runs with an ingress, and its file of rules.
    Software {
        state: PathBuf,
        figures: Mutex<Option<SoftwareFigures>>,
    },
}

impl RackSwitch {
    /// Software data plane that has not run yet.
    pub fn software() -> RackSwitch {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tailwater-rules-{}-{number}", std::process::id());
        RackSwitch::Software {
            state: std::env::temp_dir().join(name),
            figures: Mutex::default(),
        }
    }

    /// Starts an ingress of this switch.
    pub fn ingress(&self, rack: &Rack, config: SteeringConfig, known: Vec<Input>) -> Ingress {
        match self {
            RackSwitch::OpenVSwitch(ovs) => Ingress::new(&ovs.endpoint(), config, known),
            RackSwitch::Software { state, figures } => {
                let settings = SoftwareConfig {
                    ports: PORTS.map(|port| format!("interface={port}").parse().unwrap()).into(),
                    // A flow stays on one of them.
                    cores: available().into_iter().take(2).collect(),
                    nap: Some(Nanos::from_micros(100)),
                    state: Some(state.clone()),
                    max_rules: 1000,
                };
                let notices = Notices::new(|line| println!("{line}"));
                let start = move || SoftwareSwitch::start(settings, notices).unwrap();
                let switch = rack.within(0, start).join().unwrap();
                *figures.lock().unwrap() = Some(switch.figures());
                Ingress::of(switch, config, known)
            }
        }
    }

    /// Rules in force in the software data plane, as text.
    pub fn rules(&self) -> Option<Vec<String>> {
        let RackSwitch::Software { figures, .. } = self else {
            return None;
        };
        let figures = figures.lock().unwrap();
        let rules = figures.as_ref()?.rules();
        Some(rules.iter().map(|one| format!("{:?}", one.rule)).collect())
    }
}

impl Drop for RackSwitch {
    fn drop(&mut self) {
        if let RackSwitch::Software { state, .. } = self {
            let _ = std::fs::remove_file(state);
        }
    }
}
