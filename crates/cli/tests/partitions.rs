//! `tailwater profile cache --cache-by resctrl`, on the model of the kernel's `resctrl`.
//!
//! The model does not affect performance. The tests assert the owners of ways, and that nothing is left behind. They
//! are skipped where FUSE cannot be mounted.

mod common;
#[path = "../../resctrl/tests/model/mod.rs"]
mod model;

use common::*;
use model::fuse::{Fault, Mounted};
use model::kernel::Machine;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tailwater_dataplane::cores::default_core;
use tailwater_profile::cache::{Caches, Method, sharing};
use tailwater_profile::profiles::Profiles;
use tailwater_resctrl::{Level, Resctrl, Settings};

/// Returns the model's machine with this machine's cores: 20 ways, two of them shared with hardware.
fn machine() -> Option<Machine> {
    Machine::here(default_core())
}

fn chain(folder: &Folder) -> PathBuf {
    folder.write(
        "chain.yaml",
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: test}\n\
         spec:\n  functions: [{accounting: }]\n  slo: {latency: 50ms}\n  flows: {capacity: 4096}\n",
    )
}

fn command(chain: &Path, run_time: &str, more: &[&str]) -> Command {
    let mut command = tailwater();
    command.args(["profile", "cache"]).arg(chain);
    command.args(["--flows", "10", "--run-time", run_time]);
    command.args(more);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn measure(chain: &Path, more: &[&str]) -> Output {
    command(chain, "20ms", more).output().unwrap()
}

/// Returns `true` if curves were measured: on a busy machine, with doubts.
fn is_measured(output: &Output) -> bool {
    matches!(output.status.code(), Some(0 | 4))
}

/// Records all writes, creations and removals from now on.
fn observe(mounted: &Mounted) -> Arc<Mutex<Vec<String>>> {
    let commands = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&commands);
    mounted.faults(move |path| {
        noted.lock().unwrap().push(path.to_owned());
        None
    });
    commands
}

