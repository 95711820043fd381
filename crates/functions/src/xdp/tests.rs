//! Programs of clang (sources: `examples/programs/xdp`) in a chain, and programs that misbehave.

use super::function::Loaded;
use super::instruction::code::*;
use super::*;
use std::net::Ipv4Addr;
use std::sync::Arc;
use tailwater_chain::live::Live;
use tailwater_chain::rig::{ChainRig, INPUT};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::{FlowKey, Nanos, protocol};

const PORT_FILTER: &[u8] = include_bytes!("../../../../examples/programs/xdp/port_filter.o");
const SOURCE_COUNTER: &[u8] = include_bytes!("../../../../examples/programs/xdp/source_counter.o");
const NOW: Nanos = Nanos::from_secs(1);
const LIMIT: u32 = 10_000;

fn udp(source: u8, port: u16) -> Vec<u8> {
    let ends = (Ipv4Addr::new(10, 0, 0, source), Ipv4Addr::new(198, 18, 0, 1));
    let key = FlowKey::v4(ends.0, ends.1, protocol::UDP, 4000, port);
    FrameBuilder::new(&key).payload(b"question").to_vec().unwrap()
}

fn object(bytes: &[u8]) -> Program {
    parse_object(bytes, "xdp", None).unwrap_or_else(|error| panic!("{error}"))
}

fn machine(program: Program) -> Machine {
    Machine::new(Arc::new(program), 0, 7)
}

fn rig(program: Program, read_only: bool) -> ChainRig {
    let program = Arc::new(program);
    let loaded = Loaded {
        program,
        read_only,
        limit: LIMIT,
    };
    ChainRig::new(vec![Box::new(Xdp::new(Arc::new(Live::new(loaded)), 0, 7))], INPUT)
}

fn ins(code: u8, [to, from]: [u8; 2], offset: i16, constant: i32) -> Instruction {
    Instruction {
        code,
        registers: to | from << 4,
        offset,
        constant,
    }
}

fn mov(to: u8, constant: i32) -> Instruction {
    ins(ALU64 | MOV, [to, 0], 0, constant)
}

fn exit() -> Instruction {
    ins(EXIT, [0, 0], 0, 0)
}

