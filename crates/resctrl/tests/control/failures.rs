//! Commands that fail, and groups that vanish.

use super::*;
use model::fuse::Fault;
use model::kernel::Machine;
use tailwater_resctrl::{Mode, PartitionRequest, WayChoice};

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
