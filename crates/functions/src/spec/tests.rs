//! Properties of specs: no text makes the parser panic, errors point into the text, and a written spec reads back
//! unchanged.

use super::*;
use crate::acl::AclConfig;
use proptest::prelude::*;
use std::path::Path;
use tailwater_api::Throughput;
use tailwater_net::Nanos;

const FULL: &str = include_str!("../../tests/specs/right/full.yaml");
const UNUSUAL: &str = include_str!("../../tests/specs/right/unusual-yaml.yaml");

/// One change to a text. Positions and lengths are taken modulo the text's length.
#[derive(Clone, Debug)]
enum Mutation {
    Remove { at: usize, length: usize },
    Insert { at: usize, text: String },
    Copy { from: usize, length: usize, to: usize },
    SwapLines { a: usize, b: usize },
    RemoveLine(usize),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    // Fragments of specs, characters with a meaning in YAML, and anything else.
    let pieces = prop::sample::select(vec![
        ":",
        ": ",
        "- ",
        "\n",
        "\n  ",
        "\t",
        "{",
        "}",
        "[",
        "]",
        ",",
        "\"",
        "'",
        "&a ",
        "*a",
        "|",
        ">",
        "---\n",
        "...\n",
        "#",
        "!",
        "!!str ",
        "<<: ",
        "%",
        "?",
        "~",
        "null",
        "-1",
        "0",
        "1e9",
        "99999999999999999999",
        "0x10",
        ".inf",
        "/33",
        "::",
        "name",
        "acl",
        "nat",
        "200us",
        "µ",
        "\u{feff}",
        "\u{0}",
        "\r\n",
        "any",
        "80-",
        "-",
        "10.0.0.0/8",
    ]);
    let text = prop_oneof![
        4 => pieces.prop_map(str::to_string),
        1 => "\\PC{0,8}",
    ];
    let place = any::<prop::sample::Index>().prop_map(|index| index.index(1 << 16));
    prop_oneof![
        (place.clone(), 1..12_usize).prop_map(|(at, length)| Mutation::Remove { at, length }),
        (place.clone(), text).prop_map(|(at, text)| Mutation::Insert { at, text }),
        (place.clone(), 1..200_usize, place.clone()).prop_map(|(from, length, to)| Mutation::Copy { from, length, to }),
        (place.clone(), place.clone()).prop_map(|(a, b)| Mutation::SwapLines { a, b }),
        place.prop_map(Mutation::RemoveLine),
    ]
}

fn mutate(text: &str, mutation: &Mutation) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    let (end, count) = (chars.len() + 1, lines.len().max(1));
    match mutation {
        Mutation::Remove { at, length } => {
            let at = at % end;
            chars.drain(at..(at + length).min(end - 1));
        }
        Mutation::Insert { at, text } => {
            chars.splice(at % end..at % end, text.chars());
        }
        Mutation::Copy { from, length, to } => {
            let from = from % end;
            let copied = chars[from..(from + length).min(end - 1)].to_vec();
            chars.splice(to % end..to % end, copied);
        }
        Mutation::SwapLines { a, b } => {
            if !lines.is_empty() {
                lines.swap(a % count, b % count);
            }
            return lines.concat();
        }
        Mutation::RemoveLine(line) => {
            if !lines.is_empty() {
                lines.remove(line % count);
            }
            return lines.concat();
        }
    }
    chars.into_iter().collect()
}

/// Reads a spec. Each error must fit on one line, and the first must point into the text.
fn check(text: &str) -> Result<(), TestCaseError> {
    let Err(error) = ChainSpec::parse(text, "spec.yaml", Path::new("no-such-folder")) else {
        return Ok(());
    };
    let shown = error.to_string();
    prop_assert!(!shown.contains(['\r', '\u{1b}']), "{shown:?}");
    // The parser may detect an error only at the end of the text, one line after the last.
    let lines = text.split(['\n', '\r']).count();
    prop_assert!(error.line <= lines + 1, "{shown} in {lines} lines");
    prop_assert!(shown.split('\n').all(|line| line.starts_with("spec.yaml:")), "{shown}");
    prop_assert!(!error.message.is_empty());
    Ok(())
}

