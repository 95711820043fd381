use super::program::code::*;
use super::*;
use proptest::prelude::*;
use std::sync::Arc;
use tailwater_api::PacketAction;
use tailwater_chain::function::NetworkFunction;
use tailwater_chain::live::Live;
use tailwater_chain::rig::{ChainRig, INPUT};
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::vlan::VlanTag;
use tailwater_net::{FlowKey, Nanos, protocol};

mod oracle;

use oracle::Oracle;

fn instruction(code: u16, jumps: [u8; 2], k: u32) -> Instruction {
    let [jt, jf] = jumps;
    Instruction { code, jt, jf, k }
}

/// Generates operands: small ones for offsets and bits, and arbitrary ones.
fn operand() -> impl Strategy<Value = u32> {
    prop_oneof![0_u32..70, 0_u32..16, any::<u32>(), Just(0x800), Just(0)]
}

/// Generates instructions of any kind with short jumps.
fn any_instruction() -> impl Strategy<Value = Instruction> {
    let loads = prop::sample::select(vec![
        LD | ABS | WORD,
        LD | ABS | HALF,
        LD | ABS | BYTE,
        LD | IND | WORD,
        LD | IND | HALF,
        LD | IND | BYTE,
        LD | IMM,
        LD | LEN,
        LDX | IMM,
        LDX | LEN,
        LDX | MSH | BYTE,
    ]);
    let memory = prop::sample::select(vec![LD | MEM, LDX | MEM, ST, STX]);
    let operations = [ADD, SUB, MUL, DIV, OR, AND, LSH, RSH, MOD, XOR];
    let alu = prop::sample::select(
        operations
            .into_iter()
            .flat_map(|operation| [ALU | operation, ALU | operation | X])
            .chain([ALU | NEG, TAX, TXA])
            .collect::<Vec<_>>(),
    );
    let tests = [JEQ, JGT, JGE, JSET];
    let jump = prop::sample::select(
        tests
            .into_iter()
            .flat_map(|test| [JMP | test, JMP | test | X])
            .collect::<Vec<_>>(),
    );
    prop_oneof![
        6 => (loads, operand()).prop_map(|(code, k)| instruction(code, [0, 0], k)),
        2 => (memory, 0_u32..16).prop_map(|(code, k)| instruction(code, [0, 0], k)),
        3 => (alu, operand()).prop_map(|(code, k)| instruction(code, [0, 0], k)),
        5 => (jump, [0_u8..6, 0_u8..6], operand()).prop_map(|(code, jumps, k)| instruction(code, jumps, k)),
        1 => (0_u32..6).prop_map(|k| instruction(JMP | JA, [0, 0], k)),
        1 => prop::sample::select(vec![RET, RET_A]).prop_map(|code| instruction(code, [0, 0], 7)),
        1 => (any::<u16>(), any::<[u8; 2]>(), operand()).prop_map(|(code, jumps, k)| instruction(code, jumps, k)),
    ]
}

/// Adds stores to all memory words in front of a program, because libpcap's memory is uninitialised.
fn with_memory(program: Vec<Instruction>) -> Vec<Instruction> {
    let clear = (0..16).map(|word| instruction(ST, [0, 0], word));
    let end = [instruction(TXA, [0, 0], 0), instruction(RET_A, [0, 0], 0)];
    clear.chain(program).chain(end).collect()
}

fn packet() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![any::<u8>(), Just(8), Just(0x45), Just(0)], 0..90)
}

/// Accepted programs are also accepted by libpcap and give the same result.
#[test]
fn programs_are_run_as_libpcap_runs_them() {
    let Some(oracle) = Oracle::load() else { return };
    proptest!(ProptestConfig::with_cases(4000), |(
        program in prop::collection::vec(any_instruction(), 0..40),
        packets in prop::collection::vec(packet(), 1..6),
    )| {
        let program = with_memory(program);
        if let Ok(filter) = Filter::new(&program) {
            prop_assert!(oracle.accepts(&program));
            for packet in &packets {
                prop_assert_eq!(filter.run(packet), oracle.run(&program, packet), "{:?}", program);
            }
        }
    });
}

