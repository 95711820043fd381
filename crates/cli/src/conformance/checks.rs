//! The checks.

use super::compare::{BATCH, FLOWS, PACKETS, compare, drain, known, numbered};
use super::explain::explain;
use super::frames::{hostile, ordinary, packet};
use super::isolation::isolation;
use super::outcome::{Outcome, outcome};
use super::reload::reload;
use super::rig::{Frame, LARGEST_BATCH, Rig, arrival};
use super::subject::Subject;
use crate::text::thousands;
use std::fs;
use tailwater_chain::chain::TransferState;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;

/// Hostile frames.
const HOSTILE: usize = 20_000;
/// Flows in the table while many come and go.
const CAPACITY: u32 = 4_096;
/// Flows of one round, and rounds, with many flows.
const MANY: usize = 8_000;
const ROUNDS: usize = 4;
/// Times that a chain is started and ended.
const RESTARTS: usize = 50;
/// Growth of memory that the allocator alone may cause, in bytes.
const GROWTH: u64 = 4 << 20;
/// Largest snapshot of flows.
const MOST_BYTES: usize = 64 << 20;

/// Name of the check without which others say nothing.
pub const REPEATABLE: &str = "repeatable";

/// A check of a chain's functions.
pub struct Check {
    pub name: &'static str,
    /// Compares packets of two runs, which must be repeatable.
    pub compares: bool,
    pub run: fn(&Subject) -> Outcome,
}

/// All checks, in the order in which they run.
pub const CHECKS: &[Check] = &[
    Check {
        name: REPEATABLE,
        compares: false,
        run: |subject| outcome(repeatable(&subject.spec)),
    },
    Check {
        name: "batches",
        compares: true,
        run: |subject| outcome(batches(&subject.spec)),
    },
    Check {
        name: "cores",
        compares: true,
        run: |subject| outcome(cores(&subject.spec)),
    },
    Check {
        name: "take-over",
        compares: true,
        run: |subject| take_over(&subject.spec),
    },
    Check {
        name: "reload",
        compares: true,
        run: |subject| reload(&subject.spec),
    },
    Check {
        name: "isolation",
        compares: true,
        run: isolation,
    },
    Check {
        name: "explain",
        compares: true,
        run: |subject| explain(&subject.spec),
    },
    Check {
        name: "hostile",
        compares: false,
        run: |subject| outcome(hostile_frames(&subject.spec)),
    },
    Check {
        name: "many-flows",
        compares: false,
        run: |subject| outcome(many_flows(&subject.spec)),
    },
    Check {
        name: "restart",
        compares: false,
        run: |subject| outcome(restart(&subject.spec)),
    },
];

/// Two new chains do the same with the same packets.
fn repeatable(spec: &ChainSpec) -> Result<String, String> {
    let packets = ordinary(PACKETS, FLOWS);
    let frames = numbered(&packets);
    let mut rigs = [Rig::new(spec, 1)?, Rig::new(spec, 1)?];
    let [one, other] = [0, 1].map(|i| rigs[i].run(0, &frames, BATCH));
    let (one, other) = (one?, other?);
    compare(&one, &other, |_| true)?;
    drain(rigs);
    let sent = one.iter().flatten().count();
    Ok(format!(
        "{PACKETS} packets of {FLOWS} flows, {sent} sent, twice the same"
    ))
}

/// A packet's fate does not depend on the others of its batch, and packets leave in order.
fn batches(spec: &ChainSpec) -> Result<String, String> {
    let packets = ordinary(PACKETS, FLOWS);
    let frames = numbered(&packets);
    let mut results = Vec::new();
    let sizes = [1, BATCH, LARGEST_BATCH];
    for size in sizes {
        let mut rig = Rig::new(spec, 1)?;
        results.push(
            rig.run(0, &frames, size)
                .map_err(|error| format!("batches of {size}: {error}"))?,
        );
        rig.drain();
    }
    for (size, result) in sizes.iter().zip(&results).skip(1) {
        compare(&results[0], result, |_| true).map_err(|error| format!("batches of 1 and of {size}: {error}"))?;
    }
    Ok("the same in batches of 1, 32 and 256, in order".to_owned())
}

/// Known flows go on as before on another core, and back on the first.
fn cores(spec: &ChainSpec) -> Result<String, String> {
    let packets = ordinary(PACKETS, FLOWS);
    let frames = numbered(&packets);
    let (half, last) = (PACKETS / 2, PACKETS * 3 / 4);
    let mut alone = Rig::new(spec, 1)?;
    let expected = alone.run(0, &frames, BATCH)?;
    let mut moving = Rig::new(spec, 2)?;
    let mut found = moving.run(0, &frames[..half], BATCH)?;
    moving.move_buckets(0, 1);
    found.extend(moving.run(1, &frames[half..last], BATCH)?);
    moving.move_buckets(1, 0);
    found.extend(moving.run(0, &frames[last..], BATCH)?);
    compare(&expected, &found, known(&packets)).map_err(|error| format!("flows that moved between cores: {error}"))?;
    drain([alone, moving]);
    Ok("flows move to another core and back, and go on".to_owned())
}

