//! Start time of a function's program, until it reports that it has loaded: plain, confined, in a container.
//!
//! `cargo bench -p tailwater-confine --bench start`: one JSON line per figure on standard output.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use tailwater_confine::{Confinement, ContainerRuntime, Program};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tailwater-hostile");
const RUNS: usize = 31;

/// Milliseconds from the start until the program has loaded, and from its end until it is cleaned up.
type Times = [f64; 2];

/// Name of a start mode, and a function that measures one start and end in it.
type MeasuredMode<'a> = (&'a str, Box<dyn Fn() -> Times + 'a>);

/// Runs the program once, over the socket passed to it.
fn plain() -> Times {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    let began = Instant::now();
    let mut child = Command::new(PROGRAM)
        .arg("nothing")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .spawn()
        .expect("the program");
    both(began, ours, || {
        child.wait().expect("its end");
    })
}

fn confined(confinement: &Confinement, runtime: Option<&ContainerRuntime>) -> Times {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    let mut program = Program::new(Path::new(PROGRAM)).argument("nothing");
    program.input = Some(theirs.as_fd());
    let began = Instant::now();
    let child = match runtime {
        None => confinement.spawn(&program),
        Some(runtime) => confinement.spawn_in(runtime, &program),
    };
    let child = child.unwrap_or_else(|error| {
        eprintln!("start: {error}");
        std::process::exit(1)
    });
    drop(theirs);
    both(began, ours, || {
        child.wait();
    })
}

fn both(began: Instant, mut ours: UnixStream, wait: impl FnOnce()) -> Times {
    ours.read_exact(&mut [0u8; 1]).expect("it loads");
    let loaded = began.elapsed();
    ours.write_all(b"g").expect("it listens");
    ours.read_to_end(&mut Vec::new()).expect("it ends");
    let ending = Instant::now();
    wait();
    [loaded, ending.elapsed()].map(|time| time.as_secs_f64() * 1e3)
}

fn main() {
    let full = Confinement::full();
    let without = |change: fn(&mut Confinement)| {
        let mut confinement = Confinement::full();
        change(&mut confinement);
        confinement
    };
    let no_filter = without(|it| it.filter = false);
    let no_network = without(|it| it.namespaces.network = false);
    let no_groups = without(|it| it.groups = Confinement::none().groups);
    let none = Confinement::none();
    let runtime = ContainerRuntime::find();
    let mut ways: Vec<MeasuredMode> = vec![
        ("plain", Box::new(plain)),
        ("no-defence", Box::new(|| confined(&none, None))),
        ("confined", Box::new(|| confined(&full, None))),
        ("confined-without-filter", Box::new(|| confined(&no_filter, None))),
        (
            "confined-without-network-namespace",
            Box::new(|| confined(&no_network, None)),
        ),
        ("confined-without-groups", Box::new(|| confined(&no_groups, None))),
    ];
    match &runtime {
        Some(runtime) => ways.push(("container", Box::new(|| confined(&full, Some(runtime))))),
        None => eprintln!("no crun: containers are left out"),
    }
    let mut times: Vec<Vec<Times>> = vec![Vec::new(); ways.len()];
    // Modes alternate, so that a disturbance of the machine affects all of them.
    for run in 0..=RUNS {
        for (way, times) in ways.iter().zip(&mut times) {
            let once = way.1();
            // The first run warms caches.
            if run > 0 {
                times.push(once);
            }
        }
    }
    for ((name, _), times) in ways.iter().zip(times) {
        for (at, what) in ["start", "end"].into_iter().enumerate() {
            let mut sorted: Vec<f64> = times.iter().map(|times| times[at]).collect();
            sorted.sort_by(f64::total_cmp);
            println!(
                r#"{{"name": "confine/{what}/{name}", "value": {:.3}, "unit": "ms", "min": {:.3}, "max": {:.3}, "runs": {RUNS}}}"#,
                sorted[RUNS / 2],
                sorted[0],
                sorted[RUNS - 1],
            );
        }
    }
}
