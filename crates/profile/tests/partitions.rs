//! Cache shares by ways, on the model of the kernel's `resctrl`; skipped where FUSE cannot be mounted.

#[path = "../../resctrl/tests/model/mod.rs"]
mod model;

use model::fuse::Mounted;
use model::kernel::Machine;
use tailwater_dataplane::cores::default_core;
use tailwater_net::Nanos;
use tailwater_profile::cache::{CacheControl, CacheError, Caches, Method, Partitioned};
use tailwater_resctrl::{Error, PartitionRequest, Resctrl, Settings};

fn settings(mounted: &Mounted) -> Settings {
    Settings {
        mount_point: mounted.root(),
        mount: false,
        file_system: "fuse".to_owned(),
        state: mounted.folder.join("state"),
        ..Settings::default()
    }
}

/// Returns the non-default group, if there is one, with its ways and cores.
fn group(mounted: &Mounted) -> Option<(String, u32, Vec<u32>)> {
    let (name, cores) = mounted.kernel(|kernel| {
        let group = kernel.groups.get(1)?;
        Some((group.name.clone(), group.cores.iter().copied().collect()))
    })?;
    let schemata = std::fs::read_to_string(mounted.root().join(&name).join("schemata")).unwrap();
    let line = schemata.lines().find(|line| line.trim().starts_with("L3:"));
    let (_, mask) = line.unwrap().split_once('=').unwrap();
    Some((name, u32::from_str_radix(mask, 16).unwrap(), cores))
}

#[test]
fn a_share_is_ways_of_the_cores_own_until_it_is_dropped() {
    let core = default_core();
    let mounted = Machine::here(core).and_then(|machine| Mounted::new(machine, false));
    let Some(mounted) = mounted else {
        return;
    };
    let before = mounted.snapshot();
    let mut control = Partitioned::new(core, settings(&mounted)).unwrap();
    assert_eq!(mounted.snapshot(), before, "nothing is taken before a share is set");
    let way = Caches::of(core).unwrap().last_bytes / 20;
    assert_eq!(
        (control.method(), control.unit(), control.least(), control.most()),
        (Method::Resctrl, way, way, 18 * way)
    );
    assert_eq!(control.ways(), [20, 18]);
    for (bytes, ways) in [(way, 1), (9 * way + 5, 9), (u64::MAX, 18), (0, 1)] {
        control.set(bytes).unwrap();
        let (_, mask, cores) = group(&mounted).unwrap();
        assert_eq!((mask.count_ones(), cores), (ways, vec![core as u32]));
        let rest = std::fs::read_to_string(mounted.root().join("schemata")).unwrap();
        let rest = rest.lines().find(|line| line.contains("L3:")).unwrap();
        let rest = u32::from_str_radix(rest.split_once('=').unwrap().1, 16).unwrap();
        assert_eq!(rest & mask, 0, "others go without");
        // The processor counts the share, or less, or much more: lines that are left from before.
        let (name, ..) = group(&mounted).unwrap();
        let data = mounted.root().join(&name).join("mon_data");
        let cache = std::fs::read_dir(data).unwrap().next().unwrap().unwrap();
        let cache = cache.file_name().into_string().unwrap();
        let counter = format!("{name}/mon_data/{cache}/llc_occupancy");
        let share = u64::from(ways) * way;
        for (occupied, held) in [(0, true), (share, true), (share + way, false)] {
            mounted.kernel(|kernel| kernel.counters.insert(counter.clone(), occupied.to_string()));
            let told = control.held(Nanos::from_millis(1)).unwrap();
            assert_eq!((told.held, told.occupied), (held, Some(occupied)));
            let beyond = occupied.saturating_sub(share) as f64;
            assert_eq!(told.misses, beyond / occupied.max(1) as f64);
        }
        mounted.kernel(|kernel| kernel.counters.insert(counter, "Unavailable".to_owned()));
        let told = control.held(Nanos::from_millis(1)).unwrap();
        assert_eq!((told.held, told.occupied), (true, None));
    }
    drop(control);
    assert_eq!(mounted.snapshot(), before);
}

#[test]
fn shares_begin_with_the_fewest_ways_that_there_can_be() {
    let core = default_core();
    let Some(mut machine) = Machine::here(core) else {
        return;
    };
    machine.caches[0].min = 3;
    machine.rmids = None;
    let Some(mounted) = Mounted::new(machine, false) else {
        return;
    };
    let before = mounted.snapshot();
    let mut control = Partitioned::new(core, settings(&mounted)).unwrap();
    let way = control.unit();
    // The rest needs at least three ways, too, including the two that the hardware shares.
    assert_eq!((control.least(), control.most()), (3 * way, 17 * way));
    control.set(way).unwrap();
    assert_eq!(group(&mounted).unwrap().1.count_ones(), 3);
    // Nothing is counted here.
    assert_eq!(control.held(Nanos::from_millis(1)).unwrap().occupied, None);
    drop(control);
    assert_eq!(mounted.snapshot(), before);
}

#[test]
fn threads_that_are_in_a_group_already_are_left_there() {
    let core = default_core();
    let mounted = Machine::here(core).and_then(|machine| Mounted::new(machine, false));
    let Some(mounted) = mounted else {
        return;
    };
    let own = std::fs::read_link("/proc/thread-self").unwrap();
    let own = own.file_name().unwrap().to_str().unwrap().parse().unwrap();
    let mut ask = PartitionRequest::shared(2);
    ask.tasks = vec![own];
    let resctrl = Resctrl::open(settings(&mounted)).unwrap();
    let partition = resctrl.partition(&ask).unwrap();
    let before = mounted.snapshot();
    let error = Partitioned::new(core, settings(&mounted)).unwrap_err();
    let named = |error: &CacheError| match error {
        CacheError::Resctrl(Error::Taken { group, .. }) => group == partition.name(),
        _ => false,
    };
    assert!(named(&error), "{error}");
    assert_eq!(mounted.snapshot(), before);
}