proptest! {
    #[test]
    fn mutated_specs_are_read_or_refused(
        unusual in any::<bool>(),
        mutations in prop::collection::vec(mutation(), 1..6),
    ) {
        let text = if unusual { UNUSUAL } else { FULL };
        check(&mutations.iter().fold(text.to_string(), |text, mutation| mutate(&text, mutation)))?;
    }

    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        check(&text)?;
    }

    #[test]
    fn what_is_written_is_read(
        latency in 1_000..=10_000_000_000_u64,
        thousandths in 1..100_000_u32,
        rate in 1..=10_000_u64,
        capacity in 512..=16_777_216_u32,
        tcp in 1..=86_400_000_u64,
        batch in 1..=256_u16,
        vlan in 1..=4094_u16,
        protocol in any::<u8>(),
        source in any::<u32>(),
        length in 0..=32_u8,
        low in any::<u16>(),
        high in any::<u16>(),
    ) {
        let (low, high) = (low.min(high), low.max(high));
        let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
        let source = std::net::Ipv4Addr::from_bits(source & mask);
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1
kind: Chain
metadata: {{name: any}}
spec:
  match: {{sources: [{source}/{length}], protocols: [{protocol}], vlans: [{vlan}]}}
  functions:
    - acl: {{rules: [{{action: deny, sourcePorts: {low}-{high}}}]}}
  slo: {{latency: {latency}ns, percentile: {}.{:03}, throughput: {rate}Gbps}}
  flows: {{capacity: {capacity}, idleTimeout: {{tcp: {tcp}ms}}}}
  packets: {{batch: {batch}}}
",
            thousandths / 1000,
            thousandths % 1000,
        );
        let spec = ChainSpec::parse(&text, "spec.yaml", Path::new(""))?;
        prop_assert_eq!(spec.match_.sources[0].to_string(), format!("{source}/{length}"));
        prop_assert_eq!(&spec.match_.protocols, &[protocol]);
        prop_assert_eq!(&spec.match_.vlans, &[vlan]);
        let Some(acl) = spec.functions[0].config_as::<AclConfig>() else {
            return Err(TestCaseError::fail("not an acl"));
        };
        prop_assert_eq!(&acl.rules[0].source_ports, &(low..=high));
        prop_assert_eq!(spec.slo.latency, Nanos(latency));
        prop_assert!((spec.slo.percentile * 1000.0 - f64::from(thousandths)).abs() < 1e-6);
        let bits = Throughput::BitsPerSecond(rate * 1_000_000_000);
        prop_assert_eq!(spec.slo.throughput, Some(bits));
        prop_assert_eq!(spec.flows.capacity, capacity);
        prop_assert_eq!(spec.flows.idle_timeout.tcp, Nanos::from_millis(tcp));
        prop_assert_eq!(spec.flows.idle_timeout.udp, Nanos::from_secs(60));
        prop_assert_eq!(spec.packets.batch, batch);
    }
}

#[test]
fn fields_of_an_error_are_apart() {
    let text = FULL.replace("latency:", "latncy:");
    let error = ChainSpec::parse(&text, "a.yaml", Path::new("")).unwrap_err();
    let line = 1 + text.lines().position(|line| line.contains("latncy")).unwrap();
    assert_eq!((&*error.file, error.line, error.column), ("a.yaml", line, 5));
    assert_eq!(error.path, "spec.slo.latncy");
    assert_eq!(error.suggestion.as_deref(), Some("latency"));
}

#[test]
fn the_network_takes_less_than_the_objective() {
    let with = |network: &str| {
        let text = FULL.replace("    latency: 1.5ms\n", &format!("    latency: 1.5ms\n    {network}\n"));
        assert_ne!(text, FULL);
        ChainSpec::parse(&text, "a.yaml", Path::new(""))
    };
    assert_eq!(with("").unwrap().slo.budget(), Nanos::from_micros(1500));
    let slo = with("network: 40us").unwrap().slo;
    assert_eq!(slo.latency, Nanos::from_micros(1500));
    assert_eq!(slo.budget(), Nanos::from_micros(1460));
    let error = with("network: 1.5ms").unwrap_err().to_string();
    assert!(error.contains("spec.slo.network"), "{error}");
}

/// A measured function writes no files, creates no sockets and opens no connections, whatever its type.
#[test]
fn exports_are_forgotten_by_every_function_that_has_some() {
    let upf = "upf: {addresses: [192.0.2.1], profiles: {all: {usage: {volume: 1000000}}}, api: sessions.sock, \
               usage: {file: usage.csv}}";
    let functions = [
        "accounting: {export: {file: flows.csv}}",
        "flowStats: {export: [{file: flows.ipfix}, {collector: \"192.0.2.9:4739\"}]}",
        "flowStats: {export: [{collector: \"192.0.2.9:4739\"}]}",
        "ids: {rules: ['alert udp any any -> any any (msg:\"a\"; content:\"abc\"; sid:1;)'], eve: eve.json}",
        upf,
    ];
    for function in functions {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  \
             slo: {{latency: 1ms}}\n  functions:\n  - {function}\n"
        );
        let mut spec = ChainSpec::parse(&text, "test", Path::new(".")).unwrap();
        let config = &mut spec.functions[0].config;
        assert!(config.exports(), "{function}");
        config.make_mut().remove_exports();
        assert!(!config.exports() && config.outputs().is_empty(), "{function}");
    }
}

