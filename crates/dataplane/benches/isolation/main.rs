//! Cost of isolation: chains of functions in processes of their own, compared with the same chain in one process and
//! with other ways to pass packets between processes.
//!
//! `cargo bench -p tailwater-dataplane --bench isolation [-- OPTIONS]` prints one JSON line per figure, the median of
//! interleaved runs, all on the last core. Run it as root: without real-time priority processes cannot take turns in
//! time.
//!
//! | option | |
//! |---|---|
//! | `--part lengths\|branches\|costs\|batches\|restarts` | only these figures |
//! | `--kind lookups-200\|light` | `lengths` and `branches` of these functions only: 200 longest-prefix matches per packet, as in Quadrant's figure 5, or one |
//! | `--least N`, `--most N` | `lengths` of chains with N functions at least and at most (1, 6) |
//! | `--runs N` | runs of each (5) |
//! | `--try KIND N WAY,...` | runs chains of N functions of a kind once each way, prints the time per packet to standard error, and ends; ways: `o32` in one process in batches of 32, `f32` isolated in such, `i3` in batches chosen for 3 %, `c3` the same confined, `x32` and `s32` by futexes and by a virtual switch |
//!
//! `isolation/N-functions/KIND/...`, with frames of 64 bytes:
//!
//! - `one-process`, `isolated`: throughput in Mpps, the first at its best batch size (`one-process-batch`), the other
//!   at the chosen one (`batch`).
//! - `ratio`: isolated ÷ one process, the median of pairs measured one after the other.
//! - `model`: share of one process's throughput predicted by eq. 1 of the paper, with measured terms: the time per
//!   packet in one process, its copies in and out, and switches (`empty`, the time of an empty batch) divided by the
//!   batch size. `of-model`: the ratio divided by that share.
//! - `switches`: fixed time per batch, including the refilling of caches.
//! - `futex`, `virtual-switch`: throughput in Mpps of the [baselines](baselines) at their best batch sizes (`-batch`).
//!   `over-futex`, `over-virtual-switch`: isolated ÷ these. `-model`: the same ratio by the model.
//!
//! `isolation/branches/KIND/PART/...`: a classifier that sends half of the packets, or a sixteenth, through two
//! functions and the rest through two others. A function for all packets follows. `one-process`, `isolated`, `ratio`
//! and `batch` as above. `straight`: the ratio of three such functions in a row, which is what each packet passes.
//! `of-straight`: the first ratio divided by that.
//!
//! Costs: `switch` (between processes that take turns), `switch/futex`; `copy/SIZE` (one frame, once); `packet/SIZE`
//! (time per packet of a chain of one light function); `attach`, `start`, `start/confined`; `confined`: throughput of
//! three light functions, confined ÷ not.
//!
//! Restarts, of one light function: `attach/confined` (a standby process gets its memory and its core), `restart`,
//! `restart/confined`: time from the last packet of a process that is killed to the first one of the next, derived from
//! the packets lost meanwhile. Before that a process has to be started: `start` and `attach` among the costs.
//!
//! Batches, as in the paper's table 4, with frames of 1,024 bytes: `batches/CHAIN/fixed-N`, `chosen`: throughput in
//! Mpps; `chosen-size`; `best-size`; `of-best`: chosen ÷ best fixed.

mod baselines;
mod chains;
mod figures;
mod restarts;

use baselines::Kind;
use chains::{Chain, ChainPart, Folder, PROCESS, Way, processes};
use figures::Figures;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;
use tailwater_isolation::program::{run_function, run_library};
use tailwater_sdk::protocol::memory::Memory;

/// Bound of the paper.
const BOUND: f64 = 0.03;
/// Batch sizes to choose the best from.
const SIZES: [usize; 4] = [32, 64, 128, 256];
const BASELINES: [Kind; 2] = [Kind::Futex, Kind::Switch];

/// Kinds of functions, with their look-ups per packet.
const KINDS: [(&str, u32); 2] = [("lookups-200", 200), ("light", 1)];

/// Nanoseconds to copy a frame of `bytes` bytes into or out of shared memory, once.
fn copy(bytes: usize) -> f64 {
    const STRIDE: usize = 35 * 64;
    const FRAMES: usize = 256;
    const TIMES: usize = 400;
    let path = format!("/dev/shm/tailwater-bench-{}", std::process::id());
    let file = fs::File::options();
    let file = file.clone().read(true).write(true).create(true).open(&path);
    let file = file.unwrap_or_else(|error| panic!("{error}"));
    let _ = fs::remove_file(&path);
    let memory = file
        .set_len((FRAMES * STRIDE) as u64)
        .and_then(|()| Memory::map(&file, FRAMES * STRIDE, true));
    let memory = memory.unwrap_or_else(|error| panic!("{error}"));
    let mut own = vec![1u8; FRAMES * STRIDE];
    let began = Instant::now();
    for _ in 0..TIMES {
        for frame in own.chunks(STRIDE).enumerate() {
            memory.write(frame.0 * STRIDE, black_box(&frame.1[..bytes]));
        }
        for frame in own.chunks_mut(STRIDE).enumerate() {
            memory.read(frame.0 * STRIDE, black_box(&mut frame.1[..bytes]));
        }
    }
    began.elapsed().as_nanos() as f64 / (2 * TIMES * FRAMES) as f64
}

