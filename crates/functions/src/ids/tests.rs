//! Tests of the function in a chain: alert file, drops, rule reloads, and release of stream memory.

use super::load_rules as load_ids_rules;
use super::*;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;
use tailwater_chain::rig::{ChainRig, INPUT};
use tailwater_ids::inspector::Settings;
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos, protocol};

const NOW: Nanos = Nanos::from_secs(1);

fn sources(rules: &[&str]) -> Sources {
    Sources {
        inline: rules.iter().map(|rule| (*rule).to_owned()).collect(),
        ..Sources::default()
    }
}

fn options(drops: bool, eve: Option<PathBuf>) -> Options {
    Options {
        settings: Settings {
            drops,
            ..Settings::default()
        },
        streams: 8,
        eve,
    }
}

fn table(sources: &Sources, options: &Options) -> Arc<IdsTable> {
    let loaded = load_ids_rules(sources, &[]).unwrap();
    Arc::new(IdsTable::new((sources, &loaded), options, 7).unwrap())
}

fn rig(table: &Arc<IdsTable>) -> ChainRig {
    ChainRig::new(vec![Box::new(Ids::new(Arc::clone(table)))], INPUT)
}

/// Returns a connection's frames: the client's handshake, then each element of `data` in a segment of its own.
fn conversation(port: u16, data: &[&[u8]]) -> Vec<Vec<u8>> {
    let key = FlowKey::v4([10, 0, 0, 1].into(), [198, 51, 100, 1].into(), protocol::TCP, port, 80);
    let frame = |key: &FlowKey, sequence, acknowledgment, flags, data: &[u8]| {
        let fields = TcpFields {
            sequence,
            acknowledgment,
            flags,
            ..TcpFields::default()
        };
        FrameBuilder::new(key).tcp(fields).payload(data).to_vec().unwrap()
    };
    let mut frames = vec![
        frame(&key, 99, 0, TcpFlags::SYN, b""),
        frame(&key.reversed(), 499, 100, TcpFlags(0x12), b""),
        frame(&key, 100, 500, TcpFlags::ACK, b""),
    ];
    let mut sequence = 100;
    for piece in data {
        frames.push(frame(&key, sequence, 500, TcpFlags::ACK, piece));
        sequence += piece.len() as u32;
    }
    frames
}

const REQUEST: &[u8] = b"GET /evil?x=\"1\" HTTP/1.1\r\nHost: a.example\r\n\r\n";
const RULE: &str = "drop http any any -> any any (msg:\"an \\\"evil\\\" one\"; flow:established,to_server; http.uri; \
                    content:\"/evil\"; classtype:bad-unknown; sid:5; rev:3; metadata:a b, a c;)";

#[test]
fn alerts_are_written_as_eve_json() {
    let path = std::env::temp_dir().join(format!("ids-eve-{}.json", std::process::id()));
    let mut sources = sources(&[RULE]);
    let class = ("Potentially Bad Traffic".to_owned(), 2);
    sources.classes.insert("bad-unknown".to_owned(), class);
    let table = table(&sources, &options(false, Some(path.clone())));
    let mut chain = rig(&table);
    let frames = conversation(7, &[REQUEST, REQUEST]);
    assert_eq!(chain.run(&frames, NOW).len(), frames.len());
    assert_eq!(chain.count("ids/alerts"), 2);
    drop(chain);
    assert_eq!(table.finish().unwrap().unwrap().records, 2);
    assert_eq!(table.finish().unwrap(), None);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    for (field, expected) in [
        ("/event_type", Value::from("alert")),
        ("/src_ip", "10.0.0.1".into()),
        ("/src_port", 7.into()),
        ("/dest_ip", "198.51.100.1".into()),
        ("/dest_port", 80.into()),
        ("/proto", "TCP".into()),
        ("/app_proto", "http".into()),
        ("/direction", "to_server".into()),
        ("/http/hostname", "a.example".into()),
        ("/http/url", "/evil?x=\"1\"".into()),
        ("/http/http_method", "GET".into()),
        ("/alert/action", "allowed".into()),
        ("/alert/signature_id", 5.into()),
        ("/alert/rev", 3.into()),
        ("/alert/gid", 1.into()),
        ("/alert/signature", "an \"evil\" one".into()),
        ("/alert/category", "Potentially Bad Traffic".into()),
        ("/alert/severity", 2.into()),
        ("/alert/metadata/a/1", "c".into()),
    ] {
        assert_eq!(lines[0].pointer(field), Some(&expected), "{field}");
    }
    assert_eq!(lines[0]["flow_id"], lines[1]["flow_id"]);
}

