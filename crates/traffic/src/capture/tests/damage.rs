//! Truncated, corrupt and random files: the valid prefix is used, and nothing panics.

use proptest::prelude::*;

use super::files::{ORDERS, Order, PACKINGS, Packing, PcapFile, PcapNgFile, pack};
use super::{Read, frame, packets, read, read_with, skip_bad};
use crate::{Notice, TrafficError};

fn small_pcap() -> Vec<u8> {
    PcapFile::new(Order::Little, false, 1)
        .record(1, 0, &frame(60, 1), 60)
        .record(2, 0, &frame(61, 2), 61)
        .record(3, 0, &frame(62, 3), 62)
        .bytes
}

fn small_pcapng(order: Order) -> Vec<u8> {
    PcapNgFile::new(order)
        .interface(1, 0, None, 0)
        .enhanced(0, 1, &frame(60, 1), 60)
        .block(4, &[0xff; 20])
        .obsolete(0, 2, &frame(61, 2), 61)
        .simple(&frame(62, 3), 62)
        .bytes
}

/// Reads a damaged file with the valid packets `whole`, and returns the number of packets read.
fn prefix(file: &[u8], whole: &[Read]) -> usize {
    match read(file) {
        Ok((read, notices)) => {
            assert!(!read.is_empty());
            assert_eq!(read, whole[..read.len()], "not a prefix");
            assert!(notices.len() <= 1);
            if read.len() < whole.len() && !notices.is_empty() {
                let Notice::Cut { packets, .. } = &notices[0] else {
                    panic!("{notices:?}");
                };
                assert_eq!(*packets, read.len() as u64);
            }
            read.len()
        }
        Err(TrafficError::NoPackets { .. } | TrafficError::NotACapture { .. }) => 0,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn cut_anywhere_a_file_yields_a_prefix() {
    let mut files = vec![small_pcap()];
    files.extend(ORDERS.map(small_pcapng));
    for plain in files {
        let whole = packets(&plain);
        for packing in PACKINGS {
            let file = pack(&plain, packing);
            let mut read = 0;
            for length in 0..file.len() {
                let now = prefix(&file[..length], &whole);
                assert!(now >= read, "{packing:?}: more bytes, fewer packets");
                read = now;
            }
            assert_eq!(prefix(&file, &whole), whole.len());
        }
    }
}

/// A zstd decoder holds back a window of up to megabytes, which a cut file lost: a capture of 3 MB had no packets.
#[test]
fn a_cut_frame_yields_the_packets_before_the_cut() {
    const PACKETS: usize = 600;
    let mut state = 1_u32;
    let mut file = PcapFile::new(Order::Little, false, 1);
    for number in 0..PACKETS {
        // Hardly compressible, so that the compressed file is as long as the packets, and has several blocks.
        let data: Vec<u8> = (0..1000)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 17;
                state ^= state << 5;
                state as u8
            })
            .collect();
        file = file.record(number as u32, 0, &data, 1000);
    }
    let whole = packets(&file.bytes);
    for packing in PACKINGS {
        let packed = pack(&file.bytes, packing);
        for share in [0.3, 0.5, 0.8, 0.999] {
            let length = (packed.len() as f64 * share) as usize;
            let (read_back, notices) = read(&packed[..length]).unwrap();
            assert_eq!(read_back, whole[..read_back.len()]);
            // At most a block is missing.
            let before = (length as f64 - f64::from(128 << 10)) / 1016.0;
            assert!(
                read_back.len() as f64 >= before - 1.0,
                "{packing:?}: {} of {length} bytes",
                read_back.len()
            );
            let [Notice::Cut { packets, reason, .. }] = &notices[..] else {
                panic!("{packing:?}: {notices:?}");
            };
            assert_eq!(*packets, read_back.len() as u64);
            if let Packing::Zstd | Packing::ZstdTwice = packing {
                assert_eq!(
                    reason,
                    "the compressed data is damaged: the file ends within a zstd frame"
                );
            }
        }
        // Within the first block there is no packet.
        if let Packing::Zstd = packing {
            let error = read(&packed[..1000]).unwrap_err().to_string();
            let expected =
                "t.pcap: contains no packets: the compressed data is damaged: the file ends within a zstd frame";
            assert_eq!(error, expected);
        }
    }
}

/// A block of the reserved type in the middle of a frame: the blocks before it count.
#[test]
fn a_damaged_block_ends_the_file() {
    // A frame without checksum, with a window of 8 MiB: a raw block with the file, and a reserved one.
    let plain = small_pcap();
    let header = (plain.len() as u32) << 3;
    let mut file = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 13 << 3];
    file.extend(&header.to_le_bytes()[..3]);
    file.extend(&plain);
    file.extend([0b110, 0, 0]);
    let (read_back, notices) = read(&file).unwrap();
    assert_eq!(read_back, packets(&plain));
    assert!(
        matches!(&notices[..], [Notice::Cut { packets: 3, reason, .. }] if reason.contains("Reserved")),
        "{notices:?}"
    );
}

