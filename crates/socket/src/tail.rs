//! Percentiles of a packet's time.
//!
//! A simulated packet stands for the one in `sample` lines that is simulated, so its own time says little. The tail is
//! drawn instead: packets whose accesses are served by each level as often as was counted, one by one.

use crate::core::{Core, Latencies, Random, Served};

/// Packets drawn.
const DRAWN: usize = 2_000;

/// 99th percentile of a packet's time, in nanoseconds. Loads from memory wait in addition for an exponentially
/// distributed time, whose mean is what load adds to the latency.
pub(crate) fn p99(core: &Core, idle: &Latencies, loaded: &Latencies, seed: u64) -> f64 {
    let mut random = Random::new(seed);
    let base = core.base_cycles() * loaded.cycle;
    let queueing = loaded.by_level[3] - idle.by_level[3];
    let mut times = vec![base; DRAWN];
    for served in core.served.iter().filter(|served| served.per_packet > 0.0) {
        add(served, (idle, queueing), &mut random, &mut times);
    }
    times.sort_by(f64::total_cmp);
    times[DRAWN * 99 / 100]
}

fn add(served: &Served, (idle, queueing): (&Latencies, f64), random: &mut Random, times: &mut [f64]) {
    let total: u64 = served.levels.iter().sum();
    if total == served.levels[0] {
        return;
    }
    let share = |level: usize| served.levels[level] as f64 / total as f64;
    let (memory, llc, l2) = (share(3), share(2), share(1));
    let whole = served.per_packet as u64;
    let rest = served.per_packet - whole as f64;
    for time in times {
        let lines = whole + u64::from(random.unit() < rest);
        for _ in 0..lines {
            let draw = random.unit();
            let nanos = if draw < memory {
                idle.by_level[3] - queueing * (1.0 - random.unit()).ln()
            } else if draw < memory + llc {
                idle.by_level[2]
            } else if draw < memory + llc + l2 {
                idle.by_level[1]
            } else {
                0.0
            };
            *time += nanos / served.parallel;
        }
    }
}