#[test]
fn drops_are_counted_by_reason_and_the_rest_of_the_connection_goes_with_them() {
    let table = table(&sources(&[RULE]), &options(true, None));
    let mut chain = rig(&table);
    let frames = conversation(7, &[b"GET /good HTTP/1.1\r\n\r\n", REQUEST, b"more", b"more"]);
    assert_eq!(chain.run(&frames, NOW), frames[..4]);
    assert_eq!(chain.count("ids/dropped"), 1);
    assert_eq!(chain.count("ids/flow-blocked"), 2);
    // Other connections are unaffected.
    let frames = conversation(8, &[b"hello"]);
    assert_eq!(chain.run(&frames, NOW), frames);
}

#[test]
fn rules_that_the_operator_names_drop() {
    let alert = |sid: u32| format!("alert udp any any -> any any (content:\"x{sid}\"; classtype:c{sid}; sid:{sid};)");
    let rules = [alert(1), alert(2), alert(3)];
    let sources = Sources {
        inline: rules.to_vec(),
        drop_sids: vec![1],
        drop_classes: vec!["c2".to_owned()],
        ..Sources::default()
    };
    let mut chain = rig(&table(&sources, &options(true, None)));
    let key = FlowKey::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), protocol::UDP, 1, 2);
    let frame = |text: &[u8]| FrameBuilder::new(&key).payload(text).to_vec().unwrap();
    let frames = [frame(b"x1"), frame(b"x2"), frame(b"x3")];
    assert_eq!(chain.run(&frames, NOW), frames[2..]);
}

#[test]
fn rules_are_replaced_in_the_middle_of_streams() {
    let path = std::env::temp_dir().join(format!("ids-replaced-{}.json", std::process::id()));
    let stream = |content: &str, sid: u32| {
        format!("alert tcp any any -> any any (content:\"{content}\"; flowbits:set,{content}; sid:{sid};)")
    };
    let table = table(&sources(&[&stream("first", 1)]), &options(false, Some(path.clone())));
    let mut chain = rig(&table);
    let frames = conversation(7, &[b"first sec", b"ond first", b"second"]);
    chain.run(&frames[..4], NOW);
    let asks = "alert tcp any any -> any any (content:\"second\"; flowbits:isset,first; sid:3;)";
    let other = sources(&[&stream("second", 2), asks]);
    let ready = table.prepare(&load_ids_rules(&other, &[]).unwrap()).unwrap();
    assert_eq!(table.put(ready), 2);
    chain.run(&frames[4..], NOW);
    drop(chain);
    table.finish().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let sids: Vec<i64> = text
        .lines()
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["alert"]["signature_id"]
                .as_i64()
                .unwrap()
        })
        .collect();
    // A content partly matched under the old rules is searched anew; the connection's flowbits survive the reload.
    assert_eq!(sids, [1, 2, 3]);
}

#[test]
fn memory_of_streams_comes_back_when_connections_end_or_are_forgotten() {
    let table = table(&sources(&[RULE]), &options(false, None));
    let mut chain = rig(&table);
    assert_eq!(table.stream_pool.free(), 8);
    for port in 0..10 {
        chain.run(&conversation(port, &[b"hello"]), NOW);
    }
    assert_eq!(table.stream_pool.free(), 0);
    assert_eq!(chain.count("ids/no-room"), 2);
    (0..512).for_each(|_| chain.chain.expire(NOW + Nanos::from_secs(500)));
    assert_eq!(table.stream_pool.free(), 8);
    // Slots of connections idle for long are reclaimed when the pool is empty.
    for port in 0..8 {
        chain.run(&conversation(port, &[b"hello"]), NOW);
    }
    let later = NOW + Nanos::from_secs(20);
    chain.run(&conversation(20, &[REQUEST]), later);
    assert_eq!((chain.count("ids/no-room"), chain.count("ids/alerts")), (2, 1));
}

/// Writes a rules file, which the caller removes, and returns sources with it.
fn rules_file(name: &str, text: &str) -> (PathBuf, Sources) {
    let path = std::env::temp_dir().join(format!("ids-{name}-{}.rules", std::process::id()));
    std::fs::write(&path, text).unwrap();
    let sources = Sources {
        files: vec![path.clone()],
        ..Sources::default()
    };
    (path, sources)
}

