//! IPv6 headers and extension headers (RFC 8200).

use std::net::Ipv6Addr;

use crate::bytes;
use crate::malformed::Malformed;
use crate::protocol;

/// Size of the fixed header in bytes.
pub const HEADER: usize = 40;

/// Maximum number of extension headers of a packet. RFC 8200 §4.1 lists seven that make sense together.
pub const MAX_EXTENSIONS: usize = 8;

/// View of an IPv6 packet; the bytes start at its header.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6View<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Ipv6View<T> {
    /// Creates a view of an IPv6 packet. Bytes after its payload length are padding.
    ///
    /// # Errors
    /// The packet is truncated, or its version or payload length is invalid. [`Ipv6View::extensions`] checks extension
    /// headers.
    pub fn new(bytes: T) -> Result<Self, Malformed> {
        let view = Ipv6View { bytes };
        let present = view.bytes.as_ref().len();
        if present < HEADER {
            return Err(Malformed::TruncatedIpv6Header);
        }
        if view.version() != 6 {
            return Err(Malformed::Ipv6Version);
        }
        if view.payload_length() == 0 && view.next_header() != protocol::NO_NEXT_HEADER {
            return Err(Malformed::Ipv6ZeroLength);
        }
        if HEADER + view.payload_length() as usize > present {
            return Err(Malformed::TruncatedIpv6);
        }
        Ok(view)
    }

    #[inline]
    fn get(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    /// The version, 6.
    #[inline]
    pub fn version(&self) -> u8 {
        bytes::u8_at(self.get(), 0) >> 4
    }

    /// Differentiated services code point, 0 to 63 (RFC 2474).
    #[inline]
    pub fn dscp(&self) -> u8 {
        (bytes::u16_at(self.get(), 0) >> 6) as u8 & 0x3f
    }

    /// Explicit congestion notification, 0 to 3 (RFC 3168).
    #[inline]
    pub fn ecn(&self) -> u8 {
        (bytes::u16_at(self.get(), 0) >> 4) as u8 & 3
    }

    /// The flow label, 20 bits.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        bytes::u32_at(self.get(), 0) & 0x000f_ffff
    }

    /// Bytes after the fixed header, extension headers included.
    #[inline]
    pub fn payload_length(&self) -> u16 {
        bytes::u16_at(self.get(), 4)
    }

    /// Returns the protocol number after the fixed header: an extension header or the upper layer.
    #[inline]
    pub fn next_header(&self) -> u8 {
        bytes::u8_at(self.get(), 6)
    }

    /// Hop limit.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        bytes::u8_at(self.get(), 7)
    }

    /// The source address.
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        Ipv6Addr::from(bytes::array::<16>(self.get(), 8))
    }

    /// The destination address.
    #[inline]
    pub fn destination(&self) -> Ipv6Addr {
        Ipv6Addr::from(bytes::array::<16>(self.get(), 24))
    }

    /// Returns the bytes after the fixed header, extension headers included, without padding.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        bytes::range(self.get(), HEADER, HEADER + self.payload_length() as usize)
    }

    /// Returns the extension headers in order, at most [`MAX_EXTENSIONS`]. They end at the upper layer, at ESP, and
    /// after the header of a later fragment. An error ends the iteration.
    pub fn extensions(&self) -> Extensions<'_> {
        Extensions::new(self.next_header(), self.payload())
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Ipv6View<T> {
    /// Sets the differentiated services code point; only its low 6 bits are used.
    pub fn set_dscp(&mut self, dscp: u8) {
        bytes::put_bits(self.bytes.as_mut(), 0, 0x0f, dscp >> 2);
        bytes::put_bits(self.bytes.as_mut(), 1, 0xc0, dscp << 6);
    }

    /// Sets explicit congestion notification; only its low 2 bits are used.
    pub fn set_ecn(&mut self, ecn: u8) {
        bytes::put_bits(self.bytes.as_mut(), 1, 0x30, ecn << 4);
    }

    /// Sets the flow label; only its low 20 bits are used.
    pub fn set_flow_label(&mut self, label: u32) {
        let [_, high, middle, low] = label.to_be_bytes();
        bytes::put_bits(self.bytes.as_mut(), 1, 0x0f, high);
        bytes::put(self.bytes.as_mut(), 2, [middle, low]);
    }

    /// Sets the number of bytes after the fixed header.
    pub fn set_payload_length(&mut self, length: u16) {
        bytes::put_u16(self.bytes.as_mut(), 4, length);
    }

    /// Sets the protocol number after the fixed header.
    pub fn set_next_header(&mut self, next: u8) {
        bytes::put_u8(self.bytes.as_mut(), 6, next);
    }

    /// Sets the hop limit.
    #[inline]
    pub fn set_hop_limit(&mut self, limit: u8) {
        bytes::put_u8(self.bytes.as_mut(), 7, limit);
    }

    /// Sets the source address.
    #[inline]
    pub fn set_source(&mut self, address: Ipv6Addr) {
        bytes::put(self.bytes.as_mut(), 8, address.octets());
    }

    /// Sets the destination address.
    #[inline]
    pub fn set_destination(&mut self, address: Ipv6Addr) {
        bytes::put(self.bytes.as_mut(), 24, address.octets());
    }

    /// Decrements the hop limit and returns the new one. At zero the packet must not be forwarded. A hop limit of zero
    /// is kept.
    #[inline]
    pub fn decrement_hop_limit(&mut self) -> u8 {
        let limit = self.hop_limit().saturating_sub(1);
        self.set_hop_limit(limit);
        limit
    }

    /// Returns the bytes after the fixed header, without padding.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let end = HEADER + self.payload_length() as usize;
        self.bytes.as_mut().get_mut(HEADER..end).unwrap_or_default()
    }
}

