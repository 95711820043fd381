//! Table of live and simulated figures.

use crate::live::{Live, Window};
use crate::{Cell, LENGTH, WINDOWS};
use serde_json::{Value, json};
use tailwater_sim::ChainReport;

/// A live figure with its spread over runs, and three simulated ones: with the machine's speed in each step and its
/// interruptions, with its mean speed, and with that of training.
#[derive(Clone, Copy, Debug)]
struct Figure {
    live: f64,
    low: f64,
    high: f64,
    simulated: [f64; 3],
}

/// A row of the table.
pub struct Row {
    cell: [String; 4],
    offered_mpps: f64,
    p50: Figure,
    p99: Figure,
    cores: Figure,
    /// Live 99th percentile divided by the objective.
    over: f64,
    /// Evaluated windows, and all.
    windows: usize,
    all: usize,
    runs: usize,
    /// Measured over trained batch duration: minimum and maximum of the runs.
    pace: [f64; 2],
    dropped: f64,
    /// Processing time per packet, live and simulated, nanoseconds.
    busy: [f64; 2],
    /// Share of packets offloaded to auxiliary cores, live and simulated.
    handed: [f64; 2],
    /// Activations of auxiliary cores per second, live and simulated.
    recruited: [f64; 2],
    lost: [f64; 2],
}

/// Quantiles that are known of each window's latencies.
pub const QUANTILES: [f64; 4] = [0.5, 0.99, 0.999, 1.0];

/// Maximum relative deviations: p50, p99, cores.
const AIMS: [f64; 3] = [0.15, 0.25, 0.1];

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// Number of first windows, in which caches are cold and memory is touched for the first time.
const FIRST: usize = 25;
/// Number of windows with a backlog after one in which a core was preempted.
const AFTER: usize = 2;

/// Returns the evaluated windows of a run: all but the first ones, those in which a core was preempted, and those just
/// after.
fn counted(run: &Live) -> impl Iterator<Item = usize> + Clone + '_ {
    let flagged = |window: usize| run.windows[window].flagged;
    (FIRST..WINDOWS).filter(move |window| !(window - AFTER..=*window).any(flagged))
}

/// Returns the share of these windows' packets with at most this latency. Between the known quantiles of a window it
/// grows linearly with the logarithm of the latency.
fn part_below(windows: &[Window], latency: f64) -> f64 {
    let (mut below, mut all) = (0.0, 0.0);
    for window in windows.iter().filter(|window| window.delivered > 0) {
        let delivered = window.delivered as f64;
        let (mut from, mut share) = (window.latency[0] / 2.0, 0.0);
        let mut part = 0.0;
        for (to, up_to) in window.latency.into_iter().zip(QUANTILES) {
            if latency >= to {
                part = up_to;
            } else if latency > from {
                part = share + (up_to - share) * (latency / from).ln() / (to / from).ln();
            }
            (from, share) = (to, up_to);
        }
        below += delivered * part;
        all += delivered;
    }
    below / all
}

