//! The C header and its Rust side agree: sizes, offsets, constants and results of its functions, as compiled by a C
//! compiler.

use std::fmt::Write;
use std::mem::offset_of;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use tailwater_sdk::{FlowKey, abi, host};

/// Compiles and runs a C program, and returns its output.
fn c_program(name: &str, body: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (folder.join(format!("{name}.c")), folder.join(name));
    let text = format!(
        "#include <stdio.h>\n#include <tailwater_nf.h>\n#include <tailwater_json.h>\n\
         int main(void) {{\n{body}\nreturn 0;\n}}\n"
    );
    std::fs::write(&source, text).unwrap();
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined"])
        .arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include"))
        .args(["-o".as_ref(), program.as_os_str(), source.as_os_str()])
        .output()
        .expect("a C compiler");
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let ran = Command::new(&program).output().unwrap();
    assert!(ran.status.success() && ran.stderr.is_empty(), "{ran:?}");
    String::from_utf8(ran.stdout).unwrap()
}

#[test]
fn the_headers_are_c_plus_plus_too() {
    let source = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("function.cpp");
    let text = "#include <tailwater_json.h>\n#include <tailwater_nf.h>\n\
        static int process(void *, tw_batch *batch) {\n\
            for (uint32_t i = 0; i < batch->count; i++) batch->packets[i].verdict = TW_DROP(0);\n\
            return 0;\n}\n\
        static const tw_drop_reason reasons[] = {{\"all\", 0}};\n\
        const tw_function tailwater_function = {TW_FUNCTION_HEAD, .name = \"all\", .drop_reasons = reasons,\n\
            .drop_reason_count = 1, .process = process};\n";
    std::fs::write(&source, text).unwrap();
    let compiled = Command::new("c++")
        .args([
            "-std=c++20",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-missing-field-initializers",
        ])
        .args(["-fPIC", "-fvisibility=hidden", "-shared", "-s"])
        .arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include"))
        .args([
            "-o".as_ref(),
            source.with_extension("so").as_os_str(),
            source.as_os_str(),
        ])
        .output()
        .expect("a C++ compiler");
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{said}");
    // C++ exports a constant only if it is declared so. Without `-s` its name would appear in any case.
    let library = std::fs::read(source.with_extension("so")).unwrap();
    let name = host::SYMBOL.to_bytes();
    assert!(library.windows(name.len()).any(|bytes| bytes == name));
}

macro_rules! layout {
    ($rust:ty, $c:literal, $($field:ident),+) => {{
        let mut c = format!("printf(\"{0} %zu\\n\", sizeof(struct {0}));\n", $c);
        let mut rust = format!("{} {}\n", $c, size_of::<$rust>());
        $(
            let field = stringify!($field);
            writeln!(c, "printf(\"{field} %zu\\n\", offsetof(struct {}, {field}));", $c).unwrap();
            writeln!(rust, "{field} {}", offset_of!($rust, $field)).unwrap();
        )+
        (c, rust)
    }};
}

#[test]
fn types_have_the_layout_of_the_header() {
    let parts = [
        layout!(abi::FlowKey, "tw_flow_key", words),
        layout!(
            abi::Packet,
            "tw_packet",
            frame,
            state,
            key,
            arrival_ns,
            length,
            flow,
            rss_hash,
            network_offset,
            transport_offset,
            payload_offset,
            end,
            headroom,
            tailroom,
            ip_version,
            fragment,
            flags,
            verdict,
            reserved
        ),
        layout!(abi::Batch, "tw_batch", packets, counters, count, reserved),
        layout!(abi::EndedFlow, "tw_ended_flow", key, state),
        layout!(abi::Error, "tw_error", message, field),
        layout!(abi::DropReason, "tw_drop_reason", name, is_loss),
        layout!(
            abi::Function,
            "tw_function",
            abi_version,
            size,
            name,
            flags,
            state_bytes,
            drop_reasons,
            counters,
            drop_reason_count,
            counter_count,
            configure,
            release,
            start,
            stop,
            process,
            flows_ended,
            state_version,
            reserved,
            explain
        ),
        layout!(abi::Explanation, "tw_explanation", text),
    ];
    let (c, rust): (Vec<String>, Vec<String>) = parts.into_iter().unzip();
    assert_eq!(c_program("layout", &c.concat()), rust.concat());
    assert_eq!(size_of::<abi::Packet>(), 64, "a cache line");
}

#[test]
fn constants_are_those_of_the_header() {
    let printed = c_program(
        "constants",
        r#"printf("%u %u %u %u %u %u %u %u %u %u %u %u", TW_ABI_VERSION, TW_MAX_DROP_REASONS,
            TW_MAX_COUNTERS, TW_MAX_STATE_BYTES, TW_NO_FLOW, TW_NEW_FLOW, TW_REWRITTEN, TW_FORWARD,
            TW_DROP(3), TW_HEADERS_ONLY, TW_REWRITES_FLOWS, TW_MAX_EXPLANATION);"#,
    );
    let expected = [
        abi::ABI_VERSION,
        abi::MAX_DROP_REASONS as u32,
        abi::MAX_COUNTERS as u32,
        abi::MAX_STATE_BYTES as u32,
        abi::NO_FLOW,
        abi::NEW_FLOW.into(),
        abi::REWRITTEN.into(),
        abi::FORWARD.into(),
        4,
        abi::HEADERS_ONLY,
        abi::REWRITES_FLOWS,
        abi::MAX_EXPLANATION as u32,
    ];
    assert_eq!(printed, expected.map(|value| value.to_string()).join(" "));
}