/// IPv6 extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension<'a> {
    /// Protocol number, such as [`protocol::ROUTING`].
    pub kind: u8,
    /// Protocol number of the next header.
    pub next_header: u8,
    /// The whole header; at least 8 bytes.
    pub bytes: &'a [u8],
}

impl Extension<'_> {
    /// Returns the offset of this fragment's data in its datagram in bytes, and `true` if more fragments follow. `None`
    /// if this is not a fragment header.
    pub fn fragment(&self) -> Option<(usize, bool)> {
        let bits = bytes::u16_at(self.bytes, 2);
        (self.kind == protocol::FRAGMENT).then_some(((bits & !7) as usize, bits & 1 != 0))
    }

    /// Returns the number of listed nodes that a routing header has yet to visit. `None` if this is not a routing
    /// header.
    pub fn segments_left(&self) -> Option<u8> {
        (self.kind == protocol::ROUTING).then_some(bytes::u8_at(self.bytes, 3))
    }
}

/// Extension headers of a packet: see [`Ipv6View::extensions`].
#[derive(Clone, Debug)]
pub struct Extensions<'a> {
    rest: &'a [u8],
    next: u8,
    count: usize,
}

impl<'a> Extensions<'a> {
    /// Creates an iterator over the extension headers at the start of `payload`, the first of kind `next_header`.
    pub(crate) fn new(next_header: u8, payload: &'a [u8]) -> Self {
        Extensions {
            rest: payload,
            next: next_header,
            count: 0,
        }
    }

    /// Returns the protocol number and bytes after the headers seen so far. Once the iterator has ended without an
    /// error, this is the upper layer.
    pub fn remainder(&self) -> (u8, &'a [u8]) {
        (self.next, self.rest)
    }
}

impl<'a> Iterator for Extensions<'a> {
    type Item = Result<Extension<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if !protocol::is_extension(self.next) || self.count > MAX_EXTENSIONS {
            return None;
        }
        let kind = self.next;
        let header = match *self.rest {
            _ if self.count == MAX_EXTENSIONS => Err(Malformed::TooManyExtensions),
            [next, field, ..] => match self.rest.split_at_checked(length(kind, field)) {
                Some((header, rest)) => Ok((next, header, rest)),
                None => Err(Malformed::TruncatedExtension),
            },
            _ => Err(Malformed::TruncatedExtension),
        };
        match header {
            Ok((next_header, header, rest)) => {
                let extension = Extension {
                    kind,
                    next_header,
                    bytes: header,
                };
                self.count += 1;
                // A later fragment's data starts in the middle of the datagram, so no headers follow.
                if extension.fragment().is_some_and(|(offset, _)| offset != 0) {
                    self.count = MAX_EXTENSIONS + 1;
                }
                (self.next, self.rest) = (next_header, rest);
                Some(Ok(extension))
            }
            Err(reason) => {
                self.count = MAX_EXTENSIONS + 1;
                Some(Err(reason))
            }
        }
    }
}

