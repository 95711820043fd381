//! A hostile function between two good ones, all confined. It is stopped, or its invalid response is detected. Its
//! packets are lost by it, the report names the reason, and the other functions are not affected. The attack succeeds
//! without the defence against it.

mod calls;
mod memory;
mod response_area;
mod tricks;
mod turns;

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tailwater_functions::build::Requirements;

use tailwater_api::PacketAction;
use tailwater_api::{IdleTimeouts, WhenFull};
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, InputPolicy, state_bytes};
use tailwater_chain::flow_table::{FlowTable, FlowTableConfig};
use tailwater_confine::{Confinement, ContainerRuntime};
use tailwater_isolation::server::{Confined, FunctionReport, Isolation, IsolationConfig, Launch, Program};
use tailwater_net::Nanos;
use tailwater_net::parse::parse;
use tailwater_net::toeplitz::RssHasher;

/// Packets of a batch.
const PACKETS: usize = 4;

fn program(attack: &str, confinement: &Confinement, container: &Option<ContainerRuntime>) -> Program {
    Program {
        function: attack.split(' ').next().unwrap().to_owned(),
        launch: Launch {
            program: env!("CARGO_BIN_EXE_tailwater-hostile-function").into(),
            arguments: Vec::new(),
        },
        config: format!("\"{attack}\""),
        single_instance: false,
        demands: Requirements::default(),
        on_failure: Default::default(),
        joins: None,
        confined: Some(Confined {
            confinement: confinement.clone(),
            container: container.clone(),
        }),
    }
}

/// Returns an Ethernet frame with an empty IPv4 UDP packet.
fn frame() -> Vec<u8> {
    let mut frame = vec![0u8; 64];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17]);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    // IPv4 header checksum: makes the one's complement sum of the header's words all ones.
    let sum: u32 = frame[14..34]
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
        .sum();
    let folded = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&folded.to_be_bytes());
    frame[38..40].copy_from_slice(&8u16.to_be_bytes());
    frame
}

/// Returns the program of a hostile function that implements the protocol itself.
fn raw(attack: &str, confinement: &Confinement, container: &Option<ContainerRuntime>) -> Program {
    let mut program = program(attack, confinement, container);
    program.launch.arguments.push("raw".into());
    program
}

/// Serialises tests whose chains take turns on one core.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Isolated functions on the last core, and their chain.
struct Rig {
    isolation: Isolation,
    chain: Chain,
    pool: BufferPool,
    _alone: MutexGuard<'static, ()>,
}

impl Rig {
    /// `deadline` bounds a turn. It is generous, since on a busy machine stopping an attacker takes time and must not
    /// count as overdue.
    fn new(programs: Vec<Program>, deadline: Duration) -> Rig {
        let alone = alone();
        let mut config = IsolationConfig::new(programs, Nanos(200_000));
        config.deadline = deadline;
        let core = core(0).expect("a core");
        let mut isolation = Isolation::start(config, &[core.into()]).unwrap();
        let pool = BufferPool::new(64, 2048).unwrap();
        let capacity = 4096;
        isolation
            .attach(pool.memory().buffer_bytes(), Some(capacity), None)
            .unwrap();
        let input = InputPolicy {
            malformed: PacketAction::Drop,
            non_ip: PacketAction::Drop,
        };
        let functions = isolation.functions(0);
        let state_bytes = state_bytes(&functions);
        let table = (state_bytes > 0).then(|| {
            let idle = Nanos::from_secs(60);
            let config = FlowTableConfig {
                capacity,
                timeouts: IdleTimeouts {
                    tcp: idle,
                    udp: idle,
                    other: idle,
                },
                when_full: WhenFull::Evict,
                state_bytes,
                seed: 1,
            };
            let (mut table, partitions) = FlowTable::create(&config).unwrap();
            partitions.into_iter().for_each(|it| table.adopt(it));
            table
        });
        Rig {
            chain: Chain::new(functions, table, input),
            isolation,
            pool,
            _alone: alone,
        }
    }

    /// Sends a batch of these frames, and returns the forwarded ones.
    fn send(&mut self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut batch = Batch::new(&self.pool, 32);
        for (i, frame) in frames.iter().enumerate() {
            let hash = RssHasher::default().hash(&parse(frame).unwrap().key);
            assert!(batch.push(&mut self.pool, frame, Nanos(i as u64), hash));
        }
        self.chain.process(&mut batch, Nanos(1));
        let sent = (0..batch.len()).map(|i| batch.frame(i).to_vec()).collect();
        batch.release(&mut self.pool);
        sent
    }

    /// Returns the reports on the functions.
    fn finish(self) -> Vec<FunctionReport> {
        self.chain.drain();
        self.isolation.finish().functions
    }
}

/// Returns the bytes that a hostile function wrote into a packet.
fn loot(frame: &[u8]) -> [u8; 8] {
    frame[42..50].try_into().unwrap()
}

/// Returns the last core that this process may use, or the one `but` positions before it.
fn core(but: usize) -> Option<usize> {
    let cores = rustix::thread::sched_getaffinity(None).unwrap();
    (0..1024).rev().filter(|core| cores.is_set(*core)).nth(but)
}

/// A process to kill.
struct Neighbour(Child);

impl Neighbour {
    fn new() -> Neighbour {
        let sleeps = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn();
        Neighbour(sleeps.unwrap())
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the isolation modes of this machine. Prints the reason if there is none.
fn ways() -> Vec<Option<ContainerRuntime>> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    if !status.contains("Uid:\t0\t0\t0\t0") {
        println!("skipped: confining programs needs root");
        return Vec::new();
    }
    match ContainerRuntime::find() {
        Some(runtime) => vec![None, Some(runtime)],
        None => {
            println!("skipped in containers: no crun (apt-get install crun)");
            vec![None]
        }
    }
}
