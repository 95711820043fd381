//! Observations and decisions of a recorded run's server mapper, as text.

use super::cores::core;
use crate::explain::document::ServerDocument;
use crate::table::{Table, count, times};
use crate::text::{fixed, percent, short, thousands};
use tailwater_dataplane::scaling::record::{CoreChange, Remapping};

/// Adds all remappings, after the core mappers' decisions.
pub fn remappings(table: &mut Table, document: &ServerDocument, cpus: &[u32]) {
    let all = &document.explanation;
    let text = format!(
        "{}, {} of which moved {}",
        count(all.decisions, "decision"),
        thousands(all.moves),
        count(all.buckets_moved, "bucket")
    );
    table.gap();
    table.line("RSS buckets", &text);
    if all.missing > 0 {
        let text = format!("{} missing", thousands(all.missing));
        table.line("", &text);
    }
    let text = format!(
        "{} us on average, {} us at most",
        fixed(all.decision_mean_us),
        fixed(all.decision_max_us)
    );
    table.line("decision time", &text);
    let text = match all.fewest_cores == all.most_cores {
        true => format!("{} in use", all.most_cores),
        false => format!("{} to {} in use", all.fewest_cores, all.most_cores),
    };
    table.line("dedicated cores", &text);
    if let Some(replay) = &document.replay {
        table.line("replayed", &format!("with {}", replay.policy));
        let outcome = &replay.outcome;
        let text = format!(
            "same decision {}, different decision {}",
            times(outcome.same),
            times(outcome.different)
        );
        table.line("", &text);
        let text = format!(
            "{} moved, {} in the record",
            count(outcome.buckets_moved_replayed, "bucket"),
            thousands(outcome.buckets_moved_recorded)
        );
        table.line("", &text);
    }
    for each in &all.list {
        table.gap();
        remapping(table, each, cpus);
    }
}

fn remapping(table: &mut Table, remapping: &Remapping, cpus: &[u32]) {
    let at = format!("at {} ms", fixed(remapping.at_us / 1e3));
    let after = match remapping.cores_after == remapping.cores_before {
        true => String::new(),
        false => format!(
            ": {} in use, {} before",
            count(u64::from(remapping.cores_after), "core"),
            remapping.cores_before
        ),
    };
    let moved = count(u64::from(remapping.buckets_moved), "bucket");
    table.line(&at, &format!("{moved} moved{after}"));
    for (number, change) in remapping.cores.iter().enumerate() {
        // Lists only the cores that had or received buckets, since a server may have many.
        if change.buckets + change.coming > 0 {
            let core = core("dedicated", number, cpus);
            table.line("", &format!("{core}: {}", moves(change)));
            table.line("", &format!("    {}", load(change)));
        }
    }
}

fn moves(core: &CoreChange) -> String {
    let mut text = count(u64::from(core.buckets), "bucket");
    for (buckets, what) in [(core.leaving, "leaving"), (core.coming, "arriving")] {
        if buckets > 0 {
            text += &format!(", {} {what}", thousands(u64::from(buckets)));
        }
    }
    text
}

fn load(core: &CoreChange) -> String {
    let mut text = format!(
        "{}pps of {} flows, busy {}",
        short(core.pps),
        fixed(core.flows),
        percent(core.busy)
    );
    if core.lost > 0 {
        text += &format!(", {} lost", thousands(core.lost));
    }
    text
}
