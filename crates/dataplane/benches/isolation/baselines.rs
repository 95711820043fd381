//! Baselines for isolated functions: processes that pass batches on in conventional ways.
//!
//! - *Futexes*: all processes share the packets. A process that has finished a batch wakes the next one by a futex and
//!   sleeps on its own. The kernel's ordinary scheduler (CFS, EEVDF) runs them, all on the worker's core.
//! - *A virtual switch*: no process sees another's packets. The switch, which has the port, copies each batch into the
//!   memory of the first function, wakes it and sleeps until it is done. Then it copies the batch into the memory of
//!   the next, and so on, as Open vSwitch does with virtual machines (vhost). It runs on the functions' core, too. On
//!   another one, which would count, it would wait for the functions most of the time.
//!
//! Both receive their packets from the same port, parse them in each function and count them just as isolated functions
//! do. They skip the checks of the functions' results.

use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tailwater_chain::batch::{Batch, MAX_BATCH};
use tailwater_chain::buffer::BufferMemory;
use tailwater_chain::chain::IsolatedChain;
use tailwater_chain::function::{FlowStates, NetworkFunction};
use tailwater_dataplane::cores;
use tailwater_functions::library::LibraryFunction;
use tailwater_net::Nanos;
use tailwater_sdk::program::{TurnFunction, TurnPacket, TurnVerdict};
use tailwater_sdk::protocol::memory::Memory;

/// Argument that makes the program a function of a baseline.
pub const FUNCTION: &str = "baseline-function";

/// Kind of baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Futex,
    Switch,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Futex => "futex",
            Kind::Switch => "virtual-switch",
        }
    }

    /// Number of hand-overs per batch between processes, for a number of functions.
    pub fn hand_overs(self, functions: usize) -> usize {
        match self {
            Kind::Futex => functions + 1,
            Kind::Switch => 2 * functions,
        }
    }

    /// Number of copies per packet, for a number of functions.
    pub fn copies(self, functions: usize) -> usize {
        match self {
            Kind::Futex => 2,
            Kind::Switch => functions + 1,
        }
    }
}

/// Distance between buffers in bytes: an odd number of cache lines.
const STRIDE: usize = 35 * 64;
/// Size of the packets' memory in bytes.
const PACKETS: usize = MAX_BATCH * STRIDE;
/// Words per cache line.
const LINE: usize = 8;
/// Round number that ends the processes.
const OVER: u64 = u64::MAX;

/// Shared memory for turns of a worker (0) and its functions (from 1 on). For each there is a word with the round that
/// is its turn, and one to sleep on. Also holds the number of packets, and the position of each packet's frame.
#[derive(Debug)]
struct Turns(Memory);

const COUNT: usize = 32 * LINE;
const PLACES: usize = COUNT + LINE;
const TURNS_BYTES: usize = 8 * (PLACES + MAX_BATCH);

impl Turns {
    fn of(&self, who: usize) -> u64 {
        self.0.load(2 * LINE * who, SeqCst)
    }

    /// Gives the turn to a process, and wakes it.
    fn hand_to(&self, who: usize, round: u64) {
        self.0.store(2 * LINE * who, round, SeqCst);
        self.0.wake(2 * LINE * who + LINE);
    }

    /// Sleeps until the process has its turn in another round than `last`. Returns that round.
    fn wait(&self, who: usize, last: u64) -> u64 {
        while self.of(who) == last {
            self.0.sleep(2 * LINE * who + LINE, || self.of(who) != last);
        }
        self.of(who)
    }

    fn count(&self) -> usize {
        self.0.load(COUNT, Relaxed) as usize
    }

    fn place(&self, i: usize) -> [usize; 2] {
        let word = self.0.load(PLACES + i, Relaxed);
        [word as u16 as usize, (word >> 16) as usize]
    }

    fn set_place(&self, i: usize, [start, length]: [usize; 2]) {
        let word = start as u64 | (length as u64) << 16;
        self.0.store(PLACES + i, word, Relaxed);
    }
}

/// Creates a file of `bytes` bytes in memory.
fn create(path: &Path, bytes: usize) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true).open(path)?;
    file.set_len(bytes as u64)?;
    Ok(file)
}

/// Processes of a chain, and the worker's end.
pub struct Group {
    kind: Kind,
    turns: Turns,
    packets: Vec<Memory>,
    children: Vec<Child>,
    files: Vec<PathBuf>,
    round: u64,
}

impl Group {
    /// Starts `functions` functions that do `lookups` look-ups each.
    pub fn start(kind: Kind, library: &Path, functions: usize, lookups: u32) -> Group {
        Group::try_start(kind, library, functions, lookups).unwrap_or_else(|error| panic!("{error}"))
    }

    fn try_start(kind: Kind, library: &Path, functions: usize, lookups: u32) -> io::Result<Group> {
        let name = |what: String| {
            let name = format!("tailwater-baseline-{}-{what}", std::process::id());
            Path::new("/dev/shm").join(name)
        };
        let memories = match kind {
            Kind::Futex => 1,
            Kind::Switch => functions,
        };
        let turns_file = name("turns".to_owned());
        let mut files = vec![turns_file.clone()];
        let turns = Turns(Memory::map(&create(&turns_file, TURNS_BYTES)?, TURNS_BYTES, true)?);
        let mut packets = Vec::new();
        for k in 0..memories {
            let file = name(format!("packets-{k}"));
            packets.push(Memory::map(&create(&file, PACKETS)?, PACKETS, true)?);
            files.push(file);
        }
        let mut children = Vec::new();
        for k in 0..functions {
            let next = match kind {
                Kind::Futex => (k + 2) % (functions + 1),
                Kind::Switch => 0,
            };
            let child = Command::new(std::env::current_exe()?)
                .arg(FUNCTION)
                .arg(library)
                .arg(format!("{{\"lookups\":{lookups}}}"))
                .args([&turns_file, &files[1 + k.min(memories - 1)]])
                .args([(k + 1).to_string(), next.to_string()])
                .spawn()?;
            children.push(child);
        }
        let mut group = Group {
            kind,
            turns,
            packets,
            children,
            files,
            round: 0,
        };
        // All processes run once an empty batch has passed them.
        group.go(0);
        Ok(group)
    }

