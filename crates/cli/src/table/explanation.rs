//! Observations and decisions of a recorded run's core mapper, as text.

mod cores;
mod remapping;

use super::{Table, count, share, times};
use crate::explain::document::{Document, Replayed};
use crate::text::{fixed, one_line, percent, thousands};
use cores::core;
use tailwater_dataplane::scaling::record::{Episode, Explanation, Kind, Lease, LeaseOutcome, Outline, Summary};

/// Formats the document as text.
pub fn explanation(document: &Document) -> String {
    let mut table = Table(String::new());
    heading(&mut table, document);
    if document.explanation.summary.decisions > 0 || document.server.is_none() {
        table.gap();
        summary(&mut table, &document.explanation.summary);
        table.gap();
        episodes(&mut table, &document.explanation);
    }
    if let Some(server) = &document.server {
        remapping::remappings(&mut table, server, &document.explanation.dedicated_cpus);
    }
    if let Some(replayed) = &document.replay {
        table.gap();
        replay(&mut table, replayed, &document.explanation.dedicated_cpus);
    }
    table.0
}

/// Adds the CPUs of the chain's cores, which the record numbers by role.
fn cpus(table: &mut Table, explanation: &Explanation) {
    /// Cores in a line.
    const PER_LINE: usize = 3;
    let mut name = "cores";
    for (role, cpus) in [
        ("dedicated", &explanation.dedicated_cpus),
        ("auxiliary", &explanation.auxiliary_cpus),
    ] {
        let each = cpus.iter().enumerate();
        let each: Vec<String> = each
            .map(|(number, cpu)| format!("core {number} is CPU {cpu}"))
            .collect();
        for line in each.chunks(PER_LINE) {
            table.line(name, &format!("{role}: {}", line.join(", ")));
            name = "";
        }
    }
}

/// Formats microseconds in a suitable unit.
fn time(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{} s", fixed(us / 1e6)),
        us if us >= 1e3 => format!("{} ms", fixed(us / 1e3)),
        us => format!("{} us", fixed(us)),
    }
}

fn heading(table: &mut Table, document: &Document) {
    let explanation = &document.explanation;
    let Summary {
        decisions,
        missing,
        partial,
        dispatchers,
        span_us,
        ..
    } = explanation.summary;
    table.line("chain", &one_line(&explanation.chain));
    table.line("policy", &one_line(&explanation.policy));
    let text = format!(
        "{}, in epochs of {}",
        time(explanation.slo_us),
        time(explanation.epoch_us)
    );
    table.line("objective", &text);
    // A run without auxiliary cores has decisions on RSS buckets only.
    let others = match (explanation.auxiliary, explanation.dedicated) {
        (0, dedicated @ 1..) => format!("{} to help", count(dedicated as u64, "other")),
        (auxiliary, 0) => count(auxiliary as u64, "auxiliary core"),
        (auxiliary, dedicated) => {
            let auxiliary = count(auxiliary as u64, "auxiliary core");
            format!("{auxiliary} and {} to help", count(dedicated as u64, "other"))
        }
    };
    let text = format!(
        "{} of {} with {others}, in {}",
        count(decisions, "decision"),
        count(dispatchers as u64, "core"),
        time(span_us)
    );
    if decisions > 0 || document.server.is_none() {
        table.line("record", &text);
    }
    cpus(table, explanation);
    if document.cut_short {
        table.line(
            "",
            "cut short: the run ended, or was killed, before the file was complete",
        );
    }
    let left_out = document.lost.unwrap_or(0).max(missing);
    if left_out > 0 {
        let text = format!("{} missing: the file could not be written in time", thousands(left_out));
        table.line("", &text);
    }
    if partial > 0 {
        let text = format!("{} recorded without some of their flows: too many", thousands(partial));
        table.line("", &text);
    }
}

