//! Any bytes as an object of clang, and any instructions as a program: it is refused, or runs on a packet within its
//! limit, and nothing but the frame changes.
//!
//! ```text
//! cargo +nightly fuzz run xdp
//! ```
//!
//! Input: a byte for the number of instructions, eight bytes for each, then a packet; also, as a whole, an object. The
//! objects in `examples/programs/xdp` are good seeds.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use tailwater_functions::xdp::{Frame, Instruction, Machine, Program, parse_object};
use tailwater_net::Nanos;

const LIMIT: u32 = 4096;
/// Bytes around the frame that a program may not change unless it moves the frame's ends.
const MARGIN: usize = 32;
/// Largest maps of a program that is run.
const MAX_MAPS: u64 = 1 << 20;

fn run(program: Program, packet: &[u8]) {
    if program.map_bytes() > MAX_MAPS {
        return;
    }
    let mut machine = Machine::new(Arc::new(program), 0, 1);
    let mut bytes = vec![0xa5; MARGIN];
    bytes.extend_from_slice(packet);
    bytes.extend([0xa5; MARGIN]);
    for read_only in [true, false] {
        let before = bytes.clone();
        let end = bytes.len() - MARGIN;
        let mut frame = Frame {
            bytes: &mut bytes,
            start: MARGIN,
            end,
            read_only,
            ingress: [1, 0],
        };
        let run = machine.run(&mut frame, Nanos(1), LIMIT);
        let range = frame.start..frame.end;
        assert!(run.instructions <= LIMIT && range.start <= range.end && range.end <= bytes.len());
        if range == (MARGIN..end) && read_only {
            assert_eq!(bytes[range.clone()], before[range]);
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(program) = parse_object(bytes, "xdp", None) {
        run(program, &[7; 64]);
    }
    let Some((count, rest)) = bytes.split_first() else {
        return;
    };
    let (instructions, rest) = rest.split_at(rest.len().min(8 * usize::from(*count)));
    let (instructions, _) = instructions.as_chunks::<8>();
    let instructions: Vec<_> = instructions
        .iter()
        .map(|bytes| Instruction::from_bytes(*bytes))
        .collect();
    if let Ok(program) = Program::of_instructions(&instructions) {
        run(program, rest);
    }
});
