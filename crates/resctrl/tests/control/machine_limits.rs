//! Monitoring, and limits of the machine: features, classes and monitoring IDs.

use super::*;
use model::fuse::Fault;
use model::kernel::Machine;
use tailwater_resctrl::{PartitionRequest, Reading};

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
