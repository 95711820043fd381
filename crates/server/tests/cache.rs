//! The last-level cache of a server, divided while its chains change: in memory, and by a model of the kernel's
//! `resctrl`, which is mounted as a file system.

mod common;
#[path = "../../resctrl/tests/model/mod.rs"]
mod model;

use common::{ModelMachine, manifest, server, yaml};
use model::fuse::{Fault, Mounted};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tailwater_cache_agent::{CachePartitioner, ClassifiedError, Found, Memory as InMemory, Partitions, Refused, Usage};
use tailwater_net::Nanos;
use tailwater_placement::on_demand::{Cache, CacheAllocator, Step};
use tailwater_placement::published::{SNORT, WAY_BYTES};
use tailwater_resctrl::Resctrl;
use tailwater_server::cache::{
    CacheClass, CacheConfig, CacheWays, DividedCache, DividedMachine, INTERVAL, SharedCache,
};
use tailwater_server::generation::{Store, StoredGeneration};
use tailwater_server::{ApplyRequest, Capacity, ControlError, Machine, Manager};

/// Threads of the cores 1, 2 and 3.
const TASKS: [u32; 3] = [101, 102, 103];
const CACHE: Cache = Cache {
    ways: 12,
    way_bytes: WAY_BYTES,
    unusable: 0,
    classes: 7,
    least: 1,
};

/// Store that forgets.
struct Forgetful;

impl Store for Forgetful {
    fn store_after(&mut self, _: &StoredGeneration, carry_out: &mut dyn FnMut() -> bool) -> io::Result<()> {
        carry_out();
        Ok(())
    }
}

/// Error of a step that a test lets fail.
#[derive(Debug)]
struct Injected;

impl fmt::Display for Injected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("injected failure")
    }
}

impl std::error::Error for Injected {}

impl ClassifiedError for Injected {
    fn refused(&self) -> Refused {
        Refused::Later
    }
}

/// Partitions in memory, whose steps can fail.
#[derive(Clone)]
struct Faulty(Arc<Mutex<(InMemory, Option<usize>)>>);

impl Faulty {
    fn new() -> Faulty {
        Faulty(Arc::new(Mutex::new((InMemory::new(CACHE), None))))
    }

    /// The step after this number of steps fails.
    fn fail_after(&self, steps: Option<usize>) {
        self.0.lock().unwrap().1 = steps;
    }

    /// Number of ways of all classes, with their threads.
    fn classes(&self) -> Vec<(u32, Vec<u32>)> {
        let found = self.0.lock().unwrap().0.classes().unwrap();
        let mut classes: Vec<_> = found
            .into_iter()
            .map(|found| (found.ways.count_ones(), found.tasks))
            .collect();
        classes.sort();
        classes
    }

    /// Ways of a thread's class.
    fn ways(&self, task: u32) -> u32 {
        let classes = self.classes();
        let of_task = classes.iter().find(|(_, tasks)| tasks.contains(&task));
        of_task.map_or(0, |(ways, _)| *ways)
    }
}

impl CacheAllocator for Faulty {
    type Error = Injected;

    fn step(&mut self, step: &Step) -> Result<(), Injected> {
        let (memory, fail_after) = &mut *self.0.lock().unwrap();
        match fail_after {
            Some(0) => {
                *fail_after = None;
                return Err(Injected);
            }
            Some(left) => *left -= 1,
            None => {}
        }
        let Ok(()) = memory.step(step);
        Ok(())
    }
}

impl CachePartitioner for Faulty {
    fn cache(&mut self) -> Result<Cache, Injected> {
        Ok(CACHE)
    }

    fn classes(&mut self) -> Result<Vec<Found>, Injected> {
        let Ok(found) = self.0.lock().unwrap().0.classes();
        Ok(found)
    }

    fn usage(&mut self, _: &str, _: &str, _: &[u32], _: bool) -> Usage {
        Usage::default()
    }
}

type Divided<A> = Manager<DividedMachine<ModelMachine, A>, Forgetful>;

/// Server on the cores 1 to 3, and its clock.
struct Server<A: CachePartitioner> {
    manager: Divided<A>,
    machine: ModelMachine,
    clock: Arc<AtomicU64>,
}

impl<A: CachePartitioner> Server<A> {
    fn new(partitioner: A, tasks: [u32; 3]) -> Server<A> {
        let (machine, clock) = (ModelMachine::default(), Arc::<AtomicU64>::default());
        machine.state().capacity = Capacity {
            cores: vec![1, 2, 3],
            cache_bytes: u64::from(CACHE.ways) * WAY_BYTES,
        };
        let snort = Arc::new(SNORT.profile().unwrap().curves[0].clone());
        machine.state().curves = ["a", "b", "c", "d"]
            .map(|name| (name.to_owned(), Arc::clone(&snort)))
            .into();
        let cache = SharedCache {
            partitioner,
            cores: BTreeMap::from([1, 2, 3].map(|core| (core, vec![tasks[core as usize - 1]]))),
        };
        let config = CacheConfig {
            headroom: 0.1,
            on_demand: 2,
        };
        let Ok(cache) = DividedCache::new(cache, config) else {
            panic!("the cache can be read");
        };
        let divided = DividedMachine::new(machine.clone(), vec![cache]).with_clock({
            let clock = Arc::clone(&clock);
            move || Nanos(clock.load(Ordering::Relaxed))
        });
        let spec = server("  admission: {profiles: p, headroom: 0.1}\n  cache: {}\n");
        Server {
            manager: Manager::new(spec, divided, Forgetful, Nanos(0), |_| ()),
            machine,
            clock,
        }
    }

