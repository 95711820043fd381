//! Holes that were found, each as the shortest case that shows it.

use crate::case::Case;

/// Names of cases, and of seeds, that the server does not pass yet. They run, and their results are printed, but do not
/// fail the test.
pub(crate) const KNOWN_HOLES: &[&str] = &[];

/// A hole: its name, the chain, the script, packets of a batch, and batches.
type Hole = (&'static str, &'static str, &'static str, usize, u32);

const HOLES: &[Hole] = &[
    // It says done and keeps the core: as the last function, nobody was blamed and the worker hung for good.
    (
        "done-and-spins-last",
        "stamp hostile",
        "64|5=respond,done,spin-forever",
        8,
        60,
    ),
    // In front of others, the next function was blamed.
    (
        "done-and-spins-in-front",
        "hostile stamp",
        "64|5=respond,done,spin-forever",
        8,
        60,
    ),
    (
        "done-and-spins-a-while",
        "stamp hostile stamp",
        "64|5=respond,done,spin:300000",
        8,
        60,
    ),
    (
        "done-and-yields-for-ever",
        "hostile stamp",
        "restless|64|5=respond,done,yield-forever",
        8,
        60,
    ),
    (
        "done-and-sleeps-for-ever",
        "stamp hostile stamp",
        "64|5=respond,done,sleep-forever",
        8,
        60,
    ),
    // It sleeps until it is queued behind the functions that follow, and changes frames that they have seen.
    (
        "writes-behind-a-deny",
        "stamp hostile deny",
        "1|0=respond,sleep:100,done,yield:1,write-denied",
        8,
        1_500,
    ),
    (
        "writes-behind-the-next",
        "hostile stamp stamp",
        "1|0=respond,sleep:100,done,yield:1,write-own",
        8,
        1_500,
    ),
    (
        "writes-behind-two",
        "hostile stamp stamp",
        "1|0=respond,sleep:100,done,yield:2,write-own",
        8,
        1_500,
    ),
    (
        "writes-before-its-turn",
        "stamp stamp hostile",
        "1|0=respond,sleep:100,done,yield:1,write-all",
        8,
        1_500,
    ),
    // The same with the masks that the next function has read: the next one was taken for a liar.
    (
        "masks-behind-the-next",
        "hostile stamp stamp",
        "1|0=respond,sleep:100,done,yield:1,reason",
        8,
        1_500,
    ),
    // Buffers were not wiped: what functions behind it had written was in the next batch's.
    (
        "secrets-in-used-buffers",
        "hostile grow",
        "1|0=search,respond,done",
        8,
        100,
    ),
    (
        "secrets-behind-short-frames",
        "stamp hostile grow shift",
        "1|0=search,respond,done",
        70,
        100,
    ),
    // Frames that are not well-formed were delivered.
    ("one-byte-frames", "stamp hostile", "1|0=respond,one-byte,done", 8, 50),
    (
        "headers-of-the-last",
        "stamp hostile",
        "1|0=write-headers,respond,done",
        8,
        50,
    ),
    // It stays just below the deadline in each turn.
    (
        "nine-milliseconds",
        "stamp hostile stamp",
        "1|0=spin:9000,respond,done",
        8,
        120,
    ),
];

/// Holes that are tried in containers, too: their processes start and are ended in another way.
const IN_CONTAINERS: [&str; 4] = [
    "done-and-spins-last",
    "done-and-spins-in-front",
    "writes-behind-a-deny",
    "secrets-in-used-buffers",
];

/// Returns the cases for an isolation mode.
pub(crate) fn holes(container: bool) -> impl Iterator<Item = Case> {
    let holes = HOLES
        .iter()
        .filter(move |hole| !container || IN_CONTAINERS.contains(&hole.0));
    holes.map(|&(name, chain, script, packets, batches)| Case::written(name, chain, script, packets, batches))
}
