//! Every variant of capture file, and every kind of damage.

mod damage;
mod files;

use std::io::Cursor;

use self::files::{ORDERS, Order, PACKINGS, PcapFile, PcapNgFile, pack};
use super::*;

/// Time in nanoseconds, frame, wire length.
type Read = (u64, Vec<u8>, u32);

fn read_with(file: &[u8], options: &ReadOptions) -> Result<(Vec<Read>, Vec<Notice>), TrafficError> {
    let mut reader = CaptureReader::from_reader(Cursor::new(file.to_vec()), "t.pcap", options)?;
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet()? {
        assert!((1..=MAX_FRAME).contains(&packet.data.len()));
        assert!(packet.wire_length as usize >= packet.data.len());
        packets.push((packet.timestamp.0, packet.data.to_vec(), packet.wire_length));
    }
    assert!(reader.next_packet()?.is_none(), "the end is lasting");
    Ok((packets, reader.notices()))
}

fn read(file: &[u8]) -> Result<(Vec<Read>, Vec<Notice>), TrafficError> {
    read_with(file, &ReadOptions::default())
}

fn skip_bad() -> ReadOptions {
    ReadOptions { skip_bad_packets: true }
}

/// Returns the packets of a file that must be valid.
fn packets(file: &[u8]) -> Vec<Read> {
    let (packets, notices) = read(file).unwrap();
    assert_eq!(notices, []);
    packets
}

/// Builds an Ethernet frame of `length` bytes, whose content depends on `seed`.
fn frame(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|i| (i as u8).wrapping_mul(7) ^ seed).collect()
}

fn whole(time: u64, data: &[u8]) -> Read {
    (time, data.to_vec(), data.len() as u32)
}

#[test]
fn pcap_in_every_order_resolution_and_packing() {
    let (a, b) = (frame(60, 1), frame(1514, 2));
    for order in ORDERS {
        for (nanoseconds, unit) in [(false, 1_000), (true, 1)] {
            let file = PcapFile::new(order, nanoseconds, 1)
                .record(1_700_000_000, 999_999, &a, 60)
                .record(1_700_000_001, 3, &b, 1514);
            let expected = [
                whole(1_700_000_000_000_000_000 + 999_999 * unit, &a),
                whole(1_700_000_001_000_000_000 + 3 * unit, &b),
            ];
            for packing in PACKINGS {
                let packed = pack(&file.bytes, packing);
                assert_eq!(packets(&packed), expected, "{order:?} {unit} {packing:?}");
            }
        }
    }
}

#[test]
fn modified_pcap_has_longer_record_headers() {
    let data = frame(64, 3);
    let mut file = PcapFile::new(Order::Little, false, 1);
    file.bytes[..4].copy_from_slice(&0xa1b2_cd34_u32.to_le_bytes());
    for field in [5u32, 6, 64, 64, 0x1111_1111, 0x2222_2222] {
        file.bytes.extend(field.to_le_bytes());
    }
    file.bytes.extend(&data);
    assert_eq!(packets(&file.bytes), [whole(5_000_006_000, &data)]);
}

#[test]
fn the_frame_check_bits_of_a_link_type_are_ignored() {
    let file = PcapFile::new(Order::Little, false, 0x4400_0001).record(1, 0, &frame(60, 0), 60);
    assert_eq!(packets(&file.bytes).len(), 1);
}

#[test]
fn pcapng_in_every_order_block_and_packing() {
    let (a, b, c, d) = (frame(61, 1), frame(1514, 2), frame(62, 3), frame(63, 4));
    for order in ORDERS {
        let file = PcapNgFile::new(order)
            .interface(1, 0, None, 0)
            .enhanced(0, 5_000_001, &a, 61)
            .obsolete(0, 0x1_0000_0002, &b, 1514)
            .simple(&c, 62)
            .enhanced_options(0, 0x2_0000_0000, &d, 63);
        let expected = [
            whole(5_000_001_000, &a),
            whole(0x1_0000_0002 * 1_000, &b),
            // A simple packet has no time of its own.
            whole(0x1_0000_0002 * 1_000, &c),
            whole(0x2_0000_0000 * 1_000, &d),
        ];
        for packing in PACKINGS {
            assert_eq!(packets(&pack(&file.bytes, packing)), expected, "{order:?} {packing:?}");
        }
    }
}

