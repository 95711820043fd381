//! Faults of a run's processes and of its Redis: killed, stopped, continued. Also tracks their system resources.

use super::traffic::Random;
use crate::processes::{family_of, is_there, places_of, processes_at, signal_if_there};
use crate::server::RedisServer;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time for which a state must persist to count as stable.
const SETTLED: Duration = Duration::from_secs(1);
/// Poll interval.
const LOOK: Duration = Duration::from_millis(10);
/// Time in which the server must replace ended processes. Creating and removing many namespaces is slow on a busy
/// machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause after a few failures in succession; afterwards the server no longer counts them.
const CALM: Duration = Duration::from_millis(10_500);

/// Fault of a process.
#[derive(Clone, Copy, Debug)]
enum Strike {
    Kill,
    Terminate,
    Stop,
    /// Stopped for this number of milliseconds.
    Pause(u64),
}

/// Observations of a run.
pub(super) struct Havoc {
    tailwater: u32,
    /// File with its standard error.
    told: PathBuf,
    pub(super) redis: RedisServer,
    /// Time of Redis's next change, with the fault to end, if one is active.
    redis_next: (Instant, Option<Strike>),
    random: Random,
    processes: BTreeSet<u32>,
    places: BTreeSet<PathBuf>,
    namespaces: BTreeSet<String>,
    pub(super) strikes: u64,
    pub(super) redis_strikes: u64,
}

/// Resources of the server while no faults occur.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holdings {
    /// Targets of its file descriptors, without numbers.
    descriptors: BTreeMap<String, usize>,
    threads: usize,
    pub(super) children: usize,
    /// `true` once the functions have their memory, and failed processes are replaced.
    pub(super) is_attached: bool,
    mappings: usize,
    /// Anonymous memory, KiB.
    anonymous: u64,
    /// Huge pages, KiB.
    huge: u64,
}

impl Havoc {
    pub(super) fn new(tailwater: u32, told: PathBuf, redis: RedisServer, seed: u64) -> Havoc {
        Havoc {
            tailwater,
            told,
            redis,
            redis_next: (Instant::now(), None),
            random: Random::new(seed),
            processes: BTreeSet::new(),
            places: BTreeSet::new(),
            namespaces: BTreeSet::new(),
            strikes: 0,
            redis_strikes: 0,
        }
    }

    /// Injects faults at random times until `until`, into each function independently and into Redis.
    pub(super) fn wreak(&mut self, functions: usize, until: Instant) {
        let now = Instant::now();
        let first_within = (until - now).min(CALM).as_millis() as u64 / 2;
        let mut next: Vec<(Instant, u32)> = (0..functions)
            .map(|_| (now + Duration::from_millis(self.random.below(first_within)), 0))
            .collect();
        let mut resumed: Vec<(Instant, u32)> = Vec::new();
        self.redis_next.0 = now + Duration::from_millis(self.random.below(first_within));
        while Instant::now() < until {
            self.look();
            self.strike_redis();
            let now = Instant::now();
            for (place, next) in next.iter_mut().enumerate() {
                let (at, struck) = *next;
                if now < at {
                    continue;
                }
                let processes = processes_at(self.tailwater, place);
                if processes.is_empty() {
                    continue;
                }
                let process = processes[self.random.below(processes.len() as u64) as usize];
                match self.draw() {
                    Strike::Kill => signal_if_there(process, "-KILL"),
                    Strike::Terminate => signal_if_there(process, "-TERM"),
                    Strike::Stop => signal_if_there(process, "-STOP"),
                    Strike::Pause(milliseconds) => {
                        signal_if_there(process, "-STOP");
                        resumed.push((now + Duration::from_millis(milliseconds), process));
                    }
                }
                self.strikes += 1;
                *next = match struck {
                    3 => (now + CALM, 0),
                    _ => (now + Duration::from_millis(5 + self.random.below(250)), struck + 1),
                };
            }
            resumed.retain(|&(at, process)| {
                if at <= now {
                    signal_if_there(process, "-CONT");
                }
                at > now
            });
            sleep(LOOK);
        }
        self.give_redis_back();
        for (_, process) in resumed {
            signal_if_there(process, "-CONT");
        }
        // A stopped standby process would otherwise stay stopped until it is needed.
        for process in family_of(self.tailwater).into_iter().skip(1) {
            signal_if_there(process, "-CONT");
        }
    }

    /// Kills Redis or stops it for up to a second, and restores it, alternately.
    fn strike_redis(&mut self) {
        let now = Instant::now();
        let (at, struck) = self.redis_next;
        if now >= at {
            self.redis_next = match struck {
                None => {
                    self.redis_strikes += 1;
                    let strike = match self.random.below(2) {
                        0 => Strike::Kill,
                        _ => Strike::Stop,
                    };
                    match strike {
                        Strike::Kill => self.redis.stop(),
                        _ => self.redis.signal("STOP"),
                    }
                    let away = Duration::from_millis(5 + self.random.below(1000));
                    (now + away, Some(strike))
                }
                Some(_) => {
                    self.give_redis_back();
                    (now + Duration::from_millis(500 + self.random.below(4000)), None)
                }
            };
        }
    }

    fn give_redis_back(&mut self) {
        match self.redis_next.1.take() {
            Some(Strike::Kill) => self.redis.start_again(),
            Some(_) => self.redis.signal("CONT"),
            None => {}
        }
    }

