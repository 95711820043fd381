//! IPv4 headers (RFC 791).

use std::net::Ipv4Addr;

use crate::bytes;
use crate::checksum::{self, ChecksumDelta};
use crate::malformed::Malformed;

/// Size of a header without options in bytes.
pub const HEADER: usize = 20;

/// View of an IPv4 packet; the bytes start at its header.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4View<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Ipv4View<T> {
    /// Creates a view of an IPv4 packet. Bytes after its total length are padding.
    ///
    /// # Errors
    /// The packet is truncated, or its version, header length or total length is invalid.
    pub fn new(bytes: T) -> Result<Self, Malformed> {
        let view = Ipv4View { bytes };
        let present = view.bytes.as_ref().len();
        if present < HEADER {
            return Err(Malformed::TruncatedIpv4Header);
        }
        if view.version() != 4 {
            return Err(Malformed::Ipv4Version);
        }
        if view.header_length() < HEADER {
            return Err(Malformed::Ipv4HeaderLength);
        }
        if view.header_length() > present {
            return Err(Malformed::TruncatedIpv4Header);
        }
        if (view.total_length() as usize) < view.header_length() {
            return Err(Malformed::Ipv4TotalLength);
        }
        if view.total_length() as usize > present {
            return Err(Malformed::TruncatedIpv4);
        }
        Ok(view)
    }

    #[inline]
    fn get(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    /// The version, 4.
    #[inline]
    pub fn version(&self) -> u8 {
        bytes::u8_at(self.get(), 0) >> 4
    }

    /// Returns the size of the header, with options, in bytes.
    #[inline]
    pub fn header_length(&self) -> usize {
        (bytes::u8_at(self.get(), 0) & 0x0f) as usize * 4
    }

    /// Differentiated services code point, 0 to 63 (RFC 2474).
    #[inline]
    pub fn dscp(&self) -> u8 {
        bytes::u8_at(self.get(), 1) >> 2
    }

    /// Explicit congestion notification, 0 to 3 (RFC 3168).
    #[inline]
    pub fn ecn(&self) -> u8 {
        bytes::u8_at(self.get(), 1) & 3
    }

    /// Returns the size of header and data in bytes.
    #[inline]
    pub fn total_length(&self) -> u16 {
        bytes::u16_at(self.get(), 2)
    }

    /// Returns the identification, which all fragments of a datagram share.
    #[inline]
    pub fn identification(&self) -> u16 {
        bytes::u16_at(self.get(), 4)
    }

    /// Returns `true` if routers must not fragment the packet.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        bytes::u8_at(self.get(), 6) & 0x40 != 0
    }

    /// Returns `true` if further fragments of the datagram follow.
    #[inline]
    pub fn more_fragments(&self) -> bool {
        bytes::u8_at(self.get(), 6) & 0x20 != 0
    }

    /// Returns the offset of the data in the datagram in bytes.
    #[inline]
    pub fn fragment_offset(&self) -> usize {
        (bytes::u16_at(self.get(), 6) & 0x1fff) as usize * 8
    }

    /// Time to live, in hops.
    #[inline]
    pub fn ttl(&self) -> u8 {
        bytes::u8_at(self.get(), 8)
    }

    /// The protocol of the data.
    #[inline]
    pub fn protocol(&self) -> u8 {
        bytes::u8_at(self.get(), 9)
    }

    /// The header checksum.
    #[inline]
    pub fn checksum(&self) -> u16 {
        bytes::u16_at(self.get(), 10)
    }

    /// The source address.
    #[inline]
    pub fn source(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(bytes::u32_at(self.get(), 12))
    }

    /// The destination address.
    #[inline]
    pub fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(bytes::u32_at(self.get(), 16))
    }

    /// Returns the options, up to the end of the list. An error ends the iteration.
    pub fn options(&self) -> Ipv4Options<'_> {
        Ipv4Options {
            rest: bytes::range(self.get(), HEADER, self.header_length()),
        }
    }

    /// The data, without padding.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        bytes::range(self.get(), self.header_length(), self.total_length() as usize)
    }

    /// Returns `true` if the header checksum is correct.
    pub fn checksum_is_correct(&self) -> bool {
        checksum::sum(bytes::range(self.get(), 0, self.header_length())) == 0xffff
    }
}