#[test]
fn pcapng_resolutions_and_offsets() {
    let data = frame(60, 9);
    for order in ORDERS {
        for (resolution, offset, ticks, nanos) in [
            (None, 0, 7, 7_000),
            (Some(0), 0, 7, 7_000_000_000),
            (Some(3), 0, 1_234, 1_234_000_000),
            (Some(6), 0, 1_234, 1_234_000),
            (Some(9), 0, u64::MAX, u64::MAX),
            (Some(12), 0, 1_999, 1),
            (Some(127), 0, u64::MAX, 0),
            (Some(0x80 | 10), 0, 1_536, 1_500_000_000),
            (Some(0x80 | 30), 0, 1 << 29, 500_000_000),
            (Some(0xff), 0, u64::MAX, 0),
            (Some(9), 1_600_000_000, 5, 1_600_000_000_000_000_005),
            (Some(6), -2, 5_000_000, 3_000_000_000),
            // Before the epoch, and beyond 584 years after it.
            (Some(6), -10, 5_000_000, 0),
            (Some(6), i64::MAX, 1, u64::MAX),
            (Some(0), 0, u64::MAX, u64::MAX),
        ] {
            let file = PcapNgFile::new(order)
                .interface(1, 0, resolution, offset)
                .enhanced(0, ticks, &data, 60);
            assert_eq!(
                packets(&file.bytes),
                [whole(nanos, &data)],
                "{order:?} {resolution:?} {offset} {ticks}"
            );
        }
    }
}

#[test]
fn pcapng_interfaces_sections_and_other_blocks() {
    let (ethernet, ip) = (frame(60, 1), [&[0x45][..], &frame(39, 2)].concat());
    let file = PcapNgFile::new(Order::Little)
        .interface(1, 0, Some(6), 0)
        .interface(101, 0, Some(9), 0)
        // Name resolution, statistics, and a custom block far longer than any packet.
        .block(4, &[0xff; 33])
        .block(5, &[0; 1])
        .block(0x0bad, &vec![0xaa; 3 << 20])
        .enhanced(1, 77, &ip, 40)
        .enhanced(0, 77, &ethernet, 60)
        // A new section starts without interfaces, and may have another byte order.
        .section(Order::Big)
        .interface(229, 0, Some(3), 0)
        .enhanced(0, 77, &ip, 40);
    let read = packets(&file.bytes);
    let header = |ethertype: u16| {
        let mut header = [SYNTHETIC_DESTINATION, SYNTHETIC_SOURCE].concat();
        header.extend(ethertype.to_be_bytes());
        header
    };
    assert_eq!(
        read,
        [
            whole(77, &[header(0x0800), ip.clone()].concat()),
            whole(77_000, &ethernet),
            whole(77_000_000, &[header(0x86dd), ip].concat()),
        ]
    );
}

#[test]
fn simple_packets_end_at_the_snap_length() {
    let data = frame(32, 5);
    let file = PcapNgFile::new(Order::Little)
        .interface(1, 30, None, 0)
        .simple(&data, 100);
    let (read, notices) = read(&file.bytes).unwrap();
    let mut padded = data[..30].to_vec();
    padded.resize(100, 0);
    assert_eq!(read, [(0, padded, 100)]);
    assert_eq!(notices.len(), 1);
}

#[test]
fn every_link_type_becomes_ethernet() {
    let v4 = [&[0x45][..], &frame(39, 1)].concat();
    let v6 = [&[0x60][..], &frame(59, 2)].concat();
    let cooked = |protocol: u16, payload: &[u8]| {
        let mut record = vec![0, 4, 0, 1, 0, 6, 1, 2, 3, 4, 5, 6, 0, 0];
        record.extend(protocol.to_be_bytes());
        [&record, payload].concat()
    };
    let cooked2 = |protocol: u16, payload: &[u8]| {
        let mut record = protocol.to_be_bytes().to_vec();
        record.extend([0, 0, 0, 0, 0, 9, 0, 1, 4, 6, 1, 2, 3, 4, 5, 6, 0, 0]);
        [&record, payload].concat()
    };
    let family = |bytes: [u8; 4], payload: &[u8]| [&bytes, payload].concat();
    let cases: Vec<(u32, Vec<u8>, u16, &[u8])> = vec![
        (12, v4.clone(), 0x0800, &v4),
        (14, v6.clone(), 0x86dd, &v6),
        (101, v4.clone(), 0x0800, &v4),
        (101, v6.clone(), 0x86dd, &v6),
        // Neither IPv4 nor IPv6: the packet parser will reject it.
        (101, vec![0x70, 1], 0x0800, &[0x70, 1]),
        (228, v6.clone(), 0x0800, &v6),
        (229, v4.clone(), 0x86dd, &v4),
        (0, family([2, 0, 0, 0], &v4), 0x0800, &v4),
        (0, family([0, 0, 0, 2], &v4), 0x0800, &v4),
        (0, family([24, 0, 0, 0], &v6), 0x86dd, &v6),
        (0, family([0, 0, 0, 28], &v6), 0x86dd, &v6),
        (0, family([10, 0, 0, 0], &v6), 0x86dd, &v6),
        (108, family([0, 0, 0, 30], &v6), 0x86dd, &v6),
        (108, family([0, 0, 0, 7], &v6), 0x88b5, &v6),
        (113, cooked(0x0800, &v4), 0x0800, &v4),
        (113, cooked(0x0806, &v6), 0x0806, &v6),
        (113, cooked(0x0004, &v4), 40, &v4),
        (113, cooked(0x000c, &v4), 0x88b5, &v4),
        (276, cooked2(0x86dd, &v6), 0x86dd, &v6),
        (276, cooked2(0x0004, &v6), 60, &v6),
        (276, cooked2(0x0001, &v6), 0x88b5, &v6),
        // A header without payload is still a frame.
        (276, cooked2(0x0800, &[]), 0x0800, &[]),
    ];
    for (link, record, ethertype, payload) in cases {
        let mut expected = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        expected.extend(ethertype.to_be_bytes());
        expected.extend(payload);
        let wire = record.len() as u32;
        let in_pcap = PcapFile::new(Order::Big, true, link).record(0, 8, &record, wire);
        let in_pcapng = PcapNgFile::new(Order::Little)
            .interface(link as u16, 0, Some(9), 0)
            .enhanced(0, 8, &record, wire);
        assert_eq!(packets(&in_pcap.bytes), [whole(8, &expected)], "link type {link}");
        assert_eq!(packets(&in_pcapng.bytes), [whole(8, &expected)], "link type {link}");
    }
}

