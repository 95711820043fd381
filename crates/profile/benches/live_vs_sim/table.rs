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
    runs: usize,
    dropped: f64,
    /// Packets handed to helpers, live and simulated, as parts of all.
    handed: [f64; 2],
    /// Helpers recruited a second.
    recruited: [f64; 2],
    lost: [u64; 2],
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
    pub fn new(cell: &Cell, policy: &str, runs: &[Live], simulated: &ChainReport) -> Row {
        // By window, the runs in which it counts.
        let by_window: Vec<(usize, Vec<&Live>)> = (0..whole())
            .map(|window| {
                let able = |run: &&Live| window < run.windows.len() && counts(run, window);
                (window, runs.iter().filter(able).collect())
            })
            .filter(|(_, runs): &(_, Vec<&Live>)| !runs.is_empty())
            .collect();
        let latency = |live: fn(&Live, usize) -> f64, of: fn(&ChainReport, usize) -> f64| {
            let windows = by_window.iter();
            let each =
                windows.map(|(window, runs)| median(runs.iter().map(|run| live(run, *window))));
            let of_run = |run: &Live| {
                let windows = 0..run.windows.len().min(whole());
                let windows = windows.filter(|window| counts(run, *window));
                median(windows.map(|window| live(run, window)))
            };
            let of_runs = runs.iter().map(of_run).filter(|value| !value.is_nan());
            Figure {
                live: median(each),
                low: of_runs.clone().fold(f64::NAN, f64::min),
                high: of_runs.fold(f64::NAN, f64::max),
                simulated: median(by_window.iter().map(|(window, _)| of(simulated, *window))),
            }
        };
        let p50 = latency(|run, w| run.windows[w].p50, |sim, w| sim.windows[w].p50_us);
        let p99 = latency(|run, w| run.windows[w].p99, |sim, w| sim.windows[w].p99_us);
        let used = runs.iter().map(|run| 1.0 + run.auxiliary);
        let cores = Figure {
            live: median(used.clone()),
            low: used.clone().fold(f64::NAN, f64::min),
            high: used.fold(f64::NAN, f64::max),
            simulated: 1.0 + simulated.cores.auxiliary,
        };
        let offered = |run: &Live| run.offered.max(1) as f64;
        let decisions = &simulated.decisions;
        let packets = &simulated.packets;
        let name = cell.name(policy);
        let parts: Vec<String> = name.split('/').map(str::to_owned).collect();
        Row {
            cell: parts.try_into().expect("four parts"),
            offered_mpps: median(runs.iter().map(|run| offered(run) / LENGTH.0 as f64 * 1e3)),
            p50,
            p99,
            cores,
            windows: by_window.len(),
            all: whole() - 1,
            runs: runs.len(),
            dropped: median(runs.iter().map(|run| run.dropped as f64 / offered(run))),
            handed: [
                median(runs.iter().map(|run| run.handed as f64 / offered(run))),
                decisions.packets_handed as f64 / packets.offered.max(1) as f64,
            ],
            recruited: [
                median(
                    runs.iter()
                        .map(|run| run.recruited as f64 / LENGTH.as_secs_f64()),
                ),
                decisions.recruited as f64 / LENGTH.as_secs_f64(),
            ],
            lost: [
                median(runs.iter().map(|run| run.lost as f64)) as u64,
                packets.lost,
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
            "dropped": self.dropped, "lost": self.lost,
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