/// Batch size with which a chain runs fastest in one way.
fn best(folder: &Folder, chain: Chain, way: impl Fn(usize) -> Way) -> usize {
    let throughput = |size| folder.run(chain, way(size), 64).throughput_mpps;
    let sizes = SIZES.into_iter().map(|size| (throughput(size), size));
    sizes
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map_or(SIZES[0], |(_, size)| size)
}

/// Measures a chain length.
fn length(folder: &Folder, functions: usize, (kind, lookups): (&str, u32), runs: usize) {
    let chain = Chain::Lookups { functions, lookups };
    let library = folder.library();
    let one_batch = best(folder, chain, Way::One);
    let batches = BASELINES.map(|kind| best(folder, chain, |size| Way::Baseline(kind, size)));
    let names = [
        "one-process",
        "isolated",
        "ratio",
        "model",
        "of-model",
        "batch",
        "empty",
        "switches",
    ];
    let units = ["Mpps", "Mpps", "ratio", "ratio", "ratio", "packets", "us", "us"];
    let mut figures = vec![Figures::default(); names.len()];
    let mut others = BASELINES.map(|_| [(); 3].map(|()| Figures::default()));
    for run in 0..runs {
        eprintln!("{functions} functions, {kind}: run {} of {runs}", run + 1);
        let one = folder.run(chain, Way::One(one_batch), 64).throughput_mpps;
        let report = folder.run(chain, Way::Isolated(BOUND), 64);
        let (isolated, costs) = (report.throughput_mpps, processes(&report));
        // In microseconds per packet.
        let (packet, copy) = (1.0 / one, copy(64) / 1e3);
        let batch = costs.batch.max(1) as f64;
        let ours = packet + 2.0 * copy + costs.empty_us / batch;
        let model = packet / ours;
        let ratio = isolated / one;
        let row = [
            one,
            isolated,
            ratio,
            model,
            ratio / model,
            batch,
            costs.empty_us,
            costs.switches_us,
        ];
        for (figures, figure) in figures.iter_mut().zip(row) {
            figures.add(figure);
        }
        for (i, (kind, batch)) in BASELINES.into_iter().zip(batches).enumerate() {
            let other = folder.run(chain, Way::Baseline(kind, batch), 64).throughput_mpps;
            let library = library.clone();
            let hand_over = thread::spawn(move || baselines::hand_over(kind, &library, functions));
            let hand_over = hand_over.join().unwrap_or_else(|_| panic!("no baseline"));
            let switches = kind.hand_overs(functions) as f64 * hand_over / 1e3 / batch as f64;
            let theirs = packet + kind.copies(functions) as f64 * copy + switches;
            let row = [other, isolated / other, theirs / ours];
            for (figures, figure) in others[i].iter_mut().zip(row) {
                figures.add(figure);
            }
        }
    }
    let name = format!("{functions}-functions/{kind}");
    for ((figures, figure), unit) in figures.iter().zip(names).zip(units) {
        figures.print(&format!("{name}/{figure}"), unit);
    }
    Figures(vec![one_batch as f64]).print(&format!("{name}/one-process-batch"), "packets");
    for ((figures, kind), batch) in others.iter().zip(BASELINES).zip(batches) {
        let other = kind.name();
        figures[0].print(&format!("{name}/{other}"), "Mpps");
        Figures(vec![batch as f64]).print(&format!("{name}/{other}-batch"), "packets");
        figures[1].print(&format!("{name}/over-{other}"), "ratio");
        figures[2].print(&format!("{name}/over-{other}-model"), "ratio");
    }
}

