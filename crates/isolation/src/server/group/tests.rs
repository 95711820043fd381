//! Groups whose processes are started by the test.

use super::*;
use crate::server::Launch;
use crate::server::process::{Program, SharedByProcesses};
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use tailwater_functions::build::Requirements;
use tailwater_net::Nanos;

const PATIENCE: Duration = Duration::from_secs(30);
const ONLY: ProcessPart = ProcessPart { index: 0, of: 1 };

fn program() -> Program {
    Program {
        function: "started".to_owned(),
        launch: Launch {
            program: "/nowhere".into(),
            arguments: Vec::new(),
        },
        config: String::new(),
        single_instance: false,
        demands: Requirements::default(),
        on_failure: Default::default(),
        confined: None,
        joins: None,
    }
}

/// A slow start of a process does not block the watchdog, which has others to end.
#[test]
fn a_slow_start_holds_nobody_up() {
    let (begun, has_begun) = channel();
    let (go_on, may_go_on) = channel::<()>();
    let mut seat = FunctionSlot::vacant(program(), Description::default());
    let start = move |over: &std::sync::atomic::AtomicBool| {
        begun.send(()).unwrap();
        // Blocks until the test sends, or has failed.
        let _ = may_go_on.recv();
        assert!(!over.load(Ordering::Relaxed));
        let errors = crate::server::standard_error::StandardError::new("started").unwrap();
        let shared = SharedByProcesses {
            counters: None,
            errors: Arc::new(errors),
            socket: None,
        };
        starter::start(&program(), &shared, ONLY, PATIENCE, over)
    };
    seat.starter = Some(Starter::new(false, start).unwrap());
    let mut group = Group::new(0.into(), ONLY, vec![seat], false);
    let limits = GroupLimits {
        deadline: Duration::from_millis(10),
        patience: PATIENCE,
        budget: Nanos::from_millis(2),
    };
    group.poll(&limits, Instant::now());
    has_begun.recv().unwrap();
    for _ in 0..3 {
        group.poll(&limits, Instant::now());
        assert!(matches!(group.slots[0].standby, Standby::Starting));
        assert_eq!(group.slots[0].report.restarts.total(), 0);
    }
    go_on.send(()).unwrap();
    // The program does not exist, which counts as a failure.
    let fails = |group: &Group| group.slots[0].report.restarts.not_attached;
    while fails(&group) == 0 {
        group.poll(&limits, Instant::now());
        std::thread::yield_now();
    }
    drop(go_on);
}
