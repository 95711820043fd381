//! Programs of classic BPF (McCanne, Jacobson: The BSD Packet Filter, 1993) as libpcap compiles them: text format and
//! verification.

use std::fmt;

/// Maximum number of instructions of a program, as in Linux.
pub const MAX_INSTRUCTIONS: usize = 4096;
/// Number of words of scratch memory.
pub(super) const MEMORY: usize = 16;
/// Value that a compiled expression returns for a matching packet: the whole packet.
pub const SNAPLEN: u32 = 262_144;
/// Lowest offset that denotes Linux ancillary data instead of packet bytes.
const EXTENSIONS: u32 = 0xffff_f000;

/// BPF instruction, laid out as in C (`struct bpf_insn`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// Number of instructions to skip if a comparison is true.
    pub jt: u8,
    /// Number of instructions to skip if a comparison is false.
    pub jf: u8,
    /// The operand.
    pub k: u32,
}

/// Bit fields of [`Instruction::code`].
pub(super) mod code {
    pub(in super::super) const LD: u16 = 0x00;
    pub(in super::super) const LDX: u16 = 0x01;
    pub(in super::super) const ST: u16 = 0x02;
    pub(in super::super) const STX: u16 = 0x03;
    pub(in super::super) const ALU: u16 = 0x04;
    pub(in super::super) const JMP: u16 = 0x05;
    pub(in super::super) const RET: u16 = 0x06;
    pub(in super::super) const MISC: u16 = 0x07;
    pub(in super::super) const WORD: u16 = 0x00;
    pub(in super::super) const HALF: u16 = 0x08;
    pub(in super::super) const BYTE: u16 = 0x10;
    pub(in super::super) const IMM: u16 = 0x00;
    pub(in super::super) const ABS: u16 = 0x20;
    pub(in super::super) const IND: u16 = 0x40;
    pub(in super::super) const MEM: u16 = 0x60;
    pub(in super::super) const LEN: u16 = 0x80;
    pub(in super::super) const MSH: u16 = 0xa0;
    /// Second operand is X, not the instruction's constant.
    pub(in super::super) const X: u16 = 0x08;
    pub(in super::super) const ADD: u16 = 0x00;
    pub(in super::super) const SUB: u16 = 0x10;
    pub(in super::super) const MUL: u16 = 0x20;
    pub(in super::super) const DIV: u16 = 0x30;
    pub(in super::super) const OR: u16 = 0x40;
    pub(in super::super) const AND: u16 = 0x50;
    pub(in super::super) const LSH: u16 = 0x60;
    pub(in super::super) const RSH: u16 = 0x70;
    pub(in super::super) const NEG: u16 = 0x80;
    pub(in super::super) const MOD: u16 = 0x90;
    pub(in super::super) const XOR: u16 = 0xa0;
    pub(in super::super) const JA: u16 = 0x00;
    pub(in super::super) const JEQ: u16 = 0x10;
    pub(in super::super) const JGT: u16 = 0x20;
    pub(in super::super) const JGE: u16 = 0x30;
    pub(in super::super) const JSET: u16 = 0x40;
    /// Returns A, not the instruction's constant.
    pub(in super::super) const RET_A: u16 = 0x16;
    pub(in super::super) const TAX: u16 = 0x07;
    pub(in super::super) const TXA: u16 = 0x87;
}

use code::*;

/// Reason why a program is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyError {
    /// Index of the instruction, from 0; `None` for the program as a whole.
    pub at: Option<usize>,
    /// Description of the error.
    pub why: String,
}

impl std::error::Error for VerifyError {}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(at) => write!(f, "instruction {at}: {}", self.why),
            None => write!(f, "{}", self.why),
        }
    }
}

/// Verifies a program. An accepted program ends with a result after at most as many steps as it has instructions, and
/// accesses only its own memory:
///
/// - All its instructions are known, and the last one returns.
/// - Jumps go forward and stay inside the program.
/// - Memory accesses are within 16 words.
/// - No constant divisor is zero, and no constant shift exceeds 31 bits.
/// - No load refers to Linux ancillary data.
///
/// A load beyond the packet's end and a division by a zero X end the program at run time, with 0.
///
/// # Errors
/// The first instruction that violates a rule. An error for the whole program if it is empty or has more than
/// [`MAX_INSTRUCTIONS`] instructions.
pub fn verify(program: &[Instruction]) -> Result<(), VerifyError> {
    let whole = |why: String| VerifyError { at: None, why };
    if program.is_empty() || program.len() > MAX_INSTRUCTIONS {
        let found = program.len();
        return Err(whole(format!(
            "expected 1 to {MAX_INSTRUCTIONS} instructions, found {found}"
        )));
    }
    for (at, instruction) in program.iter().enumerate() {
        check(instruction, program.len() - at - 1).map_err(|why| VerifyError { at: Some(at), why })?;
    }
    match program.last().map(|last| last.code) {
        Some(RET | RET_A) => Ok(()),
        _ => Err(VerifyError {
            at: Some(program.len() - 1),
            why: "expected ret as the last instruction".to_owned(),
        }),
    }
}

