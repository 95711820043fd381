//! Partitions on a model of the kernel, mounted as a file system.

mod model;

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};

use model::fuse::{Fault, Mounted};
use model::kernel::{Machine, Ways};
use tailwater_resctrl::{Error, Level, Mask, Mode, PartitionRequest, Reading, Resctrl, Settings, Use, WayChoice};

/// Returns the settings for a test.
fn settings(mounted: &Mounted) -> Settings {
    Settings {
        mount_point: mounted.root(),
        mount: false,
        file_system: "fuse".to_owned(),
        state: mounted.folder.join("state"),
        cores: mounted.folder.join("cores"),
        ..Settings::default()
    }
}

fn open(mounted: &Mounted) -> Resctrl {
    Resctrl::open(settings(mounted)).unwrap()
}

/// Task of another process, ended when dropped.
struct Task(Child);

impl Task {
    fn new() -> Task {
        let mut sleep = Command::new("sleep");
        Task(
            sleep
                .arg("1000")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }

    fn number(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn error<T>(result: Result<T, Error>) -> String {
    match result {
        Ok(_) => panic!("it was done"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn tasks_and_cores_get_ways_and_everything_comes_back() {
    let Some(mounted) = Mounted::new(Machine::xeon(), false) else {
        return;
    };
    let before = mounted.snapshot();
    let resctrl = open(&mounted);
    let info = resctrl.info().l3.clone().unwrap();
    assert_eq!(
        (info.mask, info.shareable, info.min_ways, info.closids),
        (0xfffff, 0xc0000, 1, 16)
    );
    assert_eq!(resctrl.info().closids(), 8);
    let task = Task::new();
    let mut ask = PartitionRequest::exclusive(4);
    ask.tasks = vec![task.number()];
    ask.cores = vec![2, 3];
    ask.bandwidth = Some(50);
    let first = resctrl.partition(&ask).unwrap();
    assert_eq!(first.ways().unwrap(), [(0, 0xf), (1, 0xf)].into());
    assert_eq!(first.tasks().unwrap(), [task.number()]);
    assert_eq!(first.cores().unwrap(), [2, 3]);
    assert_eq!(first.schemata().unwrap().resources["MB"][&1], 50);
    assert_eq!(resctrl.default_group().unwrap().resources["L3"][&0], 0xffff0);
    // Neither the hardware's two ways nor the neighbour's four are available.
    assert_eq!(resctrl.room(Level::L3, 0, true).unwrap(), 14);
    assert_eq!(
        error(resctrl.room(Level::L3, 2, true)),
        "L3 cache 2 does not exist: expected one of [0, 1]"
    );
    // On one socket only, without the neighbour's ways.
    let mut ask = PartitionRequest::exclusive(6);
    ask.caches = vec![1];
    let second = resctrl.partition(&ask).unwrap();
    assert_eq!(second.ways().unwrap(), [(1, 0x3f0)].into());
    let default = resctrl.default_group().unwrap();
    assert_eq!(
        (default.resources["L3"][&0], default.resources["L3"][&1]),
        (0xffff0, 0xffc00)
    );
    let usage = resctrl.bit_usage(Level::L3).unwrap();
    assert_eq!((usage[&0][0], usage[&0][19]), (Use::Programs, Use::Both));
    // There is no room between the neighbours: the first grows and the second is moved.
    resctrl
        .assign(&[(&first, WayChoice::Ways(8)), (&second, WayChoice::Ways(2))])
        .unwrap();
    assert_eq!(first.ways().unwrap(), [(0, 0xff), (1, 0xff)].into());
    assert_eq!(second.ways().unwrap(), [(1, 0x300)].into());
    // The default group gets returned ways at once if they are adjacent to its own, and otherwise later.
    drop(first);
    let default = resctrl.default_group().unwrap();
    assert_eq!(
        (default.resources["L3"][&0], default.resources["L3"][&1]),
        (0xfffff, 0xffc00)
    );
    second.release().unwrap();
    assert_eq!(mounted.snapshot(), before);
    drop(resctrl);
    assert!(
        mounted.root().join("info").exists(),
        "what others mounted stays mounted"
    );
    assert!(!mounted.folder.join("state/default").exists());
}

#[test]
fn threads_of_the_default_group_follow_cores() {
    let Some(mounted) = Mounted::new(Machine::xeon(), false) else {
        return;
    };
    let resctrl = open(&mounted);
    resctrl.follows_cores().unwrap();
    let mut ask = PartitionRequest::shared(2);
    let own = fs::read_link("/proc/thread-self").unwrap();
    let own: i32 = own.file_name().unwrap().to_str().unwrap().parse().unwrap();
    ask.tasks = vec![own];
    let partition = resctrl.partition(&ask).unwrap();
    let told = error(resctrl.follows_cores());
    let expected = format!("task {own} belongs to the group {}", partition.name());
    assert!(told.starts_with(&expected), "{told}");
    drop(partition);
    resctrl.follows_cores().unwrap();
}

#[test]
fn code_and_data_have_the_same_ways() {
    let mut machine = Machine::xeon();
    machine.caches[0].cdp = true;
    machine.caches[0].min = 2;
    let Some(mounted) = Mounted::new(machine, false) else {
        return;
    };
    let before = mounted.snapshot();
    let resctrl = open(&mounted);
    assert!(resctrl.info().l3.as_ref().unwrap().cdp);
    assert_eq!(
        error(resctrl.partition(&PartitionRequest::exclusive(1))),
        "mask 1 of L3: a group has at least 2 ways"
    );
    let partition = resctrl.partition(&PartitionRequest::exclusive(2)).unwrap();
    let resources = partition.schemata().unwrap().resources;
    assert_eq!((resources["L3CODE"][&0], resources["L3DATA"][&1]), (3, 3));
    let default = resctrl.default_group().unwrap().resources;
    assert_eq!((default["L3CODE"][&0], default["L3DATA"][&1]), (0xffffc, 0xffffc));
    // 18 ways are not shared with hardware. The default group keeps the other 2.
    assert_eq!(resctrl.bit_usage(Level::L3).unwrap()[&0].len(), 20);
    partition.resize(WayChoice::Ways(18)).unwrap();
    assert!(error(partition.resize(WayChoice::Ways(19))).starts_with(
        "L3 0: expected 19 contiguous free ways, found \
         at most 18"
    ));
    drop(partition);
    assert_eq!(mounted.snapshot(), before);
}

#[test]
fn second_level_caches_too() {
    let mut machine = Machine::xeon();
    let l2 = Ways {
        name: "L2",
        domains: vec![0, 1, 2, 3],
        length: 8,
        shareable: 0,
        ..machine.caches[0].clone()
    };
    machine.caches.push(l2);
    let Some(mounted) = Mounted::new(machine, false) else {
        return;
    };
    let before = mounted.snapshot();
    let resctrl = open(&mounted);
    let mut ask = PartitionRequest::exclusive(3);
    ask.level = Level::L2;
    ask.caches = vec![2];
    let partition = resctrl.partition(&ask).unwrap();
    assert_eq!(partition.ways().unwrap(), [(2, 7)].into());
    assert_eq!(
        resctrl.default_group().unwrap().resources["L2"],
        [(0, 0xff), (1, 0xff), (2, 0xf8), (3, 0xff)].into()
    );
    ask.caches = vec![4];
    assert_eq!(
        error(resctrl.partition(&ask)),
        "L2 cache 4 does not exist: expected one of [0, 1, 2, 3]"
    );
    // The default group keeps the last way.
    ask.caches = vec![3];
    ask.ways = WayChoice::Ways(8);
    assert_eq!(
        error(resctrl.partition(&ask)),
        "L2 3: expected 8 contiguous free ways, found at most 7"
    );
    // No other group has ways of the cache above. Of this one, a group does.
    ask.caches = vec![2];
    ask.ways = WayChoice::Ways(6);
    assert_eq!(
        error(resctrl.partition(&ask)),
        "L2 2: expected 6 contiguous free ways, found at most 4; others are used by ".to_owned() + partition.name()
    );
    drop(partition);
    assert_eq!(mounted.snapshot(), before);
}

#[test]
fn ways_that_are_shared_and_ways_that_the_kernel_keeps_apart() {
    let Some(mounted) = Mounted::new(Machine::xeon(), false) else {
        return;
    };
    let before = mounted.snapshot();
    let resctrl = open(&mounted);
    let mut ask = PartitionRequest::shared(2);
    // Hardware's ways are allocated only if requested.
    ask.ways = WayChoice::Exactly(Mask::new(17, 3).unwrap());
    let shared = resctrl.partition(&ask).unwrap();
    assert_eq!(shared.ways().unwrap()[&0], 0xe0000);
    assert_eq!(resctrl.default_group().unwrap().resources["L3"][&0], 0xfffff);
    let refused = error(shared.set_mode(Mode::Exclusive));
    assert!(
        refused.contains("the kernel refused \"exclusive\": Schemata overlaps (Invalid argument"),
        "{refused}"
    );
    let alone = resctrl.partition(&PartitionRequest::exclusive(4)).unwrap();
    alone.set_mode(Mode::Exclusive).unwrap();
    assert_eq!(
        resctrl.bit_usage(Level::L3).unwrap()[&1][..5],
        [[Use::Exclusive; 4].as_slice(), &[Use::Programs]].concat()
    );
    alone.resize(WayChoice::Ways(6)).unwrap();
    assert_eq!(alone.ways().unwrap()[&0], 0x3f);
    assert_eq!(
        fs::read_to_string(mounted.root().join(alone.name()).join("mode")).unwrap(),
        "exclusive\n"
    );
    ask.ways = WayChoice::Exactly(Mask::new(5, 2).unwrap());
    assert!(error(resctrl.partition(&ask)).contains("expected 2 contiguous free ways"));
    ask.ways = WayChoice::Exactly(Mask::new(19, 2).unwrap());
    assert_eq!(
        error(resctrl.partition(&ask)),
        "mask 180000 of L3: the cache has the ways fffff"
    );
    shared.limit_bandwidth(0, 30).unwrap();
    assert_eq!(shared.schemata().unwrap().resources["MB"], [(0, 30), (1, 100)].into());
    let refused = error(shared.limit_bandwidth(0, 3));
    assert!(refused.contains("MB value 3 out of range [10,100]"), "{refused}");
    drop((shared, alone));
    assert_eq!(mounted.snapshot(), before);
}

#[test]
fn nothing_of_others_is_taken() {
    let Some(mounted) = Mounted::new(Machine::xeon(), false) else {
        return;
    };
    let (theirs, watched) = (Task::new(), Task::new());
    mounted.kernel(|kernel| {
        kernel.mkdir("theirs").unwrap();
        kernel.write("theirs/schemata", "L3:0=3;1=fffff\n", 1).unwrap();
        kernel
            .write("theirs/tasks", &format!("{}\n", theirs.number()), 1)
            .unwrap();
        kernel.write("theirs/cpus_list", "5\n", 1).unwrap();
        kernel.mkdir("mon_groups/m").unwrap();
        kernel
            .write("mon_groups/m/tasks", &format!("{}\n", watched.number()), 1)
            .unwrap();
    });
    let before = mounted.snapshot();
    let resctrl = open(&mounted);
    let mut ask = PartitionRequest::exclusive(4);
    let refused = error(resctrl.partition(&ask));
    assert_eq!(
        refused,
        "L3 1: expected 4 contiguous free ways, found at most 0; others are used by theirs"
    );
    ask.caches = vec![0];
    let partition = resctrl.partition(&ask).unwrap();
    assert_eq!(partition.ways().unwrap(), [(0, 0x3c)].into());
    for (refused, what) in [
        (
            error(partition.add_tasks(&[theirs.number()])),
            format!("task {} belongs to the group theirs", theirs.number()),
        ),
        (
            error(partition.add_tasks(&[watched.number()])),
            format!("task {} belongs to the group mon_groups/m", watched.number()),
        ),
        (
            error(partition.add_cores(&[1, 5])),
            "core 5 belongs to the group theirs".to_owned(),
        ),
        (
            error(partition.add_cores(&[8])),
            format!(
                "{}/cpus_list: the kernel refused \"8\": Can only assign online CPUs (Invalid argument (os error 22))",
                mounted.root().join(partition.name()).display()
            ),
        ),
        (
            error(partition.add_tasks(&[i32::MAX])),
            format!("task {} does not exist", i32::MAX),
        ),
    ] {
        assert!(refused.starts_with(&what), "{refused}");
    }
    // A task that was added returns if the next one fails.
    let mine = Task::new();
    error(partition.add_tasks(&[mine.number(), i32::MAX]));
    assert_eq!(partition.tasks().unwrap(), []);
    // Tasks can move between partitions of one process.
    let other = resctrl
        .partition(&PartitionRequest {
            caches: vec![0],
            tasks: vec![mine.number()],
            ..PartitionRequest::exclusive(1)
        })
        .unwrap();
    partition.add_tasks(&[mine.number()]).unwrap();
    assert_eq!(
        (partition.tasks().unwrap(), other.tasks().unwrap()),
        (vec![mine.number()], vec![])
    );
    // Values that another program sets meanwhile are kept.
    mounted.kernel(|kernel| kernel.write("schemata", "L3:0=ff000\n", 1).unwrap());
    drop((partition, other));
    assert_eq!(
        resctrl.default_group().unwrap().resources["L3"],
        [(0, 0xff000), (1, 0xfffff)].into()
    );
    mounted.kernel(|kernel| kernel.write("schemata", "L3:0=fffff\n", 1).unwrap());
    assert_eq!(mounted.snapshot(), before);
}

#[test]
fn what_tasks_use_is_watched() {
    let mut machine = Machine::xeon();
    machine.rmids = Some(4);
    let Some(mounted) = Mounted::new(machine, false) else {
        return;
    };
    let before = mounted.snapshot();
    let resctrl = open(&mounted);
    let task = Task::new();
    let partition = resctrl
        .partition(&PartitionRequest {
            tasks: vec![task.number()],
            ..PartitionRequest::shared(4)
        })
        .unwrap();
    let watch = partition.watch(&[task.number()]).unwrap();
    assert_eq!(watch.tasks().unwrap(), [task.number()]);
    let name = partition.name().to_owned();
    mounted.kernel(|kernel| {
        for (file, text) in [
            ("00/llc_occupancy", "31234000\n"),
            ("00/mbm_total_bytes", "Unavailable\n"),
            ("01/mbm_local_bytes", "Error\n"),
        ] {
            kernel
                .counters
                .insert(format!("{name}/mon_data/mon_L3_{file}"), text.to_owned());
        }
    });
    let usage = partition.usage().unwrap();
    assert_eq!(usage[&0].occupancy, Some(Reading::Bytes(31_234_000)));
    assert_eq!(usage[&0].traffic, Some(Reading::Unavailable));
    assert_eq!(usage[&1].local_traffic, Some(Reading::Faulty));
    assert_eq!(watch.usage().unwrap()[&1].occupancy, Some(Reading::Bytes(0)));
    assert_eq!(resctrl.usage().unwrap().len(), 2);
    // The task is not in the group: nothing remains.
    let refused = error(resctrl.watch(&[task.number()]));
    assert!(
        refused.contains("Can't move task to different control group"),
        "{refused}"
    );
    let last = resctrl.watch(&[]).unwrap();
    assert_eq!(error(resctrl.watch(&[])), "out of monitoring IDs (RMIDs): Out of RMIDs");
    mounted.kernel(|kernel| kernel.cache_stays_full = true);
    drop(last);
    let refused = error(resctrl.watch(&[]));
    assert!(
        refused.contains("is busy: Out of RMIDs: RMIDs of removed groups still occupy cache lines"),
        "{refused}"
    );
    drop((watch, partition));
    assert_eq!(mounted.snapshot(), before);
}

#[test]
fn what_the_processor_cannot_do_is_told() {
    let bare = Machine {
        rmids: None,
        memory: None,
        ..Machine::xeon()
    };
    let Some(mounted) = Mounted::new(bare, false) else {
        return;
    };
    let resctrl = open(&mounted);
    let refused = error(resctrl.watch(&[]));
    assert_eq!(
        refused,
        "resctrl does not control monitoring of caches (CMT) on this machine"
    );
    let refused = error(resctrl.partition(&PartitionRequest {
        bandwidth: Some(50),
        ..PartitionRequest::exclusive(1)
    }));
    assert_eq!(
        refused,
        "resctrl does not control memory bandwidth (MBA) on this machine"
    );
    assert_eq!(resctrl.info().monitor, None);
    drop(resctrl.partition(&PartitionRequest::exclusive(1)).unwrap());
}

#[test]
fn classes_run_out() {
    let Some(mounted) = Mounted::new(Machine::xeon(), false) else {
        return;
    };
    mounted.kernel(|kernel| kernel.mkdir("theirs").unwrap());
    mounted.kernel(|kernel| kernel.write("theirs/schemata", "L3:0=1;1=1\n", 1).unwrap());
    let before = mounted.snapshot();
    let resctrl = open(&mounted);
    let partitions: Vec<_> = (0..6)
        .map(|_| resctrl.partition(&PartitionRequest::exclusive(1)).unwrap())
        .collect();
    let masks: Vec<u32> = partitions.iter().map(|it| it.ways().unwrap()[&0]).collect();
    assert_eq!(
        masks.iter().fold(0, |all, mask| all | mask).count_ones(),
        6,
        "{masks:x?}"
    );
    let full = mounted.snapshot();
    let Err(Error::OutOfClosids { limit: 8, groups }) = resctrl.partition(&PartitionRequest::exclusive(1)) else {
        panic!()
    };
    assert_eq!(groups.len(), 7);
    // Another program takes the last class in between.
    drop(partitions);
    mounted.fault(0, Fault::Errno(libc::ENOSPC));
    assert!(matches!(
        resctrl.partition(&PartitionRequest::exclusive(1)),
        Err(Error::OutOfClosids { .. })
    ));
    assert_ne!(mounted.snapshot(), full);
    assert_eq!(mounted.snapshot(), before);
}

#[test]
fn whichever_command_fails_nothing_is_half_applied() {
    let Some(mounted) = Mounted::new(Machine::xeon(), false) else {
        return;
    };
    let resctrl = open(&mounted);
    let task = Task::new();
    let empty = mounted.snapshot();
    let ask = PartitionRequest {
        tasks: vec![task.number()],
        cores: vec![1],
        bandwidth: Some(40),
        ..PartitionRequest::exclusive(4)
    };
    let mut failed = 0;
    let partition = loop {
        mounted.fault(
            failed,
            Fault::Errno([libc::EINVAL, libc::EIO, libc::ENOMEM][failed as usize % 3]),
        );
        match resctrl.partition(&ask) {
            Ok(partition) => break partition,
            Err(Error::NotUndone { first, then }) => panic!("{first}; {then}"),
            Err(_) => failed += 1,
        }
        assert_eq!(mounted.snapshot(), empty, "command {failed}");
        assert!(!mounted.folder.join("state/default").exists());
    };
    // The commands: create the group, change the default group, set its ways, add a task, add cores.
    assert_eq!(failed, 5);
    mounted.no_faults();
    let other = resctrl.partition(&PartitionRequest::exclusive(3)).unwrap();
    [&partition, &other]
        .iter()
        .for_each(|it| it.set_mode(Mode::Exclusive).unwrap());
    let both = mounted.snapshot();
    let mut failed = 0;
    loop {
        mounted.fault(failed, Fault::Errno(libc::EINVAL));
        match resctrl.assign(&[(&partition, WayChoice::Ways(2)), (&other, WayChoice::Ways(9))]) {
            Ok(()) => break,
            Err(Error::NotUndone { first, then }) => panic!("{first}; {then}"),
            Err(_) => failed += 1,
        }
        assert_eq!(mounted.snapshot(), both, "command {failed}");
    }
    // The commands: two modes, the default group, two groups, two modes.
    assert_eq!(failed, 7);
    mounted.no_faults();
    assert_eq!(
        (partition.ways().unwrap()[&0], other.ways().unwrap()[&0]),
        (0x600, 0x1ff)
    );
    assert_eq!(resctrl.default_group().unwrap().resources["L3"][&0], 0xff800);
    drop((partition, other));
    assert_eq!(mounted.snapshot(), empty);
}

#[test]
fn a_group_that_vanishes_is_told_and_nothing_stays() {
    let Some(mounted) = Mounted::new(Machine::xeon(), false) else {
        return;
    };
    let resctrl = open(&mounted);
    let empty = mounted.snapshot();
    let ask = PartitionRequest {
        cores: vec![1],
        ..PartitionRequest::exclusive(4)
    };
    for at in 1..4 {
        let (mut turn, mut made) = (0, String::new());
        mounted.faults(move |path| {
            turn += 1;
            // The group may vanish while the default group is written.
            let group = path.split('/').find(|name| name.starts_with("tailwater-"));
            made = group.map_or(std::mem::take(&mut made), str::to_owned);
            (turn == at + 1).then(|| Fault::Vanish(made.clone()))
        });
        match resctrl.partition(&ask) {
            Err(Error::Vanished { group }) => assert!(group.starts_with("tailwater-"), "{group}"),
            // Then the next command detects it.
            other => panic!("{at}: {other:?}"),
        }
        mounted.no_faults();
        assert_eq!(mounted.snapshot(), empty, "{at}");
    }
    let partition = resctrl.partition(&ask).unwrap();
    mounted.kernel(|kernel| kernel.rmdir(partition.name()).unwrap());
    assert!(matches!(
        partition.resize(WayChoice::Ways(5)),
        Err(Error::Vanished { .. })
    ));
    assert!(matches!(partition.ways(), Err(Error::Vanished { .. })));
    assert!(matches!(partition.usage(), Err(Error::Vanished { .. })));
    partition.release().unwrap();
    assert_eq!(mounted.snapshot(), empty);
}

#[test]
fn a_mount_that_cannot_be_written() {
    let Some(mounted) = Mounted::new(Machine::xeon(), true) else {
        return;
    };
    let resctrl = open(&mounted);
    assert_eq!(resctrl.info().closids(), 8);
    let refused = error(resctrl.partition(&PartitionRequest::exclusive(2)));
    assert!(
        refused.contains("resctrl is mounted read-only: mount -o remount,rw"),
        "{refused}"
    );
    assert_eq!(mounted.commands(), 0);
}

#[test]
fn others_locks_are_waited_for_and_respected() {
    let Some(mounted) = Mounted::new(Machine::xeon(), false) else {
        return;
    };
    let patience = std::time::Duration::from_millis(50);
    let resctrl = Resctrl::open(Settings {
        patience,
        ..settings(&mounted)
    })
    .unwrap();
    let locked = fs::File::open(mounted.root()).unwrap();
    locked.lock().unwrap();
    let refused = error(resctrl.partition(&PartitionRequest::exclusive(2)));
    assert!(
        refused.contains("is busy: locked by another program for 0.05 s"),
        "{refused}"
    );
    assert_eq!(mounted.commands(), 0);
    drop(locked);
    resctrl.partition(&PartitionRequest::exclusive(2)).unwrap();
}

#[test]
fn caches_of_cores_are_found() {
    let Some(mounted) = Mounted::new(Machine::xeon(), false) else {
        return;
    };
    let caches = mounted.folder.join("cores/cpu3/cache");
    let files: BTreeMap<&str, &str> = [
        ("index2/level", "2"),
        ("index2/id", "11"),
        ("index3/level", "3"),
        ("index3/id", "1"),
        ("index0/level", "1"),
    ]
    .into();
    for (path, text) in files {
        fs::create_dir_all(caches.join(path).parent().unwrap()).unwrap();
        fs::write(caches.join(path), format!("{text}\n")).unwrap();
    }
    fs::write(caches.join("uevent"), "").unwrap();
    let resctrl = open(&mounted);
    assert_eq!(resctrl.cache_of_core(3, Level::L3).unwrap(), 1);
    assert_eq!(resctrl.cache_of_core(3, Level::L2).unwrap(), 11);
    assert!(matches!(resctrl.cache_of_core(4, Level::L3), Err(Error::File { .. })));
}