#[test]
fn raw_ip_in_a_simple_packet_has_room_for_its_header() {
    let ip = [&[0x45][..], &frame(39, 1)].concat();
    let file = PcapNgFile::new(Order::Little)
        .interface(101, 0, None, 0)
        .simple(&ip, 40);
    assert_eq!(packets(&file.bytes)[0].1[14..], ip);
}

#[test]
fn unsupported_link_types_are_named() {
    let pcap = PcapFile::new(Order::Little, false, 105).record(1, 0, &[1; 60], 60);
    let text = read(&pcap.bytes).unwrap_err().to_string();
    assert!(text.starts_with("t.pcap: link type 105 (IEEE 802.11) is not"), "{text}");
    assert!(text.contains("Ethernet (1)") && text.contains("276"), "{text}");

    // In pcapng an unsupported interface is harmless until a packet refers to it.
    let mixed = PcapNgFile::new(Order::Little)
        .interface(1, 0, None, 0)
        .interface(189, 0, None, 0)
        .enhanced(0, 1, &[1; 60], 60);
    assert_eq!(packets(&mixed.bytes).len(), 1);
    let mixed = mixed.enhanced(1, 2, &[2; 70], 70).enhanced(0, 3, &[3; 60], 60);
    let error = read(&mixed.bytes).unwrap_err();
    assert!(matches!(error, TrafficError::LinkType { number: 189, .. }), "{error}");
    let (read, notices) = read_with(&mixed.bytes, &skip_bad()).unwrap();
    assert_eq!(read.len(), 2);
    assert!(matches!(notices[..], [Notice::Skipped { link_type: 1, .. }]));
}

#[test]
fn bad_packets_are_refused_or_skipped() {
    let ok = frame(60, 1);
    let long = vec![7; 65_536];
    let empty = PcapFile::new(Order::Little, false, 1)
        .record(1, 0, &ok, 60)
        .record(2, 0, &[], 60)
        .record(3, 0, &ok, 60);
    let text = read(&empty.bytes).unwrap_err().to_string();
    assert!(text.starts_with("t.pcap: packet 2 is empty"), "{text}");
    let (read_on, notices) = read_with(&empty.bytes, &skip_bad()).unwrap();
    assert_eq!(read_on.len(), 2);
    assert!(matches!(notices[..], [Notice::Skipped { empty: 1, .. }]));

    let too_long = PcapFile::new(Order::Little, false, 1)
        .record(1, 0, &long, 65_536)
        .record(2, 0, &ok, 60);
    let error = read(&too_long.bytes).unwrap_err();
    assert!(
        matches!(
            error,
            TrafficError::PacketTooLong {
                number: 1,
                length: 65_536,
                limit: 65_535,
                ..
            }
        ),
        "{error}"
    );
    let (read_on, notices) = read_with(&too_long.bytes, &skip_bad()).unwrap();
    assert_eq!(read_on, [whole(2_000_000_000, &ok)]);
    assert!(matches!(notices[..], [Notice::Skipped { too_long: 1, .. }]));

    // The limit applies to the frame, which is longer than a raw IP packet.
    let raw = |length: u32| {
        let record = vec![0x45; length as usize];
        PcapFile::new(Order::Little, false, 101).record(1, 0, &record, length)
    };
    assert_eq!(packets(&raw(65_521).bytes)[0].1.len(), 65_535);
    assert!(matches!(
        read(&raw(65_522).bytes).unwrap_err(),
        TrafficError::PacketTooLong { length: 65_536, .. }
    ));

    let cut = PcapFile::new(Order::Little, false, 113)
        .record(1, 0, &[0; 15], 60)
        .record(2, 0, &[0; 16], 16);
    let text = read(&cut.bytes).unwrap_err().to_string();
    assert!(
        text.contains("packet 1 ends within its link-layer header (15 of 16"),
        "{text}"
    );
    let (read_on, notices) = read_with(&cut.bytes, &skip_bad()).unwrap();
    assert_eq!(read_on.len(), 1);
    assert!(matches!(notices[..], [Notice::Skipped { link_header_cut: 1, .. }]));

    let nothing_left = PcapFile::new(Order::Little, false, 1).record(1, 0, &[], 0);
    let text = read_with(&nothing_left.bytes, &skip_bad()).unwrap_err().to_string();
    assert!(text.contains("all its 1 packet records were skipped"), "{text}");
}

