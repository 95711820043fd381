//! Ways of caches: exclusive, shared, of code and data, of a level.

use super::*;
use model::kernel::{Machine, Ways};
use std::collections::BTreeMap;
use std::fs;
use tailwater_resctrl::{Level, Mask, Mode, PartitionRequest, Use, WayChoice};

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
