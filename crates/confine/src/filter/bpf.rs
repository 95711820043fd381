//! Compiler from rules to a seccomp filter (classic BPF over `struct seccomp_data`).

use super::rule::Rule;

/// One instruction in the kernel's format (`struct sock_filter`).
pub(crate) type Instruction = libc::sock_filter;

// Operation codes from linux/bpf_common.h, and filter return values from linux/seccomp.h.
const LOAD_WORD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

pub(super) const ALLOW: u32 = 0x7fff_0000;
pub(super) const ASK: u32 = 0x7fc0_0000;
pub(super) const KILL: u32 = 0x8000_0000;
/// The call fails with `EPERM`.
pub(super) const REFUSE: u32 = 0x0005_0000 | libc::EPERM as u32;

// Offsets in `struct seccomp_data`.
pub(super) const NUMBER: u32 = 0;
pub(super) const ARCHITECTURE: u32 = 4;
pub(super) const ARGUMENTS: u32 = 16;

/// `AUDIT_ARCH_X86_64`. Calls of 32-bit programs have other numbers.
pub(super) const X86_64: u32 = 0xc000_003e;
/// Bit that x32 sets in the numbers of its calls.
const X32: u32 = 0x4000_0000;

fn statement(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}

/// Jump over `if_true` or `if_false` instructions.
fn jump(code: u16, k: u32, if_true: u8, if_false: u8) -> Instruction {
    Instruction {
        code,
        jt: if_true,
        jf: if_false,
        k,
    }
}

/// Compiles one block for each rule, in order. The first match allows the call; without a match the agent is notified.
pub(super) fn compile(rules: &[Rule]) -> Vec<Instruction> {
    let mut program = vec![
        statement(LOAD_WORD, ARCHITECTURE),
        jump(JUMP_EQUAL, X86_64, 1, 0),
        statement(RETURN, KILL),
        statement(LOAD_WORD, NUMBER),
        jump(JUMP_ANY_BIT, X32, 0, 1),
        statement(RETURN, KILL),
    ];
    for rule in rules {
        let mut block = vec![statement(LOAD_WORD, NUMBER), statement(JUMP_EQUAL, rule.call)];
        for check in &rule.checks {
            // The BPF machine has 32 bits: the lower half of an argument is checked first, then the upper one.
            for (half, shift) in [(0, 0), (4, 32)] {
                let mask = (check.mask >> shift) as u32;
                if mask == 0 {
                    continue;
                }
                let offset = ARGUMENTS + 8 * u32::from(check.argument) + half;
                block.push(statement(LOAD_WORD, offset));
                block.push(statement(AND, mask));
                block.push(statement(JUMP_EQUAL, (check.value >> shift) as u32));
            }
        }
        block.push(statement(RETURN, ALLOW));
        // A mismatch jumps past this block.
        let length = block.len();
        for (at, instruction) in block.iter_mut().enumerate() {
            if instruction.code == JUMP_EQUAL {
                instruction.jf = (length - at - 1) as u8;
            }
        }
        program.append(&mut block);
    }
    program.push(statement(RETURN, ASK));
    program
}

/// Compiles a filter that refuses these calls, and all calls of other architectures, and allows all others.
pub(super) fn compile_refusals(calls: &[u32]) -> Vec<Instruction> {
    let mut program = vec![
        statement(LOAD_WORD, ARCHITECTURE),
        jump(JUMP_EQUAL, X86_64, 1, 0),
        statement(RETURN, REFUSE),
        statement(LOAD_WORD, NUMBER),
        jump(JUMP_ANY_BIT, X32, 0, 1),
        statement(RETURN, REFUSE),
    ];
    for call in calls {
        program.push(jump(JUMP_EQUAL, *call, 0, 1));
        program.push(statement(RETURN, REFUSE));
    }
    program.push(statement(RETURN, ALLOW));
    program
}
