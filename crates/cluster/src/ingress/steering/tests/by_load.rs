//! Rows follow measured load, as servers report it: in windows, which end at different times.

use super::*;

/// Length of a window, and time between reports, in milliseconds.
const WINDOW: u64 = 300;
const REPORT: u64 = 50;

/// Servers with one core each that process what the rules send them, for 1 ms a packet.
struct Servers {
    rig: Rig,
    /// Packets per second to each destination 10.N.0.1.
    rates: Vec<f64>,
    /// Packets so far, and at the end of the last window with their time.
    packets: [f64; 4],
    reported: [ServerCounters; 4],
    measured: [Nanos; 4],
    milliseconds: u64,
    /// Moves that were written.
    moves: usize,
}

impl Servers {
    fn new(most_fill: u8, rates: Vec<f64>) -> Servers {
        let mut chain = route("edge", "10.0.0.0/8", true);
        chain.servers = vec![(1, 1), (2, 1)];
        let config = SteeringConfig { most_fill, ..config() };
        Servers {
            rig: Rig::connected(config, &[chain]),
            rates,
            packets: [0.0; 4],
            reported: [ServerCounters::default(); 4],
            measured: [Nanos::ZERO; 4],
            milliseconds: 0,
            moves: 0,
        }
    }

    fn server_of(&self, number: usize) -> usize {
        self.rig.server_of(&format!("10.{number}.0.1")).map_or(0, usize::from)
    }

    /// Returns the load of each server, in cores.
    fn loads(&self) -> [f64; 3] {
        let mut loads = [0.0; 3];
        for (number, rate) in self.rates.iter().enumerate() {
            loads[self.server_of(number) - 1] += rate / 1000.0;
        }
        loads.map(|load: f64| (load * 1e6).round() / 1e6)
    }

    /// Ends the window of a server.
    fn measure(&mut self, server: usize) {
        let packets = self.packets[server] as u64;
        self.measured[server] = Nanos(self.milliseconds * MILLI);
        self.reported[server] = ServerCounters {
            offered: packets,
            processed: packets,
            busy: Nanos(packets * MILLI),
            late: 0,
        };
    }

    fn report(&mut self, server: usize) {
        let of_server = (0..self.rates.len()).filter(|number| self.server_of(*number) == server);
        let class = |number: usize| ClassLoad {
            class: FlowClass::by_source_bits(3, [10, number as u8, 0, 1].into()),
            packets: self.rates[number] as u32,
        };
        let report = ServerReport {
            server: server as ServerNumber,
            chains: vec![ChainReport {
                chain: "edge".to_owned(),
                counters: self.reported[server],
                measured: Some(self.measured[server]),
                dedicated: 1,
                classes: of_server.map(class).collect(),
            }],
        };
        self.rig.input(Input::Report(report));
    }

    fn run(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds / 10 {
            self.milliseconds += 10;
            self.rig.now += Nanos(10 * MILLI);
            let loads = self.loads();
            for server in 1..=2 {
                self.packets[server] += loads[server - 1] * 10.0;
                // Windows of servers end at different times.
                if self.milliseconds % WINDOW == 130 * server as u64 % WINDOW {
                    self.measure(server);
                }
                if self.milliseconds.is_multiple_of(REPORT) {
                    self.report(server);
                }
            }
            self.rig.steering.tick(self.rig.now);
            self.rig.steps();
            self.rig.settle();
            let written: Vec<Output> = self.rig.outputs.drain(..).filter(is_written).collect();
            self.moves += written.len();
            for output in written {
                let Output::MoveWritten(moved) = output else { continue };
                let (chain, row) = (moved.chain, moved.row);
                self.rig.input(Input::Moved { chain, row });
            }
        }
    }
}

#[test]
fn a_load_within_the_limit_moves_nothing_though_counters_come_in_steps() {
    // 0.8 of a core, and a limit of 0.85: a window's packets in less than its time would exceed it.
    let mut servers = Servers::new(97, vec![40.0; 20]);
    servers.run(20_000);
    assert_eq!((servers.moves, servers.server_of(7)), (0, 1));
}

#[test]
fn rows_of_a_server_with_too_much_go_to_the_other_once_and_stay() {
    let mut servers = Servers::new(97, vec![60.0; 20]);
    assert_eq!(servers.loads(), [1.2, 0.0, 0.0]);
    servers.run(5_000);
    let loads = servers.loads();
    assert!(loads[..2].iter().all(|load| (0.3..=0.9).contains(load)), "{loads:?}");
    let moves = servers.moves;
    assert!((1..=4).contains(&moves), "{moves}");
    // The new loads are known, and no reason to move anything to and fro.
    servers.run(30_000);
    assert_eq!((servers.loads(), servers.moves), (loads, moves));
    // One destination gets more packets: its server is overloaded.
    servers.rates[3] = 500.0;
    servers.run(10_000);
    let loads = servers.loads();
    assert!(loads[..2].iter().all(|load| *load <= 0.97), "{loads:?}");
    assert!(servers.moves > moves);
}

#[test]
fn servers_are_filled_as_far_as_the_operator_permits() {
    let mut servers = Servers::new(20, vec![15.0; 20]);
    assert_eq!(servers.loads(), [0.3, 0.0, 0.0]);
    servers.run(5_000);
    let loads = servers.loads();
    assert!(loads[..2].iter().all(|load| *load <= 0.2), "{loads:?}");
    let moves = servers.moves;
    servers.run(20_000);
    assert_eq!((servers.loads(), servers.moves), (loads, moves));
}
