//! Interpreter of decoded programs. Jump targets are absolute, and a load followed by a comparison is fused into one
//! step.

use super::program::{Instruction, MEMORY, VerifyError, code::*, verify};

/// Size of an indirect load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    Word,
    Half,
    Byte,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arithmetic {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Or,
    And,
    Xor,
    Shl,
    Shr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    Equal,
    Greater,
    GreaterOrEqual,
    AnyBit,
}

/// Indices of the next step if a comparison is true and if it is false.
type Targets = [u16; 2];

/// Decoded operation. Each instruction has a step at the same index, also one fused into its predecessor. So a jump to
/// such an instruction needs no special case.
#[derive(Clone, Copy, Debug)]
enum Step {
    WordAt(u32),
    HalfAt(u32),
    ByteAt(u32),
    Indirect(Width, u32),
    /// Load at a fixed offset, comparison with a constant, and the two targets.
    HalfIsEqual(u16, u16, Targets),
    ByteIsEqual(u16, u8, Targets),
    WordIsEqual(u16, u32, Targets),
    HalfHasAnyBit(u16, u16, Targets),
    /// Same, at an offset relative to X.
    IndirectHalfIsEqual(u16, u16, Targets),
    LoadConstant(u32),
    LoadLength,
    LoadMemory(u8),
    LoadConstantX(u32),
    LoadLengthX,
    LoadMemoryX(u8),
    HeaderLengthX(u32),
    Store(u8),
    StoreX(u8),
    WithConstant(Arithmetic, u32),
    WithX(Arithmetic),
    Negate,
    Jump(u16),
    Compare(Test, u32, Targets),
    CompareX(Test, Targets),
    ReturnConstant(u32),
    ReturnA,
    ToX,
    ToA,
}

const _: () = assert!(size_of::<Step>() <= 12);

/// Verified program, decoded for execution.
#[derive(Clone, Debug)]
pub struct Filter {
    steps: Box<[Step]>,
}

impl Filter {
    /// Verifies and decodes a program.
    ///
    /// # Errors
    /// See [`verify`].
    pub fn new(program: &[Instruction]) -> Result<Filter, VerifyError> {
        verify(program)?;
        let steps = (0..program.len()).map(|at| fused(program, at));
        Ok(Filter { steps: steps.collect() })
    }

