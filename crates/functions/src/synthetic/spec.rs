//! Configuration of `synthetic`.

use crate::kind::Context;
use crate::synthetic::{LINE, MAX_BYTES, MAX_CYCLES, MAX_LINES, Memory, Pattern, Work};
use tailwater_api::error::SpecError;
use tailwater_api::located::{Fields, Located};
use tailwater_api::schema::{Field, Map, Type};
use tailwater_api::values::size;

const CYCLES: Type = Type::Whole(0, MAX_CYCLES as u64);
const LINES: Type = Type::Whole(0, MAX_LINES as u64);
/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new(
            "cycles",
            CYCLES,
            "Core cycles of arithmetic per packet, rounded up to a multiple of 4.",
        )
        .or("0"),
        Field::new(
            "newFlowCycles",
            CYCLES,
            "Additional cycles for the first packet of a flow.",
        )
        .or("0"),
        Field::new("reads", LINES, "Cache lines of 64 bytes that a packet reads.").or("0"),
        Field::new("writes", LINES, "Cache lines of 64 bytes that a packet then writes.").or("0"),
        Field::new(
            "workingSet",
            Type::Size(1024, MAX_BYTES),
            "Memory of each core: whole lines. Required with `reads` or `writes`.",
        )
        .otherwise("one line")
        .example("256KiB"),
        Field::new(
            "pattern",
            Type::Words(&["random", "sequential", "stride", "chase"]),
            "Access pattern.",
        )
        .or("random"),
        Field::new(
            "stride",
            Type::Whole(LINE, MAX_BYTES),
            "Bytes between lines: a multiple of 64 below `workingSet`. Required with `pattern: stride`.",
        )
        .only_if("pattern", "stride"),
        Field::new(
            "per",
            Type::Words(&["packet", "flow"]),
            "Whether accesses continue where the previous packet ended, or start where the flow's always start.",
        )
        .or("packet"),
        Field::new("drop", Type::number(0.0, 1.0), "Share of packets dropped at random.").or("0"),
    ],
    nullable: true,
    ..Map::PLAIN
};

/// Configurable synthetic load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyntheticConfig {
    /// Work for each packet.
    pub work: Work,
    /// Memory that packets access; one cache line by default.
    pub memory: Memory,
}

/// Names of access patterns.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    Sequential,
    Stride,
    Random,
    Chase,
}

impl SyntheticConfig {
    pub(super) fn parse(node: &Located<'_>, _: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_of(&FIELDS)?;
        let number = |name, most: u32| match fields.optional(name) {
            None => Ok(0),
            Some(node) => node.whole(0..=u64::from(most)).map(|number| number as u32),
        };
        let work = Work {
            cycles: number("cycles", MAX_CYCLES)?,
            new_flow_cycles: number("newFlowCycles", MAX_CYCLES)?,
            reads: number("reads", MAX_LINES)?,
            writes: number("writes", MAX_LINES)?,
            drop: fields.optional("drop").map_or(Ok(0), |node| share(&node))?,
        };
        const SIZE: &str = "whole lines of 64 bytes, from 1KiB to 1GiB, such as 256KiB";
        let given = match work.reads + work.writes {
            0 => fields.optional("workingSet"),
            _ => Some(fields.required("workingSet", SIZE)?),
        };
        let bytes = match given {
            Some(node) => {
                let bytes = size(&node, 1024..=MAX_BYTES, SIZE)?;
                match bytes % LINE {
                    0 => bytes,
                    _ => return Err(node.expected(SIZE)),
                }
            }
            None => LINE,
        };
        Ok(SyntheticConfig {
            work,
            memory: Memory {
                bytes,
                pattern: pattern(&fields, bytes)?,
                of_flows: match fields.optional("per") {
                    None => false,
                    Some(node) => node.word(&[("packet", false), ("flow", true)])?,
                },
            },
        })
    }
}

fn pattern(fields: &Fields<'_>, bytes: u64) -> Result<Pattern, SpecError> {
    let order = match fields.optional("pattern") {
        None => Order::Random,
        Some(node) => node.word(&[
            ("random", Order::Random),
            ("sequential", Order::Sequential),
            ("stride", Order::Stride),
            ("chase", Order::Chase),
        ])?,
    };
    if order == Order::Stride {
        let what = "bytes from one line to the next: a multiple of 64 below workingSet";
        let stride = fields.required("stride", what)?;
        let step = stride.whole(LINE..=MAX_BYTES)?;
        return match step % LINE == 0 && step < bytes {
            true => Ok(Pattern::Stride(step / LINE)),
            false => Err(stride.expected(what)),
        };
    }
    if let Some(stride) = fields.optional("stride") {
        return Err(stride.error("expected stride only with pattern: stride"));
    }
    Ok(match order {
        Order::Chase => Pattern::Chase,
        Order::Random => Pattern::Random,
        // A working set of one line is accessed repeatedly.
        _ => Pattern::Stride(1),
    })
}

/// Parses a share from 0 to 1, in units of 2^-64.
fn share(node: &Located<'_>) -> Result<u64, SpecError> {
    const WHAT: &str = "a share from 0 to 1, such as 0.01";
    let share = node.number(WHAT)?;
    match (0.0..=1.0).contains(&share) {
        // The conversion saturates at the type's bounds.
        true => Ok((share * 2f64.powi(64)) as u64),
        false => Err(node.expected(WHAT)),
    }
}