/// Known flows go on in another process: what `tailwater serve --take-over` passes.
fn take_over(spec: &ChainSpec) -> Outcome {
    let try_it = || -> Result<Outcome, String> {
        let packets = ordinary(PACKETS, FLOWS);
        let frames = numbered(&packets);
        let half = PACKETS / 2;
        let mut old = Rig::new(spec, 1)?;
        let functions = old.cores[0].transfer_functions();
        let local = functions
            .iter()
            .find(|function| matches!(function.state, TransferState::Local));
        if let Some(function) = local {
            let text = format!(
                "{} has flow state without a version: it stays in its process",
                function.name
            );
            return Ok(Outcome::Skipped(text));
        }
        let mut alone = Rig::new(spec, 1)?;
        let expected = alone.run(0, &frames, BATCH)?;
        let mut found = old.run(0, &frames[..half], BATCH)?;
        let now = arrival(half as u64);
        // The wall clock's time at which the chains' clocks were 0.
        let origin = Nanos::from_secs(1_000_000);
        let (bytes, flows) = old.cores[0]
            .export_flows(now, origin, MOST_BYTES)
            .map_err(|error| error.to_string())?;
        let mut new = Rig::new(spec, 1)?;
        if !bytes.is_empty() {
            new.cores[0]
                .import_flows(&bytes, now, origin)
                .map_err(|error| error.to_string())?;
        }
        found.extend(new.run(0, &frames[half..], BATCH)?);
        compare(&expected, &found, known(&packets)).map_err(|error| format!("flows in another process: {error}"))?;
        drain([alone, new]);
        Ok(Outcome::Passed(match flows {
            0 => "no flow state to pass".to_owned(),
            flows => format!("{} flows go on in another process", thousands(flows)),
        }))
    };
    try_it().unwrap_or_else(Outcome::Failed)
}

/// Frames that no ordinary sender makes do no harm.
fn hostile_frames(spec: &ChainSpec) -> Result<String, String> {
    let frames = hostile(HOSTILE);
    let frames: Vec<Frame<'_>> = (0..)
        .zip(&frames)
        .map(|(number, frame)| (number, frame.as_slice()))
        .collect();
    let mut rig = Rig::new(spec, 1)?;
    let sent = rig.run(0, &frames, BATCH)?;
    let invalid = rig.count("/invalid");
    if invalid > 0 {
        return Err(format!(
            "{invalid} frames were no IP packets any more behind the function"
        ));
    }
    rig.drain();
    let sent = sent.iter().flatten().count();
    Ok(format!(
        "{} frames, {} sent",
        thousands(HOSTILE as u64),
        thousands(sent as u64)
    ))
}

/// Memory that this process has, in bytes.
fn memory() -> Result<u64, String> {
    let text = fs::read_to_string("/proc/self/statm").map_err(|error| format!("/proc/self/statm: {error}"))?;
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    // Pages of 4 KiB: on other machines the bound is lower than it says.
    pages
        .map(|pages| pages * 4096)
        .ok_or_else(|| "/proc/self/statm: unknown format".to_owned())
}

fn grown(before: u64) -> Result<u64, String> {
    Ok(memory()?.saturating_sub(before))
}

/// Flows come and go, more than the table has room for: memory stays as it is.
fn many_flows(spec: &ChainSpec) -> Result<String, String> {
    let mut spec = spec.clone();
    spec.settings.flows.capacity = spec.settings.flows.capacity.min(CAPACITY);
    let mut rig = Rig::new(&spec, 1)?;
    let mut before = 0;
    for round in 0..ROUNDS {
        // An hour apart: the flows of the round before have ended.
        let start = round as u64 * 360_000_000;
        let packets: Vec<Vec<u8>> = (0..MANY).map(|flow| packet(round * MANY + flow, 0)).collect();
        let frames: Vec<Frame<'_>> = (start..)
            .zip(&packets)
            .map(|(n, frame)| (n, frame.as_slice()))
            .collect();
        rig.run(0, &frames, BATCH)?;
        rig.expire(0, arrival(start + 300_000_000));
        if round == 0 {
            before = memory()?;
        }
    }
    let grown = grown(before)?;
    rig.drain();
    match grown > GROWTH {
        true => Err(format!(
            "memory grew by {} bytes in {} rounds of {} flows: flows that have ended are not released",
            thousands(grown),
            ROUNDS - 1,
            thousands(MANY as u64)
        )),
        false => Ok(format!(
            "{} flows, {} at a time, without growth",
            thousands((ROUNDS * MANY) as u64),
            thousands(u64::from(CAPACITY))
        )),
    }
}

/// A chain starts and ends again and again: nothing stays.
fn restart(spec: &ChainSpec) -> Result<String, String> {
    let packets = ordinary(BATCH, FLOWS);
    let frames = numbered(&packets);
    let mut before = 0;
    for time in 0..RESTARTS {
        let mut rig = Rig::new(spec, 1)?;
        rig.run(0, &frames, BATCH)?;
        rig.drain();
        if time == RESTARTS / 5 {
            before = memory()?;
        }
    }
    let grown = grown(before)?;
    match grown > GROWTH {
        true => Err(format!(
            "memory grew by {} bytes while it was started and ended",
            thousands(grown)
        )),
        false => Ok(format!("started and ended {RESTARTS} times, without growth")),
    }
}
