//! A hostile function between two good ones, all confined: it is stopped at its first packets, which are lost by it, the
//! report says by what, and the others feel nothing. Without that defence it goes on.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tailwater_confine::{Confinement, ContainerRuntime};
use tailwater_isolation::server::{
    Confined, FunctionReport, Isolation, IsolationConfig, Launch, Program,
};
use tailwater_net::Nanos;
use tailwater_nf::batch::Batch;
use tailwater_nf::buffer::BufferPool;
use tailwater_nf::chain::{Chain, InputPolicy};
use tailwater_nf::spec::Fate;

/// Packets of a batch.
const PACKETS: usize = 4;

fn program(
    attack: &str,
    confinement: &Confinement,
    container: &Option<ContainerRuntime>,
) -> Program {
    Program {
        function: attack.split(' ').next().unwrap().to_owned(),
        launch: Launch {
            program: env!("CARGO_BIN_EXE_tailwater-hostile-function").into(),
            arguments: Vec::new(),
        },
        config: format!("\"{attack}\""),
        alone: false,
        confined: Some(Confined {
            confinement: confinement.clone(),
            container: container.clone(),
        }),
    }
}

/// An Ethernet frame with an IPv4 UDP packet of nothing.
fn frame() -> Vec<u8> {
    let mut frame = vec![0u8; 64];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17]);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    // The header's checksum: what makes the sum of its words all ones.
    let sum: u32 = frame[14..34]
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
        .sum();
    let folded = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&folded.to_be_bytes());
    frame[38..40].copy_from_slice(&8u16.to_be_bytes());
    frame
}

/// Sends one batch through a good function, the hostile one and another good one: how many packets came through, and
/// what is told of the three.
fn one_batch(
    attack: &str,
    confinement: &Confinement,
    container: &Option<ContainerRuntime>,
) -> (usize, Vec<FunctionReport>) {
    let good = program("nothing", &Confinement::full(), container);
    let programs = vec![good.clone(), program(attack, confinement, container), good];
    let mut config = IsolationConfig::new(programs, Nanos(200_000));
    // On a busy machine it may take its time until an attacker has been stopped: that is not to look overdue.
    config.deadline = match attack {
        "spin" => Duration::from_millis(50),
        _ => Duration::from_secs(10),
    };
    let core = core(0).expect("a core");
    let mut isolation = Isolation::start(config, &[core]).unwrap();
    let mut pool = BufferPool::new(64, 2048).unwrap();
    isolation
        .attach(pool.memory().buffer_bytes(), None)
        .unwrap();
    let input = InputPolicy {
        malformed: Fate::Drop,
        non_ip: Fate::Drop,
    };
    let mut chain = Chain::new(isolation.functions(0), None, input);
    let mut batch = Batch::new(&pool, 32);
    for i in 0..PACKETS {
        assert!(batch.push(&mut pool, &frame(), Nanos(i as u64), i as u32));
    }
    chain.process(&mut batch, Nanos(1));
    let through = batch.len();
    chain.finish();
    (through, isolation.finish().functions)
}

/// The last core that this process may use but so many.
fn core(but: usize) -> Option<usize> {
    let cores = rustix::thread::sched_getaffinity(None).unwrap();
    (0..1024).rev().filter(|core| cores.is_set(*core)).nth(but)
}

/// Somebody to kill.
struct Neighbour(Child);

impl Neighbour {
    fn new() -> Neighbour {
        let sleeps = Command::new("sleep")
            .arg("1000")
            .stdin(Stdio::null())
            .spawn();
        Neighbour(sleeps.unwrap())
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The ways that this machine has; none, and why, if it has none.
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

/// Its name and argument, what is told of its end, and what switches off the defence that is in its way.
type Attack = (String, &'static str, fn(&mut Confinement));

#[test]
fn what_a_hostile_function_tries_ends_it_and_nobody_else() {
    let neighbour = Neighbour::new();
    let other_core = core(1);
    let mut attacks: Vec<Attack> = vec![
        (
            "open".into(),
            "it called openat, which functions may not",
            |it| it.filter = false,
        ),
        ("thread".into(), "which functions may not", |it| {
            it.filter = false;
            it.limits.processes = None;
            it.groups.processes = None;
        }),
        (
            "socket".into(),
            "it called socket, which functions may not",
            |it| it.filter = false,
        ),
        (
            format!("kill {}", neighbour.0.id()),
            "it called kill, which functions may not",
            |it| it.filter = false,
        ),
        (
            format!("allocate {}", 96 << 20),
            "it used more memory than it may",
            |it| it.groups.memory = None,
        ),
    ];
    if let Some(core) = other_core {
        attacks.push((
            format!("leave-core {core}"),
            "it called sched_setaffinity, which functions may not",
            |it| it.filter = false,
        ));
    }
    for container in ways() {
        for (attack, told, switch_off) in &attacks {
            let mut confinement = Confinement::full();
            confinement.groups.memory = Some(48 << 20);
            let (through, reports) = one_batch(attack, &confinement, &container);
            assert_eq!(through, 0, "{attack}");
            let ends = &reports[1].ends;
            assert!(
                ends.iter().any(|how| how.contains(told)),
                "{attack}: {:?}",
                reports[1]
            );
            for good in [&reports[0], &reports[2]] {
                assert_eq!(good.restarts.total(), 0, "{attack}: {:?}", good.ends);
            }

            switch_off(&mut confinement);
            let (through, reports) = one_batch(attack, &confinement, &container);
            assert_eq!(through, PACKETS, "{attack} without its defence");
            assert_eq!(
                reports[1].restarts.total(),
                0,
                "{attack}: {:?}",
                reports[1].ends
            );
        }
    }
}

#[test]
fn one_that_never_yields_is_overdue_however_it_is_confined() {
    for container in ways() {
        let (through, reports) = one_batch("spin", &Confinement::full(), &container);
        assert_eq!(through, 0);
        assert_eq!(reports[1].restarts.overdue, 1, "{:?}", reports[1]);
    }
}
