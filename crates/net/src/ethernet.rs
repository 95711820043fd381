//! Ethernet II headers.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use crate::bytes;
use crate::malformed::Malformed;
use crate::protocol::ethertype;
use crate::vlan::MAX_VLAN_TAGS;

/// Size of an Ethernet header without VLAN tags in bytes.
pub const HEADER: usize = 14;

/// Minimum size of a frame on the wire in bytes, without the frame check sequence.
pub const MIN_FRAME: usize = 60;

/// 48-bit MAC address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// Broadcast address.
    pub const BROADCAST: MacAddress = MacAddress([0xff; 6]);

    /// Returns `true` for a group address (broadcast included).
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }
}

/// `02:00:00:00:00:01`
impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Text that is not a MAC address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MacAddressError(String);

impl fmt::Display for MacAddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a MAC address: expected six hexadecimal bytes such as 02:00:00:00:00:01",
            self.0
        )
    }
}

impl Error for MacAddressError {}

impl FromStr for MacAddress {
    type Err = MacAddressError;

    fn from_str(text: &str) -> Result<Self, MacAddressError> {
        let error = || MacAddressError(text.chars().take(32).collect());
        let mut address = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut address {
            let part = parts.next().ok_or_else(error)?;
            // `from_str_radix` would accept a sign.
            if part.len() != 2 || !part.bytes().all(|c| c.is_ascii_hexdigit()) {
                return Err(error());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| error())?;
        }
        match parts.next() {
            None => Ok(MacAddress(address)),
            Some(_) => Err(error()),
        }
    }
}

/// View of a frame's Ethernet header; the bytes are the whole frame.
#[derive(Clone, Copy, Debug)]
pub struct EthernetView<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> EthernetView<T> {
    /// Creates a view of a frame.
    ///
    /// # Errors
    /// [`Malformed::TruncatedEthernet`] if it is shorter than 14 bytes.
    pub fn new(bytes: T) -> Result<Self, Malformed> {
        if bytes.as_ref().len() < HEADER {
            return Err(Malformed::TruncatedEthernet);
        }
        Ok(EthernetView { bytes })
    }

    /// The destination address.
    pub fn destination(&self) -> MacAddress {
        MacAddress(bytes::array(self.bytes.as_ref(), 0))
    }

    /// The source address.
    pub fn source(&self) -> MacAddress {
        MacAddress(bytes::array(self.bytes.as_ref(), 6))
    }

    /// Returns the first EtherType, which may be that of a VLAN tag. A value below 0x0600 is the length of an LLC
    /// frame.
    pub fn ethertype(&self) -> u16 {
        bytes::u16_at(self.bytes.as_ref(), 12)
    }

    /// Returns the bytes after the header, VLAN tags included.
    pub fn payload(&self) -> &[u8] {
        bytes::from(self.bytes.as_ref(), HEADER)
    }

    /// Returns the EtherType after all VLAN tags, and the offset of its payload in the frame in bytes.
    ///
    /// # Errors
    /// [`Malformed::TruncatedEthernet`] or [`Malformed::TooManyVlanTags`].
    pub fn network(&self) -> Result<(u16, usize), Malformed> {
        network(self.bytes.as_ref())
    }

    /// Returns the bytes of the view.
    pub fn into_inner(self) -> T {
        self.bytes
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> EthernetView<T> {
    /// Sets the destination address.
    pub fn set_destination(&mut self, address: MacAddress) {
        bytes::put(self.bytes.as_mut(), 0, address.0);
    }

    /// Sets the source address.
    pub fn set_source(&mut self, address: MacAddress) {
        bytes::put(self.bytes.as_mut(), 6, address.0);
    }

    /// Sets the first EtherType.
    pub fn set_ethertype(&mut self, ethertype: u16) {
        bytes::put_u16(self.bytes.as_mut(), 12, ethertype);
    }
}

/// Returns the EtherType after all VLAN tags of a frame, and the offset of its payload.
pub(crate) fn network(frame: &[u8]) -> Result<(u16, usize), Malformed> {
    let mut offset = HEADER;
    for _ in 0..=MAX_VLAN_TAGS {
        let Some(&[high, low]) = frame.get(offset - 2..offset) else {
            return Err(Malformed::TruncatedEthernet);
        };
        let kind = u16::from_be_bytes([high, low]);
        if !ethertype::is_vlan(kind) {
            return Ok((kind, offset));
        }
        offset += 4;
    }
    Err(Malformed::TooManyVlanTags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_address_text() {
        let address = MacAddress([2, 0, 0, 0xab, 0, 0x1f]);
        assert_eq!(address.to_string(), "02:00:00:ab:00:1f");
        assert_eq!("02:00:00:ab:00:1f".parse(), Ok(address));
        assert_eq!("02-00-00-AB-00-1F".parse(), Ok(address));
        for wrong in [
            "",
            "02:00:00:ab:00",
            "02:00:00:ab:00:1f:00",
            "02:00:00:+b:00:1f",
            "2:0:0:0:0:1",
        ] {
            let error = wrong.parse::<MacAddress>().unwrap_err().to_string();
            assert!(error.contains(wrong), "{error}");
        }
        assert!(MacAddress::BROADCAST.is_multicast() && !address.is_multicast());
    }

    #[test]
    fn fields() {
        let mut frame = [0; 20];
        frame[19] = 7;
        let mut view = EthernetView::new(&mut frame[..]).unwrap();
        view.set_destination(MacAddress([1, 2, 3, 4, 5, 6]));
        view.set_source(MacAddress([7, 8, 9, 10, 11, 12]));
        view.set_ethertype(0x86dd);
        assert_eq!(view.destination(), MacAddress([1, 2, 3, 4, 5, 6]));
        assert_eq!(view.source(), MacAddress([7, 8, 9, 10, 11, 12]));
        assert_eq!(view.network(), Ok((0x86dd, 14)));
        assert_eq!(view.payload(), [0, 0, 0, 0, 0, 7]);
        assert_eq!(frame[..14], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x86, 0xdd]);
        assert_eq!(EthernetView::new([0; 13]).unwrap_err(), Malformed::TruncatedEthernet);
    }
}
