//! The check that explanations are printable, and that packets leave the same with and without them.

use super::compare::{BATCH, FLOWS, PACKETS, compare, drain, numbered};
use super::frames::ordinary;
use super::outcome::Outcome;
use super::rig::Rig;
use std::sync::Arc;
use tailwater_chain::packet_traces::{PacketFilter, PacketTraces, TracePlace};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;

/// Packets between two readings of the steps, which wait in a buffer of 4,096.
const PART: usize = 2 * BATCH;

/// All packets are traced: `tailwater trace packets`, at its worst.
pub fn explain(spec: &ChainSpec) -> Outcome {
    traced(spec).unwrap_or_else(Outcome::Failed)
}

fn traced(spec: &ChainSpec) -> Result<Outcome, String> {
    let packets = ordinary(PACKETS, FLOWS);
    let frames = numbered(&packets);
    let mut alone = Rig::new(spec, 1)?;
    let expected = alone.run(0, &frames, BATCH)?;
    let mut rig = Rig::new(spec, 1)?;
    let traces = Arc::<PacketTraces>::default();
    rig.cores[0].sample_functions(Box::new(|| Nanos::ZERO), Arc::clone(&traces), TracePlace::default());
    let stream = traces.begin(PacketFilter::all(), PACKETS as u32);
    let stream = stream.map_err(|_| "the chain is traced already".to_owned())?;
    let names: Vec<String> = rig.cores[0].function_names().map(str::to_owned).collect();
    let (mut found, mut count, mut example) = (Vec::new(), 0_u64, String::new());
    for part in frames.chunks(PART) {
        found.extend(rig.run(0, part, BATCH)?);
        while let Some(step) = stream.next_step() {
            let text = step.explanation.as_str();
            let name = step.function.and_then(|i| names.get(usize::from(i)));
            let (Some(name), false) = (name, text.is_empty()) else {
                continue;
            };
            if text.contains(char::REPLACEMENT_CHARACTER) {
                return Err(format!("{name}: an explanation is not printable: \"{text}\""));
            }
            count += 1;
            if example.is_empty() {
                example = format!("{name}: \"{text}\"");
            }
        }
    }
    compare(&expected, &found, |_| true).map_err(|error| format!("with explanations and without: {error}"))?;
    if !alone.cores[0].reason_counts().eq(rig.cores[0].reason_counts()) {
        return Err("with explanations and without: counters differ".to_owned());
    }
    drain([alone, rig]);
    Ok(match count {
        0 => Outcome::Skipped("no function explains its decisions".to_owned()),
        _ => Outcome::Passed(format!("the same packets with {count} explanations, as {example}")),
    })
}