fn summary(table: &mut Table, summary: &Summary) {
    let text = format!(
        "{} us on average, {} us at most",
        fixed(summary.decision_mean_us),
        fixed(summary.decision_max_us)
    );
    table.line("decision time", &text);
    let text = format!("{}, at the time of a decision", time(summary.longest_wait_us));
    table.line("longest wait", &text);
    let text = format!(
        "{} with {}, in {}",
        count(summary.flows_moved, "flow"),
        count(summary.packets_moved, "packet"),
        count(summary.moves, "decision")
    );
    table.line("moved", &text);
    if summary.splits > 0 {
        table.line("split", &count(summary.splits, "whale"));
    }
    let text = format!(
        "{}, {} of them on auxiliary cores ({})",
        count(summary.flowlets, "flowlet"),
        thousands(summary.flowlets_away),
        percent(share(summary.flowlets_away, summary.flowlets))
    );
    table.line("placed", &text);
    if summary.flowlets_to_dedicated > 0 {
        let text = format!(
            "{} on dedicated cores that helped",
            thousands(summary.flowlets_to_dedicated)
        );
        table.line("", &text);
    }
    let text = format!(
        "activated {}, released {}",
        times(summary.activated),
        times(summary.released)
    );
    table.line("auxiliary cores", &text);
    if summary.relieved > 0 {
        let text = format!(
            "overloaded {}, up to {} parked",
            times(summary.relieved),
            count(summary.most_parked.into(), "packet")
        );
        table.line("", &text);
    }
    let text = format!("{}, {}", times(summary.boosts), time(summary.boost_us));
    table.line("boost mode", &text);
    let text = format!(
        "{} with a queued flow beyond the capacity of one core",
        count(summary.whales, "decision")
    );
    table.line("whales", &text);
    for (number, what) in [
        (
            summary.whales_beyond_split,
            "policy reported a whale beyond every split of the chain",
        ),
        (summary.out_of_cores, "policy reported insufficient cores"),
    ] {
        if number > 0 {
            table.line("", &format!("{what} {}", times(number)));
        }
    }
}

fn episodes(table: &mut Table, explanation: &Explanation) {
    let Summary {
        episodes,
        episodes_late,
        ..
    } = explanation.summary;
    if explanation.summary.decisions == 0 {
        return table.line("episodes", "NO VERDICT: the record has no decisions");
    }
    let text = format!(
        "{} with more work than one core processes in an epoch,",
        thousands(episodes)
    );
    table.line("episodes", &text);
    let text = format!(
        "{} in which queued packets were late before their processing",
        thousands(episodes_late)
    );
    table.line("", &text);
    if !explanation.episodes.is_empty() && episodes > explanation.episodes.len() as u64 {
        let text = format!("the worst {}:", explanation.episodes.len());
        table.line("", &text);
    }
    for each in &explanation.episodes {
        table.gap();
        episode(table, each, explanation);
    }
}

fn episode(table: &mut Table, episode: &Episode, explanation: &Explanation) {
    let (dedicated, auxiliary) = (&explanation.dedicated_cpus, &explanation.auxiliary_cpus);
    let at = format!("at {} ms", fixed(episode.start_us / 1e3));
    let end = if episode.over { "" } else { ", not finished at the end" };
    let late = if episode.late { ": late" } else { "" };
    let text = format!(
        "{}, for {}, waits up to {}{late}{end}",
        core("dedicated", episode.dispatcher as usize, dedicated),
        time(episode.length_us),
        time(episode.longest_wait_us)
    );
    table.line(&at, &text);
    let kind = match episode.kind {
        Kind::Whale => "whale (large flow)",
        Kind::Minnows => "minnows (many flows)",
    };
    let text = format!(
        "{kind}: {} of {}, largest {} ({})",
        count(u64::from(episode.peak_packets), "packet"),
        count(u64::from(episode.peak_flows), "flow"),
        thousands(u64::from(episode.largest_flow_packets)),
        percent(episode.largest_flow_share)
    );
    table.line("", &text);
    let mut done = Vec::new();
    if let Some(first) = episode.first_move_us {
        done.push(format!(
            "{} ({}) moved, first after {}",
            count(episode.flows_moved, "flow"),
            count(episode.packets_moved, "packet"),
            time(first)
        ));
    }
    if episode.splits > 0 {
        done.push(format!("{} split", count(episode.splits, "whale")));
    }
    if episode.flowlets_away > 0 {
        let flowlets = count(episode.flowlets_away, "flowlet");
        done.push(format!("{flowlets} placed on auxiliary cores"));
    }
    if episode.most_auxiliary > 0 {
        let cores = count(u64::from(episode.most_auxiliary), "auxiliary core");
        done.push(format!("{cores} active, {} activated", thousands(episode.activated)));
    }
    if episode.relieved > 0 {
        let held = count(episode.most_held.into(), "packet");
        let overloaded = times(episode.relieved);
        done.push(format!("auxiliary core overloaded {overloaded}, up to {held} parked"));
    }
    if let Some(first) = episode.first_boost_us {
        let boost = time(episode.boost_us);
        done.push(format!("boost mode for {boost}, first after {}", time(first)));
    }
    if episode.whales_beyond_split > 0 {
        done.push("policy reported a whale beyond every split".to_owned());
    }
    if episode.out_of_cores > 0 {
        done.push("policy reported insufficient cores".to_owned());
    }
    if done.is_empty() {
        done.push("no action".to_owned());
    }
    let lease = episode.lease.into_iter();
    done.extend(lease.flat_map(|lease| lease_lines(lease, auxiliary)));
    done.iter().for_each(|done| table.line("", done));
}

