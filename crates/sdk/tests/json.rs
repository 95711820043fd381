//! Both configuration readers against serde_json: they read every configuration correctly, and no text makes the Rust
//! reader panic.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tailwater_sdk::Config;

/// Any string, biased towards ones that are hard to parse.
fn text() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "\\", "\"", "]", "}", "{", "[", ",", ":", "\n", "\u{1}", "é", "😀", "a",
    ]);
    prop::collection::vec(pieces, 0..8).prop_map(|pieces| pieces.concat())
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        (-1e9..1e9f64).prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::hash_map(text(), inner, 0..6).prop_map(Value::from_iter),
        ]
    })
}

/// Random configuration: a map.
fn configuration() -> impl Strategy<Value = Value> {
    prop::collection::hash_map(text(), value(), 0..8).prop_map(Value::from_iter)
}

/// Checks that the Rust reader agrees with serde_json.
fn check(config: &Config, value: &Value) {
    match value {
        Value::Null => {}
        Value::Bool(truth) => assert_eq!(config.bool().unwrap(), *truth),
        Value::Number(number) => {
            assert_eq!(config.u64().ok(), number.as_u64());
            assert_eq!(config.f64().ok(), number.as_f64());
        }
        Value::String(text) => assert_eq!(config.text().unwrap(), text),
        Value::Array(items) => {
            let found = config.list().unwrap();
            assert_eq!(found.len(), items.len());
            found.iter().zip(items).for_each(|(config, value)| check(config, value));
        }
        Value::Object(map) => {
            let names: Vec<&str> = map.keys().map(String::as_str).collect();
            assert!(config.only(&names).is_ok());
            for (name, value) in map {
                match config.get(name) {
                    Some(config) => check(config, value),
                    None => assert!(value.is_null()),
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(value in value(), pretty: bool) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
        check(&Config::parse(&text.unwrap()).unwrap(), &value);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[\\[\\]{}:,\"\\\\0-9a-fnultrse.+ -]{0,40}") {
        if serde_json::from_str::<Value>(&text).is_ok() {
            prop_assert!(Config::parse(&text).is_ok());
        }
        let _ = Config::parse(&text);
    }
}

/// C program that prints every field of a configuration: its name, and its value in an unambiguous form.
const SEE: &str = r#"
#include <stdio.h>
#include <tailwater_json.h>

static void see(const char *value) {
    uint64_t whole;
    double number;
    int truth;
    char text[256];
    if (tw_json_uint(value, &whole)) printf("u%llu;", (unsigned long long)whole);
    else if (tw_json_number(value, &number)) printf("n%.17g;", number);
    else if (tw_json_bool(value, &truth)) printf("b%d", truth);
    else if (*value == '"') {
        int length = tw_json_string(value, text, sizeof text);
        printf("s");
        for (int i = 0; i < length; i++) printf("%02x", (unsigned char)text[i]);
    } else if (*value == '[') {
        printf("[");
        for (const char *item = tw_json_first(value); item; item = tw_json_next(item)) see(item);
        printf("]");
    } else if (*value == '{') {
        char name[256];
        printf("{");
        for (const char *at = value, *field; (field = tw_json_each(&at, name, sizeof name));) {
            for (char *c = name; *c; c++) printf("%02x", (unsigned char)*c);
            printf(":");
            see(field);
            if (tw_json_field(value, name) != field) printf("(not found again)");
        }
        printf("}");
    } else printf("0");
}

int main(void) {
    static char line[1 << 20];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        see(line);
        printf("\n");
    }
    return 0;
}
"#;

/// The same output, from serde_json.
fn seen(value: &Value) -> String {
    let hex = |text: &str| {
        text.bytes().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    };
    match value {
        Value::Null => "0".to_owned(),
        Value::Bool(truth) => format!("b{}", u8::from(*truth)),
        Value::Number(number) => match number.as_u64() {
            Some(whole) => format!("u{whole};"),
            None => format!("n{};", number.as_f64().unwrap()),
        },
        Value::String(text) => format!("s{}", hex(text)),
        Value::Array(items) => format!("[{}]", items.iter().map(seen).collect::<String>()),
        Value::Object(map) => {
            let fields = map.iter().map(|(name, value)| format!("{}:{}", hex(name), seen(value)));
            format!("{{{}}}", fields.collect::<String>())
        }
    }
}

/// Normalises fractional numbers, which the two programs print differently.
fn same_numbers(line: &str) -> String {
    let mut same = String::new();
    let mut rest = line;
    while let Some(at) = rest.find('n') {
        let (before, number) = rest.split_at(at + 1);
        let end = number.find(|c: char| !c.is_ascii_digit() && !"+-.e".contains(c));
        let (number, after) = number.split_at(end.unwrap_or(number.len()));
        let value: f64 = number.parse().unwrap_or(f64::NAN);
        let _ = write!(same, "{before}{value:e}");
        rest = after;
    }
    same + rest
}

#[test]
fn the_reader_in_c_sees_what_is_there() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (folder.join("see.c"), folder.join("see"));
    std::fs::write(&source, SEE).unwrap();
    let compiled = Command::new("cc")
        .args(["-std=c11", "-O1", "-Wall", "-Wextra", "-fsanitize=address,undefined"])
        .arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include"))
        .args(["-o".as_ref(), program.as_os_str(), source.as_os_str()])
        .output()
        .expect("a C compiler");
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let mut runner = TestRunner::deterministic();
    let mut values: Vec<Value> = (0..1000)
        .map(|_| configuration().new_tree(&mut runner).unwrap().current())
        .collect();
    values.push(json!({"": [], "a": {}, "b": [[], {}], "c": [[1, 2], [3]]}));
    let lines: String = values.iter().map(|value| format!("{value}\n")).collect();
    let mut child = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(printed.lines().count(), values.len());
    for (line, value) in printed.lines().zip(&values) {
        assert_eq!(same_numbers(line), same_numbers(&seen(value)), "{value}");
    }
}
