//! Properties of the reader for any bytes.

use std::io::Cursor;

use tailwater_traffic::{CaptureReader, MAX_FRAME, PacketSource, ReadOptions, TrafficError};

/// Maximum number of packets examined: compressed input can expand to very many.
const ENOUGH: usize = 10_000;

/// Reads `bytes` as a capture, strictly and with bad packets skipped, and checks every packet. Returns the number of
/// packets read strictly.
pub fn check(bytes: &[u8]) -> usize {
    let strict = read(bytes, false);
    let lenient = read(bytes, true);
    if let Ok(packets) = strict {
        assert_eq!(lenient.ok(), Some(packets), "skipping changes a sound file");
        return packets;
    }
    0
}

fn read(bytes: &[u8], skip_bad_packets: bool) -> Result<usize, TrafficError> {
    let options = ReadOptions { skip_bad_packets };
    let mut reader = CaptureReader::from_reader(Cursor::new(bytes.to_vec()), "any", &options)?;
    let mut packets = 0;
    while let Some(packet) = reader.next_packet()? {
        assert!((1..=MAX_FRAME).contains(&packet.data.len()));
        assert!(packet.wire_length as usize >= packet.data.len());
        packets += 1;
        if packets == ENOUGH {
            return Ok(packets);
        }
    }
    assert!(packets > 0, "no packets must be an error");
    assert!(reader.next_packet()?.is_none(), "the end is lasting");
    for notice in reader.notices() {
        assert!(!notice.to_string().contains('\n'), "{notice}");
    }
    Ok(packets)
}
