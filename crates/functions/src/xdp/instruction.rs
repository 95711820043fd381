//! Instructions of eBPF (RFC 9669), and the checks that make a program safe to decode.

use super::error::ProgramError;
use super::helpers::Helper;
use std::collections::BTreeMap;

/// Maximum number of instructions of a program, functions that it calls included.
pub const MAX_INSTRUCTIONS: usize = 65_536;
/// Number of registers; the last one is the frame pointer.
pub(super) const REGISTERS: u8 = 11;
/// Index of the frame pointer, which programs cannot write.
pub(super) const FRAME_POINTER: u8 = 10;

/// Instruction in its encoded form, fields in host order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instruction {
    /// Operation.
    pub code: u8,
    /// Destination register in the lower four bits, source register in the upper four.
    pub registers: u8,
    /// Offset of a memory access or jump; a variant of some operations.
    pub offset: i16,
    /// The constant operand.
    pub constant: i32,
}

const _: () = assert!(size_of::<Instruction>() == 8);

/// Bit fields of [`Instruction::code`], and values of the other fields.
pub(super) mod code {
    pub(in super::super) const LD: u8 = 0x00;
    pub(in super::super) const LDX: u8 = 0x01;
    pub(in super::super) const ST: u8 = 0x02;
    pub(in super::super) const STX: u8 = 0x03;
    pub(in super::super) const ALU: u8 = 0x04;
    pub(in super::super) const JMP: u8 = 0x05;
    pub(in super::super) const JMP32: u8 = 0x06;
    pub(in super::super) const ALU64: u8 = 0x07;
    /// The second operand is the source register, not the constant.
    pub(in super::super) const X: u8 = 0x08;
    pub(in super::super) const BYTE: u8 = 0x10;
    pub(in super::super) const HALF: u8 = 0x08;
    pub(in super::super) const DOUBLE: u8 = 0x18;
    pub(in super::super) const MEM: u8 = 0x60;
    /// Load that extends the sign.
    pub(in super::super) const MEMSX: u8 = 0x80;
    pub(in super::super) const ATOMIC: u8 = 0xc0;
    pub(in super::super) const LD_IMM64: u8 = 0x18;
    pub(in super::super) const ADD: u8 = 0x00;
    pub(in super::super) const SUB: u8 = 0x10;
    pub(in super::super) const MUL: u8 = 0x20;
    pub(in super::super) const DIV: u8 = 0x30;
    pub(in super::super) const OR: u8 = 0x40;
    pub(in super::super) const AND: u8 = 0x50;
    pub(in super::super) const LSH: u8 = 0x60;
    pub(in super::super) const RSH: u8 = 0x70;
    pub(in super::super) const NEG: u8 = 0x80;
    pub(in super::super) const MOD: u8 = 0x90;
    pub(in super::super) const XOR: u8 = 0xa0;
    pub(in super::super) const MOV: u8 = 0xb0;
    pub(in super::super) const ARSH: u8 = 0xc0;
    pub(in super::super) const END: u8 = 0xd0;
    pub(in super::super) const JA: u8 = 0x00;
    pub(in super::super) const JEQ: u8 = 0x10;
    pub(in super::super) const JGT: u8 = 0x20;
    pub(in super::super) const JGE: u8 = 0x30;
    pub(in super::super) const JSET: u8 = 0x40;
    pub(in super::super) const JNE: u8 = 0x50;
    pub(in super::super) const JSGT: u8 = 0x60;
    pub(in super::super) const JSGE: u8 = 0x70;
    pub(in super::super) const JLT: u8 = 0xa0;
    pub(in super::super) const JLE: u8 = 0xb0;
    pub(in super::super) const JSLT: u8 = 0xc0;
    pub(in super::super) const JSLE: u8 = 0xd0;
    pub(in super::super) const CALL: u8 = 0x85;
    pub(in super::super) const EXIT: u8 = 0x95;
    /// Source register of a call of a function of the program.
    pub(in super::super) const PSEUDO_CALL: u8 = 1;
    /// Flag of an atomic operation that returns the previous value.
    pub(in super::super) const FETCH: i32 = 0x01;
    pub(in super::super) const XCHG: i32 = 0xe1;
    pub(in super::super) const CMPXCHG: i32 = 0xf1;
}

use code::*;

impl Instruction {
    /// Decodes the eight bytes of an instruction of a little-endian object.
    pub fn from_bytes([code, registers, offset @ .., c0, c1, c2, c3]: [u8; 8]) -> Instruction {
        Instruction {
            code,
            registers,
            offset: i16::from_le_bytes(offset),
            constant: i32::from_le_bytes([c0, c1, c2, c3]),
        }
    }

    /// Index of the destination register.
    #[inline(always)]
    pub(super) fn destination(self) -> u8 {
        self.registers & 0x0f
    }

    /// Index of the source register.
    #[inline(always)]
    pub(super) fn source(self) -> u8 {
        self.registers >> 4
    }

    /// Class of the operation.
    #[inline(always)]
    pub(super) fn class(self) -> u8 {
        self.code & 0x07
    }

    /// Returns `true` if it calls a function of the program.
    pub(super) fn is_local_call(self) -> bool {
        self.code == CALL && self.source() == PSEUDO_CALL
    }

    /// Relative target of a jump, in instructions behind the next one; `None` for other instructions.
    fn jump(self) -> Option<i64> {
        match (self.class(), self.code & 0xf0) {
            _ if self.is_local_call() => Some(self.constant.into()),
            (JMP | JMP32, _) if matches!(self.code, CALL | EXIT) => None,
            (JMP32, JA) => Some(self.constant.into()),
            (JMP | JMP32, _) => Some(self.offset.into()),
            _ => None,
        }
    }
}