/// Lines about the lease that could have saved late packets: each has up to 70 characters.
fn lease_lines(lease: Lease, cpus: &[u32]) -> Vec<String> {
    let packets = count(u64::from(lease.packets), "packet");
    let auxiliary = match lease.dedicated {
        true => "another dedicated core".to_owned(),
        false => core("auxiliary", lease.auxiliary.unwrap_or_default(), cpus),
    };
    let none = |why: String| vec![format!("no lease: {why}")];
    let not_made = |why: &str| {
        let lease = format!("lease not made: {packets} to {auxiliary};");
        vec![lease, format!("the policy expected them {why}")]
    };
    match lease.outcome {
        LeaseOutcome::NoDecision => none("none decided in time, the core was busy or taken away".into()),
        LeaseOutcome::NoAuxiliaryCore => none("no other core was free".into()),
        LeaseOutcome::OneFlow => none(format!("one flow or bucket had {packets}")),
        LeaseOutcome::Bound => none("the core had to open the queued flows itself".into()),
        LeaseOutcome::NotSooner => none(format!("{auxiliary} had {packets}")),
        LeaseOutcome::Made => vec![format!("lease made, but too late: {packets}")],
        LeaseOutcome::InTimeHere => not_made("in time here"),
        LeaseOutcome::OutOfCores => not_made("too late there, too"),
    }
}

fn replay(table: &mut Table, replayed: &Replayed, cpus: &[u32]) {
    let Replayed { policy, outcome } = replayed;
    table.line("replayed", &format!("with {policy}"));
    let text = format!(
        "same decision {}, different decision {}",
        times(outcome.same),
        times(outcome.different)
    );
    table.line("", &text);
    let differences = &outcome.differences;
    let differences = [
        (differences.places, "destinations"),
        (differences.releases, "releases"),
        (differences.reliefs, "reliefs"),
        (differences.splits, "splits"),
        (differences.boost, "boost mode"),
        (differences.notice, "notices"),
    ];
    let differences = differences.iter().filter(|(number, _)| *number > 0);
    let differences = differences.map(|(number, what)| format!("{what} {}", thousands(*number)));
    let differences: Vec<String> = differences.collect();
    if !differences.is_empty() {
        table.line("", &format!("in: {}", differences.join(", ")));
    }
    let text = format!(
        "{} moved, {} in the record",
        count(outcome.packets_moved_replayed, "packet"),
        thousands(outcome.packets_moved_recorded)
    );
    table.line("", &text);
    for (number, what) in [
        (outcome.not_due, "decisions before this policy's next epoch"),
        (
            outcome.partial,
            "queues not compared: recorded without some of their flows",
        ),
        (outcome.missing, "decisions missing in between"),
    ] {
        if number > 0 {
            table.line("", &format!("{} {what}", thousands(number)));
        }
    }
    for difference in &outcome.first {
        table.gap();
        let at = format!("at {} ms", fixed(difference.at_us / 1e3));
        let text = format!(
            "{}, {} of {}",
            core("dedicated", difference.dispatcher as usize, cpus),
            count(u64::from(difference.packets), "packet"),
            count(u64::from(difference.flows), "flow")
        );
        table.line(&at, &text);
        for (name, outline) in [("recorded", &difference.recorded), ("replayed", &difference.replayed)] {
            table.line("", &format!("{name}: {}", outline_of(outline)));
            if let Some(notice) = outline.notice {
                let packets = count(u64::from(outline.notice_packets), "packet");
                table.line("", &format!("          {notice}, {packets}"));
            }
        }
    }
}

fn outline_of(outline: &Outline) -> String {
    let mut done = Vec::new();
    if outline.flows_moved > 0 {
        done.push(format!(
            "{} ({}) to {}",
            count(u64::from(outline.flows_moved), "flow"),
            count(u64::from(outline.packets_moved), "packet"),
            count(u64::from(outline.helpers), "auxiliary core")
        ));
    }
    if outline.released > 0 {
        done.push(format!(
            "{} released",
            count(u64::from(outline.released), "auxiliary core")
        ));
    }
    if outline.relieved > 0 {
        let cores = count(u64::from(outline.relieved), "auxiliary core");
        done.push(format!("{cores} relieved"));
    }
    if outline.splits > 0 {
        done.push(count(u64::from(outline.splits), "split"));
    }
    if outline.boost {
        done.push("boost mode".to_owned());
    }
    match done.is_empty() {
        true => "no action".to_owned(),
        false => done.join(", "),
    }
}
