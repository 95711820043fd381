//! Tests of the rule parser.

use super::*;
use crate::buffer::Buffer;
use crate::rule::*;
use proptest::prelude::*;

fn reader() -> Reader {
    Reader::new(&Variables::default()).unwrap()
}

fn rule(options: &str) -> Rule {
    let text = format!("alert tcp any any -> any any ({options} sid:1;)");
    let parsed = reader().read(&text);
    assert_eq!((&parsed.mistakes, &parsed.skipped), (&vec![], &vec![]), "{text}");
    parsed.rules.into_iter().next().unwrap()
}

fn contents(rule: &Rule) -> Vec<&Content> {
    let tests = rule.parts.iter().flat_map(|part| &part.tests);
    tests
        .filter_map(|test| match test {
            Test::Content(content) => Some(content),
            _ => None,
        })
        .collect()
}

#[test]
fn a_whole_rule() {
    let text = "drop http [$HOME_NET,!10.1.0.0/16] ![25,80:90] <> any 1024: (msg:\"a \\\"b\\\"\\; c\"; \
                flow:established,to_server; http.uri; content:\"/A|0d 0A|\"; nocase; fast_pattern; \
                content:!\"b\\;\"; distance:-3; within:7; http.host; dotprefix; content:\".x.y\"; endswith; \
                pcre:\"/^a\\/b$/Ri\"; threshold:type both, track by_src, count 3, seconds 60; flowbits:set,a.b; \
                flowbits:isset,c|d; classtype:x; sid:7; rev:2; metadata:a b, c d;)";
    let parsed = reader().read(text);
    assert_eq!((&parsed.mistakes, &parsed.skipped), (&vec![], &vec![]));
    let rule = &parsed.rules[0];
    let header = &rule.header;
    assert_eq!(header.action, Action::Drop);
    assert_eq!(header.protocol, Protocol::App(App::Http));
    assert!(header.both_ways);
    let inside = |address: &str| header.source.contains(address.parse().unwrap());
    assert!(inside("10.2.0.1") && !inside("10.1.0.1") && !inside("198.18.0.1") && !inside("::1"));
    let ports = |port| header.source_ports.contains(port);
    assert!(ports(24) && !ports(25) && !ports(90) && ports(91));
    assert!(header.destination_ports.contains(1024) && !header.destination_ports.contains(1023));
    assert_eq!(rule.flow.direction, Some(Direction::ToServer));
    assert_eq!(rule.flow.established, Some(true));
    assert_eq!(rule.about.message, "a \"b\"; c");
    assert_eq!(rule.about.metadata[1], ("c".to_owned(), "d".to_owned()));
    let buffers: Vec<_> = rule.parts.iter().map(|part| part.buffer).collect();
    assert_eq!(buffers[0], Buffer::Uri.into());
    assert!(buffers[1].buffer == Buffer::Host && buffers[1].dotted);
    let contents = contents(rule);
    assert_eq!(contents[0].bytes, b"/a\r\n");
    assert!(contents[0].fast && contents[0].nocase && !contents[0].negated);
    assert!(contents[1].negated && contents[1].bytes == b"b;");
    assert_eq!(contents[1].position.distance, Some(-3));
    assert_eq!(contents[1].position.within, Some(7));
    assert!(contents[2].position.at_end);
    assert!(matches!(
        rule.parts[1].tests[1],
        Test::Pattern {
            relative: true,
            negated: false,
            ..
        }
    ));
    assert_eq!(rule.thresholds[0].kind, ThresholdKind::Both);
    assert_eq!(rule.bits[1].names, ["c", "d"]);
}

#[test]
fn old_names_move_a_content() {
    let rule = rule("content:\"x\"; http_uri; content:\"y\"; content:\"z\"; http_client_body;");
    let buffers: Vec<_> = rule.parts.iter().map(|part| part.buffer.buffer).collect();
    assert_eq!(buffers, [Buffer::Uri, Buffer::Payload, Buffer::RequestBody]);
}