/// Measures branches.
fn branches(folder: &Folder, (kind, lookups): (&str, u32), runs: usize) {
    let row = Chain::Lookups { functions: 3, lookups };
    let row_batch = best(folder, row, Way::One);
    for part in [ChainPart::Half, ChainPart::Sixteenth] {
        let chain = Chain::Branches { lookups, part };
        let chain_batch = best(folder, chain, Way::One);
        let names = [
            ("one-process", "Mpps"),
            ("isolated", "Mpps"),
            ("ratio", "ratio"),
            ("straight", "ratio"),
            ("of-straight", "ratio"),
            ("batch", "packets"),
        ];
        let mut figures = names.map(|_| Figures::default());
        for run in 0..runs {
            let part = part.name();
            eprintln!("branches, {kind}, {part}: run {} of {runs}", run + 1);
            let one = folder.run(chain, Way::One(chain_batch), 64).throughput_mpps;
            let report = folder.run(chain, Way::Isolated(BOUND), 64);
            let isolated = report.throughput_mpps;
            let straight_one = folder.run(row, Way::One(row_batch), 64).throughput_mpps;
            let straight = folder.run(row, Way::Isolated(BOUND), 64).throughput_mpps / straight_one;
            let ratio = isolated / one;
            let batch = processes(&report).batch as f64;
            let row = [one, isolated, ratio, straight, ratio / straight, batch];
            for (figures, figure) in figures.iter_mut().zip(row) {
                figures.add(figure);
            }
        }
        for (figures, (figure, unit)) in figures.iter().zip(names) {
            let part = part.name();
            figures.print(&format!("branches/{kind}/{part}/{figure}"), unit);
        }
    }
}

fn costs(folder: &Folder, runs: usize) {
    let light = |functions| Chain::Lookups { functions, lookups: 1 };
    let mut switch = Figures::default();
    let mut futex = Figures::default();
    let mut times = [(); 3].map(|()| Figures::default());
    let mut confined = Figures::default();
    let mut copies = [64, 128, 256, 512, 1024, 1500].map(|bytes| (bytes, Figures::default()));
    let mut sizes = [64, 256, 512, 1024, 1500].map(|bytes| (bytes, Figures::default()));
    let [attach, start, start_confined] = &mut times;
    for run in 0..runs {
        eprintln!("costs: run {} of {runs}", run + 1);
        let free = folder.run(light(3), Way::Isolated(BOUND), 64);
        let held = folder.run(light(3), Way::Confined(BOUND), 64);
        switch.add(processes(&free).empty_us * 1e3 / 4.0);
        confined.add(held.throughput_mpps / free.throughput_mpps);
        for function in &processes(&free).functions {
            attach.add(function.attach_us);
            start.add(function.start_ms);
        }
        for function in &processes(&held).functions {
            start_confined.add(function.start_ms);
        }
        let library = folder.library();
        let hand_over = thread::spawn(move || baselines::hand_over(Kind::Futex, &library, 3));
        futex.add(hand_over.join().unwrap_or_else(|_| panic!("no baseline")));
        for (bytes, figures) in &mut copies {
            figures.add(copy(*bytes));
        }
        for (bytes, figures) in &mut sizes {
            let report = folder.run(light(1), Way::Isolated(BOUND), *bytes);
            figures.add(processes(&report).packet_us * 1e3);
        }
    }
    switch.print("switch", "ns");
    futex.print("switch/futex", "ns");
    for (bytes, figures) in copies {
        figures.print(&format!("copy/{bytes}B"), "ns");
    }
    for (bytes, figures) in sizes {
        figures.print(&format!("packet/{bytes}B"), "ns");
    }
    for (figures, (name, unit)) in times
        .iter()
        .zip([("attach", "us"), ("start", "ms"), ("start/confined", "ms")])
    {
        figures.print(name, unit);
    }
    confined.print("confined", "ratio");
}

fn restarts(folder: &Folder, runs: usize) {
    let light = Chain::Lookups {
        functions: 1,
        lookups: 1,
    };
    let [mut attach, mut free, mut held] = [(); 3].map(|()| Figures::default());
    for run in 0..runs {
        eprintln!("restarts: run {} of {runs}", run + 1);
        for function in &processes(&folder.run(light, Way::Confined(BOUND), 64)).functions {
            attach.add(function.attach_us);
        }
        let ways = [(Way::Isolated(BOUND), &mut free), (Way::Confined(BOUND), &mut held)];
        for (way, figures) in ways {
            match restarts::restart(folder, way) {
                Some(away) => figures.add(away),
                None => eprintln!("{way:?}: the process was not killed as often as it was to be: left out"),
            }
        }
    }
    attach.print("attach/confined", "us");
    free.print("restart", "us");
    held.print("restart/confined", "us");
}

