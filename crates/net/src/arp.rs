//! ARP for IPv4 over Ethernet (RFC 826).

use std::net::Ipv4Addr;

use crate::bytes;
use crate::ethernet::MacAddress;
use crate::malformed::Malformed;

/// Bytes of an ARP packet for IPv4 over Ethernet.
pub const PACKET: usize = 28;

/// First bytes of every such packet: hardware type, protocol type, address lengths.
pub(crate) const FORMAT: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];

/// The operation of a request.
pub const REQUEST: u16 = 1;
/// The operation of a reply.
pub const REPLY: u16 = 2;

/// View of an ARP packet; the bytes start at its hardware type.
#[derive(Clone, Copy, Debug)]
pub struct ArpView<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> ArpView<T> {
    /// Creates a view of an ARP packet.
    ///
    /// # Errors
    /// [`Malformed::TruncatedArp`] if there are fewer than 28 bytes, [`Malformed::ArpFormat`] if it is not for IPv4
    /// over Ethernet.
    pub fn new(bytes: T) -> Result<Self, Malformed> {
        let Some(packet) = bytes.as_ref().first_chunk::<PACKET>() else {
            return Err(Malformed::TruncatedArp);
        };
        if !packet.starts_with(&FORMAT) {
            return Err(Malformed::ArpFormat);
        }
        Ok(ArpView { bytes })
    }

    /// The operation: [`REQUEST`], [`REPLY`] or another.
    pub fn operation(&self) -> u16 {
        bytes::u16_at(self.bytes.as_ref(), 6)
    }

    /// The sender's MAC address.
    pub fn sender_mac(&self) -> MacAddress {
        MacAddress(bytes::array(self.bytes.as_ref(), 8))
    }

    /// The sender's IPv4 address.
    pub fn sender_ip(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(bytes::u32_at(self.bytes.as_ref(), 14))
    }

    /// The target's MAC address (zero in a request).
    pub fn target_mac(&self) -> MacAddress {
        MacAddress(bytes::array(self.bytes.as_ref(), 18))
    }

    /// The target's IPv4 address.
    pub fn target_ip(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(bytes::u32_at(self.bytes.as_ref(), 24))
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> ArpView<T> {
    /// Sets the operation.
    pub fn set_operation(&mut self, operation: u16) {
        bytes::put_u16(self.bytes.as_mut(), 6, operation);
    }

    /// Sets the sender's MAC address.
    pub fn set_sender_mac(&mut self, address: MacAddress) {
        bytes::put(self.bytes.as_mut(), 8, address.0);
    }

    /// Sets the sender's IPv4 address.
    pub fn set_sender_ip(&mut self, address: Ipv4Addr) {
        bytes::put(self.bytes.as_mut(), 14, address.octets());
    }

    /// Sets the target's MAC address.
    pub fn set_target_mac(&mut self, address: MacAddress) {
        bytes::put(self.bytes.as_mut(), 18, address.0);
    }

    /// Sets the target's IPv4 address.
    pub fn set_target_ip(&mut self, address: Ipv4Addr) {
        bytes::put(self.bytes.as_mut(), 24, address.octets());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let mut packet = [0; 30];
        assert_eq!(ArpView::new(&packet[..]).unwrap_err(), Malformed::ArpFormat);
        packet[..6].copy_from_slice(&FORMAT);
        let mut view = ArpView::new(&mut packet[..]).unwrap();
        view.set_operation(REPLY);
        view.set_sender_mac(MacAddress([1; 6]));
        view.set_sender_ip(Ipv4Addr::new(2, 2, 2, 2));
        view.set_target_mac(MacAddress([3; 6]));
        view.set_target_ip(Ipv4Addr::new(4, 4, 4, 4));
        assert_eq!(view.operation(), REPLY);
        assert_eq!(
            (view.sender_mac(), view.sender_ip()),
            (MacAddress([1; 6]), [2; 4].into())
        );
        assert_eq!(
            (view.target_mac(), view.target_ip()),
            (MacAddress([3; 6]), [4; 4].into())
        );
        let mut expected = [&FORMAT[..], &[0, 2], &[1; 6], &[2; 4], &[3; 6], &[4; 4]].concat();
        expected.extend([0, 0]);
        assert_eq!(packet[..], expected[..]);
        assert_eq!(ArpView::new(&packet[..27]).unwrap_err(), Malformed::TruncatedArp);
    }
}