/// Verifies one instruction, which is followed by `behind` others.
fn check(instruction: &Instruction, behind: usize) -> Result<(), String> {
    let Instruction { code, jt, jf, k } = *instruction;
    let unknown = || Err(format!("unknown instruction {code:#x}"));
    if code > 0xff {
        return unknown();
    }
    match code & 0x07 {
        LD => match (code & 0xe0, code & 0x18) {
            (ABS | IND, WORD | HALF | BYTE) if k >= EXTENSIONS => Err(format!(
                "offset {k:#x} is a Linux extension for data outside the packet"
            )),
            (ABS | IND, WORD | HALF | BYTE) => Ok(()),
            (IMM | LEN, WORD) => Ok(()),
            (MEM, WORD) => memory(k),
            _ => unknown(),
        },
        LDX => match (code & 0xe0, code & 0x18) {
            (IMM | LEN, WORD) => Ok(()),
            (MSH, BYTE) => Ok(()),
            (MEM, WORD) => memory(k),
            _ => unknown(),
        },
        ST | STX if code & !0x07 == 0 => memory(k),
        ALU => match (code & 0xf0, code & X) {
            (DIV | MOD, 0) if k == 0 => Err("a division by zero".to_owned()),
            (LSH | RSH, 0) if k > 31 => Err(format!("a shift of a 32-bit word by {k} bits")),
            (ADD | SUB | MUL | DIV | OR | AND | LSH | RSH | MOD | XOR, _) | (NEG, 0) => Ok(()),
            _ => unknown(),
        },
        JMP => match (code & 0xf0, code & X) {
            (JA, 0) => jump(u64::from(k), behind),
            (JEQ | JGT | JGE | JSET, _) => jump(u64::from(jt.max(jf)), behind),
            _ => unknown(),
        },
        RET if matches!(code, RET | RET_A) => Ok(()),
        MISC if matches!(code, TAX | TXA) => Ok(()),
        _ => unknown(),
    }
}

fn memory(k: u32) -> Result<(), String> {
    match (k as usize) < MEMORY {
        true => Ok(()),
        false => Err(format!("scratch memory word {k}, of {MEMORY} words")),
    }
}

/// Verifies a jump over `over` of the `behind` following instructions.
fn jump(over: u64, behind: usize) -> Result<(), String> {
    match over < behind as u64 {
        true => Ok(()),
        false => Err(format!("a jump over {over} instructions, where {behind} follow")),
    }
}

/// Reads a program in the format of `tcpdump -ddd`: the number of instructions on the first line, then one instruction
/// per line, as four decimal numbers.
///
/// # Errors
/// The line number, from 1, and the expected content.
pub fn parse_program(text: &str) -> Result<Vec<Instruction>, (usize, String)> {
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let expected = format!("expected the number of instructions, 1 to {MAX_INSTRUCTIONS}");
    let Some((first, line)) = lines.next() else {
        return Err((1, format!("{expected}, found nothing")));
    };
    let count = line.trim().parse().ok();
    let count = count.filter(|count| (1..=MAX_INSTRUCTIONS).contains(count));
    let count = count.ok_or_else(|| (first, format!("{expected}, found {:?}", shown(line))))?;
    let mut program = Vec::with_capacity(count);
    for (number, line) in lines {
        if program.len() == count {
            return Err((number, format!("expected {count} instructions, found more")));
        }
        let instruction = instruction(line).ok_or_else(|| {
            let found = shown(line);
            let what = "expected an instruction, as four decimal numbers";
            (number, format!("{what}: code, jt, jf and k, found {found:?}"))
        })?;
        program.push(instruction);
    }
    match program.len() == count {
        true => Ok(program),
        false => {
            let (last, found) = (text.lines().count(), program.len());
            Err((last, format!("expected {count} instructions, found {found}")))
        }
    }
}

/// Returns the beginning of a line, for messages.
fn shown(line: &str) -> String {
    line.chars().take(60).collect()
}

fn instruction(line: &str) -> Option<Instruction> {
    let mut numbers = line.split_ascii_whitespace();
    let mut next = || numbers.next();
    let instruction = Instruction {
        code: next()?.parse().ok()?,
        jt: next()?.parse().ok()?,
        jf: next()?.parse().ok()?,
        k: next()?.parse().ok()?,
    };
    next().is_none().then_some(instruction)
}
