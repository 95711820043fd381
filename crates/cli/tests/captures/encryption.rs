//! What leaves ACL, URL filter and encryption: told from the plain frames, and decrypted again.

use super::{Replay, Sent};
use tailwater_net::checksum::{verify_network, verify_transport};
use tailwater_net::parse::{Fragment, Headers, parse};
use tailwater_net::protocol;

/// Bytes behind an encrypted UDP payload.
const TRAILER: usize = 8;

/// Payloads shorter than this may be their own ciphertext by accident.
const TELLING: usize = 16;

/// Whether the payload is to be encrypted: whole TCP and UDP packets.
fn is_encrypted(headers: &Headers) -> bool {
    matches!(headers.key.protocol(), protocol::TCP | protocol::UDP) && headers.fragment == Fragment::Whole
}

/// Whether the packet is to be refused: a UDP length that is not the IP packet's.
fn is_refused(frame: &[u8], headers: &Headers) -> bool {
    let transport = headers.transport(frame);
    is_encrypted(headers)
        && headers.key.protocol() == protocol::UDP
        && usize::from(u16::from_be_bytes([transport[4], transport[5]])) != transport.len()
}

/// Compares every packet that leaves with its plain form: headers the same but for lengths and checksums,
/// payloads not, checksums as right as before. Then decrypts what left and compares the frames byte for
/// byte. Gives (frames that came back, those of them whose payload had become another).
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
