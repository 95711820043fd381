//! Execution of decoded programs. Every memory access is checked, and the number of instructions is bounded.

use super::helpers::Helper;
use super::instruction::code::{ADD, AND, CALL, CMPXCHG, EXIT, FETCH, LD_IMM64 as CONSTANT, OR, XCHG, XOR};
use super::memory::{CONTEXT, FRAME_BYTES, MAX_DEPTH, Memory, STACK};
use super::run::{Environment, Fault, Run};
use super::step::{Step, operation::*};

/// Number of instructions as which a call of a function of the program counts beyond one: its stack is zeroed.
const CALL_COST: u32 = 16;

#[inline(always)]
fn load<const N: usize>(memory: &Memory<'_>, address: u64) -> Result<u64, Fault> {
    let fault = Fault::Access {
        address,
        bytes: N as u8,
        writes: false,
    };
    memory.load::<N>(address).ok_or(fault)
}

#[inline(always)]
fn store<const N: usize>(memory: &mut Memory<'_>, address: u64, value: u64) -> Result<(), Fault> {
    let fault = Fault::Access {
        address,
        bytes: N as u8,
        writes: true,
    };
    memory.store::<N>(address, value).ok_or(fault)
}

/// Reads, changes and writes a number. No other worker has the memory, so nothing needs to be atomic.
fn atomic<const N: usize>(memory: &mut Memory<'_>, step: &Step, registers: &mut [u64; 16]) -> Result<(), Fault> {
    let (to, from) = (usize::from(step.destination & 15), usize::from(step.source & 15));
    let address = registers[to].wrapping_add(step.extra as i64 as u64);
    let (old, operand) = (load::<N>(memory, address)?, registers[from]);
    let narrow = |value: u64| if N == 4 { u64::from(value as u32) } else { value };
    let new = match step.constant {
        XCHG => operand,
        CMPXCHG => match narrow(registers[0]) == old {
            true => operand,
            false => old,
        },
        other => match (other & !FETCH) as u8 {
            ADD => old.wrapping_add(operand),
            OR => old | operand,
            AND => old & operand,
            XOR => old ^ operand,
            _ => return Err(Fault::Left),
        },
    };
    store::<N>(memory, address, new)?;
    match step.constant {
        CMPXCHG => registers[0] = old,
        other if other & FETCH != 0 => registers[from] = old,
        _ => {}
    }
    Ok(())
}