#[test]
fn a_cut_is_located() {
    let file = small_pcap();
    // The header, two records, and ten bytes of the third record's header.
    let length = 24 + (16 + 60) + (16 + 61);
    let (_, notices) = read(&file[..length + 10]).unwrap();
    assert_eq!(
        notices,
        [Notice::Cut {
            file: "t.pcap".to_owned(),
            packets: 2,
            byte: length as u64,
            reason: "the file ends within a record".to_owned(),
        }]
    );
    assert_eq!(
        notices[0].to_string(),
        format!(
            "t.pcap: cut or damaged after 2 packets, at byte {length}: the file ends within a \
             record; the packets before it are used"
        )
    );
    // Truncation at a record's end cannot be detected.
    let (read_back, notices) = read(&file[..length]).unwrap();
    assert_eq!((read_back.len(), notices.len()), (2, 0));
}

#[test]
fn impossible_lengths_end_the_file() {
    let two = || {
        PcapFile::new(Order::Little, false, 1)
            .record(1, 0, &frame(60, 1), 60)
            .record(2, 0, &frame(60, 2), 60)
    };
    let mut file = two().bytes;
    let second = 24 + 16 + 60;
    file[second + 8..second + 12].copy_from_slice(&262_145u32.to_le_bytes());
    let (read_back, notices) = read(&file).unwrap();
    assert_eq!(read_back.len(), 1);
    assert!(
        notices[0].to_string().contains("captured length of 262145 bytes"),
        "{}",
        notices[0]
    );

    // Every wrong length of a pcapng block's header or trailer, and of a packet in it.
    let start = PcapNgFile::new(Order::Little)
        .interface(1, 0, None, 0)
        .enhanced(0, 1, &frame(60, 1), 60);
    let at = start.bytes.len();
    let file = start.enhanced(0, 2, &frame(60, 2), 60).bytes;
    for (offset, length) in [
        (4, 0u32),
        (4, 4),
        (4, 88),
        (4, 96),
        (4, u32::MAX),
        (88, 0),
        (88, 93),
        (20, 61),
        (20, u32::MAX),
        (20, u32::MAX - 4),
        (8, 1),
    ] {
        let mut file = file.clone();
        file[at + offset..at + offset + 4].copy_from_slice(&length.to_le_bytes());
        let (read_back, notices) = read(&file).unwrap();
        assert_eq!(read_back.len(), 1, "{length} at {offset}");
        assert!(
            matches!(notices[..], [Notice::Cut { packets: 1, .. }]),
            "{length} at {offset}"
        );
    }
}

#[test]
fn a_wrong_trailing_length_ends_the_file() {
    let start = || {
        PcapNgFile::new(Order::Big)
            .interface(1, 0, None, 0)
            .enhanced(0, 1, &frame(60, 1), 60)
    };
    for file in [
        start().simple(&frame(60, 2), 60),
        start().obsolete(0, 2, &frame(60, 2), 60),
        start().block(5, &[0; 12]),
        start().section(Order::Big),
    ] {
        let mut file = file.simple(&frame(60, 3), 60).bytes;
        let last = file.len() - (12 + 4 + 60) - 1;
        file[last] ^= 4;
        let (read_back, notices) = read(&file).unwrap();
        assert_eq!(read_back.len(), 1);
        assert!(
            notices[0].to_string().contains("but ends with length"),
            "{}",
            notices[0]
        );
    }
}

#[test]
fn a_damaged_checksum_is_noticed_after_its_packets() {
    for packing in [Packing::Gzip, Packing::Zstd] {
        let mut file = pack(&small_pcap(), packing);
        // The last four bytes: gzip's length, zstd's content checksum.
        let last = file.len() - 1;
        file[last] ^= 0x55;
        let (read_back, notices) = read(&file).unwrap();
        assert_eq!(read_back.len(), 3);
        assert!(
            matches!(&notices[..], [Notice::Cut { packets: 3, reason, .. }]
                if reason.contains("compressed data is damaged")),
            "{packing:?}: {notices:?}"
        );
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(
        magic in prop::sample::select(vec![
            0xa1b2_c3d4u32, 0xd4c3_b2a1, 0xa1b2_3c4d, 0x4d3c_b2a1, 0xa1b2_cd34,
            0x0a0d_0d0a, 0x0008_8b1f, 0xfd2f_b528, 0x184d_2a50,
        ]),
        tail in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let file = [&magic.to_le_bytes()[..], &tail].concat();
        let _ = read_with(&file, &skip_bad());
        let _ = read(&file);
    }

    #[test]
    fn damaged_files_never_panic(
        kind in 0usize..3,
        packing in prop::sample::select(PACKINGS.to_vec()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let plain = match kind {
            0 => small_pcap(),
            1 => small_pcapng(Order::Little),
            _ => small_pcapng(Order::Big),
        };
        let mut file = pack(&plain, packing);
        for (at, value) in changes {
            let at = at.index(file.len());
            file[at] = value;
        }
        let _ = read_with(&file, &skip_bad());
        let _ = read(&file);
    }
}
