//! Modules of clang in a chain (sources: `tests/wasm/hostile.c`, `examples/functions/rate-limit`), and wrong modules.

use super::function::Loaded;
use super::*;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use tailwater_chain::rig::{ChainRig, INPUT};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::{FlowKey, Nanos, protocol};

const HOSTILE: &[u8] = include_bytes!("../../tests/wasm/hostile.wasm");
const RATE_LIMIT: &[u8] = include_bytes!("../../../../examples/programs/wasm/rate_limit.wasm");
const NOW: Nanos = Nanos::from_secs(1);
const LIMITS: Limits = Limits {
    instructions: 32_768,
    memory: 1 << 20,
    setup: 200_000,
};

fn udp(port: u16, payload: &str) -> Vec<u8> {
    let ends = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(198, 18, 0, 1));
    let key = FlowKey::v4(ends.0, ends.1, protocol::UDP, port, 53);
    FrameBuilder::new(&key).payload(payload.as_bytes()).to_vec().unwrap()
}

fn new(bytes: &[u8], config: &str) -> Result<(Machine, Description), WasmError> {
    Machine::new(&Program::parse(bytes)?, config, &LIMITS)
}

fn rig(mode: char, read_only: bool) -> ChainRig {
    let program = Program::parse(HOSTILE).unwrap();
    let config = format!("{{\"mode\":\"{mode}\"}}");
    let (machine, description) = Machine::new(&program, &config, &LIMITS).unwrap_or_else(|error| panic!("{error}"));
    let loaded = Loaded {
        program,
        description,
        config,
        read_only,
        limits: LIMITS,
        setup_cost: machine.setup_cost(),
    };
    ChainRig::new(vec![Box::new(Wasm::new(Arc::new(loaded)))], INPUT)
}

#[test]
fn a_module_explains_traced_packets_and_changes_nothing_by_it() {
    let mut rig_of = rig('W', false);
    let (good, bad) = (udp(7, "."), udp(7, "W"));
    assert_eq!(rig_of.explain(&good, NOW), ["new flow, packet 1, from 7"]);
    assert_eq!(rig_of.explain(&bad, NOW), ["packet 2, from 7"]);
    assert_eq!(rig_of.run(std::slice::from_ref(&bad), NOW), std::slice::from_ref(&bad));
    assert_eq!(rig_of.explain(&good, NOW), ["packet 4, from 7"]);
    assert_eq!(rig_of.count("hostile/packets"), 4);
    assert_eq!(
        rig('n', false).explain(&udp(7, "n"), NOW),
        ["new flow, packet 1, refused, from 7"]
    );
    for (mode, expected) in [('O', "o".repeat(189) + "..."), ('B', "a\u{fffd}b\u{fffd}".to_owned())] {
        assert_eq!(rig(mode, false).explain(&udp(7, &mode.to_string()), NOW), [expected]);
    }
}

#[test]
fn an_explanation_that_misbehaves_is_ended_with_its_instance() {
    for (mode, fault) in [('X', "more instructions than allowed"), ('T', "trap (unreachable)")] {
        let mut rig = rig(mode, false);
        let bad = udp(7, &mode.to_string());
        assert_eq!(
            rig.run(std::slice::from_ref(&bad), NOW).len(),
            1,
            "not called for packets that nobody traces"
        );
        let expected = format!("its explanation was ended: {fault}");
        assert_eq!(rig.explain(&bad, NOW), [expected], "{mode}");
        // The explained packet was sent, and flow states stay.
        assert_eq!(rig.count("hostile/packets"), 2);
        for _ in 0..4 {
            rig.run(&vec![bad.clone(); 8], NOW);
        }
        let counted = rig.count("hostile/packets");
        assert!(counted >= 18, "{mode}: {counted}");
        let explained = rig.explain(&udp(7, "."), NOW);
        assert_eq!(explained, [format!("packet {}, from 7", counted + 1)]);
    }
}

#[test]
fn a_call_that_misbehaves_is_ended_and_flow_states_stay() {
    let cases = [
        ('l', "wasm-limit", "more instructions than allowed"),
        ('w', "wasm-trap", "access out of bounds of the memory"),
        ('r', "wasm-trap", "access out of bounds of the memory"),
        ('s', "wasm-trap", ""),
        ('u', "wasm-trap", "trap (unreachable)"),
        ('d', "wasm-trap", "division by zero"),
        ('c', "wasm-trap", "failed (code 9)"),
    ];
    for (mode, reason, explanation) in cases {
        let mut rig = rig(mode, false);
        let (good, bad) = (udp(1, "."), udp(1, &mode.to_string()));
        assert_eq!(rig.run(&[good.clone(), good.clone()], NOW).len(), 2, "{mode}");
        // The packets of the call are dropped together, and a new instance processes the next ones.
        assert!(
            rig.run(&[good.clone(), bad.clone(), good.clone()], NOW).is_empty(),
            "{mode}"
        );
        assert_eq!(rig.count(&format!("hostile/{reason}")), 3, "{mode}");
        assert_eq!(rig.chain.lost(), 3);
        let batch = vec![good.clone(); 8];
        // Each packet pays for a part of the set-up.
        let sent: usize = (0..4).map(|_| rig.run(&batch, NOW).len()).sum();
        assert!((16..=32).contains(&sent), "{mode}: {sent}");
        let explained = rig.explain(&bad, NOW);
        assert!(
            explained[0].starts_with("its call was ended: ") && explained[0].contains(explanation),
            "{explained:?}"
        );
        // The flow was new once, and its state counts the packets that passed.
        assert_eq!(rig.count("hostile/packets"), 2 + sent as u64);
        for _ in 0..4 {
            rig.run(&batch, NOW);
        }
        let packets = rig.count("hostile/packets");
        for _ in 0..10_000 {
            rig.chain.expire(Nanos::from_secs(600));
        }
        assert_eq!(
            (rig.chain.flows(), rig.count("hostile/packets-of-ended-flows")),
            (0, packets)
        );
    }
}

