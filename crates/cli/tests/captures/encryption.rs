//! Output of ACL, URL filter and encryption: predicted from the plain frames, and decrypted again.

use super::{Replay, Sent};
use tailwater_net::checksum::{verify_network, verify_transport};
use tailwater_net::parse::{Fragment, Headers, parse};
use tailwater_net::protocol;

/// Bytes added to an encrypted UDP payload.
const TRAILER: usize = 8;

/// Minimum payload length; shorter ones may equal their own ciphertext by chance.
const TELLING: usize = 16;

/// Returns `true` if the payload must be encrypted: unfragmented TCP and UDP packets.
fn is_encrypted(headers: &Headers) -> bool {
    matches!(headers.key.protocol(), protocol::TCP | protocol::UDP) && headers.fragment == Fragment::Whole
}

/// Returns `true` if the packet must be refused: its UDP length differs from the IP packet's.
fn is_refused(frame: &[u8], headers: &Headers) -> bool {
    let transport = headers.transport(frame);
    is_encrypted(headers)
        && headers.key.protocol() == protocol::UDP
        && usize::from(u16::from_be_bytes([transport[4], transport[5]])) != transport.len()
}

/// Compares every sent packet with its plain form: headers are equal except for lengths and checksums, payloads differ,
/// and checksums are as right as before. Then decrypts the output and compares the frames byte by byte. Returns
/// (restored frames, those of them with an encrypted payload).
pub fn check(replay: &Replay<'_>, plain: &Sent) -> (usize, usize) {
    let name = replay.name();
    let expected: Vec<&Vec<u8>> = plain
        .ip
        .iter()
        .filter(|frame| !is_refused(frame, &parse(frame).unwrap()))
        .collect();
    let (out, secret) = replay.send(&replay.chains.acl_url_encrypt, "encrypted.pcap");
    assert_eq!(secret.ip.len(), expected.len(), "{name}");
    assert_eq!(secret.other, plain.other, "{name}");

    let mut ciphertexts = 0;
    for (i, (&before, after)) in expected.iter().zip(&secret.ip).enumerate() {
        let told = format!("{name}: IP packet {i}");
        let (old, new) = (parse(before).unwrap(), parse(after).unwrap());
        assert_eq!(old.key, new.key, "{told}");
        if !is_encrypted(&old) {
            assert_eq!(before, after, "{told}");
            continue;
        }
        assert_eq!(
            (verify_network(before, &old), verify_transport(before, &old)),
            (verify_network(after, &new), verify_transport(after, &new)),
            "{told}"
        );
        let is_udp = old.key.protocol() == protocol::UDP;
        let longer = if is_udp { TRAILER } else { 0 };
        assert_eq!(after.len(), before.len() + longer, "{told}");
        let (payload, end) = (usize::from(old.payload_offset), usize::from(old.end) + longer);
        // Length and checksum of IP, then of UDP, or the checksum of TCP.
        let (ip, transport) = (usize::from(old.network_offset), usize::from(old.transport_offset));
        let (may_change, checksum) = match (old.key.is_v4(), is_udp) {
            (true, true) => (vec![2, 3, 10, 11], 4..8),
            (false, true) => (vec![4, 5], 4..8),
            (_, false) => (Vec::new(), 16..18),
        };
        for (at, (a, b)) in before[..payload].iter().zip(&after[..payload]).enumerate() {
            let excused = may_change.iter().any(|field| ip + field == at)
                || (at >= transport && checksum.contains(&(at - transport)));
            assert!(a == b || excused, "{told}: byte {at}");
        }
        assert_eq!(after[end..], before[old.end.into()..], "{told}: padding");
        let (text, other) = (old.payload(before), new.payload(after));
        if text.len() >= TELLING {
            assert_ne!(text, &other[..text.len()], "{told}: in plain");
            ciphertexts += 1;
        }
    }

    if secret.is_empty() {
        return (0, 0);
    }
    let (again, decrypted) = replay.of(&out).send(&replay.chains.decrypt, "decrypted.pcap");
    assert_eq!(decrypted.ip.len(), expected.len(), "{name}");
    for (i, (&before, after)) in expected.iter().zip(&decrypted.ip).enumerate() {
        assert_eq!(before, after, "{name}: IP packet {i} decrypted");
    }
    assert_eq!(decrypted.other, plain.other, "{name}");
    for file in [out, again] {
        std::fs::remove_file(file).unwrap();
    }
    (expected.len(), ciphertexts)
}