    /// Runs the program on a packet. Returns 0 if the packet does not match. A load beyond the packet's end and a
    /// division by zero count as no match.
    #[inline]
    pub fn run(&self, packet: &[u8]) -> u32 {
        let length = packet.len() as u32;
        let (mut a, mut x, mut at) = (0_u32, 0_u32, 0_usize);
        let mut memory = [0_u32; MEMORY];
        // Terminates because jumps only go forward. Every jump target has a step.
        while let Some(step) = self.steps.get(at) {
            at += 1;
            let next = |found: bool, targets: Targets| usize::from(targets[usize::from(!found)]);
            match *step {
                Step::HalfIsEqual(offset, value, targets) => {
                    let Some(half) = half(packet, offset.into()) else {
                        return 0;
                    };
                    a = half.into();
                    at = next(half == value, targets);
                }
                Step::ByteIsEqual(offset, value, targets) => {
                    let Some(byte) = packet.get(usize::from(offset)) else {
                        return 0;
                    };
                    a = (*byte).into();
                    at = next(*byte == value, targets);
                }
                Step::WordIsEqual(offset, value, targets) => {
                    let Some(word) = word(packet, offset.into()) else {
                        return 0;
                    };
                    a = word;
                    at = next(word == value, targets);
                }
                Step::HalfHasAnyBit(offset, bits, targets) => {
                    let Some(half) = half(packet, offset.into()) else {
                        return 0;
                    };
                    a = half.into();
                    at = next(half & bits != 0, targets);
                }
                Step::IndirectHalfIsEqual(offset, value, targets) => {
                    let Some(half) = half(packet, u64::from(x) + u64::from(offset)) else {
                        return 0;
                    };
                    a = half.into();
                    at = next(half == value, targets);
                }
                Step::WordAt(offset) => match word(packet, offset.into()) {
                    Some(word) => a = word,
                    None => return 0,
                },
                Step::HalfAt(offset) => match half(packet, offset.into()) {
                    Some(half) => a = half.into(),
                    None => return 0,
                },
                Step::ByteAt(offset) => match packet.get(offset as usize) {
                    Some(byte) => a = (*byte).into(),
                    None => return 0,
                },
                Step::Indirect(width, offset) => {
                    let offset = u64::from(x) + u64::from(offset);
                    let loaded = match width {
                        Width::Word => word(packet, offset),
                        Width::Half => half(packet, offset).map(u32::from),
                        Width::Byte => packet.get(offset as usize).copied().map(u32::from),
                    };
                    match loaded {
                        Some(value) => a = value,
                        None => return 0,
                    }
                }
                Step::HeaderLengthX(offset) => match packet.get(offset as usize) {
                    Some(byte) => x = u32::from(byte & 0x0f) << 2,
                    None => return 0,
                },
                Step::LoadConstant(value) => a = value,
                Step::LoadLength => a = length,
                Step::LoadMemory(word) => a = memory[usize::from(word) % MEMORY],
                Step::LoadConstantX(value) => x = value,
                Step::LoadLengthX => x = length,
                Step::LoadMemoryX(word) => x = memory[usize::from(word) % MEMORY],
                Step::Store(word) => memory[usize::from(word) % MEMORY] = a,
                Step::StoreX(word) => memory[usize::from(word) % MEMORY] = x,
                Step::WithConstant(operation, value) => match compute(operation, a, value) {
                    Some(value) => a = value,
                    None => return 0,
                },
                Step::WithX(operation) => match compute(operation, a, x) {
                    Some(value) => a = value,
                    None => return 0,
                },
                Step::Negate => a = a.wrapping_neg(),
                Step::Jump(target) => at = target.into(),
                Step::Compare(test, value, targets) => at = next(holds(test, a, value), targets),
                Step::CompareX(test, targets) => at = next(holds(test, a, x), targets),
                Step::ReturnConstant(value) => return value,
                Step::ReturnA => return a,
                Step::ToX => x = a,
                Step::ToA => a = x,
            }
        }
        0
    }

    /// Returns `true` if the packet matches.
    #[inline]
    pub fn matches(&self, packet: &[u8]) -> bool {
        self.run(packet) != 0
    }
}

#[inline(always)]
fn word(packet: &[u8], at: u64) -> Option<u32> {
    let bytes = packet.get(at as usize..)?.first_chunk()?;
    Some(u32::from_be_bytes(*bytes))
}

#[inline(always)]
fn half(packet: &[u8], at: u64) -> Option<u16> {
    let bytes = packet.get(at as usize..)?.first_chunk()?;
    Some(u16::from_be_bytes(*bytes))
}

#[inline]
fn compute(operation: Arithmetic, a: u32, by: u32) -> Option<u32> {
    Some(match operation {
        Arithmetic::Add => a.wrapping_add(by),
        Arithmetic::Sub => a.wrapping_sub(by),
        Arithmetic::Mul => a.wrapping_mul(by),
        Arithmetic::Div => a.checked_div(by)?,
        Arithmetic::Mod => a.checked_rem(by)?,
        Arithmetic::Or => a | by,
        Arithmetic::And => a & by,
        Arithmetic::Xor => a ^ by,
        // A shift by 32 bits or more gives 0.
        Arithmetic::Shl => a.checked_shl(by).unwrap_or(0),
        Arithmetic::Shr => a.checked_shr(by).unwrap_or(0),
    })
}

#[inline]
fn holds(test: Test, a: u32, value: u32) -> bool {
    match test {
        Test::Equal => a == value,
        Test::Greater => a > value,
        Test::GreaterOrEqual => a >= value,
        Test::AnyBit => a & value != 0,
    }
}