/// One invalid rule of a file is listed, and the others are loaded; `strict` refuses the file.
#[test]
fn invalid_rules_of_a_file_are_left_out_and_listed() {
    let text = "alert tcp any any -> any any (msg:\"one\"; sid:1; rev:1;)\n\
                alert tcp !any any -> any any (sid:2;)\n\
                alert tcp any any -> any any (sid:3; content:\"a)\n\
                alert udp !any any -> any any (sid:4;)\n\
                alert tcp any any -> any any (msg:\"newer\"; sid:1; rev:2;)\n\
                alert tcp any any -> any any (sid:5;)\n";
    let (path, mut sources) = rules_file("invalid", text);
    let loaded = load_ids_rules(&sources, &[]).unwrap();
    let mut rules: Vec<_> = loaded
        .rules
        .iter()
        .map(|rule| (rule.about.sid, rule.about.message.as_str()))
        .collect();
    rules.sort_unstable();
    assert_eq!(rules, [(1, "newer"), (5, "")]);
    let notices = loaded.notices();
    assert_eq!(notices.len(), 4, "{notices:?}");
    assert!(
        notices[0].starts_with("4 of 6 rules not loaded since they are invalid"),
        "{notices:?}"
    );
    assert!(
        notices[1].starts_with("     2 ") && notices[1].contains(":2:11: \"!any\" matches no address"),
        "{notices:?}"
    );
    sources.strict = true;
    let error = load_ids_rules(&sources, &[]).unwrap_err();
    assert_eq!(error.each().count(), 4, "{error}");
    // Without any valid rule there is nothing to detect.
    std::fs::write(&path, "alert tcp any -> any any (sid:2;)\n").unwrap();
    sources.strict = false;
    let error = load_ids_rules(&sources, &[]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("expected at least one valid rule, found none"),
        "{error}"
    );
    std::fs::remove_file(&path).unwrap();
}

/// A published set with its disabled rules is larger than any spec.
#[test]
fn rules_files_may_be_larger_than_specs() {
    let comment = format!("# {}\n", "x".repeat(1 << 20));
    let (path, sources) = rules_file(
        "large",
        &[comment.repeat(17), "alert tcp any any -> any any (sid:1;)\n".into()].concat(),
    );
    let loaded = load_ids_rules(&sources, &[]).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(loaded.rules.len(), 1);
}

#[test]
fn everything_that_is_wrong_is_told_at_once() {
    let wrong = sources(&[
        "alert tcp any any -> any any (sid:1;)",
        "alert tcp any any -> any any (sid:1;)",
        "alert tcp any -> any any (sid:2;)",
        "alert tcp any any -> any any (content:\"a\"; ja3s.hash; sid:3;)",
    ]);
    let error = load_ids_rules(&wrong, &[]).unwrap_err();
    let lines: Vec<String> = error.each().map(|error| error.to_line()).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("expected each sid once, found 1 again"), "{lines:?}");
    assert!(lines[1].contains("expected action, protocol, addresses"), "{lines:?}");
    let skipped = load_ids_rules(&sources(&[wrong.inline[3].as_str(), RULE]), &[]).unwrap();
    let notices = [
        "1 of 2 rules not loaded, by unsupported feature:",
        "     1 option ja3s.hash",
    ];
    assert_eq!(skipped.notices(), notices);
}

/// Frames of MPLS pass around the chain's functions, but not unseen.
#[test]
fn frames_of_mpls_are_inspected_though_they_are_not_ip() {
    let table = table(&sources(&[RULE]), &options(true, None));
    let mut chain = rig(&table);
    let frames = conversation(7, &[REQUEST, REQUEST]);
    let label = |frame: &Vec<u8>| [&frame[..12], &[0x88, 0x47, 0, 2, 1, 64], &frame[14..]].concat();
    let frames: Vec<_> = frames.iter().map(label).collect();
    assert_eq!(chain.run(&frames, NOW), frames[..3]);
    let counts = ["ids/alerts", "ids/dropped", "ids/flow-blocked", "non-ip"].map(|name| chain.count(name));
    assert_eq!(counts, [1, 1, 1, 5]);
}

/// A rule that is not UTF-8 refused its whole file.
#[test]
fn a_rule_that_is_not_utf8_is_left_out_and_listed() {
    let (path, mut sources) = rules_file("not-utf8", "");
    let text = [
        RULE.as_bytes(),
        b"\n# caf\xe9\nalert ip any any -> any any (msg:\"\xff\"; sid:9;)\n",
    ]
    .concat();
    std::fs::write(&path, text).unwrap();
    let loaded = load_ids_rules(&sources, &[]).unwrap();
    assert_eq!(loaded.rules.len(), 1);
    let notices = loaded.notices().join("\n");
    assert!(notices.contains("2 of 3 rules not loaded"), "{notices}");
    assert!(
        notices.contains(":2:6: expected UTF-8 text, found the byte 0xe9"),
        "{notices}"
    );
    sources.strict = true;
    let error = load_ids_rules(&sources, &[]).unwrap_err().to_string();
    assert!(
        error.contains(":3:35: expected UTF-8 text, found the byte 0xff"),
        "{error}"
    );
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn the_rule_that_alerted_is_named() {
    let table = table(&sources(&[RULE]), &options(true, None));
    let mut chain = rig(&table);
    let frames = conversation(7, &[REQUEST]);
    chain.run(&frames[..3], NOW);
    assert_eq!(chain.explain(&frames[3], NOW), ["rule sid 5 alerted"]);
    let others = conversation(8, &[b"hello"]);
    assert_eq!(chain.explain(&others[0], NOW), ["no alert"]);
}