/// Setters do not update the checksum, unless stated otherwise.
impl<T: AsRef<[u8]> + AsMut<[u8]>> Ipv4View<T> {
    /// Sets the header's length in bytes; a multiple of 4, at most 60.
    pub fn set_header_length(&mut self, length: usize) {
        bytes::put_bits(self.bytes.as_mut(), 0, 0x0f, (length / 4) as u8);
    }

    /// Sets the differentiated services code point; only its low 6 bits are used.
    pub fn set_dscp(&mut self, dscp: u8) {
        bytes::put_bits(self.bytes.as_mut(), 1, 0xfc, dscp << 2);
    }

    /// Sets explicit congestion notification; only its low 2 bits are used.
    pub fn set_ecn(&mut self, ecn: u8) {
        bytes::put_bits(self.bytes.as_mut(), 1, 0x03, ecn);
    }

    /// Sets the size of header and data in bytes.
    pub fn set_total_length(&mut self, length: u16) {
        bytes::put_u16(self.bytes.as_mut(), 2, length);
    }

    /// Sets the identification.
    pub fn set_identification(&mut self, identification: u16) {
        bytes::put_u16(self.bytes.as_mut(), 4, identification);
    }

    /// Sets the "do not fragment" flag.
    pub fn set_dont_fragment(&mut self, dont: bool) {
        bytes::put_bits(self.bytes.as_mut(), 6, 0x40, (dont as u8) << 6);
    }

    /// Sets the "more fragments" flag.
    pub fn set_more_fragments(&mut self, more: bool) {
        bytes::put_bits(self.bytes.as_mut(), 6, 0x20, (more as u8) << 5);
    }

    /// Sets the offset of the data in the datagram in bytes; a multiple of 8 below 65,536.
    pub fn set_fragment_offset(&mut self, offset: usize) {
        let [high, low] = ((offset / 8) as u16).to_be_bytes();
        bytes::put_bits(self.bytes.as_mut(), 6, 0x1f, high);
        bytes::put_u8(self.bytes.as_mut(), 7, low);
    }

    /// Sets the time to live.
    #[inline]
    pub fn set_ttl(&mut self, ttl: u8) {
        bytes::put_u8(self.bytes.as_mut(), 8, ttl);
    }

    /// Sets the protocol.
    pub fn set_protocol(&mut self, protocol: u8) {
        bytes::put_u8(self.bytes.as_mut(), 9, protocol);
    }

    /// Sets the header checksum.
    #[inline]
    pub fn set_checksum(&mut self, checksum: u16) {
        bytes::put_u16(self.bytes.as_mut(), 10, checksum);
    }

    /// Sets the source address.
    #[inline]
    pub fn set_source(&mut self, address: Ipv4Addr) {
        bytes::put(self.bytes.as_mut(), 12, address.octets());
    }

    /// Sets the destination address.
    #[inline]
    pub fn set_destination(&mut self, address: Ipv4Addr) {
        bytes::put(self.bytes.as_mut(), 16, address.octets());
    }

    /// Computes and sets the header checksum.
    pub fn fill_checksum(&mut self) {
        self.set_checksum(0);
        let checksum = !checksum::sum(bytes::range(self.get(), 0, self.header_length()));
        self.set_checksum(checksum);
    }

    /// Decrements the time to live, updates the checksum, and returns the new time to live. At zero the packet must not
    /// be forwarded. A time to live of zero is kept.
    #[inline]
    pub fn decrement_ttl(&mut self) -> u8 {
        let old = self.ttl();
        let new = old.saturating_sub(1);
        let protocol = self.protocol();
        let delta = ChecksumDelta::u16(u16::from_be_bytes([old, protocol]), u16::from_be_bytes([new, protocol]));
        self.set_ttl(new);
        let checksum = delta.apply(self.checksum());
        self.set_checksum(checksum);
        new
    }

    /// The data, without padding.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let (start, end) = (self.header_length(), self.total_length() as usize);
        self.bytes.as_mut().get_mut(start..end).unwrap_or_default()
    }
}

/// IPv4 option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Option<'a> {
    /// Type byte: copied flag, class and number. 1 is "no operation".
    pub kind: u8,
    /// Bytes after type and length.
    pub data: &'a [u8],
}