    fn draw(&mut self) -> Strike {
        match self.random.below(10) {
            0..=4 => Strike::Kill,
            5 => Strike::Terminate,
            6 | 7 => Strike::Stop,
            _ => Strike::Pause(1 + self.random.below(30)),
        }
    }

    /// Records the existing processes and their resources.
    pub(super) fn look(&mut self) {
        for process in family_of(self.tailwater).into_iter().skip(1) {
            // Its directories are created a little later than the process.
            self.places.extend(places_of(process));
            self.processes.insert(process);
            for kind in ["ipc", "mnt", "net", "pid", "user", "uts"] {
                let name = |process| fs::read_link(format!("/proc/{process}/ns/{kind}"));
                if let (Ok(its), Ok(ours)) = (name(process), name(self.tailwater))
                    && its != ours
                {
                    self.namespaces.insert(its.display().to_string());
                }
            }
        }
    }

    pub(super) fn holdings(&self) -> Holdings {
        let of = |what: &str| format!("/proc/{}/{what}", self.tailwater);
        let entries = |what: &str| fs::read_dir(of(what)).map_or(0, Iterator::count);
        let status = fs::read_to_string(of("status")).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next());
            number.and_then(|number| number.parse().ok()).unwrap_or(0)
        };
        let threads = fs::read_dir(of("task")).into_iter().flatten().flatten();
        let mut names = threads.flat_map(|thread| fs::read_to_string(thread.path().join("comm")));
        let mut descriptors = BTreeMap::new();
        for descriptor in fs::read_dir(of("fd")).into_iter().flatten().flatten() {
            if let Ok(name) = fs::read_link(descriptor.path()) {
                let name = name.display().to_string();
                let name = name.replace(|c: char| c.is_ascii_digit(), "");
                *descriptors.entry(name).or_default() += 1;
            }
        }
        Holdings {
            descriptors,
            threads: entries("task"),
            children: family_of(self.tailwater).len(),
            is_attached: names.any(|name| name.trim_end() == "isolation"),
            mappings: fs::read_to_string(of("maps")).map_or(0, |maps| maps.lines().count()),
            anonymous: field("RssAnon:"),
            huge: field("HugetlbPages:"),
        }
    }

    /// Waits until the server's resources fulfil a condition and stay stable, and returns them.
    pub(super) fn settled(&mut self, as_it_is: impl Fn(&Holdings) -> bool) -> Holdings {
        let until = Instant::now() + PATIENCE;
        let (mut since, mut last) = (Instant::now(), self.holdings());
        loop {
            self.look();
            sleep(LOOK);
            let now = self.holdings();
            if now.kept() != last.kept() || !as_it_is(&now) {
                since = Instant::now();
            }
            assert!(
                is_there(self.tailwater),
                "it ended early: {}; before, it had {last:?}",
                fs::read_to_string(&self.told).unwrap_or_default()
            );
            last = now;
            if since.elapsed() > SETTLED {
                return last;
            }
            assert!(Instant::now() < until, "it does not settle: {last:?}");
        }
    }

    /// Asserts after the run that nothing is left of any recorded process.
    pub(super) fn assert_nothing_is_left(&self, confined: bool) {
        assert!(!self.processes.is_empty());
        assert_eq!(self.places.is_empty(), !confined, "{:?}", self.places);
        assert_eq!(self.namespaces.is_empty(), !confined);
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let processes: Vec<_> = self.processes.iter().filter(|it| is_there(**it)).collect();
            let places: Vec<_> = self.places.iter().filter(|it| it.exists()).collect();
            let namespaces = self.namespaces_in_use();
            if processes.is_empty() && places.is_empty() && namespaces.is_empty() {
                return;
            }
            let left = format!("{processes:?}, {places:?}, {namespaces:?}");
            assert!(Instant::now() < until, "left: {left}");
            sleep(LOOK);
        }
    }

    /// Returns the run's namespaces that some process is in.
    fn namespaces_in_use(&self) -> Vec<String> {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let links = processes.flat_map(|process| {
            let links = fs::read_dir(process.path().join("ns"));
            links.into_iter().flatten().flatten()
        });
        let names = links.filter_map(|link| fs::read_link(link.path()).ok());
        let names = names.map(|name| name.display().to_string());
        names.filter(|name| self.namespaces.contains(name)).collect()
    }
}

impl Drop for Havoc {
    /// Ends the run of a test that failed: it would keep its core from the others.
    fn drop(&mut self) {
        if std::thread::panicking() {
            signal_if_there(self.tailwater, "-KILL");
        }
    }
}

impl Holdings {
    /// Returns the resources that must not change.
    fn kept(&self) -> (&BTreeMap<String, usize>, [usize; 2], u64) {
        let Holdings { threads, children, .. } = *self;
        (&self.descriptors, [threads, children], self.huge)
    }

    pub(super) fn is_as(&self, before: &Holdings) -> bool {
        self.kept() == before.kept()
    }

    /// Asserts that the resources equal those before, except for memory held by allocators.
    pub(super) fn assert_as(&self, before: &Holdings, halfway: &Holdings, strikes: u64) {
        let told = format!("{before:?}, after {strikes} strikes {self:?}");
        assert!(self.is_as(before), "{told}");
        assert!(self.mappings <= before.mappings + 16, "{told}");
        // Allocators retain memory of ended threads for later ones, so it grows for a while.
        let halfway = halfway.anonymous;
        let most = halfway + (4 << 10) + (halfway - before.anonymous.min(halfway)) / 2;
        assert!(self.anonymous <= most, "halfway {halfway}: {told}");
    }
}
