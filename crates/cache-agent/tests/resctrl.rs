//! The agent on a model of the kernel's `resctrl`, mounted as a file system.

#[path = "../../resctrl/tests/model/mod.rs"]
mod model;

use model::fuse::{Fault, Mounted};
use model::kernel::Machine;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use tailwater_cache_agent::{Agent, Partitions, Seen, Settings, Tick, Watched};
use tailwater_net::Nanos;
use tailwater_placement::lease::Terms;
use tailwater_placement::on_demand::{Observed, Reserved};
use tailwater_placement::published::{FIREWALL, SNORT, STATS, WAY_BYTES};
use tailwater_resctrl::Resctrl;

/// Environment variable that gives a copy of this program the folder for [`holder`].
const FOLDER: &str = "TAILWATER_CACHE_AGENT_HOLDER";

fn agent(folder: PathBuf) -> Agent<Partitions> {
    let settings = tailwater_resctrl::Settings {
        mount_point: folder.join("resctrl"),
        mount: false,
        file_system: "fuse".to_owned(),
        state: folder.join("state"),
        ..tailwater_resctrl::Settings::default()
    };
    let resctrl = Resctrl::open(settings).unwrap();
    let settings = Settings {
        own: 10,
        terms: Terms::DEFAULT,
        incarnation: 1,
        config: None,
    };
    Agent::new(Partitions::new(resctrl, 0, WAY_BYTES, 0), &settings).unwrap()
}

/// Task of another process, killed when dropped.
struct Task(Child);

