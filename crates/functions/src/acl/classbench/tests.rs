//! Tests of the parsers and the writer.

use super::*;
use crate::acl::generate::RuleSetSpec;
use proptest::prelude::*;

/// Returns the error of an invalid rule file.
fn error(text: &str) -> ParseError {
    parse_rules(text.as_bytes(), Action::Allow).expect_err("a wrong rule")
}

/// Returns the error message for an invalid second line.
fn message(line: &str) -> String {
    error(&format!("# comment\n{line}\n")).to_string()
}

#[test]
fn a_rule_has_its_fields() {
    let text = b"@10.1.2.3/24\t198.18.0.1/32\t0 : 65535\t443 : 445\t0x06/0xFF\t0x1000/0x1000\t\n";
    let expected = Rule {
        source: Some("10.1.2.0/24".parse().expect("a prefix")),
        destination: Some("198.18.0.1/32".parse().expect("a prefix")),
        source_ports: 0..=65535,
        destination_ports: 443..=445,
        protocol: Some(6),
        action: Action::Deny,
    };
    assert_eq!(parse_rules(text, Action::Deny), Ok(vec![expected]));
}

#[test]
fn comments_blanks_and_a_missing_last_column_are_fine() {
    let text = b"# 2 rules\n\n  @0.0.0.0/0 1.2.3.4/31 5:6 7 :8 0x11/0x00\r\n\
        @2001:db8::1/32 ::/0 0 : 0 65535 : 65535 0x3A/0xff 0x0000/0x0200\n   # end";
    let rules = parse_rules(text, Action::Allow).expect("two rules");
    assert_eq!(rules.len(), 2);
    assert_eq!(rules[0].destination, "1.2.3.4/31".parse().ok());
    assert_eq!((rules[0].source_ports.clone(), rules[0].protocol), (5..=6, None));
    assert_eq!(rules[1].source, "2001:db8::/32".parse().ok());
    assert_eq!(
        (rules[1].destination_ports.clone(), rules[1].protocol),
        (65535..=65535, Some(58))
    );
    assert_eq!(parse_rules(b"", Action::Allow), Ok(vec![]));
}

#[test]
fn errors_say_where_and_what() {
    let cases = [
        (
            "10.0.0.0/8 1.2.3.4/32 0 : 1 0 : 1 0x06/0xFF",
            "column 1: source: expected \"@\" before the source prefix, found \"10.0.0.0/8\"",
        ),
        (
            "@10.0.0/8 1.2.3.4/32 0 : 1 0 : 1 0x06/0xFF",
            "column 2: source: expected address/length, found \"10.0.0/8\"",
        ),
        (
            "@10.0.0.0/8 1.2.3.4 0 : 1 0 : 1 0x06/0xFF",
            "column 13: destination: expected address/length, found \"1.2.3.4\"",
        ),
        (
            "@10.0.0.0/33 1.2.3.4/32 0 : 1 0 : 1 0x06/0xFF",
            "column 2: source: expected a length of at most 32 (IPv6: 128) bits, \
             found \"10.0.0.0/33\"",
        ),
        (
            "@10.0.0.0/+8 1.2.3.4/32 0 : 1 0 : 1 0x06/0xFF",
            "column 2: source: expected a length of at most 32 (IPv6: 128) bits, \
             found \"10.0.0.0/+8\"",
        ),
        (
            "@10.0.0.0/8 ::1/128 0 : 1 0 : 1 0x06/0xFF",
            "column 13: destination: expected the source's IP version, found \"::1/128\"",
        ),
        (
            "@10.0.0.0/8 1.2.3.4/32 65536 : 1 0 : 1 0x06/0xFF",
            "column 24: source ports: expected a port, 0 to 65535, found \"65536\"",
        ),
        (
            "@10.0.0.0/8 1.2.3.4/32 0 : 1 0 : http 0x06/0xFF",
            "column 34: destination ports: expected a port, 0 to 65535, found \"http\"",
        ),
        (
            "@10.0.0.0/8 1.2.3.4/32 0 - 1 0 : 1 0x06/0xFF",
            "column 26: source ports: expected \":\" between first and last port, found \"-\"",
        ),
        (
            "@10.0.0.0/8 1.2.3.4/32 0 : 1 9 : 8 0x06/0xFF",
            "column 34: destination ports: expected a last port not below the first, found \"8\"",
        ),
        (
            "@10.0.0.0/8 1.2.3.4/32 0 : 1 8 : 9 tcp",
            "column 36: protocol: expected protocol/mask, such as 0x06/0xFF, found \"tcp\"",
        ),
        (
            "@10.0.0.0/8 1.2.3.4/32 0 : 1 8 : 9 0x106/0xFF",
            "column 36: protocol: expected protocol/mask, such as 0x06/0xFF, found \"0x106/0xFF\"",
        ),
        (
            "@10.0.0.0/8 1.2.3.4/32 0 : 1 8 : 9 0x06/0x0F",
            "column 36: protocol: expected mask 0xFF (this protocol) or 0x00 (any), \
             found \"0x06/0x0F\"",
        ),
        (
            "@10.0.0.0/8 1.2.3.4/32 0 : 1 8 : 9",
            "column 35: protocol: expected protocol/mask, such as 0x06/0xFF, found nothing",
        ),
        (
            "@10.0.0.0/8 1.2.3.4/32 0 : 1 8 : 9 0x06/0xFF 0x0/0x0 more of it",
            "column 54: line: expected the end of the line, found \"more\"",
        ),
    ];
    for (line, expected) in cases {
        assert_eq!(message(line), format!("line 2, {expected}"), "{line}");
    }
}

