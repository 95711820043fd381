//! Encoding of flow state in the store: keys and values with the same meaning on every server.
//!
//! A key is `tw:{chain}:{function}:{kind}-v{version}:` and the flow's key in 40 bytes. A value is a header of 16 bytes,
//! the function's state of the flow, the number of the run that wrote it, and possibly the key of the flow's companion.
//! It is a single value, so it is either complete or absent.
//!
//! # Owners
//!
//! Several instances of a chain use the same keys. A value is replaced only by the run that wrote it, or by one that
//! has read it ([`Version::is_replaced`]). So of two instances that change a flow at the same time one is refused, and
//! of two that bind two flows to the same external port as well: both write the return direction's key, and only one
//! finds it absent.

use std::net::IpAddr;
use tailwater_net::FlowKey;

/// Length of an encoded flow key: protocol, IP version, fragment flag, a zero byte, ports, addresses of 16 bytes each.
/// All numbers are big-endian. IPv4 addresses occupy the first 4 bytes.
pub const FLOW_BYTES: usize = 40;

/// Length of the value header: format, length of the state, and update number.
pub const HEAD: usize = 16;

/// Length of the number of a run at the end of a value.
pub const WRITER: usize = 8;

/// Magic number and version of the value format.
pub const FORMAT: u32 = 0x7477_0001;

/// Version of a value: who wrote it, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// Update number.
    pub stamp: u64,
    /// Number of the run that wrote it; 0 is unknown.
    pub writer: u64,
    /// Companion of the flow, where a function opened one.
    pub companion: Option<FlowKey>,
}

impl Version {
    /// Returns the update number with which a new value replaces this one, or `None` if it must not: another run has
    /// written this one since the new one's run has read it at `base`. With `joins` the new one's flow was opened as a
    /// companion and has not been read; then it is enough that both name the same companion.
    pub fn is_replaced(&self, new: &Version, base: u64, joins: bool) -> Option<u64> {
        if self.writer == 0 || self.writer == new.writer || self.stamp <= base {
            return Some(new.stamp);
        }
        let is_same = joins && self.companion.is_some() && self.companion == new.companion;
        is_same.then(|| new.stamp.max(self.stamp.saturating_add(1)))
    }
}

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
pub fn write_value(piece: &[u8], version: &Version, out: &mut Vec<u8>) {
    out.extend_from_slice(&FORMAT.to_be_bytes());
    out.extend_from_slice(&(piece.len() as u32).to_be_bytes());
    out.extend_from_slice(&version.stamp.to_be_bytes());
    out.extend_from_slice(piece);
    out.extend_from_slice(&version.writer.to_be_bytes());
    if let Some(companion) = &version.companion {
        write_flow(companion, out);
    }
}

/// Decodes a value into `piece`, if it is valid and of that length. Returns the update number. Values of earlier
/// formats end with the piece.
pub fn read_value(value: &[u8], piece: &mut [u8]) -> Option<u64> {
    let (head, body) = value.split_at_checked(HEAD)?;
    let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (body, end) = body.split_at_checked(piece.len())?;
    let is_whole = [0, WRITER, WRITER + FLOW_BYTES].contains(&end.len());
    if number(0) != FORMAT || number(4) as usize != piece.len() || !is_whole {
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
            writer: u64,
            is_paired: bool,
            cut in 0usize..112,
            noise in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut value = Vec::new();
            let companion = is_paired.then(|| FlowKey::v4(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, 17, 1, 2));
            write_value(&piece, &Version { stamp, writer, companion }, &mut value);
            let mut read = vec![0; piece.len()];
            prop_assert_eq!(read_value(&value, &mut read), Some(stamp));
            prop_assert_eq!(&read, &piece);
            let ends = [0, WRITER].map(|end| HEAD + piece.len() + end);
            if cut < value.len() && !ends.contains(&cut) {
                prop_assert_eq!(read_value(&value[..cut], &mut read), None);
            }
            let mut longer = vec![0; piece.len() + 1];
            read.fill(0);
            prop_assert_eq!(read_value(&value, &mut longer), None);
            prop_assert!(noise.starts_with(&FORMAT.to_be_bytes()) || read_value(&noise, &mut read).is_none());
        }
    }
}
