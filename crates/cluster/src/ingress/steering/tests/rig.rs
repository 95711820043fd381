//! Ingress with a modelled switch.

use super::*;

pub(super) const MILLI: u64 = 1_000_000;

/// Ingress, and a switch that applies bundles when the test says so.
pub(super) struct Rig {
    pub(super) steering: Steering,
    pub(super) now: Nanos,
    pub(super) table: RuleSet,
    pub(super) room: usize,
    /// Writes that the switch has not answered.
    pub(super) writes: VecDeque<(u64, Vec<FlowMod>)>,
    pub(super) packets: Vec<(Action, Vec<u8>)>,
    pub(super) outputs: Vec<Output>,
    pub(super) reads: usize,
}

pub(super) fn config() -> SteeringConfig {
    SteeringConfig {
        owner: 1,
        from_servers: FromServers::Ports(vec![100]),
        unmatched: Unmatched::Drop,
        table: 1000,
        transfer: Nanos::from_millis(500),
        audit: None,
        ..SteeringConfig::default()
    }
}

pub(super) fn server(number: ServerNumber, readiness: Readiness) -> Server {
    Server {
        number,
        mac: [2, 0, 0, 0, 0, number as u8],
        port: PortReference::Number(number.into()),
        readiness,
    }
}

pub(super) fn route(name: &str, prefix: &str, rebalance: bool) -> ChainRoute {
    ChainRoute {
        name: name.to_owned(),
        matching: Match {
            destinations: vec![prefix.parse().unwrap()],
            ..Match::default()
        },
        servers: vec![(1, 4), (2, 4), (3, 4)],
        mapping: IngressConfig {
            prefix_v4: 24,
            prefix_v6: 48,
            threshold: 0,
            table: 0,
            flow_hash: true,
            rebalance,
            scale_in: false,
        },
    }
}

/// Frame of a UDP packet to an address.
pub(super) fn frame(destination: &str) -> Vec<u8> {
    let destination: std::net::Ipv4Addr = destination.parse().unwrap();
    let mut frame = vec![0; 42];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[17] = 28;
    (frame[22], frame[23]) = (64, 17);
    frame[26..30].copy_from_slice(&[192, 0, 2, 1]);
    frame[30..34].copy_from_slice(&destination.octets());
    frame[39] = 8;
    frame
}

impl Rig {
    pub(super) fn new(config: SteeringConfig, chains: &[ChainRoute]) -> Rig {
        let now = Nanos::from_secs(1);
        let mut rig = Rig {
            steering: Steering::new(config, now),
            now,
            table: RuleSet::new(),
            room: 1000,
            writes: VecDeque::new(),
            packets: Vec::new(),
            outputs: Vec::new(),
            reads: 0,
        };
        for number in 1..=3 {
            rig.input(Input::Server(server(number, Readiness::Ready)));
        }
        for chain in chains {
            rig.input(Input::Chain(chain.clone()));
        }
        rig
    }

    /// New rig that is connected and has written its rules.
    pub(super) fn connected(config: SteeringConfig, chains: &[ChainRoute]) -> Rig {
        let mut rig = Rig::new(config, chains);
        rig.connect();
        rig.settle();
        rig.outputs.clear();
        rig
    }

    pub(super) fn rules(&self) -> Vec<FlowStatistics> {
        let statistics = |rule: &FlowRule| FlowStatistics {
            rule: rule.clone(),
            packets: 0,
            bytes: 0,
        };
        self.table.values().map(statistics).collect()
    }

    pub(super) fn connect(&mut self) {
        let port = |number| PortDescription {
            number,
            name: format!("s{number}"),
            is_up: true,
        };
        self.writes.clear();
        self.event(SwitchEvent::Connected(SwitchState {
            datapath: 1,
            ports: (1..=3).map(port).collect(),
            rules: self.rules(),
            max_rules: self.room as u32,
        }));
    }