    /// Passes a batch of `count` packets, which must be in the first memory, through all functions. Afterwards they are
    /// in the last one.
    fn go(&mut self, count: usize) {
        let functions = self.children.len();
        self.turns.0.store(COUNT, count as u64, Relaxed);
        let mut step = |first: usize| {
            let last = self.round;
            self.round += 1;
            self.turns.hand_to(first, self.round);
            self.turns.wait(0, last);
        };
        match self.kind {
            Kind::Futex => step(1),
            Kind::Switch => {
                for k in 0..functions {
                    if k > 0 {
                        let mut frame = [0; STRIDE];
                        for i in 0..count {
                            let [start, length] = self.turns.place(i);
                            let (at, frame) = (i * STRIDE + start, &mut frame[..length]);
                            self.packets[k - 1].read(at, frame);
                            self.packets[k].write(at, frame);
                        }
                    }
                    step(k + 1);
                }
            }
        }
    }

    /// Nanoseconds of a hand-over from one process to the next.
    pub fn hand_over(&mut self) -> f64 {
        const ROUNDS: usize = 2_000;
        let hand_overs = self.kind.hand_overs(self.children.len());
        let began = Instant::now();
        (0..ROUNDS).for_each(|_| self.go(0));
        began.elapsed().as_nanos() as f64 / (ROUNDS * hand_overs) as f64
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for k in 1..=self.children.len() {
            self.turns.hand_to(k, OVER);
        }
        for child in &mut self.children {
            let _ = child.wait();
        }
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Replaces the functions in the worker's chain.
pub struct Handed(pub Arc<Mutex<Group>>);

impl NetworkFunction for Handed {
    fn kind(&self) -> &'static str {
        "Baseline"
    }

    fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
        let mut group = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut i = 0;
        batch.for_each(|packet, frame| {
            let start = packet.start();
            group.turns.set_place(i, [start, frame.len()]);
            group.packets[0].write(i * STRIDE + start, frame);
            i += 1;
        });
        group.go(i);
        if let Some(last) = group.packets.last() {
            for i in 0..batch.len() {
                let place = group.turns.place(i);
                batch.replace_frame(i, place, |frame| last.read(i * STRIDE + place[0], frame));
            }
        }
    }
}

/// Measures hand-overs of a chain without packets, on the worker's core.
pub fn hand_over(kind: Kind, library: &Path, functions: usize) -> f64 {
    on_core();
    Group::start(kind, library, functions, 1).hand_over()
}

fn on_core() {
    let mut cores = CpuSet::new();
    cores.set(cores::default_core());
    sched_setaffinity(None, &cores).unwrap_or_else(|error| panic!("{error}"));
}

/// Main function of a baseline's function process.
///
/// # Errors
/// If the arguments are invalid, or the shared memory or the library cannot be opened.
pub fn function(arguments: &[String]) -> io::Result<()> {
    let [library, config, turns, packets, who, next] = arguments else {
        return Err(io::Error::other("started by hand"));
    };
    let number = |text: &String| text.parse::<usize>().map_err(io::Error::other);
    let (who, next) = (number(who)?, number(next)?);
    on_core();
    let open = |path: &String| OpenOptions::new().read(true).write(true).open(path);
    let turns = Turns(Memory::map(&open(turns)?, TURNS_BYTES, true)?);
    let packets = Memory::map(&open(packets)?, PACKETS, true)?;
    let library = LibraryFunction::open(Path::new(library), config).map_err(io::Error::other)?;
    let base = packets.base();
    // SAFETY: the memory was mapped with that size, readable and writable, and is owned by `packets`. All bytes are
    // initialised, and this process accesses them only through this memory's handles.
    let memory = unsafe { BufferMemory::lent(base, MAX_BATCH as u32, [STRIDE, STRIDE], Arc::new(packets))? };
    let named = ("lookups".to_owned(), Box::new(library.instance()) as _);
    // SAFETY: batches are run in this process's turns only.
    let mut alone = unsafe { IsolatedChain::new(named, memory, None) };
    let mut round = 0;
    loop {
        round = turns.wait(who, round);
        if round == OVER {
            return Ok(());
        }
        let count = turns.count();
        for chunk in (0..count).step_by(64) {
            for i in chunk..count.min(chunk + 64) {
                let packet = TurnPacket {
                    entry: 0,
                    at: i as u16,
                    frame_range: turns.place(i).map(|number| number as u16),
                    arrival: Nanos::ZERO,
                    rss_hash: 0,
                    flow: None,
                    rekeyed: false,
                    turned: false,
                };
                assert!(alone.put::<true>(&packet, |_| ()), "an IP packet");
            }
            alone.run(Nanos::ZERO, |at, made| match made {
                TurnVerdict::Forward { place, .. } => {
                    turns.set_place(at.into(), place.map(usize::from));
                }
                TurnVerdict::Drop(reason) => panic!("dropped for {reason}"),
            });
        }
        turns.hand_to(next, round);
    }
}
