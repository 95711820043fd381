//! Tests of a published rule set on real captures: every alert is confirmed by the reference evaluator, and all memory
//! is released.

mod common;

use common::oracle::explains;
use common::rig::Rig;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use tailwater_ids::inspector::{COUNTERS, Settings};
use tailwater_ids::language::{Reader, Variables};
use tailwater_ids::slots::OwnSlots;
use tailwater_net::Nanos;
use tailwater_net::parse::parse;
use tailwater_traffic::{CaptureReader, PacketSource, ReadOptions};

/// Largest number of concurrent connections in a capture.
const MANY: u32 = 4096;

/// Returns the captures, without archives of several.
fn captures() -> Option<Vec<PathBuf>> {
    let folder = common::test_data()?.join("traces");
    let files = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.to_string_lossy().contains(".pcap") && !path.to_string_lossy().contains(".tar"));
    files.sort();
    Some(files)
}

#[test]
fn what_is_told_of_real_captures() {
    let (Some((files, _)), Some(captures)) = (common::et_open(), captures()) else {
        return;
    };
    let mut variables = Variables::default();
    // The captures' home networks are unknown.
    variables.set("HOME_NET", "any");
    variables.set("EXTERNAL_NET", "any");
    let mut reader = Reader::new(&variables).unwrap();
    let rules: Vec<_> = files.iter().flat_map(|(_, text)| reader.read(text).rules).collect();
    let settings = Settings {
        // Many captures were taken on hosts with checksum offload.
        checksums: false,
        ..Settings::default()
    };
    let by_sid: HashMap<u32, _> = rules.iter().map(|rule| (rule.about.sid, rule.clone())).collect();
    let mut rig = Rig::new(rules, settings);
    rig.slots = OwnSlots::new(MANY, settings.window);
    let (mut all, mut wrong, mut explained, mut unknown) = (BTreeMap::new(), Vec::new(), 0, 0);
    for capture in &captures {
        let mut reader = CaptureReader::open(capture, &ReadOptions::default()).unwrap();
        rig.connections.clear();
        let (mut packets, mut told) = (0u64, BTreeMap::new());
        let mut conversations: HashMap<_, Vec<Vec<u8>>> = HashMap::new();
        while let Some(packet) = reader.next_packet().unwrap() {
            rig.now = Nanos::from_secs(1000) + Nanos::from_micros(packets);
            packets += 1;
            let sids = rig.packet(packet.data).1;
            let Ok(headers) = parse(packet.data) else {
                continue;
            };
            let conversation = conversations.entry(headers.key.of_connection().0).or_default();
            conversation.push(packet.data.to_vec());
            for sid in sids {
                let count = told.entry(sid).or_insert(0u64);
                *count += 1;
                // Checks the first few alerts of each rule, since they repeat.
                if *count <= 3 {
                    match explains(&by_sid[&sid], conversation, settings.window) {
                        Some(true) => explained += 1,
                        Some(false) => wrong.push((capture.clone(), packets, sid)),
                        None => unknown += 1,
                    }
                }
            }
        }
        // All memory is released with the connections.
        for connection in rig.connections.values_mut() {
            tailwater_ids::inspector::Inspector::ended(connection, &mut rig.slots);
        }
        rig.inspector.end_inner(&mut rig.slots);
        eprintln!(
            "{}: {packets} packets, {told:?}",
            capture.file_name().unwrap().to_string_lossy()
        );
        all.extend(told);
    }
    for (name, count) in COUNTERS.iter().zip(rig.inspector.counters()) {
        eprintln!("{name}: {count}");
    }
    eprintln!("{explained} explained, {unknown} of protocols that the evaluator does not know");
    assert_eq!(wrong, []);
    assert!(explained >= 100 && unknown <= explained / 4);
    assert_eq!(rig.slots.free(), MANY as usize);
    assert!(all.len() >= 20, "{all:?}");
}
