//! Fair comparison of all policies on the rack simulator: the same knowledge, the same tuning, the same machine.
//!
//! ```text
//! cargo bench -p tailwater-sim --bench compare -- [measure] [PART...] [--seeds 1..21] [--rows PART,...] [--quick]
//! cargo bench -p tailwater-sim --bench compare -- sweep [POLICY...] [--quick]
//! cargo bench -p tailwater-sim --bench compare -- table FILE... [--details]
//! cargo bench -p tailwater-sim --bench compare -- constants | profiles [PART...]
//! ```
//!
//! `measure` runs cells whose group or name contains a PART, and prints a line of JSON for each run. `table` makes
//! Markdown of such lines. `sweep` tries the values of each policy's knobs on training seeds, `constants` prints what
//! all policies have in common, and `profiles` what they know of the chains.
//!
//! Profiles are trained on the simulated machine ([`training`]). Knobs are frozen in [`contenders`]. Rows named *as
//! published* require NetBlaze's published profiles, in the folder that TAILWATER_TEST_DATA names.

mod cells;
mod contenders;
mod machine;
#[path = "../papers/profiles.rs"]
mod profiles;
mod runs;
mod sweep;
mod table;
mod training;

use cells::{CELLS, Cache, Cell};
use contenders::{POLICIES, ROWS, knobs};
use runs::{Profiles, bound, run_row};
use std::ops::Range;

/// Cells of a short run.
const QUICK: [&str; 3] = ["chain-2 backbone 200", "840 ns", "load 80 %"];

struct Arguments {
    words: Vec<String>,
    seeds: Range<u64>,
    rows: Vec<String>,
    quick: bool,
    details: bool,
}

fn main() {
    let mut arguments = Arguments {
        words: Vec::new(),
        seeds: 1..6,
        rows: Vec::new(),
        quick: false,
        details: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--bench" => {}
            "--quick" => arguments.quick = true,
            "--details" => arguments.details = true,
            "--seeds" => {
                let range = args.next().and_then(|text| {
                    let (from, to) = text.split_once("..")?;
                    Some(from.parse().ok()?..to.parse().ok()?)
                });
                arguments.seeds = range.unwrap_or_else(|| panic!("--seeds: expected FROM..TO"));
            }
            "--rows" => {
                let rows = args.next().unwrap_or_else(|| panic!("--rows: expected names"));
                arguments.rows = rows.split(',').map(str::to_owned).collect();
            }
            _ => arguments.words.push(arg),
        }
    }
    if arguments.quick {
        arguments.seeds = 1..2;
    }
    contenders::check_shipped();
    let command = arguments.words.first().cloned().unwrap_or_default();
    let rest: Vec<String> = arguments.words.iter().skip(1).cloned().collect();
    match command.as_str() {
        "sweep" => {
            let policies = POLICIES.iter().map(|(name, _)| *name);
            let policies: Vec<&str> = policies
                .filter(|name| rest.is_empty() || rest.iter().any(|w| w == name))
                .collect();
            sweep::sweep(&policies, arguments.quick);
        }
        "table" => table::print(&rest, arguments.details),
        "constants" => constants(),
        "profiles" => wanted(&rest, false).for_each(profile),
        "measure" => measure(&Arguments {
            words: rest,
            ..arguments
        }),
        _ => measure(&arguments),
    }
}

fn wanted(parts: &[String], quick: bool) -> impl Iterator<Item = Cell> {
    let cells = CELLS
        .iter()
        .copied()
        .filter(move |cell| !quick || QUICK.contains(&cell.name));
    cells.filter(|cell| {
        let is_part = |part: &String| cell.group == part || cell.name.contains(part.as_str());
        parts.is_empty() || parts.iter().any(is_part)
    })
}

fn measure(arguments: &Arguments) {
    let (mut cache, mut profiles) = (Cache::default(), Profiles::default());
    let print = |outcome: &runs::Outcome| match serde_json::to_string(outcome) {
        Ok(line) => println!("{line}"),
        Err(error) => panic!("{error}"),
    };
    for seed in arguments.seeds.clone() {
        for cell in wanted(&arguments.words, arguments.quick) {
            let packets = cache.packets(&cell, seed);
            print(&bound(&cell, seed, &packets));
            for row in ROWS {
                if !arguments.rows.is_empty() && !arguments.rows.iter().any(|part| row.name.contains(part.as_str())) {
                    continue;
                }
                if let Some(outcome) = run_row(row, &cell, seed, &packets, &mut profiles) {
                    print(&outcome);
                }
            }
        }
    }
}

fn constants() {
    println!("| | | source |\n|---|---|---|");
    for constant in machine::CONSTANTS {
        println!(
            "| {} | {} {} | {} |",
            constant.name, constant.value, constant.unit, constant.source
        );
    }
    println!("\n| policy | knob | published | tried | frozen |\n|---|---|---|---|---|");
    for (policy, _) in POLICIES {
        for knob in knobs(policy) {
            let (name, others) = (knob.name, knob.others);
            println!(
                "| {policy} | {name} | {} | {others:?} | {} |",
                knob.published, knob.frozen
            );
        }
    }
}

fn profile(cell: Cell) {
    let mut profiles = Profiles::default();
    let trained = profiles.trained(&cell);
    let published = profiles.published(&cell);
    println!("{}: true {:?}", cell.name, cell.chain().costs);
    println!("  costs {:?}", trained.costs);
    println!("  rates {:?}", trained.rates.corners());
    println!("  splits {:?}", trained.splits.points());
    println!("  frontier {:?}", trained.frontier.corners());
    if let Some(published) = published {
        println!("  published rates {:?}", published.rates.corners());
        println!("  published frontier {:?}", published.frontier.corners());
    }
}
