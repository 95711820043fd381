//! Tables and figures of NetBlaze (arXiv 2305.01890) and Quadrant (SoCC 2022), on the rack simulator.
//!
//! ```text
//! cargo bench -p tailwater-sim --bench papers [-- FILTER...] [--quick] [--threads N]
//!     [--warm-up SECONDS] [--seconds SECONDS]
//! cargo bench -p tailwater-sim --bench papers -- calibrate [FILTER...]
//! cargo bench -p tailwater-sim --bench papers -- tables FILE
//! ```
//!
//! The first command prints one JSON line per figure, with the published value if there is one. Filters are parts of
//! names. The second command finds the traffic of NetBlaze's tables. The third prints the lines of a file as Markdown.
//! TAILWATER_TEST_DATA names the folder with NetBlaze's published profiles.

mod alone;
mod bursts;
mod netblaze;
mod profiles;
mod published;
mod quadrant;
mod runs;
mod setting;
mod tables;

use profiles::Published;
use runs::Lengths;

fn main() {
    let mut lengths = Lengths {
        warm_up: 3.0,
        reported: 1.0,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        quick: false,
    };
    let (mut filters, mut command) = (Vec::new(), None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || {
            let number = args.next().and_then(|n| n.parse::<f64>().ok());
            number.unwrap_or_else(|| panic!("{arg} takes a number"))
        };
        match arg.as_str() {
            "--bench" => {}
            "--quick" => lengths.quick = true,
            "--warm-up" => lengths.warm_up = number(),
            "--seconds" => lengths.reported = number(),
            "--threads" => lengths.threads = number().max(1.0) as usize,
            "calibrate" | "tables" if command.is_none() => command = Some(arg),
            _ => filters.push(arg),
        }
    }
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|f| name.contains(f.as_str()));
    if command.as_deref() == Some("tables") {
        return filters.iter().for_each(|file| tables::print(file));
    }
    if command.is_none() {
        bursts::tables(lengths.quick, &wanted);
        quadrant::figures(&lengths, &wanted);
    }
    let Some(profiles) = Published::load() else {
        return;
    };
    match command {
        Some(_) => netblaze::calibrate(&profiles, &lengths, &wanted),
        None => {
            netblaze::tables(&profiles, &lengths, &wanted);
            netblaze::growing(&profiles, &lengths, &wanted);
        }
    }
}