/// Returns the latency, in microseconds, that a share of these windows' packets did not exceed.
fn percentile(windows: &[Window], part: f64) -> f64 {
    let (mut low, mut high) = (1e-3_f64, 1e7_f64);
    if windows.is_empty() {
        return f64::NAN;
    }
    for _ in 0..60 {
        let middle = (low * high).sqrt();
        if part_below(windows, middle) < part {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// Returns the simulated windows that correspond to the evaluated ones of the run.
fn windows_of(run: &Live, simulated: &ChainReport) -> Vec<Window> {
    let windows = counted(run).filter_map(|window| simulated.windows.get(window));
    let windows = windows.map(|window| Window {
        latency: [window.p50_us, window.p99_us, window.p999_us, window.max_us],
        delivered: window.delivered,
        flagged: false,
    });
    windows.collect()
}

impl Row {
    /// Builds a row from runs, each with its simulations.
    pub fn new(cell: &Cell, policy: &str, runs: &[(Live, [ChainReport; 3])]) -> Row {
        // A run without an evaluated window has no figures.
        let usable = |(run, _): &&(Live, _)| counted(run).next().is_some();
        let runs: Vec<&(Live, [ChainReport; 3])> = runs.iter().filter(usable).collect();
        let figure = |live: &dyn Fn(&Live) -> f64, of: &dyn Fn(&Live, &ChainReport) -> f64| {
            let each = runs.iter().map(|(run, _)| live(run));
            Figure {
                live: median(each.clone()),
                low: each.clone().fold(f64::NAN, f64::min),
                high: each.fold(f64::NAN, f64::max),
                simulated: [0, 1, 2].map(|known: usize| median(runs.iter().map(|(run, sim)| of(run, &sim[known])))),
            }
        };
        let latency = |part: f64| {
            figure(
                &|run| {
                    let windows: Vec<Window> = counted(run).map(|at| run.windows[at]).collect();
                    percentile(&windows, part)
                },
                &|run, sim| percentile(&windows_of(run, sim), part),
            )
        };
        let cores = figure(&|run| 1.0 + run.auxiliary, &|_, sim| 1.0 + sim.cores.auxiliary);
        let p99 = latency(0.99);
        let offered = |run: &Live| run.offered.max(1) as f64;
        let live = |of: &dyn Fn(&Live) -> f64| median(runs.iter().map(|(run, _)| of(run)));
        let simulated = |of: &dyn Fn(&ChainReport) -> f64| median(runs.iter().map(|(_, sim)| of(&sim[0])));
        let seconds = LENGTH.as_secs_f64();
        let name = cell.name(policy);
        let parts: Vec<String> = name.split('/').map(str::to_owned).collect();
        let paces = runs.iter().map(|(run, _)| run.mean_pace());
        Row {
            cell: parts.try_into().expect("four parts"),
            offered_mpps: live(&|run| offered(run) / seconds / 1e6),
            p50: latency(0.5),
            over: p99.live / cell.slo as f64,
            p99,
            cores,
            windows: runs.iter().map(|(run, _)| counted(run).count()).sum(),
            all: runs.len() * (WINDOWS - FIRST),
            runs: runs.len(),
            pace: [paces.clone().fold(f64::NAN, f64::min), paces.fold(f64::NAN, f64::max)],
            dropped: live(&|run| run.dropped as f64 / offered(run)),
            busy: [
                live(&|run| run.busy),
                simulated(&|sim| {
                    sim.cores.busy * sim.cores.total * LENGTH.0 as f64 / sim.packets.delivered.max(1) as f64
                }),
            ],
            handed: [
                live(&|run| run.handed as f64 / offered(run)),
                simulated(&|sim| sim.decisions.packets_handed as f64 / sim.packets.offered.max(1) as f64),
            ],
            recruited: [
                live(&|run| run.recruited as f64 / seconds),
                simulated(&|sim| sim.decisions.activated as f64 / seconds),
            ],
            lost: [
                live(&|run| run.lost as f64 / offered(run)),
                simulated(&|sim| sim.loss_rate),
            ],
        }
    }

    /// Returns `true` if all three figures are within their maximum deviations.
    fn keeps(&self) -> bool {
        let figures = [self.p50, self.p99, self.cores].into_iter().zip(AIMS);
        figures.into_iter().all(|(figure, aim)| figure.apart(0).abs() <= aim)
    }

    /// Returns `true` if live runs differ from each other by more than an aim in a figure.
    fn is_noisy(&self) -> bool {
        let mut figures = [self.p50, self.p99, self.cores].into_iter().zip(AIMS);
        figures.any(|(figure, aim)| figure.is_noisy(aim))
    }

    pub fn json(&self) -> Value {
        let figure = |figure: &Figure| {
            let [simulated, mean, trained] = figure.simulated;
            json!({
                "live": figure.live, "min": figure.low, "max": figure.high, "simulated": simulated,
                "simulated_mean_speed": mean, "simulated_trained_speed": trained,
                "ratio": simulated / figure.live,
            })
        };
        json!({
            "name": format!("live-vs-sim/{}", self.cell.join("/")),
            "unit": "us and cores", "value": self.p99.simulated[0] / self.p99.live,
            "offered_mpps": self.offered_mpps, "keeps": self.keeps(),
            "p50": figure(&self.p50), "p99": figure(&self.p99), "cores": figure(&self.cores),
            "p99_over_objective": self.over,
            "runs": self.runs, "windows": self.windows, "of_windows": self.all,
            "pace": self.pace, "busy_ns": self.busy, "dropped": self.dropped, "lost": self.lost,
            "handed": self.handed, "recruited_per_s": self.recruited,
        })
    }
}

impl Figure {
    /// Returns the relative deviation of the simulation from the live run.
    fn apart(&self, known: usize) -> f64 {
        self.simulated[known] / self.live - 1.0
    }

    /// Returns `true` if the live runs of the same packets differ by more than `aim`.
    fn is_noisy(&self, aim: f64) -> bool {
        self.high > self.low * (1.0 + aim)
    }

    /// Formats a cell of the table: bold if the deviation exceeds `aim`.
    fn compared(&self, aim: f64) -> String {
        let digits = if self.live < 10.0 { 2 } else { 0 };
        let Figure { live, low, high, .. } = *self;
        let (simulated, apart) = (self.simulated[0], self.apart(0));
        let percent = match apart.abs() <= aim {
            true => format!("{:+.0} %", 100.0 * apart),
            false => format!("**{:+.0} %**", 100.0 * apart),
        };
        format!("{live:.digits$} ({low:.digits$}–{high:.digits$}), {simulated:.digits$}, {percent}")
    }
}

/// Formats the table.
pub fn markdown(rows: &[Row]) -> String {
    let mut text = "| chain, traffic, Mpps | policy | p50, µs | p99, µs | cores | offloaded | p99 at mean, trained \
                    speed | pace |\n|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for row in rows {
        let [chain, traffic, _, policy] = &row.cell;
        text += &format!(
            "| `{chain}`, `{traffic}`, {:.2} | `{policy}` | {} | {} | {} | {:.1} %, {:.1} % | {:+.0} %, {:+.0} % | {:.2}–{:.2} |\n",
            row.offered_mpps,
            row.p50.compared(AIMS[0]),
            row.p99.compared(AIMS[1]),
            row.cores.compared(AIMS[2]),
            100.0 * row.handed[0],
            100.0 * row.handed[1],
            100.0 * row.p99.apart(1),
            100.0 * row.p99.apart(2),
            row.pace[0],
            row.pace[1],
        );
    }
    let kept = rows.iter().filter(|row| row.keeps()).count();
    let noisy = rows.iter().filter(|row| !row.keeps() && row.is_noisy()).count();
    text + &format!(
        "\n{kept} of {} combinations meet all three aims. In {noisy} of the others, live runs of the same packets differ \
         from each other by more than an aim.\n",
        rows.len()
    )
}