#[test]
fn ranges_are_those_of_suricata() {
    let range = |text: &str| match &rule(&format!("dsize:{text};")).packet[0] {
        PacketTest::Number { range, negated, .. } => (range.clone(), *negated),
        other => panic!("{other:?}"),
    };
    assert_eq!(range("9"), (9..=9, false));
    assert_eq!(range("!9"), (9..=9, true));
    assert_eq!(range("<9"), (0..=8, false));
    assert_eq!(range(">9"), (10..=65_535, false));
    assert_eq!(range("9<>12"), (10..=11, false));
}

#[test]
fn every_mistake_is_told_with_its_line_and_column() {
    let text = "# a comment\n\
                alert tcp any any -> any any (msg:\"right\"; sid:1;)\n\
                alrt tcp any any -> any any (sid:2;)\n\
                alert tcp $HOME_NETS any -> any any (sid:3;)\n\
                alert tcp any 70000 -> any any (sid:4;)\n\
                alert tcp any any => any any (sid:5;)\n\
                alert tcp any any -> any any (content:\"a|0|\"; sid:6;)\n\
                alert tcp any any -> any any (nocase; sid:7;)\n\
                alert tcp any any -> any any (msg:\"no sid\";)\n\
                alert tcp any any -> any any (content:\"abc\"; depth:2; sid:9;)\n\
                alert tcp any any -> any any (pcre:\"/(a/\"; sid:10;)\n\
                alert tcp any any -> any any (sid:11)\n\
                alert tcp any any -> any (sid:12;)\n\
                alert tcp any any -> any any (flow:to_servr; sid:13;)\n\
                alert dns any any -> any any (http.uri; content:\"a\"; sid:14;)\n\
                alert tcp any any -> any any (flow:to_client; http.uri; content:\"a\"; sid:15;)\n\
                alert tcp any any -> any any (msg:\"open; sid:16;)\n\
                alert tcp any any -> any any\n";
    let parsed = reader().read(text);
    assert_eq!(parsed.rules.len(), 1);
    let told: Vec<String> = parsed.mistakes.iter().map(Mistake::to_string).collect();
    let expected = [
        "3:1: expected one of alert, drop, reject, rejectsrc, rejectdst, pass, found \"alrt\"; did you mean \"alert\"?",
        "4:11: unknown variable \"$HOME_NETS\"; did you mean \"$HOME_NET\"?",
        "5:15: expected a port, a range of ports (1024:2048, 1024:, :1023) or a variable, found \"70000\"",
        "6:19: expected -> or <>, found \"=>\"",
        "7:31: expected pairs of hexadecimal digits between bars, found a single digit",
        "8:31: expected a content in front of it, found none",
        "9:44: expected a sid, found none",
        "10:1: expected a depth of at least the content's 3 bytes, found less",
        "11:31: pcre \"(a\": unclosed group",
        "12:37: expected \";\" behind the last option",
        "13:1: expected action, protocol, addresses, ports, -> or <>, addresses and ports, found 6 words",
        "14:31: expected one of to_server, from_client, to_client, from_server, established, not_established, stateless, \
         only_stream, no_stream, found \"to_servr\"; did you mean \"to_server\"?",
        "15:1: a dns rule tests a buffer of http",
        "16:1: a rule for traffic to the client tests a buffer of traffic to the server",
        "17:31: expected a text in quotation marks for msg",
        "18:29: expected options in parentheses behind the rule's header",
    ];
    assert_eq!(told, expected);
}

#[test]
fn what_is_not_supported_is_named_and_counted_by_reason() {
    let text = "alert tcp any any -> any any (ja3s.hash; content:\"a\"; sid:1;)\n\
                alert tcp any any -> any any (contnt:\"a\"; sid:2;)\n\
                alert sip any any -> any any (sid:3;)\n\
                alert tcp any any -> any any (pcre:\"/(?=a)b/\"; sid:4;)\n\
                alert smtp any any -> any any (file.data; content:\"a\"; sid:5;)\n\
                alert tcp any any -> any any (xbits:set,a,track ip_src; sid:6; content:\"a\\;)\n";
    let parsed = reader().read(text);
    let told: Vec<_> = parsed.skipped.iter().map(|s| (s.sid, s.reason.as_str())).collect();
    let expected = [
        (1, "option ja3s.hash"),
        (2, "option contnt (did you mean \"content\"?)"),
        (3, "protocol sip"),
        (4, "pcre: lookahead or lookbehind"),
        (5, "file.data of smtp"),
    ];
    assert_eq!(told, expected);
    // Errors take precedence over unsupported features.
    assert_eq!(parsed.mistakes.len(), 1);
}

