//! Decoded instructions.

use super::instruction::{Instruction, code::*};

/// Values of [`Step::operation`]. Those of arithmetic and jumps have no bit for the second operand.
pub(super) mod operation {
    use super::*;

    pub(in super::super) const ADD64: u8 = ALU64 | ADD;
    pub(in super::super) const ADD32: u8 = ALU | ADD;
    pub(in super::super) const SUB64: u8 = ALU64 | SUB;
    pub(in super::super) const SUB32: u8 = ALU | SUB;
    pub(in super::super) const MUL64: u8 = ALU64 | MUL;
    pub(in super::super) const MUL32: u8 = ALU | MUL;
    pub(in super::super) const DIV64: u8 = ALU64 | DIV;
    pub(in super::super) const DIV32: u8 = ALU | DIV;
    pub(in super::super) const OR64: u8 = ALU64 | OR;
    pub(in super::super) const OR32: u8 = ALU | OR;
    pub(in super::super) const AND64: u8 = ALU64 | AND;
    pub(in super::super) const AND32: u8 = ALU | AND;
    pub(in super::super) const LSH64: u8 = ALU64 | LSH;
    pub(in super::super) const LSH32: u8 = ALU | LSH;
    pub(in super::super) const RSH64: u8 = ALU64 | RSH;
    pub(in super::super) const RSH32: u8 = ALU | RSH;
    pub(in super::super) const NEG64: u8 = ALU64 | NEG;
    pub(in super::super) const NEG32: u8 = ALU | NEG;
    pub(in super::super) const MOD64: u8 = ALU64 | MOD;
    pub(in super::super) const MOD32: u8 = ALU | MOD;
    pub(in super::super) const XOR64: u8 = ALU64 | XOR;
    pub(in super::super) const XOR32: u8 = ALU | XOR;
    pub(in super::super) const MOV64: u8 = ALU64 | MOV;
    pub(in super::super) const MOV32: u8 = ALU | MOV;
    pub(in super::super) const ARSH64: u8 = ALU64 | ARSH;
    pub(in super::super) const ARSH32: u8 = ALU | ARSH;
    pub(in super::super) const JEQ64: u8 = JMP | JEQ;
    pub(in super::super) const JEQ32: u8 = JMP32 | JEQ;
    pub(in super::super) const JGT64: u8 = JMP | JGT;
    pub(in super::super) const JGT32: u8 = JMP32 | JGT;
    pub(in super::super) const JGE64: u8 = JMP | JGE;
    pub(in super::super) const JGE32: u8 = JMP32 | JGE;
    pub(in super::super) const JSET64: u8 = JMP | JSET;
    pub(in super::super) const JSET32: u8 = JMP32 | JSET;
    pub(in super::super) const JNE64: u8 = JMP | JNE;
    pub(in super::super) const JNE32: u8 = JMP32 | JNE;
    pub(in super::super) const JSGT64: u8 = JMP | JSGT;
    pub(in super::super) const JSGT32: u8 = JMP32 | JSGT;
    pub(in super::super) const JSGE64: u8 = JMP | JSGE;
    pub(in super::super) const JSGE32: u8 = JMP32 | JSGE;
    pub(in super::super) const JLT64: u8 = JMP | JLT;
    pub(in super::super) const JLT32: u8 = JMP32 | JLT;
    pub(in super::super) const JLE64: u8 = JMP | JLE;
    pub(in super::super) const JLE32: u8 = JMP32 | JLE;
    pub(in super::super) const JSLT64: u8 = JMP | JSLT;
    pub(in super::super) const JSLT32: u8 = JMP32 | JSLT;
    pub(in super::super) const JSLE64: u8 = JMP | JSLE;
    pub(in super::super) const JSLE32: u8 = JMP32 | JSLE;
    pub(in super::super) const LOAD8: u8 = LDX | MEM | BYTE;
    pub(in super::super) const STORE8: u8 = STX | MEM | BYTE;
    pub(in super::super) const SET8: u8 = ST | MEM | BYTE;
    pub(in super::super) const LOADS8: u8 = LDX | MEMSX | BYTE;
    pub(in super::super) const LOAD16: u8 = LDX | MEM | HALF;
    pub(in super::super) const STORE16: u8 = STX | MEM | HALF;
    pub(in super::super) const SET16: u8 = ST | MEM | HALF;
    pub(in super::super) const LOADS16: u8 = LDX | MEMSX | HALF;
    pub(in super::super) const LOAD32: u8 = LDX | MEM;
    pub(in super::super) const STORE32: u8 = STX | MEM;
    pub(in super::super) const SET32: u8 = ST | MEM;
    pub(in super::super) const LOADS32: u8 = LDX | MEMSX;
    pub(in super::super) const LOAD64: u8 = LDX | MEM | DOUBLE;
    pub(in super::super) const STORE64: u8 = STX | MEM | DOUBLE;
    pub(in super::super) const SET64: u8 = ST | MEM | DOUBLE;
    pub(in super::super) const ATOMIC32: u8 = STX | ATOMIC;
    pub(in super::super) const ATOMIC64: u8 = STX | ATOMIC | DOUBLE;
    pub(in super::super) const JUMP: u8 = JMP | JA;
    pub(in super::super) const SWAP: u8 = ALU | END;
    /// Call of a function of the program; no instruction has this code.
    pub(in super::super) const LOCAL_CALL: u8 = JMP | 0xf0;
}

/// Decoded instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Step {
    /// Operation: the code of the instruction, where arithmetic and jumps have no bit for the second operand.
    pub(super) operation: u8,
    pub(super) destination: u8,
    pub(super) source: u8,
    /// `true` if the second operand is the source register.
    pub(super) by_register: bool,
    pub(super) constant: i32,
    /// Offset of an access, absolute target of a jump or call, variant of an operation, upper half of a constant.
    pub(super) extra: i32,
}

/// Decodes a program. Instructions that were not verified are never executed.
pub(super) fn decode(program: &[Instruction]) -> Box<[Step]> {
    let step = |(at, instruction): (usize, &Instruction)| {
        let Instruction {
            code, offset, constant, ..
        } = *instruction;
        let target = |over: i32| (at as i32).wrapping_add(1).wrapping_add(over);
        let computes = matches!(instruction.class(), ALU | ALU64 | JMP | JMP32);
        let mut step = Step {
            operation: if computes { code & !X } else { code },
            destination: instruction.destination(),
            source: instruction.source(),
            by_register: computes && code & X != 0,
            constant,
            extra: offset.into(),
        };
        match instruction.class() {
            LD => step.extra = program.get(at + 1).map_or(0, |second| second.constant),
            _ if instruction.is_local_call() => {
                step.operation = operation::LOCAL_CALL;
                step.extra = target(constant);
            }
            JMP | JMP32 if code == CALL || code == EXIT => {}
            JMP32 if code & 0xf0 == JA => {
                step.operation = operation::JUMP;
                step.extra = target(constant);
            }
            JMP | JMP32 => step.extra = target(offset.into()),
            // The bit distinguishes the order of bytes there, and 64-bit swaps have no order.
            ALU | ALU64 if code & 0xf0 == END => {
                step.operation = operation::SWAP;
                step.by_register = code & X != 0 || instruction.class() == ALU64;
            }
            _ => {}
        }
        step
    };
    program.iter().enumerate().map(step).collect()
}