/// Returns the step at index `at`, fused with the following comparison if there is a combined step for both.
fn fused(program: &[Instruction], at: usize) -> Step {
    let step = decoded(&program[at], at);
    let behind = program.get(at + 1).map(|behind| (behind, decoded(behind, at + 1)));
    let Some((_, Step::Compare(test, value, targets))) = behind else {
        return step;
    };
    let short = |offset: u32| u16::try_from(offset).ok();
    let half = u16::try_from(value).ok();
    let both = match (step, test) {
        (Step::WordAt(offset), Test::Equal) => short(offset).map(|offset| Step::WordIsEqual(offset, value, targets)),
        (Step::HalfAt(offset), Test::Equal) => short(offset)
            .zip(half)
            .map(|(offset, value)| Step::HalfIsEqual(offset, value, targets)),
        (Step::HalfAt(offset), Test::AnyBit) => {
            // The upper 16 bits of a half-word load are zero, so those of the mask never match.
            short(offset).map(|offset| Step::HalfHasAnyBit(offset, value as u16, targets))
        }
        (Step::ByteAt(offset), Test::Equal) => short(offset)
            .zip(u8::try_from(value).ok())
            .map(|(offset, value)| Step::ByteIsEqual(offset, value, targets)),
        (Step::Indirect(Width::Half, offset), Test::Equal) => short(offset)
            .zip(half)
            .map(|(offset, value)| Step::IndirectHalfIsEqual(offset, value, targets)),
        _ => None,
    };
    both.unwrap_or(step)
}

/// Decodes one instruction of a verified program.
fn decoded(instruction: &Instruction, at: usize) -> Step {
    let Instruction { code, jt, jf, k } = *instruction;
    let place = |over: u32| (at as u32 + 1 + over) as u16;
    let targets = [place(jt.into()), place(jf.into())];
    let (mode, width, with_x) = (code & 0xe0, code & 0x18, code & X != 0);
    match code & 0x07 {
        LD => match (mode, width) {
            (ABS, WORD) => Step::WordAt(k),
            (ABS, HALF) => Step::HalfAt(k),
            (ABS, _) => Step::ByteAt(k),
            (IND, WORD) => Step::Indirect(Width::Word, k),
            (IND, HALF) => Step::Indirect(Width::Half, k),
            (IND, _) => Step::Indirect(Width::Byte, k),
            (LEN, _) => Step::LoadLength,
            (MEM, _) => Step::LoadMemory(k as u8),
            _ => Step::LoadConstant(k),
        },
        LDX => match mode {
            MSH => Step::HeaderLengthX(k),
            LEN => Step::LoadLengthX,
            MEM => Step::LoadMemoryX(k as u8),
            _ => Step::LoadConstantX(k),
        },
        ST => Step::Store(k as u8),
        STX => Step::StoreX(k as u8),
        ALU => {
            let operation = match code & 0xf0 {
                ADD => Arithmetic::Add,
                SUB => Arithmetic::Sub,
                MUL => Arithmetic::Mul,
                DIV => Arithmetic::Div,
                MOD => Arithmetic::Mod,
                OR => Arithmetic::Or,
                AND => Arithmetic::And,
                XOR => Arithmetic::Xor,
                LSH => Arithmetic::Shl,
                RSH => Arithmetic::Shr,
                _ => return Step::Negate,
            };
            match with_x {
                true => Step::WithX(operation),
                false => Step::WithConstant(operation, k),
            }
        }
        JMP => {
            let test = match code & 0xf0 {
                JEQ => Test::Equal,
                JGT => Test::Greater,
                JGE => Test::GreaterOrEqual,
                JSET => Test::AnyBit,
                _ => return Step::Jump(place(k)),
            };
            match with_x {
                true => Step::CompareX(test, targets),
                false => Step::Compare(test, k, targets),
            }
        }
        RET if code == RET_A => Step::ReturnA,
        RET => Step::ReturnConstant(k),
        _ if code == TAX => Step::ToX,
        _ => Step::ToA,
    }
}