#[test]
fn an_error_quotes_little_and_stays_on_one_line() {
    let long = format!("@{}", "é".repeat(1000));
    let text = error(&long).to_string();
    assert!(text.len() < 160, "{text}");
    assert!(text.ends_with("..."), "{text}");
    let control = error("@10.0.0.0/8\u{7}\u{b}x").to_string();
    assert!(!control.chars().any(char::is_control), "{control}");
}

#[test]
fn bytes_that_are_not_text_are_an_error() {
    let result = parse_rules(b"# fine\n@10.\xff", Action::Allow);
    let text = result.expect_err("not UTF-8").to_string();
    assert_eq!(text, "line 2, column 5: line: expected text in UTF-8, found byte 0xFF");
}

#[test]
fn too_many_rules_are_an_error() {
    let rule = "@10.0.0.0/8 1.2.3.4/32 0 : 1 8 : 9 0x06/0xFF\n";
    let text = rule.repeat(3);
    assert_eq!(parse_up_to(3, text.as_bytes(), Action::Allow).map(|r| r.len()), Ok(3));
    let error = parse_up_to(2, text.as_bytes(), Action::Allow).expect_err("one too many");
    assert_eq!((error.line, error.expected), (3, Expected::EndOfRules));
    assert!(error.to_string().contains("at most 1000000 rules"), "{error}");
}

#[test]
fn a_trace_header_has_its_fields() {
    let text = b"167772161\t3323068417\t1024\t443\t6\t4294967295\t890\n";
    let key = FlowKey::v4([10, 0, 0, 1].into(), [198, 18, 0, 1].into(), 6, 1024, 443);
    assert_eq!(parse_trace(text), Ok(vec![TraceHeader { key, rule: 890 }]));
}

#[test]
fn trace_errors_say_where_and_what() {
    let cases = [
        ("4294967296 1 2 3 4 5 6", Field::Source, Expected::AddressNumber, 1),
        ("1 1.2.3.4 2 3 4 5 6", Field::Destination, Expected::AddressNumber, 3),
        ("1 2 65536 3 4 5 6", Field::SourcePorts, Expected::Port, 5),
        ("1 2 3 -3 4 5 6", Field::DestinationPorts, Expected::Port, 7),
        ("1 2 3 4 256 5 6", Field::Protocol, Expected::ProtocolNumber, 9),
        ("1 2 3 4 5 x 6", Field::Flags, Expected::Number, 11),
        ("1 2 3 4 5 6", Field::RuleNumber, Expected::Number, 12),
        ("1 2 3 4 5 6 7 8", Field::Line, Expected::EndOfLine, 15),
    ];
    for (line, field, expected, column) in cases {
        let error = parse_trace(line.as_bytes()).expect_err(line);
        let found = (error.line, error.column, error.field, error.expected);
        assert_eq!(found, (1, column, field, expected), "{line}: {error}");
        assert!(error.to_string().lines().count() == 1);
    }
}

#[test]
fn written_rules_parse_to_the_same() {
    let spec = RuleSetSpec {
        rules: 300,
        seed: 3,
        sources: vec![],
        destinations: vec![],
    };
    let mut rules = spec.generate();
    rules.push(Rule {
        source: "2001:db8::/33".parse().ok(),
        destination: None,
        source_ports: 1..=2,
        destination_ports: 3..=4,
        protocol: Some(0),
        action: Action::Allow,
    });
    let text = write_rules("two\nlines", &rules);
    assert!(text.starts_with("# two\n# lines\n@"), "{text}");
    // In the file, a side without an address has the other side's IP version.
    rules[300].destination = "::/0".parse().ok();
    assert_eq!(parse_rules(text.as_bytes(), Action::Allow), Ok(rules));
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_rules(&bytes, Action::Allow);
        let _ = parse_trace(&bytes);
    }

    /// Damages a valid line, which gets further into the parser than arbitrary bytes do.
    #[test]
    fn no_damage_panics(at in 0_usize..90, with in any::<u8>(), cut in 0_usize..90) {
        let mut bytes = b"@10.1.2.0/24\t198.18.0.0/15\t0 : 65535\t443 : 443\t0x06/0xFF\t0x0000/0x0200\n".to_vec();
        if let Some(byte) = bytes.get_mut(at) {
            *byte = with;
        }
        bytes.truncate(cut);
        let _ = parse_rules(&bytes, Action::Allow);
    }
}
