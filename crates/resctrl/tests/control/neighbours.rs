//! Groups, tasks and locks of other programs.

use super::*;
use model::kernel::Machine;
use std::fs;
use tailwater_resctrl::PartitionRequest;

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
