//! TCP headers (RFC 9293).

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

use crate::bytes;
use crate::malformed::Malformed;

/// Size of a header without options in bytes.
pub const HEADER: usize = 20;

/// Control bits of a segment.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// No more data from the sender.
    pub const FIN: TcpFlags = TcpFlags(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: TcpFlags = TcpFlags(0x02);
    /// Reset the connection.
    pub const RST: TcpFlags = TcpFlags(0x04);
    /// Push.
    pub const PSH: TcpFlags = TcpFlags(0x08);
    /// The acknowledgment field is valid.
    pub const ACK: TcpFlags = TcpFlags(0x10);
    /// The urgent pointer is valid.
    pub const URG: TcpFlags = TcpFlags(0x20);
    /// Congestion experienced was seen (RFC 3168).
    pub const ECE: TcpFlags = TcpFlags(0x40);
    /// The congestion window was reduced (RFC 3168).
    pub const CWR: TcpFlags = TcpFlags(0x80);

    /// Returns `true` if every bit of `flags` is set.
    #[inline]
    pub const fn contains(self, flags: TcpFlags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Returns `true` if any bit of `flags` is set.
    #[inline]
    pub const fn intersects(self, flags: TcpFlags) -> bool {
        self.0 & flags.0 != 0
    }
}

impl BitOr for TcpFlags {
    type Output = TcpFlags;
    #[inline]
    fn bitor(self, other: TcpFlags) -> TcpFlags {
        TcpFlags(self.0 | other.0)
    }
}

impl BitOrAssign for TcpFlags {
    #[inline]
    fn bitor_assign(&mut self, other: TcpFlags) {
        self.0 |= other.0;
    }
}

/// `SYN|ACK`, or `-` without flags.
impl fmt::Display for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
        let mut separator = "";
        for (bit, name) in NAMES.iter().enumerate() {
            if self.0 >> bit & 1 != 0 {
                write!(f, "{separator}{name}")?;
                separator = "|";
            }
        }
        if self.0 == 0 {
            write!(f, "-")?;
        }
        Ok(())
    }
}

impl fmt::Debug for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// View of a TCP segment; the bytes are the IP payload without padding.
#[derive(Clone, Copy, Debug)]
pub struct TcpView<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> TcpView<T> {
    /// Creates a view of a segment.
    ///
    /// # Errors
    /// [`Malformed::TruncatedTcp`] or [`Malformed::TcpDataOffset`].
    pub fn new(bytes: T) -> Result<Self, Malformed> {
        let view = TcpView { bytes };
        let present = view.get().len();
        if present < HEADER {
            return Err(Malformed::TruncatedTcp);
        }
        if view.header_length() < HEADER {
            return Err(Malformed::TcpDataOffset);
        }
        if view.header_length() > present {
            return Err(Malformed::TruncatedTcp);
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

    /// The sequence number of the first byte (of SYN itself if set).
    #[inline]
    pub fn sequence(&self) -> u32 {
        bytes::u32_at(self.get(), 4)
    }

    /// The next sequence number that the sender expects, if ACK is set.
    #[inline]
    pub fn acknowledgment(&self) -> u32 {
        bytes::u32_at(self.get(), 8)
    }

    /// Returns the size of the header, with options, in bytes.
    #[inline]
    pub fn header_length(&self) -> usize {
        (bytes::u8_at(self.get(), 12) >> 4) as usize * 4
    }

    /// The control bits.
    #[inline]
    pub fn flags(&self) -> TcpFlags {
        TcpFlags(bytes::u8_at(self.get(), 13))
    }

    /// The receive window, unscaled.
    #[inline]
    pub fn window(&self) -> u16 {
        bytes::u16_at(self.get(), 14)
    }

    /// The checksum.
    #[inline]
    pub fn checksum(&self) -> u16 {
        bytes::u16_at(self.get(), 16)
    }

    /// The urgent pointer.
    #[inline]
    pub fn urgent_pointer(&self) -> u16 {
        bytes::u16_at(self.get(), 18)
    }

    /// Returns the options, up to the end of the list. An error ends the iteration.
    pub fn options(&self) -> TcpOptions<'_> {
        TcpOptions {
            rest: bytes::range(self.get(), HEADER, self.header_length()),
        }
    }

    /// The data.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        bytes::from(self.get(), self.header_length())
    }
}