#[test]
fn keys_read_the_same() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let v4 = FlowKey::new(ip("10.1.2.3"), ip("203.0.113.254"), 6, 40_000, 443);
    let v6 = FlowKey::new(ip("2001:db8::1:2"), ip("fe80::ffff"), 17, 53, 65_535);
    let mut c = String::new();
    for key in [v4, v6] {
        let words = raw(&key).words.map(|word| format!("{word}ull")).join(", ");
        write!(
            c,
            r#"{{
                struct tw_flow_key k = {{ {{ {words} }} }};
                uint8_t s[16], d[16];
                tw_key_source_v6(&k, s);
                tw_key_destination_v6(&k, d);
                printf("%u %u %u %u ", tw_key_protocol(&k), tw_key_source_port(&k),
                    tw_key_destination_port(&k), tw_key_is_fragment(&k));
                if (tw_key_ip_version(&k) == 4)
                    printf("%08x %08x\n", tw_key_source_v4(&k), tw_key_destination_v4(&k));
                else {{
                    for (int i = 0; i < 16; i++) printf("%02x", s[i]);
                    printf(" ");
                    for (int i = 0; i < 16; i++) printf("%02x", d[i]);
                    printf("\n");
                }}
            }}"#
        )
        .unwrap();
    }
    let mut expected = String::new();
    for key in [v4, v6] {
        let address = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => format!("{:08x}", ip.to_bits()),
            IpAddr::V6(ip) => format!("{:032x}", ip.to_bits()),
        };
        writeln!(
            expected,
            "{} {} {} 0 {} {}",
            key.protocol(),
            key.source_port(),
            key.destination_port(),
            address(key.source()),
            address(key.destination())
        )
        .unwrap();
    }
    assert_eq!(c_program("keys", &c), expected);
}

/// Returns the words of a key.
fn raw(key: &FlowKey) -> abi::FlowKey {
    // SAFETY: `FlowKey` is transparent.
    unsafe { std::mem::transmute_copy(key) }
}

#[test]
fn the_c_reader_reads_configurations() {
    let printed = c_program(
        "json",
        r#"const char *config = "{\"rate\": 12, \"big\":18446744073709551615,\"huge\":18446744073709551616,"
            "\"part\":-2.5e1,\"on\":true,\"name\":\"a \\\"b\\\" \\u0041,\\n}\",\"none\":null,"
            "\"list\":[1,{\"x\":[2]},\"]\"],\"empty\":[],\"last\":{\"rate\":3}}";
        uint64_t whole = 0; double number = 0; int truth = -1; char text[32], name[16];
        printf("%d ", tw_json_uint(tw_json_field(config, "rate"), &whole));
        printf("%d ", (int)whole);
        printf("%d ", tw_json_uint(tw_json_field(config, "big"), &whole) && whole == UINT64_MAX);
        printf("%d ", tw_json_uint(tw_json_field(config, "huge"), &whole));
        printf("%d ", tw_json_uint(tw_json_field(config, "part"), &whole));
        printf("%d ", tw_json_number(tw_json_field(config, "part"), &number));
        printf("%.1f ", number);
        printf("%d ", tw_json_number(tw_json_field(config, "on"), &number));
        printf("%d ", tw_json_bool(tw_json_field(config, "on"), &truth));
        printf("%d ", truth);
        printf("%d ", tw_json_bool(tw_json_field(config, "none"), &truth));
        int length = tw_json_string(tw_json_field(config, "name"), text, sizeof text);
        printf("%d %d ", length, strcmp(text, "a \"b\" A,\n}"));
        printf("%d ", tw_json_string(tw_json_field(config, "name"), text, 10));
        printf("%d ", tw_json_string(tw_json_field(config, "rate"), text, sizeof text));
        printf("%d ", tw_json_field(config, "missing") == NULL);
        for (const char *i = tw_json_first(tw_json_field(config, "list")); i; i = tw_json_next(i))
            printf("%c", *i);
        printf(" %d ", tw_json_first(tw_json_field(config, "empty")) == NULL);
        tw_json_uint(tw_json_field(tw_json_field(config, "last"), "rate"), &whole);
        printf("%d\n", (int)whole);
        for (const char *at = config; tw_json_each(&at, name, sizeof name);) printf("%s ", name);"#,
    );
    assert_eq!(
        printed,
        "1 12 1 0 0 1 -25.0 0 1 1 0 10 0 -1 -1 1 1{\" 1 3\n\
         rate big huge part on name none list empty last "
    );
}