#[test]
fn results_that_are_not_allowed_are_dropped_as_invalid() {
    for (mode, read_only) in [('v', false), ('p', false), ('e', false), ('m', false), ('t', true)] {
        let mut rig = rig(mode, read_only);
        let (good, bad) = (udp(1, "."), udp(1, &mode.to_string()));
        assert_eq!(rig.run(&[good.clone(), bad, good.clone()], NOW), [good.clone(), good]);
        assert_eq!(rig.count("hostile/invalid"), 1, "{mode}");
    }
    let mut refusing = rig('n', false);
    assert!(refusing.run(&[udp(1, "n")], NOW).is_empty());
    assert_eq!((refusing.count("hostile/refused"), refusing.chain.lost()), (1, 0));
}

#[test]
fn frames_change_where_the_function_says_so() {
    let frame = udp(1, "f and t");
    let mut changed = frame.clone();
    // A header needs TW_REWRITTEN to change; the payload does not.
    changed[42] = b'F';
    assert_eq!(rig('f', false).run(std::slice::from_ref(&frame), NOW), [changed]);
    assert_eq!(rig('f', true).run(std::slice::from_ref(&frame), NOW), [frame]);
    let frame = udp(1, "tagged");
    let tagged = [&frame[..12], b"\x81\0\0\x07", &frame[12..]].concat();
    let mut rig = rig('t', false);
    assert_eq!(rig.run(&[frame], NOW), [tagged]);
}

#[test]
fn memory_grows_up_to_the_limit() {
    let mut rig = rig('g', false);
    assert_eq!(rig.run(&[udp(1, "g")], NOW).len(), 1);
    let (machine, _) = new(HOSTILE, "{}").unwrap();
    let own = machine.memory_bytes() / 65_536;
    // The limit is that of the module's own memory; the host's area comes on top.
    assert!(rig.count("hostile/pages") < 16 && own < 8, "{own}");
    let small = Limits {
        memory: 65_535,
        ..LIMITS
    };
    let error = Machine::new(&Program::parse(HOSTILE).unwrap(), "{}", &small)
        .err()
        .unwrap();
    assert!(
        error
            .to_string()
            .starts_with("expected at most 65535 bytes of memory (memoryLimit), found "),
        "{error}"
    );
}

/// The example's rate limit drops what its source says: the burst, then a packet for each interval.
#[test]
fn a_rate_limit_has_a_state_for_each_flow() {
    let (_, description) = new(RATE_LIMIT, "{\"packetsPerSecond\":1000,\"burst\":3}").unwrap();
    assert_eq!((description.name, description.state_bytes), ("rate-limit", 24));
    assert_eq!(
        description.drop_reasons,
        ["over-rate", "invalid", "wasm-limit", "wasm-trap"]
    );
    assert_eq!(description.counters, ["flows", "limited-flows"]);
    let refused = new(RATE_LIMIT, "{\"packetsPerSecond\":1000,\"burst\":0}")
        .err()
        .unwrap();
    assert_eq!(
        refused,
        WasmError::Config {
            field: "burst".to_owned(),
            message: "expected a whole number from 1 to 1000000".to_owned()
        }
    );
}

/// Replaces bytes of a module by as many others.
fn patched(from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut bytes = HOSTILE.to_vec();
    let at = bytes.windows(from.len()).rposition(|window| window == from);
    let at = at.expect("the bytes are there");
    bytes[at..at + to.len()].copy_from_slice(to);
    bytes
}

/// Replaces a word of `tailwater_function`.
fn described(at: usize, word: u32) -> Vec<u8> {
    let start = [2_u32, 72].map(u32::to_le_bytes);
    let start = start.as_flattened();
    let place = HOSTILE.windows(start.len()).position(|window| window == start);
    let place = place.expect("a description") + at;
    let mut bytes = HOSTILE.to_vec();
    bytes[place..place + 4].copy_from_slice(&word.to_le_bytes());
    bytes
}

