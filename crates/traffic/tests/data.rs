//! Real captures: all load, with statistics that agree with independent measurements.
//!
//! Needs the directory named by `TAILWATER_TEST_DATA`, and is skipped without it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Read};
use std::path::PathBuf;

use tailwater_net::Nanos;
use tailwater_net::parse::{Headers, guess_v4, parse, parse_any, parse_common, parse_plain_v4};
use tailwater_traffic::{
    CaptureReader, LoadOptions, Notice, PacketSource, ReadOptions, Statistics, Trace, TrafficError,
};

fn traces() -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("TAILWATER_TEST_DATA") else {
        eprintln!("skipped: TAILWATER_TEST_DATA is not set");
        return None;
    };
    Some(PathBuf::from(folder).join("traces"))
}

fn measure(reader: Result<CaptureReader, TrafficError>) -> Result<Statistics, TrafficError> {
    Statistics::measure(&mut reader?, 1 << 30)
}

/// Row of the table of measured characteristics, by column name.
type Row = BTreeMap<String, String>;

fn characteristics(folder: &std::path::Path) -> Vec<Row> {
    let text = fs::read_to_string(folder.join("characteristics.csv")).unwrap();
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap().split(',').collect();
    let row = |line: &str| {
        let values = line.split(',').map(str::to_owned);
        names.iter().map(|name| (*name).to_owned()).zip(values).collect()
    };
    lines.map(row).collect()
}

/// The table's burst maxima are over tumbling windows, so a sliding window finds at least as much, and at most twice as
/// much.
#[test]
fn captures_measure_as_known() {
    let Some(folder) = traces() else { return };
    let mut compared = 0;
    for row in characteristics(&folder) {
        let file = &row["file"];
        let path = folder.join(file);
        if !path.exists() {
            continue;
        }
        compared += 1;
        let stats = measure(CaptureReader::open(&path, &ReadOptions::default())).unwrap();
        let known = |column: &str| row[column].parse::<f64>().unwrap();
        assert_eq!(stats.packets as f64, known("pkts"), "{file}");
        let seconds = stats.duration.as_secs_f64();
        assert!((seconds - known("dur_s")).abs() < 0.0006, "{file}: {seconds}");
        assert_eq!(stats.time_sorted, row["tsorted"] == "True", "{file}");
        let mean = stats.packet_bytes.mean;
        assert!((mean - known("meansz")).abs() < 0.06, "{file}: {mean}");

        let [_, milli, ten] = stats.bursts[..] else {
            panic!("three windows");
        };
        assert_eq!(milli.window, Nanos::from_millis(1));
        let slides = |sliding: u64, column: &str| {
            let (sliding, tumbling) = (sliding as f64, known(column));
            assert!(
                sliding >= tumbling && sliding <= 2.0 * tumbling,
                "{file} {column}: {sliding}, tumbling {tumbling}"
            );
        };
        slides(milli.max_packets, "max1ms");
        slides(ten.max_packets, "max10ms");

        // Flows are compared only where the table counts the same packets. It counts malformed packets as a flow, and
        // fragments as part of a flow with ports zero or not at all.
        let fragments = file.contains("dns_rrsig_frag");
        if stats.malformed.is_empty() && !fragments {
            assert_eq!(stats.flows as f64, known("flows5"), "{file}");
            assert_eq!(stats.bidirectional_flows as f64, known("biflows"), "{file}");
            slides(milli.max_flow_packets, "flowburst1ms");
            slides(ten.max_flow_packets, "flowburst10ms");
            slides(milli.max_new_flows, "newflow1ms");
            slides(ten.max_new_flows, "newflow10ms");
            let share = stats.top_flow.unwrap().packet_share;
            assert!((share - known("topflow")).abs() < 0.0006, "{file}: {share}");
        }
    }
    assert!(compared > 0, "no capture of the table is there");
}

#[test]
fn captures_load_as_traces() {
    let Some(folder) = traces() else { return };
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.ends_with(".pcap.zst") && !name.ends_with(".pcapng.zst") {
            continue;
        }
        let mut reader = CaptureReader::open(&path, &ReadOptions::default()).unwrap();
        let loaded = Trace::load(&mut reader, &LoadOptions::default());
        if name.contains("notimestamps") {
            assert!(matches!(loaded, Err(TrafficError::NoTimestamps { .. })), "{name}");
            let mut reader = CaptureReader::open(&path, &ReadOptions::default()).unwrap();
            let options = LoadOptions {
                rate_pps: Some(1e6),
                ..LoadOptions::default()
            };
            let trace = Trace::load(&mut reader, &options).unwrap();
            assert_eq!(trace.duration(), Nanos::from_micros(trace.len() as u64 - 1));
            continue;
        }
        let trace = loaded.unwrap();
        let sorted = trace.notices().iter().any(|n| matches!(n, Notice::Sorted { .. }));
        let unsorted = ["ddos_amp_snmp", "zeek_echo"].iter().any(|s| name.contains(s));
        assert_eq!(sorted, unsorted, "{name}");
        for i in 1..trace.len() {
            assert!(trace.arrival(i - 1) <= trace.arrival(i), "{name}");
        }
        assert_eq!(trace.arrival(0), Nanos::ZERO);
        // Reading it again from memory gives the same results, except for the order.
        let from_memory = Statistics::measure(&mut trace.source(), 1 << 30).unwrap();
        let from_file = measure(CaptureReader::open(&path, &ReadOptions::default())).unwrap();
        assert!(from_memory.time_sorted);
        assert_eq!(from_memory.bursts, from_file.bursts, "{name}");
        assert_eq!(from_memory.bytes, trace.bytes());
    }
}