#[test]
fn many_mistakes_are_counted() {
    let text = "alert\n".repeat(MAX_REPORTED + 5);
    let parsed = reader().read(&text);
    assert_eq!((parsed.mistakes.len(), parsed.more), (MAX_REPORTED, 5));
}

#[test]
fn a_rule_may_go_on_in_the_next_line() {
    let parsed = reader().read("alert tcp any any -> \\\n any any (content:\"a\"; \\\n sid:5;)\nx\n");
    assert_eq!(parsed.rules[0].line, 1);
    assert_eq!(parsed.mistakes[0].line, 4);
}

#[test]
fn variables_that_are_no_lists_or_name_themselves_are_refused() {
    for value in ["[1.2.3.4", "1.2.3.400", "", "[1.2.3.4,$HOME_NET]"] {
        let mut variables = Variables::default();
        variables.set("HOME_NET", value);
        let wrong = Reader::new(&variables).unwrap_err();
        // A variable that refers to itself may be reported for any variable that refers to it.
        assert!(wrong.name == "HOME_NET" || value.contains('$'), "{wrong}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "(alert |tcp |any |\\[|\\]|!|,|\\$HOME_NET|->|\\(|\\)|content:|\"|\\||a|0|;|\\\\|:|sid:1;|pcre:|/|\n){0,40}") {
        let parsed = reader().read(&text);
        let lines = text.lines().count();
        for mistake in &parsed.mistakes {
            prop_assert!((1..=lines).contains(&mistake.line) && mistake.column > 0);
        }
        prop_assert!(parsed.rules.len() + parsed.skipped.len() + parsed.mistakes.len() <= lines);
    }

    /// A content's bytes are parsed as written.
    #[test]
    fn contents_are_read_as_written(bytes in prop::collection::vec(any::<u8>(), 1..40)) {
        let text: String = bytes.iter().map(|byte| match byte {
            b'"' | b';' | b':' | b'\\' => format!("\\{}", char::from(*byte)),
            b'|' => "|7C|".to_owned(),
            0x20..=0x7e => char::from(*byte).to_string(),
            _ => format!("|{byte:02x}|"),
        }).collect();
        let rule = rule(&format!("content:\"{text}\";"));
        prop_assert_eq!(&contents(&rule)[0].bytes, &bytes);
    }
}

/// Bytes that are not UTF-8 spoil their own rule or comment, not the whole text.
#[test]
fn a_rule_that_is_not_utf8_does_not_spoil_others() {
    let rule = |sid: u32| format!("alert ip any any -> any any (sid:{sid};)\n").into_bytes();
    let parts = [
        rule(1),
        b"alert ip any any -> any any (msg:\"\xfc\"; sid:2;)\r\n".to_vec(),
        b"# caf\xc3\xa9 caf\xe9\n".to_vec(),
        rule(3),
        // A rule over several lines is one mistake, at the byte's own line.
        b"alert ip any any -> any any (sid:4; \\\n  msg:\"\xff\"; \\\n  rev:1;)\n".to_vec(),
        rule(5),
    ];
    let parsed = reader().read_bytes(&parts.concat());
    let sids: Vec<_> = parsed.rules.iter().map(|rule| (rule.about.sid, rule.line)).collect();
    assert_eq!(sids, [(1, 1), (3, 4), (5, 8)]);
    let mistakes: Vec<_> = parsed.mistakes.iter().map(Mistake::to_string).collect();
    let expected = [
        "2:35: expected UTF-8 text, found the byte 0xfc",
        "3:11: expected UTF-8 text, found the byte 0xe9",
        "6:8: expected UTF-8 text, found the byte 0xff",
    ];
    assert_eq!(mistakes, expected);
}