/// Runs programs without invalid instructions, so that most execute, many of them with fused steps.
#[test]
fn sound_programs_are_run_as_libpcap_runs_them() {
    let Some(oracle) = Oracle::load() else { return };
    proptest!(ProptestConfig::with_cases(4000), |(
        program in prop::collection::vec(any_instruction(), 1..40),
        packets in prop::collection::vec(packet(), 1..6),
    )| {
        let mut program = with_memory(program);
        let count = program.len();
        // Replaces instructions that are invalid on their own.
        for at in 16..count - 2 {
            let behind = vec![instruction(RET, [0, 0], 1); count - at - 1];
            let alone = [&program[at..at + 1], &behind[..]].concat();
            if verify(&alone).is_err() {
                program[at] = instruction(TAX, [0, 0], 0);
            }
        }
        let filter = Filter::new(&program).unwrap();
        prop_assert!(oracle.accepts(&program));
        for packet in &packets {
            prop_assert_eq!(filter.run(packet), oracle.run(&program, packet), "{:?}", program);
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn any_text_is_a_program_or_refused(text in "[0-9 \n]{0,80}") {
        if let Ok(program) = parse_program(&text) {
            let again: Vec<String> = std::iter::once(program.len().to_string())
                .chain(program.iter().map(|i| format!("{} {} {} {}", i.code, i.jt, i.jf, i.k)))
                .collect();
            prop_assert_eq!(parse_program(&again.join("\n")).unwrap(), program);
        }
    }
}

const RETURN: Instruction = Instruction {
    code: RET,
    jt: 0,
    jf: 0,
    k: 1,
};

#[test]
fn what_could_do_harm_is_refused() {
    let refused = |program: &[Instruction]| Filter::new(program).unwrap_err().to_string();
    let alone = |code, jumps, k| refused(&[instruction(code, jumps, k), RETURN]);
    assert_eq!(refused(&[]), "expected 1 to 4096 instructions, found 0");
    assert_eq!(
        refused(&vec![RETURN; MAX_INSTRUCTIONS + 1]),
        "expected 1 to 4096 instructions, found 4097"
    );
    assert!(Filter::new(&vec![RETURN; MAX_INSTRUCTIONS]).is_ok());
    assert_eq!(
        refused(&[RETURN, instruction(LD | LEN, [0, 0], 0)]),
        "instruction 1: expected ret as the last instruction"
    );
    let jump = "instruction 0: a jump over 1 instructions, where 1 follow";
    for jumps in [[0, 1], [1, 0]] {
        assert_eq!(alone(JMP | JEQ, jumps, 0), jump);
    }
    assert_eq!(alone(JMP | JA, [0, 0], 1), jump);
    // A jump backwards, if offsets were added in 32 bits.
    let around = "instruction 0: a jump over 4294967295 instructions, where 1 follow";
    assert_eq!(alone(JMP | JA, [0, 0], u32::MAX), around);
    for code in [LD | MEM, LDX | MEM, ST, STX] {
        let memory = "instruction 0: scratch memory word 16, of 16 words";
        assert_eq!(alone(code, [0, 0], 16), memory);
    }
    for code in [ALU | DIV, ALU | MOD] {
        let zero = "instruction 0: a division by zero";
        assert_eq!(alone(code, [0, 0], 0), zero);
        assert!(Filter::new(&[instruction(code | X, [0, 0], 0), RETURN]).is_ok());
    }
    let shift = "instruction 0: a shift of a 32-bit word by 32 bits";
    assert_eq!(alone(ALU | LSH, [0, 0], 32), shift);
    let extension = "instruction 0: offset 0xfffff004 is a Linux extension for data outside the packet";
    assert_eq!(alone(LD | ABS, [0, 0], 0xffff_f004), extension);
    for code in [
        0x0e,
        0x1e,
        0xff,
        0x100,
        0x800 | LD,
        ALU | NEG | X,
        ST | 0x20,
        LDX | HALF,
    ] {
        let unknown = format!("instruction 0: unknown instruction {code:#x}");
        assert_eq!(alone(code, [0, 0], 0), unknown);
    }
}

#[test]
fn text_of_programs_is_told_by_line() {
    let error = |text: &str| parse_program(text).unwrap_err();
    let number = "expected the number of instructions, 1 to 4096, found";
    assert_eq!(error(""), (1, format!("{number} nothing")));
    assert_eq!(error("\n0\n"), (2, format!("{number} \"0\"")));
    let (line, why) = error("2\n40 0 0 12\n21 256 0 1\n");
    assert_eq!(line, 3);
    assert!(why.ends_with("code, jt, jf and k, found \"21 256 0 1\""), "{why}");
    assert_eq!(error("2\n6 0 0 1\n").1, "expected 2 instructions, found 1");
    assert_eq!(
        error("1\n6 0 0 1\n6 0 0 0\n"),
        (3, "expected 1 instructions, found more".to_owned())
    );
    assert_eq!(parse_program("1\n6 0 0 1\n").unwrap(), [RETURN]);
}

fn frames() -> Vec<Vec<u8>> {
    let v6 = |text: &str| text.parse().unwrap();
    let keys = [
        FlowKey::v4([10, 0, 0, 1].into(), [192, 0, 2, 1].into(), protocol::TCP, 4000, 80),
        FlowKey::v4([192, 0, 2, 1].into(), [10, 0, 0, 1].into(), protocol::TCP, 443, 4000),
        FlowKey::v4([10, 0, 0, 2].into(), [192, 0, 2, 1].into(), protocol::UDP, 53, 53),
        FlowKey::v6(v6("2001:db8::1"), v6("2001:db8::2"), protocol::TCP, 4000, 80),
        FlowKey::v6(v6("2001:db8::1"), v6("2001:db8::2"), protocol::UDP, 4000, 53),
        FlowKey::v4([10, 0, 0, 1].into(), [192, 0, 2, 1].into(), 47, 0, 0),
    ];
    let mut frames = Vec::new();
    for key in &keys {
        for (payload, tag) in [(0, None), (600, None), (9, Some(VlanTag::customer(7)))] {
            let bytes = vec![0x5a; payload];
            let mut builder = FrameBuilder::new(key).payload(&bytes).ip_options(&[]);
            if let Some(tag) = tag {
                builder = builder.vlan(tag);
            }
            if key.protocol() == protocol::TCP {
                builder = builder.tcp(TcpFields::default());
            }
            frames.push(builder.to_vec().unwrap());
        }
    }
    frames
}

/// Expressions from manuals and from daily use.
const EXPRESSIONS: &[&str] = &[
    "",
    "ip",
    "ip6",
    "arp",
    "tcp",
    "udp port 53",
    "tcp port 80",
    "tcp dst port 80 or tcp dst port 443",
    "host 10.0.0.1",
    "src host 10.0.0.1 and dst port 80",
    "net 192.0.2.0/24 and not port 53",
    "ip6 host 2001:db8::1",
    "portrange 4000-5000",
    "greater 500",
    "less 100",
    "vlan",
    "vlan 7 and tcp port 80",
    "not vlan and udp",
    "tcp[tcpflags] & (tcp-syn|tcp-ack) != 0",
    "ip[6:2] & 0x1fff = 0 and udp",
    "(ip[2:2] - ((ip[0]&0xf)<<2)) % 2 = 1",
    "ether[0] & 1 = 0 and ip[16] >= 192",
    "len > 60 and len <= 700",
    "ip proto 47",
    "icmp or (udp and (port 53 or port 123))",
    "tcp[((tcp[12] & 0xf0) >> 2):4] = 0x47455420",
];

/// For compiled expressions, libpcap's interpreter and this one give the same result for each packet.
#[test]
fn expressions_match_as_libpcap_says() {
    let Some(oracle) = Oracle::load() else { return };
    let frames = frames();
    let mut found = 0;
    for expression in EXPRESSIONS {
        let program = compile(expression).unwrap();
        assert!(oracle.accepts(&program));
        let filter = Filter::new(&program).unwrap_or_else(|refused| panic!("{expression}: {refused}"));
        for frame in &frames {
            for length in [frame.len(), 60.min(frame.len()), 30, 13, 0] {
                let (ours, theirs) = (filter.run(&frame[..length]), oracle.run(&program, &frame[..length]));
                assert_eq!(ours, theirs, "{expression}");
                found += usize::from(ours > 0);
            }
        }
    }
    assert!(found > 200, "{found}");
}

#[test]
fn wrong_expressions_are_refused_in_libpcaps_words() {
    if Oracle::load().is_none() {
        return;
    }
    for expression in [
        "tcp prt 80",
        "port 70000",
        "host 10.0.0.1 and (",
        "broadcast and ip broadcast",
    ] {
        let error = compile(expression).unwrap_err();
        assert!(
            matches!(&error, CompileError::Expression(why) if !why.is_empty()),
            "{error}"
        );
    }
    let error = compile("tcp\0port").unwrap_err();
    assert_eq!(error, CompileError::Expression("expected no zero bytes".to_owned()));
}

/// Returns a program like that of an expression, without libpcap. It matches IPv4 without options and destination port
/// `port`.
fn to_port(port: u32) -> Vec<Instruction> {
    vec![
        instruction(LD | ABS | HALF, [0, 0], 12),
        instruction(JMP | JEQ, [0, 3], 0x800),
        instruction(LD | ABS | HALF, [0, 0], 36),
        instruction(JMP | JEQ, [0, 1], port),
        RETURN,
        instruction(RET, [0, 0], 0),
    ]
}

#[test]
fn the_first_rule_that_matches_decides() {
    let rule = |port, action| Rule {
        program: to_port(port),
        action,
    };
    let count = |rig: &ChainRig, name: &str| rig.count(&format!("bpffilter/{name}"));
    let rules = [
        rule(80, PacketAction::Pass),
        rule(80, PacketAction::Drop),
        rule(53, PacketAction::Drop),
    ];
    let to = |port| {
        let key = FlowKey::v4([10, 0, 0, 1].into(), [192, 0, 2, 1].into(), protocol::UDP, 9, port);
        FrameBuilder::new(&key).to_vec().unwrap()
    };
    for (default, sent) in [(PacketAction::Pass, 3), (PacketAction::Drop, 2)] {
        let live = Arc::new(Live::new(BpfRules::new(&rules, default).unwrap()));
        let function = BpfFilter::new(Arc::clone(&live));
        assert_eq!(function.state_bytes(), 0);
        assert_eq!(function.drop_reasons(), ["no-rule", "rule-1", "rule-2", "rule-3"]);
        let mut rig = ChainRig::new(vec![Box::new(function)], INPUT);
        let left = rig.run(&[to(80), to(53), to(7), to(80)], Nanos::ZERO);
        assert_eq!(left.len(), sent);
        let counts = ["rule-1-passed", "rule-2", "rule-2-passed", "rule-3", "no-rule"];
        let counts = counts.map(|name| count(&rig, name));
        assert_eq!(counts, [2, 0, 0, 1, 3 - sent as u64]);
        // The new rules are in force from the next batch.
        let others = [
            rule(7, PacketAction::Drop),
            rule(7, PacketAction::Drop),
            rule(80, PacketAction::Drop),
        ];
        live.replace(BpfRules::new(&others, PacketAction::Pass).unwrap());
        assert_eq!(rig.run(&[to(80), to(53), to(7)], Nanos::ZERO).len(), 1);
        assert_eq!((count(&rig, "rule-1"), count(&rig, "rule-3")), (1, 2));
    }
    let wrong = Rule {
        program: vec![instruction(TAX, [0, 0], 0)],
        action: PacketAction::Drop,
    };
    let (at, _) = BpfRules::new(&[rule(1, PacketAction::Pass), wrong], PacketAction::Pass).unwrap_err();
    assert_eq!(at, 1);
}