    fn apply(&mut self, texts: &[String]) -> Result<(), ControlError> {
        let request = ApplyRequest {
            manifests: texts.iter().map(|text| manifest(text)).collect(),
            dry_run: false,
            force: false,
        };
        self.manager.apply(&request, Nanos(0)).map(drop)
    }

    /// Lets some ticks pass.
    fn ticks(&mut self, count: u32, mut between: impl FnMut(&ModelMachine)) {
        for _ in 0..count {
            between(&self.machine);
            let now = self.clock.fetch_add(INTERVAL.0, Ordering::Relaxed);
            self.manager.observe(Nanos(now));
        }
    }

    fn cache_of(&self, name: &str) -> CacheWays {
        let snapshot = self.manager.snapshot();
        let observation = snapshot.chains[name].observation.as_ref().unwrap();
        observation.cache.clone().unwrap()
    }

    fn events(&self, reason: &str) -> usize {
        let events = self.manager.events().after(0);
        events.filter(|event| event.reason == reason).count()
    }
}

/// Chain with this throughput, in packets per second, if it is promised one.
fn chain(name: &str, throughput: Option<u32>) -> String {
    let network = u32::from(name.as_bytes()[0]);
    let slo = match throughput {
        Some(throughput) => format!("1ms, throughput: {throughput}pps"),
        None => "1ms".to_owned(),
    };
    yaml(name, &format!("10.{network}.0.0/16"), "[forward: {}]", &slo)
}

/// Throughputs of `snort`, of which a tenth of a core is not promised: for one way, and for two.
const ONE_WAY: Option<u32> = Some(300_000);
const TWO_WAYS: Option<u32> = Some(450_000);

/// Every server has such a machine around its own. Without this the cores of a server whose threads have real-time
/// priority were not left to the process that prepares to take over.
#[test]
fn a_divided_machine_leaves_its_cores_to_a_process_that_takes_over() {
    let model = ModelMachine::default();
    let mut machine = DividedMachine::<_, Faulty>::undivided(model.clone(), None);
    machine.share_cores(true);
    machine.share_cores(false);
    assert_eq!(model.state().log, ["share cores: true", "share cores: false"]);
}

#[test]
fn promised_chains_reserve_ways_and_the_others_share() {
    let cache = Faulty::new();
    let mut server = Server::new(cache.clone(), TASKS);
    server
        .apply(&[chain("a", TWO_WAYS), chain("b", ONE_WAY), chain("c", None)])
        .unwrap();
    // Reserved before any tick.
    assert_eq!((cache.ways(101), cache.ways(102), cache.ways(103)), (2, 1, 0));
    server.ticks(3, |_| ());
    assert_eq!((cache.ways(101), cache.ways(102), cache.ways(103)), (2, 1, 2));
    let ways = |class, ways| CacheWays {
        class,
        ways,
        cores: 1,
        reason: String::new(),
    };
    assert_eq!(server.cache_of("a"), ways(CacheClass::Reserved, 2));
    assert_eq!(server.cache_of("b"), ways(CacheClass::Reserved, 1));
    assert_eq!(server.cache_of("c"), ways(CacheClass::Shared, 2));
    // A chain without a promise joins the core with the fewest chains, and its class.
    server.apply(&[chain("d", None)]).unwrap();
    server.ticks(2, |_| ());
    assert_eq!(server.cache_of("d"), server.cache_of("c"));
    // With another promise, a core has other ways; without any, it shares.
    server.apply(&[chain("a", ONE_WAY)]).unwrap();
    assert_eq!((cache.ways(101), cache.ways(102)), (1, 1));
    server
        .manager
        .delete(&["b".to_owned(), "d".to_owned()], false, Nanos(0))
        .unwrap();
    assert_eq!((cache.ways(101), cache.ways(102)), (1, 0));
    server.apply(&[chain("a", None)]).unwrap();
    server.ticks(2, |_| ());
    assert_eq!((cache.classes().len(), cache.ways(101), cache.ways(103)), (1, 2, 2));
    assert_eq!(server.cache_of("a").cores, 2);
    assert_eq!(server.events("CacheRefused"), 0);
    // Without chains, there are no classes.
    server.manager.shut_down(Nanos(0));
    server.ticks(2, |_| ());
    assert_eq!(cache.classes(), []);
}