impl Task {
    fn new() -> Task {
        let mut sleep = Command::new("sleep");
        let sleep = sleep.arg("1000").stdin(Stdio::null()).stdout(Stdio::null());
        Task(sleep.spawn().unwrap())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns three instances with loads as shares of their rates. With `late`, they are late.
fn seen(tasks: &[u32], loads: [f64; 3], late: bool) -> Seen {
    let functions = [SNORT, STATS, FIREWALL].into_iter().zip(tasks);
    let instance = |((function, task), load): ((tailwater_placement::published::Function, &u32), f64)| {
        let curves = function.profile().unwrap().curves[0].clone();
        let objective = Nanos(curves.load.latency(0.8).0 + 1);
        Watched {
            references: Some(function.references),
            seen: Observed {
                name: function.name.into(),
                tasks: vec![*task],
                latency: Some(match late {
                    true => Nanos(objective.0 * 2),
                    false => Nanos(objective.0 / 2),
                }),
                objective,
                offered: load * curves.cache.most(),
                occupancy: None,
                misses: late.then_some(0.3),
                curves: Some(Arc::new(curves)),
                instances: 1,
                most: 1,
            },
        }
    };
    Seen {
        reserved: vec![Reserved {
            name: "reserved".into(),
            ways: 3,
            tasks: Vec::new(),
        }],
        on_demand: functions.zip(loads).map(instance).collect(),
    }
}

fn ticks(agent: &mut Agent<Partitions>, from: u64, count: u64, seen: &Seen) -> Tick {
    let mut last = None;
    for tick in from..from + count {
        last = Some(agent.tick(Nanos::from_millis(100 * tick), seen).unwrap());
    }
    last.unwrap()
}

/// Returns the state of cache 0 in the model's tree: ways and tasks of each group of this test, sorted by mask.
fn tree(mounted: &Mounted) -> Vec<(u32, Vec<u32>)> {
    let mut groups = Vec::new();
    for entry in std::fs::read_dir(mounted.root()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("tailwater-") {
            continue;
        }
        let schemata = std::fs::read_to_string(path.join("schemata")).unwrap();
        let line = schemata.lines().find(|line| line.trim().starts_with("L3:")).unwrap();
        let mask = line.split("0=").nth(1).unwrap().split(';').next().unwrap();
        let tasks = std::fs::read_to_string(path.join("tasks")).unwrap();
        let mut tasks: Vec<u32> = tasks.lines().map(|task| task.parse().unwrap()).collect();
        tasks.sort_unstable();
        groups.push((u32::from_str_radix(mask.trim(), 16).unwrap(), tasks));
    }
    groups.sort();
    groups
}

/// Checks that the tree matches the tick.
fn same(mounted: &Mounted, tick: &Tick) {
    let mut told: Vec<(u32, Vec<u32>)> = Vec::new();
    for class in &tick.in_force.classes {
        let mut tasks = class.tasks.clone();
        tasks.sort_unstable();
        told.push((class.mask.bits(), tasks));
    }
    told.sort();
    let tree = tree(mounted);
    assert_eq!(told, tree);
    let mut all = 0;
    for (mask, _) in tree {
        assert_eq!(mask & all, 0, "two classes have a way");
        assert_eq!(mask & 0xc0000, 0, "a class has ways of devices");
        all |= mask;
    }
}

fn three() -> (Vec<Task>, Vec<u32>) {
    let tasks: Vec<Task> = (0..3).map(|_| Task::new()).collect();
    let numbers = tasks.iter().map(|task| task.0.id()).collect();
    (tasks, numbers)
}

#[test]
fn masks_follow_load_and_everything_comes_back() {
    let Some(mounted) = Mounted::new(Machine::xeon(), false) else {
        return;
    };
    let before = mounted.snapshot();
    let (_tasks, numbers) = three();
    let mut agent = agent(mounted.folder.clone());
    // All are on time: they share all ways.
    let tick = ticks(&mut agent, 0, 3, &seen(&numbers, [0.3; 3], false));
    same(&mounted, &tick);
    assert_eq!(tick.in_force.classes.len(), 2);
    assert_eq!(tick.in_force.class_of("snort").unwrap().instances.len(), 3);
    // All are late: each has ways of its own.
    let tick = ticks(&mut agent, 3, 30, &seen(&numbers, [0.3, 0.6, 0.3], true));
    same(&mounted, &tick);
    assert_eq!(tick.decision.allocation, {
        let mut told = tick.in_force.clone();
        told.classes.sort_by_key(|class| {
            let mut order = tick.decision.allocation.classes.iter();
            order.position(|decided| decided.name == class.name)
        });
        told
    });
    assert_eq!(tick.in_force.classes.len(), 4);
    let ways = |tick: &Tick| tick.in_force.class_of("stats").unwrap().mask.ways();
    let much = ways(&tick);
    // Less load: fewer ways, which the others get.
    let tick = ticks(&mut agent, 33, 30, &seen(&numbers, [0.7, 0.2, 0.3], true));
    same(&mounted, &tick);
    assert!(ways(&tick) < much, "{} {much}", ways(&tick));
    assert_eq!((tick.refused, tick.left_out.len()), (None, 0));
    agent.end().unwrap();
    assert_eq!(mounted.snapshot(), before);
}

#[test]
fn without_classes_instances_share() {
    let Some(mounted) = Mounted::new(Machine::xeon(), false) else {
        return;
    };
    let (_tasks, numbers) = three();
    // Other programs use four of eight classes of service.
    for other in 0..4 {
        mounted.kernel(|kernel| kernel.mkdir(&format!("other-{other}")).unwrap());
        let path = mounted.root().join(format!("other-{other}/schemata"));
        std::fs::write(path, "L3:0=20000;1=20000\n").unwrap();
    }
    let mut agent = agent(mounted.folder.clone());
    let late = seen(&numbers, [0.3, 0.6, 0.3], true);
    let tick = ticks(&mut agent, 0, 30, &late);
    same(&mounted, &tick);
    // One is reserved, one shared, one isolated.
    assert_eq!((tick.classes, tick.in_force.classes.len()), (3, 3));
    assert_eq!(tick.refused, None);
    // The kernel refuses a class that should exist: the agent uses the existing ones.
    (0..4).for_each(|other| {
        mounted.kernel(|kernel| kernel.rmdir(&format!("other-{other}")).unwrap());
    });
    // Only commands that create or remove groups have no slash.
    mounted.faults(|path| {
        let makes = path.starts_with("tailwater-") && !path.contains('/');
        makes.then_some(Fault::Errno(libc::ENOSPC))
    });
    let tick = ticks(&mut agent, 30, 3, &late);
    assert_eq!((tick.classes, tick.in_force.classes.len()), (3, 3));
    assert_eq!(tick.refused, None);
    same(&mounted, &tick);
    // The step is retried after some time.
    mounted.no_faults();
    let tick = ticks(&mut agent, 200, 30, &late);
    assert_eq!((tick.classes, tick.in_force.classes.len()), (7, 4));
    same(&mounted, &tick);
    agent.end().unwrap();
    assert!(tree(&mounted).is_empty());
}

#[test]
fn what_is_busy_is_tried_again() {
    let Some(mounted) = Mounted::new(Machine::xeon(), false) else {
        return;
    };
    let before = mounted.snapshot();
    let (mut tasks, numbers) = three();
    let mut agent = agent(mounted.folder.clone());
    ticks(&mut agent, 0, 3, &seen(&numbers, [0.3; 3], false));
    let late = seen(&numbers, [0.3, 0.6, 0.3], true);
    let mut turn = 0;
    // Two commands of three fail.
    mounted.faults(move |_| {
        turn += 1;
        (turn % 3 != 0).then_some(Fault::Errno(libc::EBUSY))
    });
    let mut refused = 0;
    for tick in 3..40 {
        let tick = agent.tick(Nanos::from_millis(100 * tick), &late).unwrap();
        refused += u32::from(tick.refused.is_some());
        // Never more than the lease, whatever fails.
        let on_demand = tick.in_force.classes.iter();
        let on_demand = on_demand.filter(|class| class.name != "reserved");
        assert!(on_demand.map(|class| class.mask.ways()).sum::<u16>() <= 10);
    }
    assert!(refused > 0);
    mounted.no_faults();
    let tick = ticks(&mut agent, 40, 40, &late);
    same(&mounted, &tick);
    assert_eq!((tick.in_force.classes.len(), tick.refused), (4, None));
    // A group removed by another program is created again, and an ended thread is left out.
    let name = tree(&mounted).len();
    let group = std::fs::read_dir(mounted.root())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .find(|name| name.starts_with("tailwater-"));
    std::fs::remove_dir(mounted.root().join(group.unwrap())).unwrap();
    assert_eq!(tree(&mounted).len(), name - 1);
    tasks.pop();
    let tick = ticks(&mut agent, 80, 20, &late);
    assert_eq!((tree(&mounted).len(), &tick.refused), (name, &None));
    // Removing fails once, and succeeds the second time.
    mounted.fault(0, Fault::Errno(libc::EBUSY));
    assert!(agent.end().is_err());
    mounted.no_faults();
    agent.end().unwrap();
    assert_eq!(mounted.snapshot(), before);
}

/// Not a test: body of another process, which divides the cache until it is killed.
#[test]
fn holder() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let (_tasks, numbers) = three();
    let mut agent = agent(folder.into());
    for (from, loads) in [(0, [0.3, 0.6, 0.3]), (20, [0.7, 0.2, 0.3])] {
        ticks(&mut agent, from, 20, &seen(&numbers, loads, true));
    }
    println!("\ndivided");
    let _ = std::io::stdin().lines().next();
}

#[test]
fn killed_at_any_command_the_next_start_restores() {
    let Some(mounted) = Mounted::new(Machine::xeon(), false) else {
        return;
    };
    let before = mounted.snapshot();
    let mut at = 0;
    loop {
        mounted.fault(at, Fault::Kill);
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "holder", "--nocapture", "--test-threads=1"]);
        program
            .env(FOLDER, &mounted.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = program.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let done = output.lines().map_while(Result::ok).any(|line| line == "divided");
        mounted.no_faults();
        let _ = child.kill();
        child.wait().unwrap();
        drop(agent(mounted.folder.clone()));
        assert_eq!(mounted.snapshot(), before, "command {at}");
        if done {
            break;
        }
        at += 1;
        assert!(at < 200);
    }
    assert!(at > 10, "{at}");
}
