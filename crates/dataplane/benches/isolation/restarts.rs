//! Downtime of a function whose process is killed.

use crate::chains::{Chain, Folder, PROCESS, Way, processes};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tailwater_dataplane::cores;
use tailwater_net::Nanos;

/// Packets per second. The number of lost packets gives the downtime.
const RATE: u64 = 200_000;
/// Duration of the arrivals.
const RUN: Nanos = Nanos::from_millis(1000);
/// Kills per run: a third one in a row would cause a pause.
const KILLS: u64 = 2;
/// Time before each kill, in which a standby process is started.
const PAUSE: Duration = Duration::from_millis(300);
/// Maximum time until the process runs.
const PATIENCE: Duration = Duration::from_secs(10);

/// Kills the process of a chain's only function [`KILLS`] times during a run. Returns the mean downtime in
/// microseconds, from its last packet to the next process's first one, or `None` if it was killed less often.
pub fn restart(folder: &Folder, way: Way) -> Option<f64> {
    let chain = Chain::Lookups {
        functions: 1,
        lookups: 1,
    };
    let over = AtomicBool::new(false);
    let (report, killed) = thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let _elsewhere = cores::AvoidCores::new(&[cores::default_core()]);
            kill(folder.library().parent()?, &over)
        });
        let report = folder.run_at(chain, way, RATE, RUN);
        over.store(true, Ordering::Relaxed);
        (report, killer.join().ok().flatten())
    });
    let lost = &report.packets.reasons;
    let lost = lost.get("f0/process-failed").copied().unwrap_or(0);
    let ended: u64 = processes(&report)
        .functions
        .iter()
        .map(|function| function.restarts.ended)
        .sum();
    let all = killed == Some(KILLS) && ended == KILLS;
    all.then(|| lost as f64 * 1e6 / RATE as f64 / KILLS as f64)
}

/// Kills the active process among those with this directory in their arguments. Returns the number of kills.
fn kill(folder: &Path, over: &AtomicBool) -> Option<u64> {
    let mut killed = 0;
    while killed < KILLS {
        let began = Instant::now();
        let process = loop {
            if let Some(process) = at_work(folder) {
                break process;
            }
            if over.load(Ordering::Relaxed) || began.elapsed() > PATIENCE {
                return Some(killed);
            }
            thread::sleep(Duration::from_millis(1));
        };
        thread::sleep(PAUSE);
        if over.load(Ordering::Relaxed) {
            return Some(killed);
        }
        kill_process(process, Signal::KILL).ok()?;
        killed += 1;
        while at_work(folder) == Some(process) && !over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
    }
    Some(killed)
}

/// Active process of a function. The standby one has no real-time priority yet.
fn at_work(folder: &Path) -> Option<Pid> {
    let own = folder.to_str()?;
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let process = ids.find(|id| {
        let read = |what: &str| fs::read_to_string(format!("/proc/{id}/{what}")).unwrap_or_default();
        let command = read("cmdline");
        command.contains(PROCESS) && command.contains(own) && is_real_time(&read("stat"))
    });
    Pid::from_raw(process?)
}

/// Returns `true` if a process is alive and has a real-time policy, given the kernel's `stat` line. Its state is the
/// first word after its name, its policy the thirty-ninth.
fn is_real_time(stat: &str) -> bool {
    const FIFO: &str = "1";
    let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
    let mut words = behind.split_whitespace();
    let lives = words.next().is_some_and(|state| !"ZX".contains(state));
    lives && words.nth(37) == Some(FIFO)
}