/// Starts a process that measures on exclusive ways of its core.
fn measuring(mounted: &Mounted, chain: &Path) -> Child {
    let commands = observe(mounted);
    let mut command = command(chain, "1s", &["--cache-by", "resctrl"]);
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(300);
    // The first partition is a trial.
    let given = |path: &&String| path.starts_with("tailwater-") && path.ends_with("/cpus_list");
    while commands.lock().unwrap().iter().filter(given).count() < 2 {
        let ended = child.try_wait().unwrap();
        if ended.is_some() || Instant::now() > deadline {
            let _ = child.kill();
            let output = child.wait_with_output().unwrap();
            panic!("no partition: {ended:?}, {}", text(&output.stderr));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child
}

#[test]
fn a_curve_is_measured_with_ways_of_the_cores_own() {
    let Some(mounted) = machine().and_then(Mounted::in_place) else {
        return;
    };
    let folder = Folder::new();
    let chain = chain(&folder);
    let before = mounted.snapshot();
    let commands = observe(&mounted);
    let output = measure(&chain, &["--cache-by", "resctrl", "--output", "json"]);
    assert!(is_measured(&output), "{}", text(&output.stderr));
    mounted.no_faults();

    let file = folder.path("chain.curves.yaml");
    let profiles = Profiles::read(&file).unwrap();
    let cache = profiles.list[0].cache.as_ref().unwrap();
    let way = Caches::of(default_core()).unwrap().last_bytes / 20;
    assert_eq!(cache.method, Method::Resctrl);
    assert_eq!(u64::from(cache.unit_kibibytes), way / 1024);
    // All but the two shared with hardware, which the other programs keep.
    assert_eq!(cache.most_units, 18);
    let places: Vec<u32> = cache.points.iter().map(|point| point.at).collect();
    assert_eq!((places.first(), places.last()), (Some(&1), Some(&18)));
    assert!(cache.not_held.is_empty());
    // The model's counters report no occupancy.
    let occupied: Vec<_> = cache.occupied.iter().map(|o| (o.at, o.kibibytes)).collect();
    let none: Vec<_> = places.iter().map(|at| (*at, 0)).collect();
    assert_eq!(occupied, none);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["cache"]["method"], "resctrl");
    let because = document["cache"]["because"].as_str().unwrap();
    assert!(because.contains("20 ways, 18 of them available"), "{because}");
    assert_eq!(document["cache"]["points"][0]["occupied_bytes"], 0);

    // Groups were created, assigned the core, resized, and removed.
    let commands = commands.lock().unwrap();
    let groups: BTreeSet<&str> = commands
        .iter()
        .filter_map(|path| path.split('/').next())
        .filter(|name| name.starts_with("tailwater-"))
        .collect();
    assert_eq!(groups.len(), 2, "{commands:?}");
    let count = |group: &str, file: &str| {
        let path = format!("{group}{file}");
        commands.iter().filter(|command| **command == path).count()
    };
    let sizes: Vec<usize> = groups.iter().map(|group| count(group, "/schemata")).collect();
    for group in &groups {
        // Created and removed, with the core assigned in between.
        assert_eq!((count(group, ""), count(group, "/cpus_list")), (2, 1));
    }
    // One group was a trial; the other one had each size of the curve.
    let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
    assert_eq!(*least, 1);
    assert!(*most >= places.len(), "{sizes:?}, {places:?}");
    assert_eq!(mounted.snapshot(), before);
}

#[test]
fn what_was_asked_for_or_found_is_told() {
    let Some(mounted) = machine().and_then(Mounted::in_place) else {
        return;
    };
    let folder = Folder::new();
    let chain = chain(&folder);
    // By default it is resctrl where available.
    let output = measure(&chain, &[]);
    assert!(is_measured(&output), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    let told = "by resctrl: the last-level cache has 20 ways, 18 of them available";
    assert!(stdout.contains(told), "{stdout}");
    assert!(stdout.contains("0.0 filled"), "{stdout}");
    drop(mounted);

    // On a processor without CAT: the pirate, with the reason.
    let mut without = machine().unwrap();
    without.caches[0].name = "L2";
    without.memory = None;
    let Some(_mounted) = Mounted::in_place(without) else {
        return;
    };
    let output = measure(&chain, &["--cache-by", "resctrl"]);
    let expected = "--cache-by resctrl: resctrl does not control ways of L3 caches (CAT)";
    assert_refused(&output, expected);
    if sharing(default_core()).is_empty() {
        return println!("skipped: no other core shares the last-level cache");
    }
    let output = measure(&chain, &[]);
    if is_measured(&output) {
        let stdout = text(&output.stdout);
        let told = "by pirate: resctrl does not control ways of L3 caches (CAT)";
        assert!(stdout.contains(told), "{stdout}");
    } else {
        // On a shared machine the cache may not be measurable.
        let stderr = text(&output.stderr);
        assert!(stderr.starts_with("error: no curves: "), "{stderr}");
    }
}

#[test]
fn what_cannot_be_had_is_told_at_once_and_nothing_stays() {
    let Some(machine) = machine() else {
        return;
    };
    let folder = Folder::new();
    let chain = chain(&folder);
    let refused = |mounted: &Mounted, expected: &str| {
        let before = mounted.snapshot();
        for more in [&["--cache-by", "resctrl"][..], &[]] {
            let output = measure(&chain, more);
            assert_refused(&output, expected);
            let hint = "--cache-by pirate measures without it";
            assert_eq!(
                text(&output.stderr).contains(hint),
                more.is_empty(),
                "{}",
                text(&output.stderr)
            );
            assert_eq!(mounted.snapshot(), before);
        }
        assert!(!folder.path("chain.curves.yaml").exists());
    };
    let others = |mounted: &Mounted, number: u32, mask: u32, core: Option<usize>| {
        let group = mounted.root().join(format!("others-{number}"));
        std::fs::create_dir(&group).unwrap();
        let id = machine.caches[0].domains[0];
        std::fs::write(group.join("schemata"), format!("L3:{id}={mask:x}\n")).unwrap();
        if let Some(core) = core {
            std::fs::write(group.join("cpus_list"), format!("{core}\n")).unwrap();
        }
    };
    let Some(mounted) = Mounted::in_place(machine.clone()) else {
        return;
    };
    // EBUSY at each of the commands: a group, the default group's ways, its ways, its core.
    for at in 0..4 {
        let before = mounted.snapshot();
        mounted.fault(at, Fault::Errno(libc::EBUSY));
        let output = measure(&chain, &["--cache-by", "resctrl"]);
        mounted.no_faults();
        assert_refused(&output, "is busy");
        assert_eq!(mounted.snapshot(), before, "command {at}");
    }
    // The kernel rejects the mask.
    mounted.faults(|path| path.ends_with("schemata").then_some(Fault::Errno(libc::EINVAL)));
    refused(&mounted, "the kernel refused");
    mounted.no_faults();
    // The core belongs to another group.
    let core = default_core();
    others(&mounted, 0, 0xf, Some(core));
    refused(&mounted, &format!("core {core} belongs to the group others-0"));
    drop(mounted);

    // All classes are in use: eight, one of them the default group's.
    let mounted = Mounted::in_place(machine.clone()).unwrap();
    (0..7).for_each(|number| others(&mounted, number, 0xf0000, None));
    refused(&mounted, "out of classes of service (CLOSIDs): the processor has 8");
    drop(mounted);

    // Others have left gaps of one way, and a group needs at least two.
    let mut wide = machine.clone();
    wide.caches[0].min = 2;
    let mounted = Mounted::in_place(wide).unwrap();
    for (number, mask) in [0x6, 0x30, 0x180, 0xc00, 0x6000, 0x30000].iter().enumerate() {
        others(&mounted, number as u32, *mask, None);
    }
    refused(
        &mounted,
        "expected 2 contiguous free ways, found at most 1; others are used by others-0",
    );
    drop(mounted);

    // Room for one size only.
    let mounted = Mounted::in_place(machine.clone()).unwrap();
    others(&mounted, 0, 0x1ffff, None);
    refused(&mounted, "1 ways of the last-level cache are available");
}

#[test]
fn without_any_that_is_told() {
    if std::fs::read_to_string("/proc/filesystems").is_ok_and(|list| list.contains("resctrl")) {
        return println!("skipped: the kernel has resctrl");
    }
    let folder = Folder::new();
    let chain = chain(&folder);
    let output = measure(&chain, &["--cache-by", "resctrl"]);
    assert_refused(
        &output,
        "--cache-by resctrl: no resctrl on this machine: not supported by the kernel",
    );
    assert!(!folder.path("chain.curves.yaml").exists());
}

#[test]
fn one_that_is_stopped_or_killed_leaves_nothing() {
    let Some(mounted) = machine().and_then(Mounted::in_place) else {
        return;
    };
    let folder = Folder::new();
    let chain = chain(&folder);
    let before = mounted.snapshot();
    let output = interrupt(measuring(&mounted, &chain));
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert_eq!(mounted.snapshot(), before);

    let mut child = measuring(&mounted, &chain);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_ne!(mounted.snapshot(), before);
    // The next program that opens it removes the leftovers.
    let resctrl = Resctrl::open(Settings::default()).unwrap();
    assert_eq!(mounted.snapshot(), before);
    assert!(resctrl.info().cache(Level::L3).is_some());
    assert!(!folder.path("chain.curves.yaml").exists());
}