#[test]
fn a_refused_class_leaves_the_generation_and_the_classes_of_before() {
    let cache = Faulty::new();
    let mut server = Server::new(cache.clone(), TASKS);
    server.apply(&[chain("a", TWO_WAYS), chain("c", None)]).unwrap();
    server.ticks(3, |_| ());
    let (classes, live, generation) = (cache.classes(), server.machine.live(), server.manager.generation());
    let next = [chain("a", ONE_WAY), chain("b", TWO_WAYS)];
    let mut refused = 0;
    loop {
        cache.fail_after(Some(refused));
        let Err(error) = server.apply(&next) else {
            break;
        };
        assert!(
            matches!(&error, ControlError::Failed(text) if text.ends_with("injected failure")),
            "{error}"
        );
        assert_eq!(cache.classes(), classes, "step {refused}");
        assert_eq!(server.machine.live(), live);
        assert_eq!(server.manager.generation(), generation);
        server.ticks(1, |_| ());
        assert_eq!(cache.classes(), classes, "step {refused}");
        refused += 1;
        assert!(refused < 100);
    }
    // At least the ways of one, and the class and thread of the other.
    assert!(refused >= 3, "{refused}");
    cache.fail_after(None);
    assert_eq!((cache.ways(101), cache.ways(102)), (1, 2));
    // A chain that cannot start leaves no class, either.
    let classes = cache.classes();
    server.manager.delete(&["b".to_owned()], false, Nanos(0)).unwrap();
    server.ticks(2, |_| ());
    let without = cache.classes();
    assert_ne!(classes, without);
    server.machine.state().fail_after = Some(0);
    assert!(server.apply(&next[1..]).is_err());
    assert_eq!(cache.classes(), without);
    // A chain without a promise starts whatever the cache does, which is tried again and reported once.
    cache.fail_after(Some(0));
    server.apply(&[chain("d", None)]).unwrap();
    server.ticks(4, |_| cache.fail_after(Some(0)));
    assert!(server.events("CacheRefused") <= 1);
}

#[test]
fn a_late_chain_gets_ways_of_its_own_and_the_operator_is_told_if_they_do_not_help() {
    let cache = Faulty::new();
    let mut server = Server::new(cache.clone(), TASKS);
    server.machine.state().curves.clear();
    server.apply(&[chain("a", None), chain("b", None)]).unwrap();
    server.ticks(3, |_| ());
    assert_eq!(
        (server.cache_of("a").class, server.cache_of("a").ways),
        (CacheClass::Shared, 2)
    );
    // Its latency falls with its ways: with five it is in time.
    let of_ways = |machine: &ModelMachine| {
        let latency = Nanos(4_500_000 / u64::from(cache.ways(101).max(1)));
        machine.state().p99.insert("a".to_owned(), latency);
    };
    server.ticks(100, of_ways);
    let own = server.cache_of("a");
    assert_eq!((own.class, own.cores), (CacheClass::Isolated, 1));
    assert!((5..=6).contains(&own.ways), "{own:?}");
    assert_eq!(server.events("CacheShort"), 0);
    // More than there is: the operator is told once.
    server.ticks(100, |machine| {
        machine.state().p99.insert("a".to_owned(), Nanos(9_000_000));
    });
    assert_eq!(server.events("CacheShort"), 1);
    assert!(
        server.cache_of("a").reason.starts_with("late, and"),
        "{:?}",
        server.cache_of("a")
    );
    server.machine.state().p99.clear();
    server.ticks(2, |_| ());
    assert_eq!(server.cache_of("a").reason, "");
}

/// Thread of a core: a process that sleeps, killed when dropped.
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

#[test]
fn resctrl_has_the_classes_of_the_chains_and_nothing_is_left() {
    let Some(mounted) = Mounted::new(model::kernel::Machine::xeon(), false) else {
        return;
    };
    let before = mounted.snapshot();
    let settings = tailwater_resctrl::Settings {
        mount_point: mounted.folder.join("resctrl"),
        mount: false,
        file_system: "fuse".to_owned(),
        state: mounted.folder.join("state"),
        ..tailwater_resctrl::Settings::default()
    };
    let tasks = [Task::new(), Task::new(), Task::new()];
    let numbers = [0, 1, 2].map(|i: usize| tasks[i].0.id());
    let resctrl = Resctrl::open(settings).unwrap();
    let mut server = Server::new(Partitions::new(resctrl, 0, WAY_BYTES, 1), numbers);
    server.apply(&[chain("a", TWO_WAYS), chain("c", None)]).unwrap();
    server.ticks(2, |_| ());
    assert_eq!(server.cache_of("a").ways, 2);
    assert_eq!(server.cache_of("c").class, CacheClass::Shared);
    let divided = mounted.snapshot();
    assert_ne!(divided, before);
    // Each write of the next promise fails once.
    let mut refused = 0;
    loop {
        mounted.fault(refused, Fault::Errno(libc::EBUSY));
        let applied = server.apply(&[chain("b", ONE_WAY)]);
        mounted.no_faults();
        if applied.is_ok() {
            break;
        }
        assert_eq!(mounted.snapshot(), divided, "command {refused}");
        assert!(!server.machine.live().contains_key("b"));
        refused += 1;
        assert!(refused < 50);
    }
    assert!(refused >= 2, "{refused}");
    server.ticks(1, |_| ());
    assert_eq!(server.cache_of("b").ways, 1);
    drop(server);
    assert_eq!(mounted.snapshot(), before);
}