#[test]
fn the_longest_offloaded_frame_loads() {
    let data = frame(65_535, 3);
    let pcap = PcapFile::new(Order::Little, false, 1).record(1, 0, &data, 65_535);
    assert_eq!(packets(&pcap.bytes), [whole(1_000_000_000, &data)]);
}

#[test]
fn what_a_snap_length_cut_is_filled_with_zeros() {
    let data = frame(50, 3);
    let file = PcapFile::new(Order::Little, false, 1)
        .record(1, 0, &data, 100)
        .record(2, 0, &data, 65_535)
        .record(3, 0, &data, 65_536)
        // Some tools write a wire length of zero.
        .record(4, 0, &data, 0)
        .record(5, 0, &data, 50);
    let (read_back, notices) = read(&file.bytes).unwrap();
    let padded = |length: usize| {
        let mut padded = data.clone();
        padded.resize(length, 0);
        padded
    };
    let expected = [
        (1_000_000_000, padded(100), 100),
        (2_000_000_000, padded(65_535), 65_535),
        (3_000_000_000, data.clone(), 65_536),
        (4_000_000_000, data.clone(), 50),
        (5_000_000_000, data.clone(), 50),
    ];
    assert_eq!(read_back, expected);
    assert!(matches!(
        notices[..],
        [Notice::Padded { packets: 2, .. }, Notice::LeftShort { packets: 1, .. }]
    ));

    // The wire length of a record includes its own link-layer header, not Ethernet's. Bytes after the data in its block
    // are not part of the packet.
    let record = [&[0; 14][..], &[8, 0], &[0x45; 25]].concat();
    let file = PcapNgFile::new(Order::Big)
        .interface(113, 0, None, 0)
        .enhanced_options(0, 1, &record, 16 + 50);
    let (read_back, _) = read(&file.bytes).unwrap();
    assert_eq!(read_back[0].2, 14 + 50);
    assert_eq!(read_back[0].1[14..], [&[0x45; 25][..], &[0; 25]].concat());
}

#[test]
fn what_is_no_capture_is_described() {
    let twice = pack(
        &pack(&PcapFile::new(Order::Little, false, 1).bytes, files::Packing::Gzip),
        files::Packing::Zstd,
    );
    for (bytes, expected) in [
        (&b""[..], "empty file"),
        (b"#!/bin/sh", "found the first bytes 23 21 2f 62"),
        (b"\n", "found the first bytes 0a"),
        (&[0xfd, b'7', b'z', b'X', b'Z', 0], "found xz data, decompress it first"),
        (&twice, "compressed twice"),
    ] {
        let error = read(bytes).unwrap_err();
        assert!(matches!(error, TrafficError::NotACapture { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let missing = CaptureReader::open("/no/such/file.pcap", &ReadOptions::default()).err();
    let text = missing.expect("it does not exist").to_string();
    assert!(text.starts_with("/no/such/file.pcap: cannot read: "), "{text}");
    assert!(matches!(
        CaptureReader::open("/", &ReadOptions::default()).err(),
        Some(TrafficError::Read { .. })
    ));
}

#[test]
fn a_file_without_packets_is_an_error() {
    for file in [
        PcapFile::new(Order::Little, true, 1).bytes,
        PcapNgFile::new(Order::Big).interface(1, 0, None, 0).bytes,
    ] {
        let text = read(&file).unwrap_err().to_string();
        assert_eq!(text, "t.pcap: contains no packets: found no records after its header");
    }
}