/// Returns the size in bytes of an extension header of kind `kind` whose length field, its second byte, is `field`. At
/// least 8.
#[inline]
pub(crate) const fn length(kind: u8, field: u8) -> usize {
    match kind {
        protocol::FRAGMENT => 8,
        // The length field counts 4-byte units, minus 2 (RFC 4302 §2.2).
        protocol::AUTHENTICATION => (field as usize + 2) * 4,
        _ => (field as usize + 1) * 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let mut packet = [0; 44];
        packet[0] = 0x60;
        packet[5] = 3;
        let mut view = Ipv6View::new(&mut packet[..]).unwrap();
        view.set_dscp(0x2e);
        view.set_ecn(2);
        view.set_flow_label(0xabcde);
        view.set_next_header(17);
        view.set_hop_limit(2);
        view.set_source("2001:db8::1".parse().unwrap());
        view.set_destination("2001:db8::2".parse().unwrap());
        assert_eq!((view.dscp(), view.ecn(), view.flow_label()), (0x2e, 2, 0xabcde));
        assert_eq!((view.next_header(), view.hop_limit()), (17, 2));
        assert_eq!(view.source().to_string(), "2001:db8::1");
        assert_eq!(view.destination().to_string(), "2001:db8::2");
        assert_eq!(view.payload_mut().len(), 3);
        assert_eq!(view.decrement_hop_limit(), 1);
        assert_eq!(view.decrement_hop_limit(), 0);
        assert_eq!(view.decrement_hop_limit(), 0);
        assert_eq!(packet[..8], [0x6b, 0xaa, 0xbc, 0xde, 0, 3, 17, 0]);
    }

    fn packet(next: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; HEADER];
        packet[0] = 0x60;
        packet[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
        packet[6] = next;
        packet.extend(payload);
        packet
    }

    #[test]
    fn new_says_what_is_wrong() {
        let good = packet(17, &[0; 8]);
        assert_eq!(Ipv6View::new(&good[..39]).unwrap_err(), Malformed::TruncatedIpv6Header);
        assert_eq!(Ipv6View::new(&good[..47]).unwrap_err(), Malformed::TruncatedIpv6);
        assert_eq!(Ipv6View::new(packet(17, &[])).unwrap_err(), Malformed::Ipv6ZeroLength);
        assert!(Ipv6View::new(packet(protocol::NO_NEXT_HEADER, &[])).is_ok());
        let mut wrong = good;
        wrong[0] = 0x45;
        assert_eq!(Ipv6View::new(wrong).unwrap_err(), Malformed::Ipv6Version);
    }

    #[test]
    fn extensions_end_at_the_upper_layer() {
        let mut payload = vec![protocol::AUTHENTICATION, 1];
        payload.extend([0; 14]);
        payload.extend([protocol::FRAGMENT, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        payload.extend([17, 99, 0, 1, 0, 0, 0, 0]);
        payload.extend([7; 5]);
        let packet = packet(protocol::HOP_BY_HOP, &payload);
        let view = Ipv6View::new(packet).unwrap();
        let mut extensions = view.extensions();
        let seen: Vec<_> = extensions
            .by_ref()
            .map(|e| e.map(|e| (e.kind, e.bytes.len(), e.fragment())))
            .collect();
        assert_eq!(
            seen,
            [
                Ok((protocol::HOP_BY_HOP, 16, None)),
                Ok((protocol::AUTHENTICATION, 12, None)),
                Ok((protocol::FRAGMENT, 8, Some((0, true)))),
            ]
        );
        assert_eq!(extensions.remainder(), (17, &[7; 5][..]));
    }

    #[test]
    fn extensions_are_bounded() {
        let chain = |count: usize| {
            let mut payload = Vec::new();
            for i in 0..count {
                let next = if i + 1 == count { 59 } else { 60 };
                payload.extend([next, 0, 1, 4, 0, 0, 0, 0]);
            }
            packet(60, &payload)
        };
        let last = |packet: Vec<u8>| {
            let view = Ipv6View::new(packet).unwrap();
            let last = view.extensions().last().unwrap();
            last.map(|e| e.next_header)
        };
        assert_eq!(last(chain(8)), Ok(59));
        assert_eq!(last(chain(9)), Err(Malformed::TooManyExtensions));
        assert_eq!(
            last(packet(60, &[59, 1, 0, 0, 0, 0, 0, 0])),
            Err(Malformed::TruncatedExtension)
        );
        assert_eq!(last(packet(60, &[59])), Err(Malformed::TruncatedExtension));
    }
}
