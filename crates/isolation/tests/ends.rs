//! End of a run in which functions fail: the run ends, and the other functions end normally.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;
use tailwater_functions::build::Requirements;

use tailwater_api::PacketAction;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, InputPolicy};
use tailwater_handover::priority::Priority;
use tailwater_isolation::server::{Isolation, IsolationConfig, IsolationReport, Launch, PRIORITY, Program};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::{FlowKey, Nanos};

/// A function that reports its last turn.
const SAYS: &str = "says-it-ended";

fn program(attack: &str) -> Program {
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
        confined: None,
        joins: None,
    }
}

/// Runs a chain of these functions with one packet to its end.
fn run(programs: Vec<Program>) -> IsolationReport {
    let (tell, told) = channel();
    thread::spawn(move || {
        let mut config = IsolationConfig::new(programs, Nanos(200_000));
        config.deadline = Duration::from_secs(1);
        // Beyond the time that the test waits: only functions that write files may take it in their last turn.
        config.patience = Duration::from_secs(600);
        let cores = rustix::thread::sched_getaffinity(None).unwrap();
        let core = (0..1024).rfind(|core| cores.is_set(*core)).unwrap();
        let mut isolation = Isolation::start(config, &[core.into()]).unwrap();
        let mut pool = BufferPool::new(64, 2048).unwrap();
        let buffer_bytes = pool.memory().buffer_bytes();
        isolation.attach(buffer_bytes, None, None).unwrap();
        let input = InputPolicy {
            malformed: PacketAction::Drop,
            non_ip: PacketAction::Drop,
        };
        let mut chain = Chain::new(isolation.functions(0), None, input);
        let mut batch = Batch::new(&pool, 32);
        let key = FlowKey::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, 1, 2);
        let frame = FrameBuilder::new(&key).to_vec().unwrap();
        assert!(batch.push(&mut pool, &frame, Nanos(0), 0));
        let _priority = Priority::fifo_or_ordinary(PRIORITY);
        chain.process(&mut batch, Nanos(1));
        chain.drain();
        tell.send(isolation.finish()).unwrap();
    });
    let report = told.recv_timeout(Duration::from_secs(120));
    report.expect("the run ends")
}

/// Returns the number of functions that reported a normal end, and the names of those with another failure.
fn told(report: &IsolationReport) -> (usize, Vec<&str>) {
    let says = format!("{SAYS}: flows.csv: cannot write records: it had its last turn");
    let failures = report.failures.iter();
    let (ended, others): (Vec<&String>, Vec<&String>) = failures.partition(|told| **told == says);
    let others = others.iter().map(|told| told.split(':').next().unwrap());
    (ended.len(), others.collect())
}

#[test]
fn a_function_that_fails_in_its_last_turn_holds_nobody_up() {
    for attack in ["exit-in-last-turn", "spin-in-last-turn"] {
        let report = run(vec![program(SAYS), program(attack), program(SAYS)]);
        let restarts = report.functions[1].restarts;
        assert_eq!(restarts.total(), 1, "{attack}: {restarts:?}");
        assert_eq!(told(&report), (2, vec![attack]), "{:?}", report.failures);
    }
}

#[test]
fn a_function_whose_process_is_down_at_the_end_holds_nobody_up() {
    let folder = std::env::temp_dir().join(format!("tailwater-ends-{}", std::process::id()));
    let mark = folder.to_str().unwrap();
    // No further process of it can be started.
    let mut once = program(&format!("exit-once {mark}"));
    once.single_instance = true;
    let report = run(vec![program(SAYS), once, program(SAYS)]);
    std::fs::remove_file(mark).unwrap();
    assert_eq!(report.functions[1].restarts.ended, 1);
    assert_eq!(told(&report), (2, vec!["exit-once"]), "{:?}", report.failures);
}
