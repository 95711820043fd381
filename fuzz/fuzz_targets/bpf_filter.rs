//! Any bytes as a classic BPF program and a packet: the program is rejected, or gives the same result as a plain
//! interpreter that executes one instruction after the other. Any text as a program is read or rejected.
//!
//! ```text
//! cargo +nightly fuzz run bpf_filter
//! ```
//!
//! Input: a byte for the number of instructions, eight bytes for each, then a packet.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tailwater_functions::bpf_filter::{Filter, Instruction, parse_program};

/// Interpreter as in the BPF paper. Returns `None` where a verifier should have rejected the program.
fn plain(program: &[Instruction], packet: &[u8]) -> Option<u32> {
    let load = |at: u64, bytes: u64| -> Option<u32> {
        let bytes = packet.get(at as usize..(at + bytes) as usize)?;
        Some(bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)))
    };
    let (mut a, mut x, mut memory, mut at) = (0_u32, 0_u32, [0_u32; 16], 0_usize);
    for _ in 0..=program.len() {
        let Instruction { code, jt, jf, k } = *program.get(at)?;
        at += 1;
        let with = if code & 8 != 0 { x } else { k };
        match code {
            0x20 | 0x28 | 0x30 | 0x40 | 0x48 | 0x50 => {
                let bytes = [4, 2, 1][usize::from(code >> 3 & 3)];
                let from = if code & 0x40 != 0 { x } else { 0 };
                match load(u64::from(k) + u64::from(from), bytes) {
                    Some(value) => a = value,
                    None => return Some(0),
                }
            }
            0xb1 => match load(k.into(), 1) {
                Some(value) => x = (value & 15) * 4,
                None => return Some(0),
            },
            0x00 => a = k,
            0x01 => x = k,
            0x80 => a = packet.len() as u32,
            0x81 => x = packet.len() as u32,
            0x60 => a = *memory.get(k as usize)?,
            0x61 => x = *memory.get(k as usize)?,
            0x02 => *memory.get_mut(k as usize)? = a,
            0x03 => *memory.get_mut(k as usize)? = x,
            0x04 | 0x0c => a = a.wrapping_add(with),
            0x14 | 0x1c => a = a.wrapping_sub(with),
            0x24 | 0x2c => a = a.wrapping_mul(with),
            0x34 | 0x3c | 0x94 | 0x9c if with == 0 => return (code & 8 != 0).then_some(0),
            0x34 | 0x3c => a /= with,
            0x94 | 0x9c => a %= with,
            0x44 | 0x4c => a |= with,
            0x54 | 0x5c => a &= with,
            0xa4 | 0xac => a ^= with,
            0x64 | 0x6c => a = if with < 32 { a << with } else { 0 },
            0x74 | 0x7c => a = if with < 32 { a >> with } else { 0 },
            0x84 => a = 0_u32.wrapping_sub(a),
            0x05 => at += k as usize,
            0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0x45 | 0x4d => {
                let holds = match code & 0xf0 {
                    0x10 => a == with,
                    0x20 => a > with,
                    0x30 => a >= with,
                    _ => a & with != 0,
                };
                at += usize::from(if holds { jt } else { jf });
            }
            0x06 => return Some(k),
            0x16 => return Some(a),
            0x07 => x = a,
            0x87 => a = x,
            _ => return None,
        }
    }
    None
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = parse_program(text);
    }
    let Some((count, rest)) = bytes.split_first() else {
        return;
    };
    let (instructions, mut packet) = rest.as_chunks::<8>();
    let (instructions, behind) = instructions.split_at(instructions.len().min(usize::from(*count)));
    if !behind.is_empty() {
        packet = behind.as_flattened();
    }
    let program: Vec<Instruction> = instructions
        .iter()
        .map(|[low, high, jt, jf, k @ ..]| Instruction {
            code: u16::from_le_bytes([*low, *high]),
            jt: *jt,
            jf: *jf,
            k: u32::from_le_bytes(*k),
        })
        .collect();
    if let Ok(filter) = Filter::new(&program) {
        let expected = plain(&program, packet).expect("a program that is verified ends well");
        assert_eq!(filter.run(packet), expected);
    }
});
