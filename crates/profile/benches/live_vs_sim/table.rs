//! Live and simulated figures side by side.

use crate::live::Live;
use crate::{Cell, LENGTH, WINDOW};
use serde_json::{Value, json};
use tailwater_sim::ChainReport;

/// A figure live, with its spread over runs, and simulated.
#[derive(Clone, Copy, Debug)]
struct Figure {
    live: f64,
    low: f64,
    high: f64,
    simulated: f64,
}

/// A row of the table.
pub struct Row {
    cell: [String; 4],
    offered_mpps: f64,
    p50: Figure,
    p99: Figure,
    cores: Figure,
    /// Windows that count, of all.
    windows: usize,
    all: usize,
    /// Runs that count, of all.
    runs: [usize; 2],
    /// What packets cost, as part of what they cost in training.
    speed: f64,
    dropped: f64,
    /// What packets took of cores, live and simulated, in nanoseconds.
    busy: [f64; 2],
    /// Packets handed to helpers, live and simulated, as parts of all.
    handed: [f64; 2],
    /// Helpers recruited a second.
    recruited: [f64; 2],
    lost: [f64; 2],
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// Whether a window of a run counts: all but the first, in which caches are cold, those in which a core was
/// taken away, and those after one of these, to which it leaves a backlog.
fn counts(run: &Live, window: usize) -> bool {
    window > 0
        && window < whole()
        && !run.windows[window].flagged
        && !run.windows[window - 1].flagged
}

/// Windows that packets fill.
fn whole() -> usize {
    (LENGTH.0 / WINDOW.0) as usize
}

impl Row {
    /// Of runs, each with its simulation.
    pub fn new(cell: &Cell, policy: &str, pairs: &[(Live, ChainReport)]) -> Row {
        let steady: Vec<&(Live, ChainReport)> =
            pairs.iter().filter(|(run, _)| run.is_steady()).collect();
        let figure = |live: &dyn Fn(&Live) -> f64, of: &dyn Fn(&ChainReport, &Live) -> f64| {
            // A run none of whose windows counts has no figure.
            let pairs = steady.iter().map(|(run, sim)| [live(run), of(sim, run)]);
            let pairs = pairs.filter(|pair| !pair[0].is_nan());
            let each = pairs.clone().map(|pair| pair[0]);
            Figure {
                live: median(each.clone()),
                low: each.clone().fold(f64::NAN, f64::min),
                high: each.fold(f64::NAN, f64::max),
                simulated: median(pairs.map(|pair| pair[1])),
            }
        };
        // The same windows count on both sides.
        let window = |run: &Live, value: &dyn Fn(usize) -> f64| {
            let windows = 0..run.windows.len().min(whole());
            let windows = windows.filter(|window| counts(run, *window));
            median(windows.map(value))
        };
        let p50 = figure(&|run| window(run, &|w| run.windows[w].p50), &|sim, run| {
            window(run, &|w| sim.windows[w].p50_us)
        });
        let p99 = figure(&|run| window(run, &|w| run.windows[w].p99), &|sim, run| {
            window(run, &|w| sim.windows[w].p99_us)
        });
        let cores = figure(&|run| 1.0 + run.auxiliary, &|sim, _| {
            1.0 + sim.cores.auxiliary
        });
        let offered = |run: &Live| run.offered.max(1) as f64;
        let live = |of: &dyn Fn(&Live) -> f64| median(steady.iter().map(|(run, _)| of(run)));
        let simulated =
            |of: &dyn Fn(&ChainReport) -> f64| median(steady.iter().map(|(_, sim)| of(sim)));
        let seconds = LENGTH.as_secs_f64();
        let name = cell.name(policy);
        let parts: Vec<String> = name.split('/').map(str::to_owned).collect();
        let windows = steady.iter().map(|(run, _)| {
            let windows = 0..run.windows.len().min(whole());
            windows.filter(|window| counts(run, *window)).count()
        });
        Row {
            cell: parts.try_into().expect("four parts"),
            offered_mpps: live(&|run| offered(run) / seconds / 1e6),
            p50,
            p99,
            cores,
            windows: windows.sum(),
            all: steady.len() * (whole() - 1),
            runs: [steady.len(), pairs.len()],
            speed: live(&|run| run.speed[0]),
            dropped: live(&|run| run.dropped as f64 / offered(run)),
            busy: [
                live(&|run| run.busy),
                simulated(&|sim| {
                    sim.cores.busy * sim.cores.total * LENGTH.0 as f64
                        / sim.packets.delivered.max(1) as f64
                }),
            ],
            handed: [
                live(&|run| run.handed as f64 / offered(run)),
                simulated(&|sim| {
                    sim.decisions.packets_handed as f64 / sim.packets.offered.max(1) as f64
                }),
            ],
            recruited: [
                live(&|run| run.recruited as f64 / seconds),
                simulated(&|sim| sim.decisions.recruited as f64 / seconds),
            ],
            lost: [
                live(&|run| run.lost as f64 / offered(run)),
                simulated(&|sim| sim.loss_rate),
            ],
        }
    }

    pub fn json(&self) -> Value {
        let figure = |figure: &Figure| {
            let Figure {
                live,
                low,
                high,
                simulated,
            } = *figure;
            json!({"live": live, "min": low, "max": high, "simulated": simulated, "ratio": simulated / live})
        };
        json!({
            "name": format!("live-vs-sim/{}", self.cell.join("/")),
            "unit": "us and cores", "value": self.p99.simulated / self.p99.live,
            "offered_mpps": self.offered_mpps,
            "p50": figure(&self.p50), "p99": figure(&self.p99), "cores": figure(&self.cores),
            "runs": self.runs, "windows": self.windows, "of_windows": self.all,
            "speed": self.speed, "busy_ns": self.busy, "dropped": self.dropped, "lost": self.lost,
            "handed": self.handed, "recruited_per_s": self.recruited,
        })
    }
}

/// A figure's cell: bold where the two are further apart than `aim`.
fn compared(figure: &Figure, aim: f64) -> String {
    let digits = if figure.live < 10.0 { 2 } else { 0 };
    let Figure {
        live,
        low,
        high,
        simulated,
    } = *figure;
    let apart = simulated / live - 1.0;
    let percent = match apart.abs() <= aim {
        true => format!("{:+.0} %", 100.0 * apart),
        false => format!("**{:+.0} %**", 100.0 * apart),
    };
    format!("{live:.digits$} ({low:.digits$}–{high:.digits$}), {simulated:.digits$}, {percent}")
}

/// The table.
pub fn markdown(rows: &[Row]) -> String {
    let mut text =
        "| chain, traffic, Mpps | policy, objective | p50, µs | p99, µs | cores | handed over |\n\
                    |---|---|---|---|---|---|\n"
            .to_owned();
    for row in rows {
        let [chain, traffic, slo, policy] = &row.cell;
        text += &format!(
            "| `{chain}`, `{traffic}`, {:.2} | `{policy}`, {slo} µs | {} | {} | {} | {:.1} %, {:.1} % |\n",
            row.offered_mpps,
            compared(&row.p50, 0.15),
            compared(&row.p99, 0.25),
            compared(&row.cores, 0.1),
            100.0 * row.handed[0],
            100.0 * row.handed[1],
        );
    }
    text
}