#[test]
fn a_function_by_itself_is_read_with_its_own_files_and_no_others() {
    let name = format!("tailwater-read-at-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let rules = "@0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 0x00/0x00\n";
    std::fs::write(folder.join("edge.rules"), rules).unwrap();
    std::fs::write(folder.join("key"), "0123456789abcdef".repeat(4)).unwrap();
    let text = "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: test}\nspec:\n  functions:\n  \
                - acl: {rulesFile: edge.rules, matchAction: allow, default: deny}\n  - name: secret\n    \
                encrypt: {keyFile: key}\n  - forward: {}\n  slo: {latency: 1ms}\n";
    let chain = folder.join("chain.yaml");
    std::fs::write(&chain, text).unwrap();
    let whole = ChainSpec::read(&chain).unwrap();
    let files = |function: &FunctionSpec| function.files.clone();
    let all: Vec<_> = whole.functions.iter().map(files).collect();
    let [rules, key] = ["edge.rules", "key"].map(|file| folder.join(file));
    assert_eq!(all, [vec![rules.clone()], vec![key], vec![]]);
    for (place, function) in whole.functions.iter().enumerate() {
        assert_eq!(
            &FunctionSpec::read_at(&chain, chain.parent().unwrap(), place).unwrap(),
            function
        );
    }
    let none = FunctionSpec::read_at(&chain, chain.parent().unwrap(), 3)
        .unwrap_err()
        .to_string();
    assert!(none.contains("expected functions[3], found 3"), "{none}");
    // The second function needs no file of the first.
    std::fs::remove_file(&rules).unwrap();
    assert!(ChainSpec::read(&chain).is_err());
    let secret = FunctionSpec::read_at(&chain, chain.parent().unwrap(), 1).unwrap();
    assert_eq!(secret, whole.functions[1]);
    // Functions of branches have indices too. Read alone, a function does not record its branch.
    let text = "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: test}\nspec:\n  functions:\n  \
                - name: first\n    classifier:\n      rulesFile: edge.rules\n      matchTo: a\n      branches:\n        \
                a:\n          functions:\n          - name: second\n            classifier:\n              \
                rules: [{to: c, protocol: udp}]\n              branches: {c: {functions: [{acl: {rules: [{action: deny}]}}]}}\n          \
                - name: fourth\n            forward: {}\n  - forward: {}\n  slo: {latency: 1ms}\n";
    std::fs::write(&rules, "@0.0.0.0/0 0.0.0.0/0 0 : 65535 80 : 80 0x06/0xFF\n").unwrap();
    std::fs::write(&chain, text).unwrap();
    let mut whole = ChainSpec::read(&chain).unwrap();
    assert_eq!(whole.functions.len(), 5);
    std::fs::remove_file(&rules).unwrap();
    for (place, function) in whole.functions.iter_mut().enumerate().skip(1) {
        assert_eq!(function.branch.take().is_some(), place < 4);
        assert_eq!(
            &FunctionSpec::read_at(&chain, chain.parent().unwrap(), place).unwrap(),
            function
        );
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Found when `whenOverloaded` was changed on a server: it was reported as changed, and had no effect.
#[test]
fn settings_that_cannot_change_during_a_run_are_found() {
    let with = |settings: &str| {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: a}}\nspec:\n  slo: {{latency: 1ms}}\n  \
             functions: [{{forward: }}]\n{settings}"
        );
        ChainSpec::parse(&text, "a.yaml", Path::new(".")).unwrap()
    };
    let before = with("");
    assert!(before.check_unchanged(&with("")).is_ok());
    for (part, settings) in [
        ("spec.match", "  match: {protocols: [tcp]}\n"),
        ("spec.whenOverloaded", "  whenOverloaded: serve-fresh\n"),
        ("spec.flows", "  flows: {capacity: 1024}\n"),
        ("spec.packets", "  packets: {batch: 8}\n"),
        ("spec.cores", "  cores: 2\n"),
        ("spec.ports", "  ports: {entry: net_null0}\n"),
    ] {
        let error = before.check_unchanged(&with(settings)).unwrap_err().to_string();
        assert!(error.contains(&format!("expected {part} as at the start")), "{error}");
    }
}