/// Returns the regular files of an uncompressed tar archive (POSIX ustar).
fn untar(archive: &[u8]) -> Vec<(String, &[u8])> {
    let mut files = Vec::new();
    let mut rest = archive;
    while let Some((header, after)) = rest.split_first_chunk::<512>() {
        let text = |range: std::ops::Range<usize>| {
            let field = &header[range];
            let end = field.iter().position(|b| *b == 0).unwrap_or(field.len());
            String::from_utf8_lossy(&field[..end]).trim().to_owned()
        };
        let Ok(size) = usize::from_str_radix(&text(124..136), 8) else {
            break;
        };
        if header[156] == b'0' {
            files.push((text(0..100), &after[..size]));
        }
        rest = after.get(size.next_multiple_of(512)..).unwrap_or_default();
    }
    files
}

/// Archive of captures of many applications.
fn corpus(folder: &std::path::Path) -> Vec<u8> {
    let packed = fs::read(folder.join("ndpi_app_corpus_545pcaps.tar.zst")).unwrap();
    let mut archive = Vec::new();
    ruzstd::decoding::StreamingDecoder::new(&packed[..])
        .unwrap()
        .read_to_end(&mut archive)
        .unwrap();
    archive
}

/// The paths for plain and for common packets find the headers that the general path finds, in every packet of every
/// capture, and take most packets.
#[test]
fn all_paths_of_the_parser_agree_on_captures() {
    let Some(folder) = traces() else { return };
    let (mut packets, mut plain, mut common, mut guessed) = (0, 0, 0, 0);
    let mut compare = |reader: Result<CaptureReader, TrafficError>| {
        let Ok(mut reader) = reader else { return };
        while let Ok(Some(packet)) = reader.next_packet() {
            let frame = packet.data;
            let expected = parse_any(frame);
            assert_eq!(parse(frame), expected, "{frame:02x?}");
            let mut guess = Headers::default();
            let guess = guess_v4(frame, &mut guess).then_some(guess);
            let found = [parse_plain_v4(frame), parse_common(frame), guess];
            for headers in found.into_iter().flatten() {
                assert_eq!(Ok(headers), expected, "{frame:02x?}");
            }
            packets += 1;
            plain += u64::from(found[0].is_some());
            common += u64::from(found[1].is_some());
            guessed += u64::from(found[2].is_some());
        }
    };
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.to_string_lossy();
        if name.ends_with(".pcap.zst") || name.ends_with(".pcapng.zst") {
            compare(CaptureReader::open(&path, &ReadOptions::default()));
        }
    }
    for (name, content) in untar(&corpus(&folder)) {
        let content = Cursor::new(content.to_vec());
        compare(CaptureReader::from_reader(content, &name, &ReadOptions::default()));
    }
    eprintln!("{packets} packets, {plain} plain, {common} common, {guessed} guessed");
    assert!(plain > 0 && common > plain && packets > common);
    assert!(guessed > 0 && common > guessed);
}

#[test]
fn the_corpus_loads_or_is_refused_for_a_known_reason() {
    let Some(folder) = traces() else { return };
    let archive = corpus(&folder);
    let mut loaded = 0;
    let mut refused = BTreeMap::new();
    for (name, content) in untar(&archive) {
        let content = Cursor::new(content.to_vec());
        let reader = CaptureReader::from_reader(content, &name, &ReadOptions::default());
        match measure(reader) {
            Ok(stats) => {
                loaded += 1;
                assert!(stats.packets > 0);
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.starts_with(&name), "{text}");
                let short = name.rsplit('/').next().unwrap().to_owned();
                let kind = match error {
                    TrafficError::LinkType { number, .. } => format!("link type {number}"),
                    TrafficError::NotACapture { .. } => "not a capture".to_owned(),
                    TrafficError::NoPackets { .. } => "no packets".to_owned(),
                    other => panic!("{other}"),
                };
                refused.insert(short, kind);
            }
        }
    }
    let expected = [
        ("BGP_Cisco_hdlc_slarp.pcap", "link type 9"),
        ("BGP_redist.pcap", "link type 104"),
        ("COPYING", "not a capture"),
        ("README.txt", "not a capture"),
        ("dlt_ppp.pcap", "link type 9"),
        // File from a fuzzer: its first record states half a megabyte.
        ("fuzz-2021-10-13.pcap", "no packets"),
        ("someip_sd_sample.pcap", "link type 192"),
    ];
    let refused: Vec<(&str, &str)> = refused.iter().map(|(a, b)| (&**a, &**b)).collect();
    assert_eq!(refused, expected);
    assert_eq!(loaded, 538);
}
