//! Access to packets before a function's turn, and disturbance of other functions' turns.

use crate::{Rig, core, frame, loot, program, raw, ways};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs;
use std::path::PathBuf;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use tailwater_confine::Confinement;
use tailwater_handover::priority::Priority;
use tailwater_isolation::server::{FunctionReport, PRIORITY};

/// Batches of a run.
const BATCHES: u64 = 300;

/// As in `hostile/raw.rs`.
pub(crate) const MARK: usize = 50;
pub(crate) const UNSEEN: &[u8; 8] = b"unseen!!";
pub(crate) const SEEN: &[u8; 8] = b"was seen";

/// The test's thread as a worker, on the functions' core and with their priority.
pub(crate) struct Worker {
    cores: CpuSet,
    _priority: Priority,
}

impl Worker {
    pub(crate) fn new() -> Worker {
        let cores = sched_getaffinity(None).unwrap();
        let mut only = CpuSet::new();
        only.set(core(0).unwrap());
        sched_setaffinity(None, &only).unwrap();
        Worker {
            cores,
            _priority: Priority::fifo(PRIORITY).unwrap(),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.cores);
    }
}

/// Returns an unmarked frame of flow `n`.
fn unseen(n: u64) -> Vec<u8> {
    let mut frame = frame();
    frame[34..36].copy_from_slice(&(n as u16).to_be_bytes());
    frame[MARK..MARK + 8].copy_from_slice(UNSEEN);
    frame
}

/// Sends batches through a function that marks each frame, and a spy behind it. Returns the number of forwarded frames,
/// the number of unmarked frames that the spy saw, and the report on the spy.
fn spy(
    marker: &str,
    attack: &str,
    confinement: &Confinement,
    container: &Option<tailwater_confine::ContainerRuntime>,
) -> (u64, u64, FunctionReport) {
    let programs = vec![
        program(marker, &Confinement::full(), container),
        raw(attack, confinement, container),
        program("nothing", &Confinement::full(), container),
    ];
    let mut rig = Rig::new(programs, Duration::from_millis(200));
    let (mut through, mut saw) = (0, 0);
    {
        let _worker = Worker::new();
        for n in 0..BATCHES {
            // The functions have the core meanwhile.
            if n % 50 == 49 {
                sleep(Duration::from_millis(2));
            }
            let sent = rig.send(&[n, n].map(unseen));
            assert!(sent.iter().all(|frame| frame[MARK..MARK + 8] == *SEEN));
            through += sent.len() as u64;
            if let Some(first) = sent.first() {
                saw = u64::from_ne_bytes(loot(first));
            }
        }
    }
    (through, saw, rig.finish().swap_remove(1))
}

#[test]
fn a_spy_sees_no_packet_before_its_turn() {
    for container in ways() {
        // A function that yields in the middle of its turn spies while others run, and makes those in front of it
        // sleep.
        let (through, saw, report) = spy("mark", "spy", &Confinement::full(), &container);
        assert_eq!(through, BATCHES * 2, "{report:?}");
        assert_eq!(saw, 0, "{report:?}");
        // It loses packets by that, and is ended.
        let (through, saw, report) = spy("mark", "spy-stalls", &Confinement::full(), &container);
        assert!(through > 0, "{report:?}");
        assert!(report.restarts.lied > 0, "{report:?}");
        assert_eq!(saw, 0, "{report:?}");
        // The function in front yields in the middle of its turn, to request a companion of each flow.
        let (through, saw, report) = spy("ask", "spy", &Confinement::full(), &container);
        assert_eq!(through, BATCHES * 2, "{report:?}");
        assert_eq!(saw, 0, "{report:?}");
        // A spy that polls all the time needs another thread on another core.
        let Some(other) = core(1) else {
            println!("skipped: a spy on another core: there is none");
            continue;
        };
        let attack = format!("spy-thread {other}");
        let (_, saw, report) = spy("mark", &attack, &Confinement::full(), &container);
        let told = "forbidden system call";
        assert!(report.ends.iter().any(|how| how.contains(told)), "{report:?}");
        assert_eq!(saw, 0, "{report:?}");
        let mut without = Confinement::full();
        without.filter = false;
        without.limits.processes = None;
        without.groups.processes = None;
        without.groups.cores = false;
        // On a busy machine its thread may have the other core too seldom.
        let saw_one = (0..20).any(|_| {
            let (through, saw, report) = spy("mark", &attack, &without, &container);
            assert_eq!(through, BATCHES * 2, "{report:?}");
            saw > 0
        });
        assert!(saw_one);
    }
}