fn batches(folder: &Folder, runs: usize) {
    const FIXED: [usize; 6] = [8, 16, 32, 64, 128, 256];
    for name in ["tunnel-ipforward", "acl-urlfilter-encrypt", "acl-nat"] {
        let chain = Chain::Example(name);
        let mut fixed = FIXED.map(|size| (size, Figures::default()));
        let [mut chosen, mut size, mut of_best] = [(); 3].map(|()| Figures::default());
        for run in 0..runs {
            eprintln!("batches, {name}: run {} of {runs}", run + 1);
            for (size, figures) in &mut fixed {
                figures.add(folder.run(chain, Way::Fixed(*size), 1024).throughput_mpps);
            }
            let report = folder.run(chain, Way::Isolated(BOUND), 1024);
            chosen.add(report.throughput_mpps);
            size.add(processes(&report).batch as f64);
        }
        let best = fixed.iter().max_by(|a, b| a.1.median().total_cmp(&b.1.median()));
        let Some((best_size, best)) = best else {
            return;
        };
        for (chosen, best) in chosen.0.iter().zip(&best.0) {
            of_best.add(chosen / best);
        }
        for (size, figures) in &fixed {
            figures.print(&format!("batches/{name}/fixed-{size}"), "Mpps");
        }
        chosen.print(&format!("batches/{name}/chosen"), "Mpps");
        size.print(&format!("batches/{name}/chosen-size"), "packets");
        Figures(vec![*best_size as f64]).print(&format!("batches/{name}/best-size"), "packets");
        of_best.print(&format!("batches/{name}/of-best"), "ratio");
    }
}

/// Runs a chain once in each of these ways.
fn try_out(folder: &Folder, [kind, functions, ways]: [&str; 3]) {
    let lookups = KINDS.iter().find(|(name, _)| *name == kind);
    let (Some((_, lookups)), Ok(functions)) = (lookups, functions.parse()) else {
        panic!("expected {} or {}, and a number", KINDS[0].0, KINDS[1].0);
    };
    let chain = Chain::Lookups {
        functions,
        lookups: *lookups,
    };
    for text in ways.split(',') {
        let (letter, number) = text.split_at(1);
        let number: f64 = number.parse().unwrap_or_else(|_| panic!("{text}: expected a number"));
        let way = match letter {
            "o" => Way::One(number as usize),
            "f" => Way::Fixed(number as usize),
            "i" => Way::Isolated(number / 100.0),
            "c" => Way::Confined(number / 100.0),
            "x" => Way::Baseline(Kind::Futex, number as usize),
            "s" => Way::Baseline(Kind::Switch, number as usize),
            _ => panic!("{text}: expected o, f, i, c, x or s, and a number"),
        };
        let report = folder.run(chain, way, 64);
        eprintln!("{text}: {:.1} ns a packet", 1e3 / report.throughput_mpps);
        if let Some(told) = &report.isolation {
            eprintln!(
                "  batches of {}: {:.1} us besides {:.0} ns a packet; empty {:.1} us",
                told.batch,
                told.switches_us,
                told.packet_us * 1e3,
                told.empty_us
            );
        }
    }
}

/// Runs a function's process if the arguments say so, and returns its result.
fn as_function(arguments: &[String]) -> Option<Result<(), String>> {
    let (first, rest) = arguments.split_first()?;
    let told = |error: &dyn ToString| error.to_string();
    match rest {
        rest if first == baselines::FUNCTION => Some(baselines::function(rest).map_err(|error| told(&error))),
        [_, option, file] if first == PROCESS && option == "--library" => {
            Some(run_library(Path::new(file)).map_err(|error| told(&error)))
        }
        [chain, place] if first == PROCESS => {
            let place = place.parse().unwrap_or(usize::MAX);
            Some(run_function(Path::new(chain), None, place).map_err(|error| told(&error)))
        }
        _ => None,
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(ended) = as_function(&arguments) {
        return match ended {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let behind = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        Some(arguments.get(at + 1..)?.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let text = |name: &str| behind(name).and_then(|values| values.first().copied());
    let number = |name: &str, otherwise: usize| {
        let number = text(name).and_then(|value| value.parse().ok());
        number.unwrap_or(otherwise)
    };
    let folder = Folder::new();
    if let Some(&[kind, functions, ways, ..]) = behind("--try").as_deref() {
        try_out(&folder, [kind, functions, ways]);
        return ExitCode::SUCCESS;
    }
    let runs = number("--runs", 5);
    let wanted = |part: &str| text("--part").is_none_or(|wanted| wanted == part);
    if wanted("lengths") {
        for kind in KINDS {
            if text("--kind").is_some_and(|wanted| wanted != kind.0) {
                continue;
            }
            for functions in number("--least", 1)..=number("--most", 6) {
                length(&folder, functions, kind, runs);
            }
        }
    }
    if wanted("branches") {
        for kind in KINDS {
            if text("--kind").is_none_or(|wanted| wanted == kind.0) {
                branches(&folder, kind, runs);
            }
        }
    }
    if wanted("costs") {
        costs(&folder, runs);
    }
    if wanted("restarts") {
        restarts(&folder, runs);
    }
    if wanted("batches") {
        batches(&folder, runs);
    }
    ExitCode::SUCCESS
}
