//! Encoding of flow state in the store: keys and values with the same meaning on every server.
//!
//! A key is `tw:{chain}:{function}:{kind}-v{version}:` and the flow's key in 40 bytes. A value is a header of 16 bytes
//! and the function's state of the flow. It is a single value, so it is either complete or absent.

use std::net::IpAddr;
use tailwater_net::FlowKey;

/// Length of an encoded flow key: protocol, IP version, fragment flag, a zero byte, ports, addresses of 16 bytes each.
/// All numbers are big-endian. IPv4 addresses occupy the first 4 bytes.
pub const FLOW_BYTES: usize = 40;

/// Length of the value header: format, length of the state, and update number.
pub const HEAD: usize = 16;

/// Magic number and version of the value format.
const FORMAT: u32 = 0x7477_0001;

/// Key space of a function: the prefix of all its keys.
pub fn space(chain: &str, function: &str) -> String {
    format!("tw:{chain}:{function}:")
}

/// Appends an encoded flow key.
pub fn write_flow(key: &FlowKey, out: &mut Vec<u8>) {
    let flags = [key.protocol(), key.version(), u8::from(key.is_fragment()), 0];
    out.extend_from_slice(&flags);
    out.extend_from_slice(&key.source_port().to_be_bytes());
    out.extend_from_slice(&key.destination_port().to_be_bytes());
    for address in [key.source(), key.destination()] {
        let mut bytes = [0; 16];
        match address {
            IpAddr::V4(address) => bytes[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => bytes = address.octets(),
        }
        out.extend_from_slice(&bytes);
    }
}

/// Appends an encoded value.
pub fn write_value(piece: &[u8], stamp: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&FORMAT.to_be_bytes());
    out.extend_from_slice(&(piece.len() as u32).to_be_bytes());
    out.extend_from_slice(&stamp.to_be_bytes());
    out.extend_from_slice(piece);
}

/// Decodes a value into `piece`, if it is valid and of that length. Returns the update number.
pub fn read_value(value: &[u8], piece: &mut [u8]) -> Option<u64> {
    let (head, body) = value.split_at_checked(HEAD)?;
    let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if number(0) != FORMAT || number(4) as usize != piece.len() || body.len() != piece.len() {
        return None;
    }
    piece.copy_from_slice(body);
    Some(u64::from(number(8)) << 32 | u64::from(number(12)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn keys_are_as_documented() {
        let mut key = Vec::new();
        let flow = FlowKey::v4(
            Ipv4Addr::new(10, 0, 0, 1),
            Ipv4Addr::new(198, 51, 100, 7),
            6,
            40_000,
            443,
        );
        write_flow(&flow, &mut key);
        let ports = [0x9c, 0x40, 0x01, 0xbb];
        let expected = [&[6, 4, 0, 0][..], &ports, &[10, 0, 0, 1], &[0; 12]].concat();
        assert_eq!(key[..24], expected);
        assert_eq!(key[24..28], [198, 51, 100, 7]);
        assert_eq!(key.len(), FLOW_BYTES);
        key.clear();
        let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
        write_flow(&FlowKey::v6(address, address, 17, 1, 2), &mut key);
        assert_eq!(key[8..24], address.octets());
        assert_eq!(key[..4], [17, 6, 0, 0]);
    }

    proptest! {
        /// Written values are read back. Anything else is refused or has the right length, and never panics.
        #[test]
        fn values_are_whole_or_nothing(
            piece in prop::collection::vec(any::<u8>(), 0..40),
            stamp: u64,
            cut in 0usize..64,
            noise in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut value = Vec::new();
            write_value(&piece, stamp, &mut value);
            let mut read = vec![0; piece.len()];
            prop_assert_eq!(read_value(&value, &mut read), Some(stamp));
            prop_assert_eq!(&read, &piece);
            if cut < value.len() {
                prop_assert_eq!(read_value(&value[..cut], &mut read), None);
            }
            let mut longer = vec![0; piece.len() + 1];
            prop_assert_eq!(read_value(&value, &mut longer), None);
            prop_assert!(noise.starts_with(&FORMAT.to_be_bytes()) || read_value(&noise, &mut read).is_none());
        }
    }
}
