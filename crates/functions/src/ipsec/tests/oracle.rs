//! Reference implementation of ESP: assembles packets byte by byte, and parses them by their tags.

use super::*;
use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use tailwater_net::checksum::{sum, transport_v6};

/// Returns the bytes of an ESP packet from its SPI on, with any plaintext.
pub(super) fn esp(association: &Association, sequence: u64, iv: u64, text: &[u8]) -> Vec<u8> {
    let algorithm = match association.keying.cipher() {
        Cipher::Aes128Gcm => &AES_128_GCM,
        Cipher::Aes256Gcm => &AES_256_GCM,
        Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
    };
    let bytes: Vec<u8> = (0..).take(association.keying.cipher().keying_bytes()).collect();
    let (key, salt) = bytes.split_at(bytes.len() - 4);
    let nonce: Vec<u8> = salt.iter().copied().chain(iv.to_be_bytes()).collect();
    let mut aad = association.spi.to_be_bytes().to_vec();
    match association.extended {
        true => aad.extend(sequence.to_be_bytes()),
        false => aad.extend((sequence as u32).to_be_bytes()),
    }
    let key = LessSafeKey::new(UnboundKey::new(algorithm, key).unwrap());
    let mut sealed = text.to_vec();
    let nonce = Nonce::try_assume_unique_for_key(&nonce).unwrap();
    key.seal_in_place_append_tag(nonce, Aad::from(aad), &mut sealed)
        .unwrap();
    let mut esp = association.spi.to_be_bytes().to_vec();
    esp.extend((sequence as u32).to_be_bytes());
    esp.extend(iv.to_be_bytes());
    esp.extend(sealed);
    esp
}

/// Returns the plaintext ESP encrypts for an IP packet: packet, padding, pad length, next header.
pub(super) fn text(inner: &[u8]) -> Vec<u8> {
    let mut text = inner.to_vec();
    let mut padding = 0;
    while !(text.len() + 2).is_multiple_of(4) {
        padding += 1;
        text.push(padding);
    }
    text.extend([padding, if inner[0] >> 4 == 4 { 4 } else { 41 }]);
    text
}

/// Returns the whole frame of an ESP packet with the outer headers `out` prescribes.
pub(super) fn frame(ethernet: &[u8], out: &Outbound, sequence: u64, inner: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut datagram = payload.to_vec();
    if let Some(udp) = out.udp {
        let length = (payload.len() + 8) as u16;
        datagram = [udp.source, udp.destination, length, 0].map(u16::to_be_bytes).concat();
        datagram.extend(payload);
    }
    let protocol = if out.udp.is_some() { 17 } else { 50 };
    let class = match inner[0] >> 4 {
        4 => inner[1],
        _ => (u16::from_be_bytes([inner[0], inner[1]]) >> 4) as u8,
    };
    let class = out.dscp.map_or(class, |dscp| dscp << 2 | class & 3);
    let mut frame = ethernet[..ethernet.len() - 2].to_vec();
    match (out.source, out.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let whole = match out.dont_fragment {
                DontFragment::Copy => inner[0] >> 4 == 6 || inner[6] & 0x40 != 0,
                DontFragment::Set => true,
                DontFragment::Clear => false,
            };
            let mut header = vec![0x45, class];
            header.extend((20 + datagram.len() as u16).to_be_bytes());
            header.extend((sequence as u16).to_be_bytes());
            header.extend(if whole { [0x40, 0] } else { [0, 0] });
            header.extend([out.ttl, protocol, 0, 0]);
            header.extend(source.octets());
            header.extend(destination.octets());
            let checksum = !sum(&header);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            frame.extend([0x08, 0x00]);
            frame.extend(header);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            if out.udp.is_some() {
                let checksum = match transport_v6(source, destination, 17, &datagram) {
                    0 => 0xffff,
                    checksum => checksum,
                };
                datagram[6..8].copy_from_slice(&checksum.to_be_bytes());
            }
            frame.extend([0x86, 0xdd]);
            frame.extend((6u32 << 28 | u32::from(class) << 20).to_be_bytes());
            frame.extend((datagram.len() as u16).to_be_bytes());
            frame.extend([protocol, out.ttl]);
            frame.extend(source.octets());
            frame.extend(destination.octets());
        }
        _ => panic!("two versions"),
    }
    frame.extend(datagram);
    frame
}