fn program(instructions: &[Instruction]) -> Program {
    Program::of_instructions(instructions).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs a program on a frame of 64 bytes in a buffer of 128, and returns the frame.
fn run(program: Program) -> (Run, Vec<u8>) {
    let mut bytes: Vec<u8> = (0..128).collect();
    let mut frame = Frame {
        bytes: &mut bytes,
        start: 32,
        end: 96,
        read_only: false,
        ingress: [1, 0],
    };
    let run = machine(program).run(&mut frame, NOW, LIMIT);
    let range = frame.start..frame.end;
    (run, bytes[range].to_vec())
}

#[test]
fn a_port_filter_drops_what_it_drops_in_the_kernel() {
    let mut rig = rig(object(PORT_FILTER), true);
    let frames = [53, 19, 1900, 389, 80, 11211].map(|port| udp(1, port));
    assert_eq!(rig.run(&frames, NOW), [frames[0].clone(), frames[4].clone()]);
    assert_eq!((rig.count("xdp/xdp-drop"), rig.count("xdp/xdp-aborted")), (4, 0));
    assert_eq!(rig.explain(&frames[1], NOW), ["XDP_DROP after 45 instructions"]);
    let mut machine = machine(object(PORT_FILTER));
    let mut frame = frames[1].clone();
    let end = frame.len();
    let mut frame = Frame {
        bytes: &mut frame,
        start: 0,
        end,
        read_only: true,
        ingress: [1, 0],
    };
    assert_eq!(machine.run(&mut frame, NOW, LIMIT).result, Ok(1));
    assert_eq!(
        machine.value("dropped", &1_u32.to_le_bytes()),
        Some(&1_u64.to_le_bytes()[..])
    );
    // The array has four entries.
    assert_eq!(machine.value("dropped", &4_u32.to_le_bytes()), None);
}

#[test]
fn a_counter_by_source_counts_and_limits_each() {
    let mut rig = rig(object(SOURCE_COUNTER), true);
    let batch: Vec<_> = (0..20).map(|at| udp(at % 2, 53)).collect();
    let passed: usize = (0..110).map(|_| rig.run(&batch, NOW).len()).sum();
    assert_eq!((passed, rig.count("xdp/xdp-drop")), (2_000, 200));
}

#[test]
fn memory_out_of_bounds_is_out_of_reach() {
    let load = |size, offset| ins(LDX | MEM | size, [0, 2], offset, 0);
    let context = |to, offset| ins(LDX | MEM, [to, 1], offset, 0);
    let cases: [(&str, &[Instruction]); 8] = [
        ("before the packet", &[context(2, 0), load(BYTE, -1)]),
        ("across its end", &[context(2, 4), load(DOUBLE, -7)]),
        ("a null pointer", &[mov(2, 0), load(0, 0)]),
        (
            "any address",
            &[
                ins(ALU64 | MOV | X, [2, 10], 0, 0),
                ins(ALU64 | LSH, [2, 0], 0, 7),
                load(0, 0),
            ],
        ),
        ("above the stack", &[ins(STX | MEM | DOUBLE, [10, 1], 0, 0)]),
        ("below the stack", &[ins(STX | MEM | DOUBLE, [10, 1], -520, 0)]),
        ("the context", &[ins(STX | MEM, [1, 1], 0, 0)]),
        (
            "a wrong key",
            &[
                ins(LD_IMM64, [1, 0], 0, 4 << 28),
                ins(0, [0, 0], 0, 0),
                mov(2, 0),
                ins(CALL, [0, 0], 0, 1),
            ],
        ),
    ];
    for (name, start) in cases {
        let (run, frame) = run(program(&[start, &[mov(0, 2), exit()]].concat()));
        assert!(
            matches!(run.result, Err(Fault::Access { .. } | Fault::Argument(_))),
            "{name}: {run:?}"
        );
        assert_eq!(frame, (32..96).collect::<Vec<u8>>(), "{name}");
    }
    // Its own bytes are within reach, and may be read only.
    let write = [context(2, 0), ins(ST | MEM | BYTE, [2, 0], 5, 99), mov(0, 2), exit()];
    let (result, frame) = run(program(&write));
    assert_eq!((result.result, frame[5]), (Ok(2), 99));
    let mut rig = rig(program(&write), true);
    let text = rig.explain(&udp(1, 1), NOW);
    assert!(
        text[0].starts_with("stopped at instruction 1: write of 1 bytes out of bounds"),
        "{text:?}"
    );
    assert_eq!(rig.count("xdp/xdp-aborted"), 1);
}

#[test]
fn a_program_that_does_not_end_is_stopped() {
    let mut rig = rig(program(&[mov(0, 2), ins(JMP | JA, [0, 0], -2, 0)]), true);
    assert_eq!(
        rig.explain(&udp(1, 1), NOW),
        ["stopped after 10000 instructions, the limit"]
    );
    assert_eq!(rig.count("xdp/xdp-aborted"), 1);
    let recursion = program(&[ins(CALL, [0, PSEUDO_CALL], 0, -1), exit()]);
    assert_eq!(run(recursion).0.result, Err(Fault::Depth));
}

#[test]
fn functions_have_registers_and_stack_of_their_own() {
    let store = |offset| ins(STX | MEM | DOUBLE, [10, 6], offset, 0);
    let result = run(program(&[
        mov(6, 40),
        store(-8),
        ins(CALL, [0, PSEUDO_CALL], 0, 4),
        ins(LDX | MEM | DOUBLE, [1, 10], -8, 0),
        ins(ALU64 | ADD | X, [0, 1], 0, 0),
        ins(ALU64 | ADD | X, [0, 6], 0, 0),
        exit(),
        mov(6, 2),
        store(-8),
        ins(ALU64 | MOV | X, [0, 6], 0, 0),
        exit(),
    ]));
    assert_eq!(result.0.result, Ok(82));
}

/// Edge cases of RFC 9669.
#[test]
fn arithmetic_is_that_of_the_instruction_set() {
    let minus_two = -2_i64 as u64;
    let cases: &[(u8, i16, i32, i32, u64)] = &[
        (ALU64 | ADD, 0, -2, 1, u64::MAX),
        (ALU | ADD, 0, -2, 1, u32::MAX.into()),
        (ALU64 | SUB, 0, 1, 3, minus_two),
        (ALU64 | MUL, 0, -2, 3, -6_i64 as u64),
        (ALU64 | DIV, 0, -2, 2, minus_two / 2),
        (ALU | DIV, 0, -2, 2, (u32::MAX / 2).into()),
        (ALU64 | DIV, 1, -7, 2, -3_i64 as u64),
        (ALU | DIV, 1, i32::MIN, -1, (i32::MIN as u32).into()),
        (ALU64 | DIV, 0, 7, 0, 0),
        (ALU | DIV, 1, 7, 0, 0),
        (ALU64 | MOD, 0, -2, 0, minus_two),
        (ALU | MOD, 0, -2, 0, u64::from(u32::MAX - 1)),
        (ALU64 | MOD, 1, -7, 2, u64::MAX),
        (ALU64 | LSH, 0, 1, 65, 2),
        (ALU | LSH, 0, 1, 33, 2),
        (ALU64 | RSH, 0, -1, 60, 15),
        (ALU64 | ARSH, 0, -8, 1, -4_i64 as u64),
        (ALU | ARSH, 0, -8, 1, (-4_i32 as u32).into()),
        (ALU64 | AND, 0, -1, -16, -16_i64 as u64),
        (ALU | OR, 0, 1, -16, (-15_i32 as u32).into()),
        (ALU64 | XOR, 0, -1, 1, minus_two),
        (ALU | XOR, 0, -1, 1, (-2_i32 as u32).into()),
        (ALU | NEG, 0, 1, 0, u32::MAX.into()),
        (ALU | END | X, 0, 0x1234, 16, 0x3412),
        (ALU | END, 0, 0x1234_5678, 16, 0x5678),
        (ALU64 | END, 0, 0x1234_5678, 32, 0x7856_3412),
        (ALU | END | X, 0, 0x0102_0304, 64, 0x0403_0201_0000_0000),
    ];
    for (code, offset, first, second, expected) in cases {
        let mut instructions = vec![mov(0, *first), ins(*code, [0, 0], *offset, *second), exit()];
        assert_eq!(
            run(program(&instructions)).0.result,
            Ok(*expected),
            "{code:#x} {first} {second}"
        );
        if !matches!(code & 0xf0, NEG | END) {
            instructions.splice(1..2, [mov(3, *second), ins(code | X, [0, 3], *offset, 0)]);
            assert_eq!(
                run(program(&instructions)).0.result,
                Ok(*expected),
                "{code:#x} {first} r{second}"
            );
        }
    }
    for (offset, expected) in [(8, -128_i64 as u64), (16, 0x80), (32, 0x80)] {
        let extend = ins(ALU64 | MOV | X, [0, 3], offset, 0);
        assert_eq!(run(program(&[mov(3, 0x80), extend, exit()])).0.result, Ok(expected));
    }
    // Signed and unsigned comparisons, of 64 and 32 bits.
    let holds = |code, first, second| {
        let jump = [
            mov(0, 1),
            mov(2, first),
            ins(code, [2, 0], 1, second),
            mov(0, 0),
            exit(),
        ];
        run(program(&jump)).0.result == Ok(1)
    };
    for code in [JEQ, JNE, JGT, JGE, JLT, JLE, JSGT, JSGE, JSLT, JSLE] {
        let expected = |a: i32, b: i32| match code {
            JEQ => a == b,
            JNE => a != b,
            JGT => a as u32 > b as u32,
            JGE => a as u32 >= b as u32,
            JLT => (a as u32) < b as u32,
            JLE => a as u32 <= b as u32,
            JSGT => a > b,
            JSGE => a >= b,
            JSLT => a < b,
            _ => a <= b,
        };
        for (first, second) in [(-1, 1), (1, -1), (1, 1), (-2, -1)] {
            assert_eq!(
                holds(JMP | code, first, second),
                expected(first, second),
                "{code:#x} {first} {second}"
            );
            assert_eq!(
                holds(JMP32 | code, first, second),
                expected(first, second),
                "{code:#x} {first} {second}"
            );
        }
    }
}

#[test]
fn atomic_operations_return_the_previous_value() {
    let atomic = |operation: i32, from| ins(STX | ATOMIC | DOUBLE, [10, from], -8, operation);
    let cases = [
        (i32::from(ADD) | FETCH, 7, 5, 12),
        (i32::from(ADD), 5, 5, 12),
        (XCHG, 7, 5, 5),
        (i32::from(XOR) | FETCH, 7, 5, 2),
    ];
    for (operation, returned, operand, stored) in cases {
        let start = [
            ins(ST | MEM | DOUBLE, [10, 0], -8, 7),
            mov(3, operand),
            atomic(operation, 3),
        ];
        let result = |last| run(program(&[&start[..], &[last, exit()]].concat())).0.result;
        assert_eq!(result(ins(ALU64 | MOV | X, [0, 3], 0, 0)), Ok(returned));
        assert_eq!(result(ins(LDX | MEM | DOUBLE, [0, 10], -8, 0)), Ok(stored));
    }
    for (compared, stored) in [(7, 5), (8, 7)] {
        let start = [
            ins(ST | MEM | DOUBLE, [10, 0], -8, 7),
            mov(3, 5),
            mov(0, compared),
            atomic(CMPXCHG, 3),
        ];
        let load = ins(LDX | MEM | DOUBLE, [1, 10], -8, 0);
        let result = run(program(
            &[
                &start[..],
                &[
                    load,
                    ins(ALU64 | LSH, [0, 0], 0, 8),
                    ins(ALU64 | OR | X, [0, 1], 0, 0),
                    exit(),
                ],
            ]
            .concat(),
        ));
        assert_eq!(result.0.result, Ok(7 << 8 | stored));
    }
}

#[test]
fn a_frame_grows_and_shrinks_at_both_ends() {
    let adjust = |helper, by| {
        let instructions = [
            ins(ALU64 | MOV | X, [6, 1], 0, 0),
            mov(2, by),
            ins(CALL, [0, 0], 0, helper),
            exit(),
        ];
        let (run, frame) = run(program(&instructions));
        (run.result.unwrap() as i64, frame)
    };
    let (head, tail) = (44, 65);
    assert_eq!(
        adjust(head, -4).1,
        [&[0; 4][..], &(32..96).collect::<Vec<u8>>()].concat()
    );
    assert_eq!(adjust(head, 20).1, (52..96).collect::<Vec<u8>>());
    assert_eq!(adjust(tail, -4).1, (32..92).collect::<Vec<u8>>());
    assert_eq!(adjust(tail, 2).1.last_chunk(), Some(&[95, 0, 0]));
    for (helper, by) in [
        (head, -33),
        (head, 51),
        (tail, 33),
        (tail, -51),
        (head, i32::MIN),
        (tail, i32::MAX),
    ] {
        assert_eq!(adjust(helper, by), (-22, (32..96).collect()));
    }
}

#[test]
fn packets_that_are_sent_back_or_redirected_are_counted() {
    let mut tx = rig(program(&[mov(0, 3), exit()]), true);
    assert_eq!(tx.run(&[udp(1, 1)], NOW).len(), 1);
    assert_eq!(tx.count("xdp/xdp-tx"), 1);
    for (verdict, reason) in [
        (0, "xdp-aborted"),
        (1, "xdp-drop"),
        (4, "xdp-redirect"),
        (9, "xdp-aborted"),
    ] {
        let mut rig = rig(program(&[mov(0, verdict), exit()]), true);
        assert!(rig.run(&[udp(1, 1)], NOW).is_empty());
        assert_eq!(rig.count(&format!("xdp/{reason}")), 1);
    }
    // A program that spoils the headers: functions behind it would rely on them.
    let spoil = [
        ins(LDX | MEM, [2, 1], 0, 0),
        ins(ST | MEM | BYTE, [2, 0], 14, 0xf0),
        mov(0, 2),
        exit(),
    ];
    let mut rig = rig(program(&spoil), false);
    assert!(rig.run(&[udp(1, 1)], NOW).is_empty());
    assert_eq!(rig.count("xdp/xdp-invalid"), 1);
}

#[test]
fn wrong_programs_are_refused_with_the_reason() {
    let refused = |instructions: &[Instruction]| Program::of_instructions(instructions).unwrap_err().to_string();
    let cases: [(&[Instruction], &str); 9] = [
        (&[], "instruction 0: expected exit, found the end of the section"),
        (
            &[mov(0, 1)],
            "instruction 1: expected exit, found the end of the section",
        ),
        (&[mov(10, 1), exit()], "instruction 0: it writes r10, the frame pointer"),
        (&[mov(11, 1), exit()], "instruction 0: registers r11 and r0, of 11"),
        (
            &[ins(JMP | JA, [0, 0], 5, 0), exit()],
            "instruction 0: a jump over 5 instructions, which leaves the program",
        ),
        (
            &[ins(0xff, [0, 0], 0, 0), exit()],
            "instruction 0: unknown instruction 0xff (offset 0, constant 0x0)",
        ),
        (
            &[ins(LD_IMM64, [1, 0], 0, 0), exit()],
            "instruction 0: expected the second half of a 64-bit constant behind it",
        ),
        (
            &[ins(CALL, [0, 0], 0, 51), exit()],
            "instruction 0: it calls the helper bpf_redirect_map (number 51), which is not",
        ),
        (
            &[ins(CALL, [0, 2], 0, 1), exit()],
            "instruction 0: a call of a kernel function",
        ),
    ];
    for (instructions, expected) in cases {
        let found = refused(instructions);
        assert!(found.starts_with(expected), "{found}");
    }
    // Nobody runs the instruction that is wrong.
    program(&[mov(0, 2), exit(), mov(10, 1)]);
}

#[test]
fn wrong_objects_are_refused_with_the_reason() {
    let refused = |bytes: &[u8], section, function| parse_object(bytes, section, function).unwrap_err().to_string();
    let found = refused(b"int main() {}", "xdp", None);
    assert!(
        found.starts_with("expected a 64-bit little-endian ELF object, as clang"),
        "{found}"
    );
    assert_eq!(refused(PORT_FILTER, "tc", None), "expected the section tc, found xdp");
    let found = refused(PORT_FILTER, "xdp", Some("main"));
    assert_eq!(found, "section xdp: expected the function main, found port_filter");
    let mut other = PORT_FILTER.to_vec();
    other[18] = 62;
    assert_eq!(
        refused(&other, "xdp", None),
        "expected an object for BPF (machine 247, type 1), found machine 62, type 1"
    );
    // A section of code without bytes in the file, though it has a size and relocations.
    let mut empty = PORT_FILTER.to_vec();
    let sections = u64::from_le_bytes(*empty[40..].first_chunk().unwrap()) as usize;
    empty[sections + 3 * 64 + 4] = 8;
    let found = refused(&empty, "xdp", None);
    assert!(found.starts_with("section xdp: a relocation at offset"), "{found}");
    // Any single byte may be wrong, and any end may be missing: no panic, and no memory by what it says.
    for at in (0..PORT_FILTER.len()).step_by(3) {
        let mut broken = PORT_FILTER.to_vec();
        broken[at] ^= 0xff;
        let _ = parse_object(&broken, "xdp", None);
        let _ = parse_object(&PORT_FILTER[..at], "xdp", None);
    }
}

#[test]
fn maps_are_bounded() {
    let refused = |numbers| MapSpec::new("ports", numbers).unwrap_err();
    assert_eq!(
        refused([14, 4, 4, 1, 0]),
        "expected an array, hash or lru_hash, or one per CPU, found kind 14 (devmap)"
    );
    assert_eq!(refused([2, 8, 8, 1, 0]), "expected a key of 4 bytes, found 8");
    assert_eq!(refused([1, 0, 8, 1, 0]), "expected a key of 1 to 64 bytes, found 0");
    assert_eq!(
        refused([1, 4, u32::MAX, 1, 0]),
        "expected a value of 1 to 1048576 bytes, found 4294967295"
    );
    assert!(refused([1, 4, 8, u32::MAX, 0]).starts_with("expected at most 268435456 bytes, found 4294967295 entries"));
    assert_eq!(refused([1, 4, 8, 1, 1 << 10]), "flags 0x400 are not supported");
}
