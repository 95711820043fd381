//! Ten thousand rows: written, moved off a lost server, and moved back, in bundles.

use super::live::{UPLINK, chain, config, server};
use super::ovs::{Ovs, skipped};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tailwater_cluster::ingress::openflow::PacketIn;
use tailwater_cluster::ingress::{
    Action, Input, OpenFlowSwitch, Output, Readiness, SessionConfig, Steering, Step, Switch, SwitchCommand, SwitchEvent,
};
use tailwater_net::Nanos;

const ROWS: u32 = 10_000;
/// Time in which a busy machine's switch applies all rows.
const PATIENCE: Duration = Duration::from_secs(120);

/// Steering core with a real switch, where the test is the shell.
struct Rig {
    steering: Steering,
    switch: OpenFlowSwitch,
    start: Instant,
    /// Cookie of the default row, by which packets come here, and the sizes of bundles.
    cookie: u64,
    bundles: Vec<usize>,
    outputs: Vec<Output>,
}

impl Rig {
    fn now(&self) -> Nanos {
        Nanos(self.start.elapsed().as_nanos() as u64)
    }

    fn steps(&mut self) {
        while let Some(step) = self.steering.step() {
            match step {
                Step::Output(output) => self.outputs.push(output),
                Step::Switch(command) => {
                    if let SwitchCommand::Write { bundles, .. } = &command {
                        self.bundles.extend(bundles.iter().map(Vec::len));
                        let changes = bundles.iter().flatten();
                        let mut default = changes.filter(|change| change.rule.action == Action::Controller);
                        self.cookie = default.next().map_or(self.cookie, |change| change.rule.cookie);
                    }
                    // Packets are not of interest here.
                    if !matches!(command, SwitchCommand::PacketOut { .. }) {
                        self.switch.command(command).unwrap();
                    }
                }
            }
        }
    }

    /// Handles events of the switch until it has applied everything.
    async fn settle(&mut self) {
        let (mut quiet, began) = (false, Instant::now());
        while !quiet {
            assert!(began.elapsed() < PATIENCE, "{:?}", self.outputs);
            let wait = tokio::time::timeout(Duration::from_millis(300), self.switch.event()).await;
            match wait {
                Ok(event) => {
                    let (event, now) = (event.unwrap(), self.now());
                    self.steering.switch_event(now, event);
                }
                Err(_) => {
                    // A busy machine's switch takes longer for a bundle.
                    let written = self.outputs.iter().filter_map(|output| match output {
                        Output::RulesWritten { changes, .. } => Some(*changes),
                        _ => None,
                    });
                    quiet = written.sum::<usize>() == self.bundles.iter().sum::<usize>();
                }
            }
            self.steps();
        }
    }

    /// Returns the time that the switch took, in milliseconds, and forgets outputs.
    fn took(&mut self) -> f64 {
        let took = self.outputs.drain(..).filter_map(|output| match output {
            Output::RulesWritten { took, .. } => Some(took.0),
            _ => None,
        });
        took.sum::<u64>() as f64 / 1e6
    }

    fn input(&mut self, input: Input) {
        let now = self.now();
        self.steering.input(now, input);
        self.steps();
    }
}

/// Frame of a UDP packet to an address.
fn frame(destination: u32) -> Vec<u8> {
    let mut frame = vec![0; 42];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[17] = 28;
    (frame[22], frame[23]) = (64, 17);
    frame[26..30].copy_from_slice(&[192, 0, 2, 1]);
    frame[30..34].copy_from_slice(&destination.to_be_bytes());
    (frame[39], frame[38]) = (8, 0);
    frame
}