    pub(super) fn steps(&mut self) {
        while let Some(step) = self.steering.step() {
            match step {
                Step::Output(output) => self.outputs.push(output),
                Step::Switch(SwitchCommand::Write { id, bundles }) => {
                    assert!(self.writes.is_empty(), "one write at a time");
                    assert_eq!(bundles.len(), 1);
                    self.writes.push_back((id, bundles.into_iter().flatten().collect()));
                }
                Step::Switch(SwitchCommand::PacketOut { action, frame }) => self.packets.push((action, frame)),
                Step::Switch(SwitchCommand::Read) => self.reads += 1,
            }
        }
    }

    pub(super) fn input(&mut self, input: Input) {
        self.steering.input(self.now, input);
        self.steps();
    }

    pub(super) fn event(&mut self, event: SwitchEvent) {
        self.steering.switch_event(self.now, event);
        self.steps();
    }

    /// Lets the switch apply the next write, if it has room.
    pub(super) fn answer(&mut self) -> Vec<FlowMod> {
        let Some((id, changes)) = self.writes.pop_front() else {
            return Vec::new();
        };
        let mut after = self.table.clone();
        apply(&mut after, &changes);
        if after.len() > self.room {
            let error = ErrorMessage::TABLE_FULL;
            self.event(SwitchEvent::WriteFailed { id, error });
        } else {
            self.table = after;
            self.event(SwitchEvent::Written { id });
        }
        while self.reads > 0 {
            self.reads -= 1;
            self.event(SwitchEvent::Rules(self.rules()));
        }
        changes
    }

    /// Lets the switch apply everything.
    pub(super) fn settle(&mut self) {
        for _ in 0..100 {
            if self.writes.is_empty() {
                return;
            }
            self.answer();
        }
        panic!("writes never end");
    }

    /// Lets milliseconds pass, in steps of ten, in which all servers but these report.
    pub(super) fn pass(&mut self, milliseconds: u64, silent: &[ServerNumber]) {
        for _ in 0..milliseconds.div_ceil(10) {
            self.now += Nanos(10 * MILLI);
            for number in (1..=3).filter(|number| !silent.contains(number)) {
                self.input(Input::Report(ServerReport {
                    server: number,
                    chains: Vec::new(),
                }));
            }
            self.steering.tick(self.now);
            self.steps();
        }
    }

    /// Time passes in which the ingress itself does nothing.
    pub(super) fn stop(&mut self, milliseconds: u64) {
        self.now += Nanos(milliseconds * MILLI);
        self.steering.tick(self.now);
        self.steps();
    }

    /// Returns the server that an address's packets go to by the switch's rules, or 0 if to the ingress.
    pub(super) fn server_of(&self, destination: &str) -> Option<ServerNumber> {
        let address: std::net::Ipv4Addr = destination.parse().unwrap();
        let rule = self.table.values().rev().find(|rule| {
            let matching = &rule.matching;
            matching.in_port.is_none()
                && matching.destination.is_none_or(|destination| match destination {
                    MaskedAddress::V4 { value, mask } => address.to_bits() & mask == value,
                    MaskedAddress::V6 { .. } => false,
                })
        });
        match rule?.action {
            Action::Server { mac, port } => {
                assert_eq!(u32::from(mac[5]), port);
                Some(port as ServerNumber)
            }
            Action::Controller => Some(0),
            _ => None,
        }
    }

    /// Lets a packet come by the default row.
    pub(super) fn packet_in(&mut self, destination: &str) {
        let default = self.table.values().find(|rule| rule.action == Action::Controller);
        let cookie = default.expect("a default row to the ingress").cookie;
        self.event(SwitchEvent::PacketIn(PacketIn {
            cookie,
            in_port: Some(100),
            frame: frame(destination),
        }));
    }

    pub(super) fn takes(&mut self, is_it: impl Fn(&Output) -> bool) -> usize {
        let before = self.outputs.len();
        self.outputs.retain(|output| !is_it(output));
        before - self.outputs.len()
    }
}
