//! Events of the processor in a run, as valgrind's callgrind simulates it.

use std::process::Command;

/// Simulated caches, so that counts are the same on every machine: 32 KiB of data and of instructions each, and a last
/// level of 1 MiB, as large as a server's second-level cache.
const CACHES: [&str; 3] = ["--I1=32768,8,64", "--D1=32768,8,64", "--LL=1048576,16,64"];

/// Kinds of events, by their names in figures.
pub const EVENTS: [&str; 5] = ["instructions", "branches", "mispredictions", "d1-misses", "ll-misses"];

/// Index of the instructions in [`EVENTS`].
pub const INSTRUCTIONS: usize = 0;

/// Callgrind's names of the counters that make up each of [`EVENTS`].
const COUNTERS: [&[&str]; 5] = [
    &["Ir"],
    &["Bc", "Bi"],
    &["Bcm", "Bim"],
    &["D1mr", "D1mw"],
    &["DLmr", "DLmw"],
];

/// Counts of [`EVENTS`] of this program in one pass, as `arguments` specify. `None` without valgrind.
pub fn events(arguments: &[&str]) -> Option<[u64; 5]> {
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .args(["--cache-sim=yes", "--branch-sim=yes"])
        .args(CACHES)
        .arg("--toggle-collect=*::cases::measured*")
        .arg(std::env::current_exe().ok()?)
        .arg("--one-pass")
        .args(arguments);
    // The environment lies on the stack, whose place in the cache it would shift.
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin");
    command.envs(std::env::var("TRACE").map(|filter| ("TRACE", filter)));
    let output = command.output().ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    parse(&text)
}

/// Parses callgrind's report. Libraries are tested in a child process, which has its own report, and ends before its
/// parent.
fn parse(text: &str) -> Option<[u64; 5]> {
    let last = |label: &str| {
        let (_, rest) = text.rsplit_once(label)?;
        Some(rest.lines().next()?.split_whitespace().collect::<Vec<_>>())
    };
    let (names, counts) = (last("Events    :")?, last("Collected :")?);
    let sum = |counters: &[&str]| {
        let of = |(name, count): (&&str, &&str)| counters.contains(name).then(|| count.parse::<u64>().ok());
        names.iter().zip(&counts).filter_map(of).sum::<Option<u64>>()
    };
    let mut events = [0; 5];
    for (event, counters) in events.iter_mut().zip(COUNTERS) {
        *event = sum(counters)?;
    }
    Some(events)
}

/// Cost per packet, as the difference between runs on twice and once as many packets, by `count`.
pub fn per_packet<const N: usize>(mut count: impl FnMut(u64) -> Option<[u64; N]>) -> Option<[f64; N]> {
    const PACKETS: u64 = 32_000;
    let (once, twice) = (count(PACKETS)?, count(2 * PACKETS)?);
    Some(std::array::from_fn(|i| {
        (twice[i] as f64 - once[i] as f64) / PACKETS as f64
    }))
}