#[tokio::test]
async fn ten_thousand_rows_change_in_bundles() {
    if skipped(&[]) {
        return;
    }
    let ovs = Ovs::new("dummy", &["u0", "s1", "s2", "s3"], None);
    let mut route = chain("edge", &[1, 2, 3]);
    // Every address has a row, and rows are spread over the servers with fewest cores.
    route.mapping.prefix_v4 = 32;
    let start = Instant::now();
    let settings = tailwater_cluster::ingress::SteeringConfig {
        audit: None,
        ..config()
    };
    // A busy machine's switch takes long, and a new connection would write some changes twice.
    let session = SessionConfig {
        reply_timeout: Nanos(PATIENCE.as_nanos() as u64),
        ..SessionConfig::default()
    };
    let mut rig = Rig {
        steering: Steering::new(settings, Nanos::ZERO),
        switch: OpenFlowSwitch::start(ovs.endpoint().parse().unwrap(), session),
        start,
        cookie: 0,
        bundles: Vec::new(),
        outputs: Vec::new(),
    };
    for number in 1..=3 {
        rig.input(server(number, Readiness::Ready));
    }
    rig.input(Input::Chain(route));
    rig.settle().await;
    assert_ne!(rig.cookie, 0);
    rig.bundles.clear();
    rig.took();

    let reports: [u16; 3] = [1, 2, 3];
    for row in 0..ROWS {
        // The server with fewest cores is another one each time.
        for (number, report) in (1..=3).zip(reports) {
            let cores = (report + row as u16) % 3;
            rig.input(super::live::dedicated(number, "edge", cores));
        }
        let packet = PacketIn {
            cookie: rig.cookie,
            in_port: Some(UPLINK),
            frame: frame(0x0a00_0000 | row),
        };
        let now = rig.now();
        rig.steering.switch_event(now, SwitchEvent::PacketIn(packet));
        rig.steps();
        // The switch gives up a peer that does not answer its echo requests.
        tokio::task::yield_now().await;
    }
    rig.settle().await;
    println!(
        "{ROWS} rows added: {:.0} ms in {} bundles",
        rig.took(),
        rig.bundles.len()
    );
    let by_server = |rig: &Rig| {
        let mut rows = BTreeMap::new();
        for (_, server) in rig.steering.rows("edge") {
            *rows.entry(server).or_insert(0_usize) += 1;
        }
        rows
    };
    let before = by_server(&rig);
    assert_eq!(before.values().sum::<usize>(), ROWS as usize);
    assert!(before.values().all(|rows| *rows > 3000), "{before:?}");
    let count = || {
        let aggregate = ovs.ofctl("dump-aggregate", "");
        aggregate
            .trim()
            .rsplit("flow_count=")
            .next()
            .unwrap()
            .parse::<usize>()
            .unwrap()
    };
    assert_eq!(count(), ROWS as usize + 5);

    rig.bundles.clear();
    let event = Instant::now();
    rig.input(server(2, Readiness::NotReady));
    let planned = event.elapsed();
    rig.settle().await;
    println!(
        "server with {} rows lost: {:.0} ms to decide, {:.0} ms in the switch, bundles of {:?}",
        before[&2],
        planned.as_secs_f64() * 1e3,
        rig.took(),
        rig.bundles
    );
    assert_eq!(rig.bundles, [before[&2]], "one bundle");
    let after = by_server(&rig);
    assert_eq!(after.keys().copied().collect::<Vec<_>>(), [1, 3]);
    assert_eq!(count(), ROWS as usize + 5);
    assert!(!ovs.rules().iter().any(|rule| rule.contains("02:00:00:00:00:02")));

    // The chain ends: all its rules go.
    rig.bundles.clear();
    rig.input(Input::ChainRemoved("edge".to_owned()));
    rig.settle().await;
    println!(
        "{ROWS} rows deleted: {:.0} ms in bundles of {:?}",
        rig.took(),
        rig.bundles
    );
    assert_eq!(rig.bundles.iter().sum::<usize>(), ROWS as usize + 1);
    assert!(rig.bundles.iter().all(|bundle| *bundle <= config().per_bundle));
    assert_eq!(count(), 4);
}