/// Executes steps from `entry` on until the program ends, at most `limit`.
pub(super) fn execute(
    steps: &[Step],
    entry: usize,
    memory: &mut Memory<'_>,
    environment: &mut Environment,
    limit: u32,
) -> Run {
    let (mut next, mut left) = (entry, limit);
    // Both are in registers of the processor as long as nothing else refers to them.
    macro_rules! end {
        ($result:expr) => {
            return Run {
                result: $result,
                instructions: limit - left,
                last: next.saturating_sub(1) as u32,
            }
        };
    }
    macro_rules! or_end {
        ($result:expr) => {
            match $result {
                Ok(value) => value,
                Err(fault) => end!(Err(fault)),
            }
        };
    }
    // Sixteen, so that an index of four bits needs no check. Programs use eleven.
    let mut registers = [0_u64; 16];
    registers[1] = CONTEXT;
    registers[10] = STACK + FRAME_BYTES as u64;
    let mut callers = [(0_usize, [0_u64; 4]); MAX_DEPTH];
    let mut depth = 0;
    memory.push_frame();
    loop {
        let step = or_end!(steps.get(next).ok_or(Fault::Left));
        left = or_end!(left.checked_sub(1).ok_or(Fault::Limit));
        next += 1;
        let to = usize::from(step.destination & 15);
        let first = registers[to];
        let source = registers[usize::from(step.source & 15)];
        let constant = step.constant as i64 as u64;
        let second = if step.by_register { source } else { constant };
        let (first32, second32) = (first as u32, second as u32);
        let offset = step.extra as i64 as u64;
        let is_taken = match step.operation {
            JEQ64 => first == second,
            JEQ32 => first32 == second32,
            JNE64 => first != second,
            JNE32 => first32 != second32,
            JGT64 => first > second,
            JGT32 => first32 > second32,
            JGE64 => first >= second,
            JGE32 => first32 >= second32,
            JLT64 => first < second,
            JLT32 => first32 < second32,
            JLE64 => first <= second,
            JLE32 => first32 <= second32,
            JSGT64 => (first as i64) > second as i64,
            JSGT32 => (first32 as i32) > second32 as i32,
            JSGE64 => (first as i64) >= second as i64,
            JSGE32 => (first32 as i32) >= second32 as i32,
            JSLT64 => (first as i64) < second as i64,
            JSLT32 => (first32 as i32) < second32 as i32,
            JSLE64 => (first as i64) <= second as i64,
            JSLE32 => (first32 as i32) <= second32 as i32,
            JSET64 => first & second != 0,
            JSET32 => first32 & second32 != 0,
            JUMP => true,
            operation => {
                registers[to] = match operation {
                    ADD64 => first.wrapping_add(second),
                    ADD32 => u64::from(first32.wrapping_add(second32)),
                    SUB64 => first.wrapping_sub(second),
                    SUB32 => u64::from(first32.wrapping_sub(second32)),
                    MUL64 => first.wrapping_mul(second),
                    MUL32 => u64::from(first32.wrapping_mul(second32)),
                    // A division by zero gives zero, and its remainder the dividend.
                    DIV64 if step.extra != 0 => match second {
                        0 => 0,
                        _ => (first as i64).wrapping_div(second as i64) as u64,
                    },
                    DIV64 => first.checked_div(second).unwrap_or(0),
                    DIV32 if step.extra != 0 => match second32 {
                        0 => 0,
                        _ => (first32 as i32).wrapping_div(second32 as i32) as u32 as u64,
                    },
                    DIV32 => first32.checked_div(second32).unwrap_or(0).into(),
                    MOD64 if step.extra != 0 => match second {
                        0 => first,
                        _ => (first as i64).wrapping_rem(second as i64) as u64,
                    },
                    MOD64 => first.checked_rem(second).unwrap_or(first),
                    MOD32 if step.extra != 0 => match second32 {
                        0 => first32.into(),
                        _ => (first32 as i32).wrapping_rem(second32 as i32) as u32 as u64,
                    },
                    MOD32 => first32.checked_rem(second32).unwrap_or(first32).into(),
                    OR64 => first | second,
                    OR32 => u64::from(first32 | second32),
                    AND64 => first & second,
                    AND32 => u64::from(first32 & second32),
                    XOR64 => first ^ second,
                    XOR32 => u64::from(first32 ^ second32),
                    // Shifts use the lower bits of their second operand.
                    LSH64 => first.wrapping_shl(second32),
                    LSH32 => u64::from(first32.wrapping_shl(second32)),
                    RSH64 => first.wrapping_shr(second32),
                    RSH32 => u64::from(first32.wrapping_shr(second32)),
                    ARSH64 => (first as i64).wrapping_shr(second32) as u64,
                    ARSH32 => u64::from((first32 as i32).wrapping_shr(second32) as u32),
                    NEG64 => first.wrapping_neg(),
                    NEG32 => u64::from(first32.wrapping_neg()),
                    MOV64 => match step.extra {
                        8 => second as i8 as u64,
                        16 => second as i16 as u64,
                        32 => second as i32 as u64,
                        _ => second,
                    },
                    MOV32 => match step.extra {
                        8 => second as i8 as u32 as u64,
                        16 => second as i16 as u32 as u64,
                        _ => second32.into(),
                    },
                    SWAP => match (step.constant, step.by_register) {
                        (16, true) => (first as u16).swap_bytes().into(),
                        (32, true) => first32.swap_bytes().into(),
                        (_, true) => first.swap_bytes(),
                        // Memory is little-endian already.
                        (16, false) => first as u16 as u64,
                        (32, false) => first32.into(),
                        (_, false) => first,
                    },
                    CONSTANT => {
                        // Its second half is no instruction.
                        next += 1;
                        u64::from(step.constant as u32) | (step.extra as u64) << 32
                    }
                    LOAD8 => or_end!(load::<1>(memory, source.wrapping_add(offset))),
                    LOAD16 => or_end!(load::<2>(memory, source.wrapping_add(offset))),
                    LOAD32 => or_end!(load::<4>(memory, source.wrapping_add(offset))),
                    LOAD64 => or_end!(load::<8>(memory, source.wrapping_add(offset))),
                    LOADS8 => or_end!(load::<1>(memory, source.wrapping_add(offset))) as i8 as u64,
                    LOADS16 => or_end!(load::<2>(memory, source.wrapping_add(offset))) as i16 as u64,
                    LOADS32 => or_end!(load::<4>(memory, source.wrapping_add(offset))) as i32 as u64,
                    SET8 => {
                        or_end!(store::<1>(memory, first.wrapping_add(offset), constant));
                        continue;
                    }
                    STORE8 => {
                        or_end!(store::<1>(memory, first.wrapping_add(offset), source));
                        continue;
                    }
                    SET16 => {
                        or_end!(store::<2>(memory, first.wrapping_add(offset), constant));
                        continue;
                    }
                    STORE16 => {
                        or_end!(store::<2>(memory, first.wrapping_add(offset), source));
                        continue;
                    }
                    SET32 => {
                        or_end!(store::<4>(memory, first.wrapping_add(offset), constant));
                        continue;
                    }
                    STORE32 => {
                        or_end!(store::<4>(memory, first.wrapping_add(offset), source));
                        continue;
                    }
                    SET64 => {
                        or_end!(store::<8>(memory, first.wrapping_add(offset), constant));
                        continue;
                    }
                    STORE64 => {
                        or_end!(store::<8>(memory, first.wrapping_add(offset), source));
                        continue;
                    }
                    ATOMIC64 => {
                        or_end!(atomic::<8>(memory, step, &mut registers));
                        continue;
                    }
                    ATOMIC32 => {
                        or_end!(atomic::<4>(memory, step, &mut registers));
                        continue;
                    }
                    CALL => {
                        let helper = or_end!(Helper::of(step.constant).ok_or(Fault::Left));
                        let arguments = [registers[1], registers[2], registers[3], registers[4], registers[5]];
                        let (result, cost) = or_end!(helper.call(memory, environment, arguments));
                        registers[0] = result;
                        left = left.saturating_sub(cost);
                        continue;
                    }
                    LOCAL_CALL => {
                        if depth + 1 == MAX_DEPTH {
                            end!(Err(Fault::Depth));
                        }
                        let [_, _, _, _, _, _, saved @ .., _, _, _, _, _, _] = registers;
                        callers[depth] = (next, saved);
                        depth += 1;
                        registers[10] += FRAME_BYTES as u64;
                        memory.push_frame();
                        left = left.saturating_sub(CALL_COST);
                        next = step.extra as usize;
                        continue;
                    }
                    EXIT => {
                        let Some(caller) = depth.checked_sub(1) else {
                            end!(Ok(registers[0]));
                        };
                        depth = caller;
                        let (back, saved) = callers[depth];
                        registers[6..10].copy_from_slice(&saved);
                        registers[10] -= FRAME_BYTES as u64;
                        memory.pop_frame();
                        next = back;
                        continue;
                    }
                    _ => end!(Err(Fault::Left)),
                };
                continue;
            }
        };
        if is_taken {
            next = step.extra as usize;
        }
    }
}
