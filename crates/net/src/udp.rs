//! UDP headers (RFC 768).

use crate::bytes;
use crate::malformed::Malformed;

/// Size of the header in bytes.
pub const HEADER: usize = 8;

/// View of a UDP datagram; the bytes are the IP payload without padding.
#[derive(Clone, Copy, Debug)]
pub struct UdpView<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> UdpView<T> {
    /// Creates a view of a whole datagram.
    ///
    /// # Errors
    /// [`Malformed::TruncatedUdp`], or [`Malformed::UdpLength`] if its length is below 8 or exceeds the bytes.
    pub fn new(bytes: T) -> Result<Self, Malformed> {
        let view = Self::first_fragment(bytes)?;
        if view.length() as usize > view.get().len() {
            return Err(Malformed::UdpLength);
        }
        Ok(view)
    }

    /// Creates a view of a datagram's first fragment, whose length may exceed the bytes.
    ///
    /// # Errors
    /// [`Malformed::TruncatedUdp`], or [`Malformed::UdpLength`] if its length is below 8.
    pub fn first_fragment(bytes: T) -> Result<Self, Malformed> {
        let view = UdpView { bytes };
        if view.get().len() < HEADER {
            return Err(Malformed::TruncatedUdp);
        }
        if (view.length() as usize) < HEADER {
            return Err(Malformed::UdpLength);
        }
        Ok(view)
    }

    #[inline]
    fn get(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    /// The source port.
    #[inline]
    pub fn source_port(&self) -> u16 {
        bytes::u16_at(self.get(), 0)
    }

    /// The destination port.
    #[inline]
    pub fn destination_port(&self) -> u16 {
        bytes::u16_at(self.get(), 2)
    }

    /// Returns the length of header and data in bytes.
    #[inline]
    pub fn length(&self) -> u16 {
        bytes::u16_at(self.get(), 4)
    }

    /// Returns the checksum; zero means none (over IPv4 only).
    #[inline]
    pub fn checksum(&self) -> u16 {
        bytes::u16_at(self.get(), 6)
    }

    /// Returns the data, in a first fragment as far as present.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        let end = self.get().len().min(self.length() as usize);
        bytes::range(self.get(), HEADER, end)
    }
}

/// Setters do not update the checksum: see [`checksum`](crate::checksum).
impl<T: AsRef<[u8]> + AsMut<[u8]>> UdpView<T> {
    /// Sets the source port.
    #[inline]
    pub fn set_source_port(&mut self, port: u16) {
        bytes::put_u16(self.bytes.as_mut(), 0, port);
    }

    /// Sets the destination port.
    #[inline]
    pub fn set_destination_port(&mut self, port: u16) {
        bytes::put_u16(self.bytes.as_mut(), 2, port);
    }

    /// Sets the length of header and data in bytes.
    pub fn set_length(&mut self, length: u16) {
        bytes::put_u16(self.bytes.as_mut(), 4, length);
    }

    /// Sets the checksum.
    #[inline]
    pub fn set_checksum(&mut self, checksum: u16) {
        bytes::put_u16(self.bytes.as_mut(), 6, checksum);
    }

    /// Returns the data, in a first fragment as far as present.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let end = self.get().len().min(self.length() as usize);
        self.bytes.as_mut().get_mut(HEADER..end).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let mut datagram = [0; 12];
        datagram[5] = 10;
        let mut view = UdpView::new(&mut datagram[..]).unwrap();
        view.set_source_port(0x0102);
        view.set_destination_port(0x0304);
        view.set_checksum(0x0506);
        view.payload_mut().fill(7);
        assert_eq!((view.source_port(), view.destination_port()), (0x0102, 0x0304));
        assert_eq!((view.length(), view.checksum()), (10, 0x0506));
        assert_eq!(view.payload(), [7, 7]);
        view.set_length(11);
        assert_eq!(view.payload(), [7, 7, 0]);
        assert_eq!(datagram, [1, 2, 3, 4, 0, 11, 5, 6, 7, 7, 0, 0]);
    }

    #[test]
    fn new_says_what_is_wrong() {
        let with_length = |length| [0, 0, 0, 0, 0, length, 0, 0, 0, 0];
        let reason = |bytes: &[u8]| UdpView::new(bytes).map(|_| ());
        assert_eq!(reason(&[0; 7]), Err(Malformed::TruncatedUdp));
        assert_eq!(reason(&with_length(7)), Err(Malformed::UdpLength));
        assert_eq!(reason(&with_length(10)), Ok(()));
        assert_eq!(reason(&with_length(11)), Err(Malformed::UdpLength));
        assert_eq!(UdpView::first_fragment(with_length(99)).unwrap().payload(), [0, 0]);
    }
}