/// Setters do not update the checksum: see [`checksum`](crate::checksum).
impl<T: AsRef<[u8]> + AsMut<[u8]>> TcpView<T> {
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

    /// Sets the sequence number.
    #[inline]
    pub fn set_sequence(&mut self, sequence: u32) {
        bytes::put_u32(self.bytes.as_mut(), 4, sequence);
    }

    /// Sets the acknowledgment number.
    #[inline]
    pub fn set_acknowledgment(&mut self, acknowledgment: u32) {
        bytes::put_u32(self.bytes.as_mut(), 8, acknowledgment);
    }

    /// Sets the header's length in bytes; a multiple of 4, at most 60.
    pub fn set_header_length(&mut self, length: usize) {
        bytes::put_bits(self.bytes.as_mut(), 12, 0xf0, ((length / 4) as u8) << 4);
    }

    /// Sets the control bits.
    pub fn set_flags(&mut self, flags: TcpFlags) {
        bytes::put_u8(self.bytes.as_mut(), 13, flags.0);
    }

    /// Sets the receive window.
    pub fn set_window(&mut self, window: u16) {
        bytes::put_u16(self.bytes.as_mut(), 14, window);
    }

    /// Sets the checksum.
    #[inline]
    pub fn set_checksum(&mut self, checksum: u16) {
        bytes::put_u16(self.bytes.as_mut(), 16, checksum);
    }

    /// Sets the urgent pointer.
    pub fn set_urgent_pointer(&mut self, pointer: u16) {
        bytes::put_u16(self.bytes.as_mut(), 18, pointer);
    }

    /// The data.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let start = self.header_length();
        self.bytes.as_mut().get_mut(start..).unwrap_or_default()
    }
}

/// TCP option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpOption<'a> {
    /// Padding.
    NoOperation,
    /// Largest segment that the sender accepts, in bytes (RFC 9293 §3.7.1).
    MaximumSegmentSize(u16),
    /// Left shift of the window (RFC 7323 §2).
    WindowScale(u8),
    /// The sender supports selective acknowledgments (RFC 2018).
    SackPermitted,
    /// Blocks of received data: pairs of 32-bit sequence numbers (RFC 2018).
    Sack(&'a [u8]),
    /// Timestamps (RFC 7323 §3).
    Timestamps {
        /// The sender's clock.
        value: u32,
        /// The peer's clock as last seen.
        echo: u32,
    },
    /// Other option, or one of the above with an invalid length.
    Other {
        /// Kind of the option.
        kind: u8,
        /// Bytes after kind and length.
        data: &'a [u8],
    },
}

/// Options of a TCP header: see [`TcpView::options`].
#[derive(Clone, Debug)]
pub struct TcpOptions<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for TcpOptions<'a> {
    type Item = Result<TcpOption<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = std::mem::take(&mut self.rest);
        match *rest {
            // End of the bytes, or of the option list.
            [] | [0, ..] => None,
            [1, ref rest @ ..] => {
                self.rest = rest;
                Some(Ok(TcpOption::NoOperation))
            }
            [kind, length, ..] if length >= 2 && length as usize <= rest.len() => {
                let (option, rest) = rest.split_at(length as usize);
                self.rest = rest;
                Some(Ok(option_of(kind, bytes::from(option, 2))))
            }
            _ => Some(Err(Malformed::TcpOptions)),
        }
    }
}