/// A spy is kept out by the order in which the worker yields its core. If the worker runs on another core than its
/// functions and yields none, the spy succeeds.
#[test]
fn a_spy_sees_packets_before_its_turn_where_the_worker_does_not_see_to_the_order() {
    if core(1).is_none() {
        println!("skipped: a worker on another core than its functions: there is none");
        return;
    }
    for container in ways() {
        let programs = vec![
            program("mark", &Confinement::full(), &container),
            raw("spy", &Confinement::full(), &container),
            program("nothing", &Confinement::full(), &container),
        ];
        let mut rig = Rig::new(programs, Duration::from_millis(200));
        let until = Instant::now() + Duration::from_secs(120);
        let mut saw = 0;
        for n in 0.. {
            let sent = rig.send(&[n, n].map(unseen));
            saw = sent.first().map_or(saw, |first| u64::from_ne_bytes(loot(first)));
            if saw > 0 {
                break;
            }
            assert!(Instant::now() < until, "it saw none of {n} batches");
        }
        rig.finish();
    }
}

/// Returns the processes of a function that was started with this argument.
pub(crate) fn descendants_with(argument: &str) -> Vec<u32> {
    let children = |process: u32| {
        let threads = fs::read_dir(format!("/proc/{process}/task"));
        let threads = threads.into_iter().flatten().flatten();
        let lists = threads.filter_map(|it| fs::read_to_string(it.path().join("children")).ok());
        let lists = lists.collect::<Vec<_>>().join(" ");
        let numbers = lists.split_whitespace().filter_map(|it| it.parse().ok());
        numbers.collect::<Vec<u32>>()
    };
    let mut found = children(std::process::id());
    let mut next = 0;
    while let Some(&process) = found.get(next) {
        found.extend(children(process));
        next += 1;
    }
    found.retain(|process| {
        let command = fs::read_to_string(format!("/proc/{process}/cmdline"));
        let mut words = command.iter().flat_map(|words| words.split('\0'));
        words.any(|word| word == argument)
    });
    found
}

/// A file that is removed when dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A process killed after its turn has already responded. It is replaced, and no other process is ended.
#[test]
fn one_that_is_killed_behind_its_turn_is_replaced_and_nobody_accused() {
    let name = format!("tailwater-turns-{}", std::process::id());
    let go_on = Scratch(std::env::temp_dir().join(name));
    let trusted = |attack: &str, argument: &str| {
        let mut program = program(attack, &Confinement::full(), &None);
        program.confined = None;
        program.launch.arguments.push(argument.into());
        program
    };
    let programs = vec![
        trusted("nothing", "in-front"),
        trusted(&format!("wait-for {}", go_on.0.display()), "waits"),
        trusted("nothing", "behind"),
    ];
    let mut rig = Rig::new(programs, Duration::from_secs(10));
    let path = go_on.0.clone();
    let killer = thread::spawn(move || {
        // The second function has its turn.
        while !fs::exists(path.with_extension("waits")).unwrap() {
            sleep(Duration::from_millis(1));
        }
        let before = descendants_with("in-front");
        assert_eq!(before.len(), 2);
        for process in &before {
            let process = Pid::from_raw(*process as i32).unwrap();
            kill_process(process, Signal::KILL).unwrap();
        }
        // The standby processes are ready, and have had time to be attached.
        while descendants_with("in-front")
            .iter()
            .filter(|it| !before.contains(it))
            .count()
            < 1
        {
            sleep(Duration::from_millis(1));
        }
        sleep(Duration::from_millis(300));
        fs::write(&path, b"").unwrap();
    });
    let sent = rig.send(&vec![frame(); 8]);
    killer.join().unwrap();
    let _ = fs::remove_file(go_on.0.with_extension("waits"));
    let reports = rig.finish();
    let restarts: Vec<_> = reports.iter().map(|it| it.restarts).collect();
    assert_eq!(sent.len(), 8, "{restarts:?}");
    assert_eq!((restarts[0].lied, restarts[0].overdue), (0, 0), "{restarts:?}");
    assert!(restarts[0].ended > 0, "{restarts:?}");
    assert_eq!([restarts[1].total(), restarts[2].total()], [0, 0], "{restarts:?}");
}