/// Verifies the instructions of a program that can be reached from `entry`, so that an interpreter can decode them:
///
/// - They are known, and registers exist. None writes `r10`, the frame pointer.
/// - Jumps and calls lead to an instruction of the program, and none falls through at its end.
/// - Helpers are among the [provided](Helper) ones, and `refused`, by index, has no reason against the instruction.
///
/// The number of steps and memory accesses are checked at run time.
///
/// Returns which instructions can be reached.
///
/// # Errors
/// An instruction that violates a rule.
pub(super) fn verify(
    program: &[Instruction],
    entry: usize,
    refused: &BTreeMap<usize, String>,
) -> Result<Vec<bool>, ProgramError> {
    let mut is_seen = vec![false; program.len()];
    let mut is_second_half = vec![false; program.len()];
    let mut waiting = vec![entry];
    while let Some(at) = waiting.pop() {
        let error = |why: String| ProgramError::at(at, why);
        let Some(instruction) = program.get(at) else {
            return Err(error("expected exit, found the end of the section".to_owned()));
        };
        if std::mem::replace(&mut is_seen[at], true) {
            continue;
        }
        if let Some(why) = refused.get(&at) {
            return Err(error(why.clone()));
        }
        check(*instruction).map_err(error)?;
        if let Some(over) = instruction.jump() {
            let target = usize::try_from(at as i64 + 1 + over).ok();
            let target = target.filter(|target| *target < program.len());
            let why = || error(format!("a jump over {over} instructions, which leaves the program"));
            waiting.push(target.ok_or_else(why)?);
        }
        if instruction.code == LD_IMM64 {
            match (program.get(at + 1), is_second_half.get_mut(at + 1)) {
                (Some(Instruction { code: 0, .. }), Some(half)) => *half = true,
                _ => {
                    return Err(error(
                        "expected the second half of a 64-bit constant behind it".to_owned(),
                    ));
                }
            }
            waiting.push(at + 2);
        } else if instruction.code != EXIT && !matches!(instruction.code, 0x05 | 0x06) {
            waiting.push(at + 1);
        }
    }
    // A second half is no known instruction, so no jump leads to one.
    debug_assert!(!is_seen.iter().zip(&is_second_half).any(|(seen, half)| *seen && *half));
    Ok(is_seen)
}

/// Verifies one instruction, jump targets aside.
fn check(instruction: Instruction) -> Result<(), String> {
    let Instruction {
        code, offset, constant, ..
    } = instruction;
    let (destination, source) = (instruction.destination(), instruction.source());
    let unknown = || {
        Err(format!(
            "unknown instruction {code:#04x} (offset {offset}, constant {constant:#x})"
        ))
    };
    let uses_source = code & X != 0;
    if destination >= REGISTERS || source >= REGISTERS {
        return Err(format!("registers r{destination} and r{source}, of {REGISTERS}"));
    }
    let writes = matches!(instruction.class(), LD | LDX | ALU | ALU64);
    if writes && destination == FRAME_POINTER {
        return Err("it writes r10, the frame pointer".to_owned());
    }
    match instruction.class() {
        LD if code == LD_IMM64 && source == 0 => Ok(()),
        LD if code == LD_IMM64 => Err(format!("a constant of kind {source}, to which no relocation applies")),
        LD if code & 0xe0 == 0x20 || code & 0xe0 == 0x40 => {
            Err("an access to a socket buffer, which XDP programs do not have".to_owned())
        }
        LDX if code & 0xe0 == MEM || (code & 0xe0 == MEMSX && code & 0x18 != DOUBLE) => Ok(()),
        ST | STX if code & 0xe0 == MEM => Ok(()),
        STX if code & 0xe0 == ATOMIC && matches!(code & 0x18, 0 | DOUBLE) => match constant {
            XCHG | CMPXCHG => check_atomic_source(source),
            _ if matches!((constant & !FETCH) as u8, ADD | OR | AND | XOR) && (0..=0xff).contains(&constant) => {
                match constant & FETCH {
                    0 => Ok(()),
                    _ => check_atomic_source(source),
                }
            }
            _ => unknown(),
        },
        class @ (ALU | ALU64) => match code & 0xf0 {
            ADD | SUB | MUL | OR | AND | LSH | RSH | XOR | ARSH if offset == 0 => Ok(()),
            DIV | MOD if matches!(offset, 0 | 1) => Ok(()),
            NEG if offset == 0 && !uses_source => Ok(()),
            MOV if offset == 0 => Ok(()),
            MOV if uses_source && (matches!(offset, 8 | 16) || (offset == 32 && class == ALU64)) => Ok(()),
            END if offset == 0 && matches!(constant, 16 | 32 | 64) && (class == ALU || !uses_source) => Ok(()),
            _ => unknown(),
        },
        JMP | JMP32 => match code & 0xf0 {
            _ if code == CALL => match (source, Helper::of(constant)) {
                (PSEUDO_CALL, _) | (0, Some(_)) => Ok(()),
                (0, None) => Err(Helper::refusal(constant)),
                _ => Err("a call of a kernel function".to_owned()),
            },
            _ if code == EXIT => Ok(()),
            JA if !uses_source => Ok(()),
            JEQ | JGT | JGE | JSET | JNE | JSGT | JSGE | JLT | JLE | JSLT | JSLE => Ok(()),
            _ => unknown(),
        },
        _ => unknown(),
    }
}

/// An atomic operation that returns the previous value writes its source register.
fn check_atomic_source(source: u8) -> Result<(), String> {
    match source {
        FRAME_POINTER => Err("it writes r10, the frame pointer".to_owned()),
        _ => Ok(()),
    }
}
