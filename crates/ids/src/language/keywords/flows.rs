//! Conditions on a flow, flowbits and thresholds.

use super::values::one_of;
use crate::language::draft::Draft;
use crate::language::numbers::within;
use crate::language::problem::{Problem, quoted};
use crate::rule::{Bit, Direction, Flow, FlowBit, Threshold, ThresholdKind, Track};

pub(super) fn flow(draft: &mut Draft, value: &str) -> Result<(), Problem> {
    type Set = fn(&mut Flow);
    const WORDS: [(&str, Set); 9] = [
        ("to_server", |flow| flow.direction = Some(Direction::ToServer)),
        ("from_client", |flow| flow.direction = Some(Direction::ToServer)),
        ("to_client", |flow| flow.direction = Some(Direction::ToClient)),
        ("from_server", |flow| flow.direction = Some(Direction::ToClient)),
        ("established", |flow| flow.established = Some(true)),
        ("not_established", |flow| flow.established = Some(false)),
        ("stateless", |flow| flow.established = None),
        ("only_stream", |flow| flow.stream = Some(true)),
        ("no_stream", |flow| flow.stream = Some(false)),
    ];
    for word in value.split(',').map(str::trim) {
        if matches!(word, "only_frag" | "no_frag") {
            return Err(Problem::unsupported(format!("flow: {word}")));
        }
        one_of(word, &WORDS)?(&mut draft.flow);
    }
    Ok(())
}

pub(super) fn flowbits(draft: &mut Draft, value: &str) -> Result<(), Problem> {
    let (what, names) = value.split_once(',').unwrap_or((value, ""));
    if what.trim() == "noalert" {
        draft.silent = true;
        return Ok(());
    }
    let what = one_of(
        what.trim(),
        &[
            ("set", Bit::Set),
            ("unset", Bit::Unset),
            ("toggle", Bit::Toggle),
            ("isset", Bit::IsSet),
            ("isnotset", Bit::IsNotSet),
        ],
    )?;
    let names: Vec<String> = names.split('|').map(|name| name.trim().to_owned()).collect();
    let wrong = names.iter().any(|name| name.is_empty() || name.contains([',', ' ']));
    if wrong || (names.len() > 1 && !matches!(what, Bit::IsSet | Bit::IsNotSet)) {
        let found = quoted(value);
        return Err(Problem::wrong(format!("expected the name of a flowbit, found {found}")));
    }
    draft.bits.push(FlowBit { operation: what, names });
    Ok(())
}

pub(super) fn threshold(value: &str, filter: bool) -> Result<Threshold, Problem> {
    let (mut kind, mut track, mut count, mut seconds) = (None, None, None, None);
    for pair in value.split(',') {
        let mut words = pair.split_whitespace();
        let (Some(key), Some(word), None) = (words.next(), words.next(), words.next()) else {
            let found = quoted(pair);
            return Err(Problem::wrong(format!("expected a word and its value, found {found}")));
        };
        match key {
            "type" if !filter => {
                let kinds = [
                    ("limit", ThresholdKind::Limit),
                    ("threshold", ThresholdKind::Threshold),
                    ("both", ThresholdKind::Both),
                ];
                kind = Some(one_of(word, &kinds)?);
            }
            "track" => {
                let tracks = [
                    ("by_src", Track::Source),
                    ("by_dst", Track::Destination),
                    ("by_both", Track::Both),
                    ("by_rule", Track::Rule),
                ];
                track = Some(one_of(word, &tracks)?);
            }
            "count" => count = Some(within(word, u64::from(u16::MAX)).map_err(Problem::wrong)?),
            "seconds" => seconds = Some(within(word, 1 << 20).map_err(Problem::wrong)?),
            _ => {
                let found = quoted(key);
                return Err(Problem::wrong(format!(
                    "expected type, track, count or seconds, found {found}"
                )));
            }
        }
    }
    let kind = if filter { Some(ThresholdKind::Filter) } else { kind };
    match (kind, track, count, seconds) {
        (Some(kind), Some(track), Some(count @ 1..), Some(seconds @ 1..)) => Ok(Threshold {
            kind,
            track,
            count,
            seconds,
        }),
        _ => Err(Problem::wrong(
            "expected type, track, count and seconds, the last two above 0",
        )),
    }
}

/// Parses a bit of a host. Nothing tests it, since rules that would are not supported; so setting it has no effect.
pub(super) fn xbits(value: &str) -> Result<(), Problem> {
    let operation = value.split(',').next().unwrap_or_default().trim();
    let operations = [
        ("set", true),
        ("unset", true),
        ("toggle", true),
        ("isset", false),
        ("isnotset", false),
    ];
    match one_of(operation, &operations)? {
        true => Ok(()),
        false => Err(Problem::unsupported("xbits: test")),
    }
}