/// Options of an IPv4 header: see [`Ipv4View::options`].
#[derive(Clone, Debug)]
pub struct Ipv4Options<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Ipv4Options<'a> {
    type Item = Result<Ipv4Option<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = std::mem::take(&mut self.rest);
        match *rest {
            // End of the bytes, or of the option list.
            [] | [0, ..] => None,
            [1, ref rest @ ..] => {
                self.rest = rest;
                Some(Ok(Ipv4Option { kind: 1, data: &[] }))
            }
            [kind, length, ..] if length >= 2 && length as usize <= rest.len() => {
                let (option, rest) = rest.split_at(length as usize);
                self.rest = rest;
                Some(Ok(Ipv4Option {
                    kind,
                    data: bytes::from(option, 2),
                }))
            }
            _ => Some(Err(Malformed::Ipv4Options)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let mut packet = [0; 30];
        packet[0] = 0x46;
        packet[3] = 26;
        let mut view = Ipv4View::new(&mut packet[..]).unwrap();
        view.set_dscp(0x2e);
        view.set_ecn(1);
        view.set_identification(0xabcd);
        view.set_dont_fragment(true);
        view.set_more_fragments(true);
        view.set_fragment_offset(0x1235 * 8);
        view.set_ttl(64);
        view.set_protocol(17);
        view.set_source(Ipv4Addr::new(10, 0, 0, 1));
        view.set_destination(Ipv4Addr::new(10, 0, 0, 2));
        view.fill_checksum();
        assert_eq!((view.dscp(), view.ecn(), view.identification()), (0x2e, 1, 0xabcd));
        assert!(view.dont_fragment() && view.more_fragments() && view.checksum_is_correct());
        assert_eq!(view.fragment_offset(), 0x1235 * 8);
        assert_eq!((view.ttl(), view.protocol()), (64, 17));
        assert_eq!(view.source(), Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(view.destination(), Ipv4Addr::new(10, 0, 0, 2));
        assert_eq!(view.header_length(), 24);
        assert_eq!(view.payload_mut(), [0, 0]);
        view.set_dont_fragment(false);
        assert!(view.more_fragments() && !view.dont_fragment());
        assert_eq!(packet[..10], [0x46, 0xb9, 0, 26, 0xab, 0xcd, 0x32, 0x35, 64, 17]);
    }

    #[test]
    fn new_says_what_is_wrong() {
        let mut packet = [0; 24];
        packet[0] = 0x45;
        packet[3] = 24;
        assert!(Ipv4View::new(packet).is_ok());
        let with = |index: usize, value: u8, length: usize| {
            let mut packet = packet;
            packet[index] = value;
            Ipv4View::new(packet[..length].to_vec()).map(|_| ()).unwrap_err()
        };
        assert_eq!(with(0, 0x45, 19), Malformed::TruncatedIpv4Header);
        assert_eq!(with(0, 0x65, 24), Malformed::Ipv4Version);
        assert_eq!(with(0, 0x44, 24), Malformed::Ipv4HeaderLength);
        assert_eq!(with(0, 0x47, 24), Malformed::TruncatedIpv4Header);
        assert_eq!(with(3, 19, 24), Malformed::Ipv4TotalLength);
        assert_eq!(with(3, 25, 24), Malformed::TruncatedIpv4);
    }

    #[test]
    fn every_ttl_decrement_keeps_the_checksum_correct() {
        let mut packet = [0; 20];
        packet[0] = 0x45;
        packet[3] = 20;
        let mut view = Ipv4View::new(&mut packet[..]).unwrap();
        view.set_ttl(255);
        view.fill_checksum();
        for expected in (0..255).rev() {
            assert_eq!(view.decrement_ttl(), expected);
            assert!(view.checksum_is_correct(), "ttl {expected}");
        }
        assert_eq!(view.decrement_ttl(), 0);
        assert!(view.checksum_is_correct());
    }

    #[test]
    fn options() {
        let mut packet = [0; 32];
        packet[0] = 0x48;
        packet[3] = 32;
        packet[20..32].copy_from_slice(&[1, 7, 3, 4, 148, 4, 0, 0, 0, 9, 9, 9]);
        let view = Ipv4View::new(packet).unwrap();
        let options: Vec<_> = view.options().collect();
        assert_eq!(
            options,
            [
                Ok(Ipv4Option { kind: 1, data: &[] }),
                Ok(Ipv4Option { kind: 7, data: &[4] }),
                Ok(Ipv4Option {
                    kind: 148,
                    data: &[0, 0]
                }),
            ]
        );
        for wrong in [[7, 1], [7, 0], [7, 13]] {
            let mut packet = packet;
            packet[20..22].copy_from_slice(&wrong);
            let view = Ipv4View::new(packet).unwrap();
            assert_eq!(view.options().collect::<Vec<_>>(), [Err(Malformed::Ipv4Options)]);
        }
    }
}