fn option_of(kind: u8, data: &[u8]) -> TcpOption<'_> {
    match (kind, data) {
        (2, &[high, low]) => TcpOption::MaximumSegmentSize(u16::from_be_bytes([high, low])),
        (3, &[shift]) => TcpOption::WindowScale(shift),
        (4, []) => TcpOption::SackPermitted,
        (5, blocks) if !blocks.is_empty() && blocks.len().is_multiple_of(8) => TcpOption::Sack(blocks),
        (8, data) if data.len() == 8 => TcpOption::Timestamps {
            value: bytes::u32_at(data, 0),
            echo: bytes::u32_at(data, 4),
        },
        _ => TcpOption::Other { kind, data },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let mut segment = [0; 26];
        segment[12] = 0x65;
        let mut view = TcpView::new(&mut segment[..]).unwrap();
        view.set_source_port(0x0102);
        view.set_destination_port(0x0304);
        view.set_sequence(0x05060708);
        view.set_acknowledgment(0x090a0b0c);
        view.set_flags(TcpFlags::SYN | TcpFlags::ACK);
        view.set_window(0x0d0e);
        view.set_checksum(0x0f10);
        view.set_urgent_pointer(0x1112);
        assert_eq!((view.source_port(), view.destination_port()), (0x0102, 0x0304));
        assert_eq!((view.sequence(), view.acknowledgment()), (0x05060708, 0x090a0b0c));
        assert_eq!(
            (view.window(), view.checksum(), view.urgent_pointer()),
            (0x0d0e, 0x0f10, 0x1112)
        );
        assert_eq!(view.flags().to_string(), "SYN|ACK");
        assert!(view.flags().contains(TcpFlags::SYN) && !view.flags().intersects(TcpFlags::FIN));
        assert_eq!(view.header_length(), 24);
        assert_eq!(view.payload_mut(), [0, 0]);
        view.set_header_length(20);
        assert_eq!(view.payload(), [0; 6]);
        assert_eq!(
            segment[..20],
            [
                1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x55, 0x12, 13, 14, 15, 16, 17, 18
            ]
        );
    }

    #[test]
    fn new_says_what_is_wrong() {
        let mut segment = [0; 24];
        segment[12] = 0x40;
        assert_eq!(TcpView::new(segment).unwrap_err(), Malformed::TcpDataOffset);
        segment[12] = 0x70;
        assert_eq!(TcpView::new(segment).unwrap_err(), Malformed::TruncatedTcp);
        segment[12] = 0x50;
        assert!(TcpView::new(&segment[..20]).is_ok());
        assert_eq!(TcpView::new(&segment[..19]).unwrap_err(), Malformed::TruncatedTcp);
    }

    fn options(bytes: &[u8]) -> Vec<Result<TcpOption<'_>, Malformed>> {
        TcpOptions { rest: bytes }.collect()
    }

    #[test]
    fn options_of_a_syn() {
        let syn = [
            2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 3, 3, 7, 0, 9, 9, 9,
        ];
        assert_eq!(
            options(&syn),
            [
                Ok(TcpOption::MaximumSegmentSize(1460)),
                Ok(TcpOption::SackPermitted),
                Ok(TcpOption::Timestamps { value: 1, echo: 2 }),
                Ok(TcpOption::NoOperation),
                Ok(TcpOption::WindowScale(7)),
            ]
        );
    }

    #[test]
    fn odd_options() {
        let sack = [5, 10, 0, 0, 0, 1, 0, 0, 0, 2];
        assert_eq!(options(&sack), [Ok(TcpOption::Sack(&[0, 0, 0, 1, 0, 0, 0, 2]))]);
        assert_eq!(options(&[2, 3, 5]), [Ok(TcpOption::Other { kind: 2, data: &[5] })]);
        for wrong in [&[2][..], &[2, 1], &[2, 0], &[2, 4, 5], &[1, 99]] {
            assert_eq!(options(wrong).last(), Some(&Err(Malformed::TcpOptions)));
        }
    }
}