#[test]
fn wrong_modules_are_refused_with_the_reason() {
    let expected = "expected a WebAssembly module, as clang --target=wasm32 compiles it, found ";
    let import = b"\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x02\x0b\x01\x03env\x03put\0\0";
    let cases: &[(Vec<u8>, &str)] = &[
        (b"int main() {}".to_vec(), &format!("{expected}text")),
        (Vec::new(), &format!("{expected}an empty file")),
        (
            b"\x7fELF\x02\x01".to_vec(),
            &format!("{expected}an ELF file, such as a library or program"),
        ),
        (
            b"\0asm\x0d\0\x01\0".to_vec(),
            &format!("{expected}a component: expected a core module"),
        ),
        (
            b"\0asm".to_vec(),
            "expected a valid WebAssembly module: the file is cut off",
        ),
        (
            HOSTILE[..HOSTILE.len() / 2].to_vec(),
            "expected a valid WebAssembly module: ",
        ),
        (import.to_vec(), "expected a module without imports, found env.put: "),
        (
            patched(b"memory", b"nemory"),
            "memory: expected a memory, found no export of that name",
        ),
        (
            patched(b"tailwater_function", b"tailwater_functiom"),
            "tailwater_function: expected an address (linked with --export=tailwater_function), found no export",
        ),
        (
            patched(b"__indirect_function_table", b"__indirect_function_tabla"),
            "__indirect_function_table: expected a table of functions (linked with --export-table), found no export",
        ),
        (
            described(0, 1),
            "expected a function built with version 2 of tailwater_nf.h, found version 1: ",
        ),
        (
            described(4, 64),
            "tailwater_function: expected a size of 68 bytes or more, found 64",
        ),
        (
            described(8, 0),
            "tailwater_function: name: expected a name of 1 to 63 lower-case letters",
        ),
        (
            described(8, u32::MAX),
            "tailwater_function: name: expected a name of 1 to 63 lower-case letters",
        ),
        (
            described(12, 8),
            "tailwater_function: flags: expected only those of tailwater_nf.h, found 0x8",
        ),
        (
            described(16, 1025),
            "tailwater_function: state_bytes: expected at most 1024, found 1025",
        ),
        (
            described(16, u32::MAX),
            "tailwater_function: state_bytes: expected at most 1024, found 4294967295",
        ),
        (
            described(16, 0),
            "tailwater_function: flows_ended: expected NULL with state_bytes 0",
        ),
        (
            described(20, u32::MAX - 3),
            "tailwater_function: expected an address within the memory",
        ),
        (
            described(28, 16),
            "tailwater_function: drop_reason_count: expected at most 15, found 16",
        ),
        (
            described(32, 33),
            "tailwater_function: counter_count: expected at most 32, found 33",
        ),
        (
            described(36, 2),
            "tailwater_function: configure: expected a function (i32, i32, i32, i32) -> i32, found one of another type",
        ),
        (
            described(52, 77),
            "tailwater_function: process: expected a function (i32, i32) -> i32, found a pointer to no function",
        ),
        (described(52, 0), "tailwater_function: expected process, found NULL"),
    ];
    for (bytes, expected) in cases {
        let found = new(bytes, "{}")
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert!(
            found.starts_with(expected) && !found.contains('\n'),
            "{found:?}, not {expected:?}"
        );
    }
    let found = new(HOSTILE, "{\"mode\":\"L\"}").err().unwrap().to_string();
    assert_eq!(found, "configure: more instructions than allowed");
    // Any single byte may be wrong, and any end may be missing: no panic, and no memory by what it says.
    for at in (0..HOSTILE.len()).step_by(61) {
        let mut broken = HOSTILE.to_vec();
        broken[at] ^= 0xff;
        let _ = new(&broken, "{}");
        let _ = Program::parse(&HOSTILE[..at]);
    }
}

#[test]
fn errors_are_those_of_the_spec() {
    let parse = |wasm: &str| {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  \
             slo: {{latency: 1ms}}\n  functions: [{{wasm: {{{wasm}}}}}]\n"
        );
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        crate::spec::ChainSpec::parse(&text, "test", &folder).map_err(|error| error.to_string())
    };
    let file = "file: programs/wasm/rate_limit.wasm";
    let spec = parse(&format!("{file}, config: {{packetsPerSecond: 10}}, memoryLimit: 1MiB")).unwrap();
    assert_eq!(spec.functions[0].name, "rate-limit");
    let wrong = [
        (
            format!("{file}, config: {{packetsPerSecond: x}}"),
            "wasm.config.packetsPerSecond: expected packetsPerSecond",
        ),
        (
            file.to_owned(),
            "wasm: config: expected packetsPerSecond, a whole number",
        ),
        (format!("{file}, config: []"), "wasm.config: expected a map"),
        (
            format!("{file}, memoryLimit: 1KiB"),
            "wasm.memoryLimit: expected a size from 64KiB to 1GiB",
        ),
        (
            format!("{file}, instructionLimit: 0"),
            "wasm.instructionLimit: expected a whole number from 1 to 1000000",
        ),
        (
            "file: xdp.yaml".to_owned(),
            "xdp.yaml: expected a WebAssembly module, as clang",
        ),
        ("file: programs/wasm/none.wasm".to_owned(), "none.wasm cannot be read"),
    ];
    for (wasm, expected) in wrong {
        let error = parse(&wasm).unwrap_err();
        assert!(error.contains(expected) && error.contains("test:6"), "{error}");
    }
}
