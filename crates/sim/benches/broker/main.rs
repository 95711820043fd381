//! Chains that share a server's cores under a core broker, and the same chains with cores of their own.
//!
//! ```text
//! cargo bench -p tailwater-sim --bench broker [-- --chains 8,32] [--seeds 1,2,3] [--seconds SECONDS] [--threads N]
//!     [--presets]
//! cargo bench -p tailwater-sim --bench broker -- neighbour [--seeds 1,2,3]
//! ```
//!
//! The first command finds, for each number of chains and seed, the fewest cores with which all objectives are kept:
//! chain by chain on servers of their own, and together on servers of 64 cores under the broker. It prints Markdown.
//! The second prints a chain's latency beside one with five times its rate.

mod chains;
mod neighbour;
mod search;
mod traffic;

use std::time::Instant;
use traffic::Source;

/// Arguments of the command line.
struct Arguments {
    chains: Vec<usize>,
    seeds: Vec<u64>,
    seconds: f64,
    threads: usize,
    source: Source,
}

fn numbers<T: std::str::FromStr>(text: &str) -> Vec<T> {
    let parse = |part: &str| {
        let number = part.parse();
        number.unwrap_or_else(|_| panic!("expected numbers such as 1,2,3, found {text}"))
    };
    text.split(',').map(parse).collect()
}

fn main() {
    let mut arguments = Arguments {
        chains: vec![8, 32],
        seeds: vec![1, 2, 3],
        seconds: 1.0,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        source: Source::Bursts,
    };
    let mut is_neighbour = false;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().unwrap_or_else(|| panic!("{arg} takes a value"));
        match arg.as_str() {
            "--bench" => {}
            "--presets" => arguments.source = Source::Presets,
            "neighbour" => is_neighbour = true,
            "--chains" => arguments.chains = numbers(&value()),
            "--seeds" => arguments.seeds = numbers(&value()),
            "--seconds" => arguments.seconds = numbers(&value())[0],
            "--threads" => arguments.threads = numbers(&value())[0],
            other => panic!("unknown argument {other}"),
        }
    }
    if is_neighbour {
        return neighbour::table(&arguments);
    }
    println!("| chains | seed | own | broker | ratio | objectives kept | active cores: own, broker |");
    println!("|---|---|---|---|---|---|---|");
    let mut details = Vec::new();
    for &count in &arguments.chains {
        for &seed in &arguments.seeds {
            let began = Instant::now();
            let row = search::compare(count, seed, &arguments);
            println!("{}", row.summary);
            eprintln!("{count} chains, seed {seed}: {:.0} s", began.elapsed().as_secs_f64());
            if seed == arguments.seeds[0] {
                details.push(row.details);
            }
        }
    }
    details.iter().for_each(|details| println!("\n{details}"));
}
