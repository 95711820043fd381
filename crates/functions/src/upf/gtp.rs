//! Parsing and writing of GTPv1-U headers (3GPP TS 29.281).

/// UDP port of GTP-U.
pub const PORT: u16 = 2152;
/// Bytes of a header without options.
pub const HEADER: usize = 8;
/// Bytes of a header with a PDU session container.
pub const WITH_CONTAINER: usize = 16;

/// Flags of version 1, protocol type GTP (not GTP').
const PLAIN: u8 = 0x30;
const VERSION_BITS: u8 = 0xf0;
/// Flags for an extension header, a sequence number and an N-PDU number.
const EXTENSION: u8 = 4;
const SEQUENCE: u8 = 2;
const OPTIONS: u8 = 7;
/// Extension header type of the PDU session container, which holds the QFI (TS 38.415).
const CONTAINER: u8 = 0x85;
/// Bit of extension header types that the tunnel's endpoint must understand.
const MUST_BE_KNOWN: u8 = 0x80;
/// Extension header type with the UDP port of the packet an error is about.
const UDP_PORT: u8 = 0x40;

/// Types of information elements.
const RECOVERY: u8 = 14;
const TEID_DATA: u8 = 16;
const PEER_ADDRESS: u8 = 133;

/// Message types.
pub mod message {
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 1;
    /// Echo response.
    pub const ECHO_RESPONSE: u8 = 2;
    /// Error indication: the receiver of a packet does not know its tunnel.
    pub const ERROR_INDICATION: u8 = 26;
    /// Supported extension headers notification.
    pub const EXTENSIONS: u8 = 31;
    /// End marker, the last packet of a tunnel.
    pub const END_MARKER: u8 = 254;
    /// G-PDU: a user's packet.
    pub const G_PDU: u8 = 255;
}

/// Parsed header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Message type.
    pub message: u8,
    /// Tunnel endpoint identifier (TEID) at the receiver.
    pub teid: u32,
    /// Sequence number, if present.
    pub sequence: Option<u16>,
    /// QFI of the PDU session container, if present.
    pub qfi: Option<u8>,
    /// Bytes of the header with all optional parts.
    pub length: usize,
    /// Bytes of header and message.
    pub end: usize,
}

/// Reasons a header is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Shorter than a header or than its own lengths, or another version.
    Malformed,
    /// An extension header that must be understood is unknown.
    Extension,
}

/// Parses the header at the start of a UDP payload. Bytes behind the message are ignored.
///
/// # Errors
/// The header is malformed, or has an unknown mandatory extension header.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<Header, Unreadable> {
    let head = bytes.first_chunk::<HEADER>().ok_or(Unreadable::Malformed)?;
    let [flags, message, l0, l1, t0, t1, t2, t3] = *head;
    let end = HEADER + usize::from(u16::from_be_bytes([l0, l1]));
    if flags & VERSION_BITS != PLAIN || end > bytes.len() {
        return Err(Unreadable::Malformed);
    }
    let mut header = Header {
        message,
        teid: u32::from_be_bytes([t0, t1, t2, t3]),
        length: HEADER,
        end,
        ..Header::default()
    };
    if flags & OPTIONS != 0 {
        // The message ends within the bytes.
        let options = bytes.get(HEADER..end).unwrap_or_default();
        extensions(flags, options, &mut header)?;
    }
    Ok(header)
}

/// Parses the optional part, present if any flag is set: four bytes, then extension headers.
#[inline]
fn extensions(flags: u8, options: &[u8], header: &mut Header) -> Result<(), Unreadable> {
    let (&[s0, s1, _, next], mut rest) = options.split_first_chunk().ok_or(Unreadable::Malformed)?;
    header.length += 4;
    if flags & SEQUENCE != 0 {
        header.sequence = Some(u16::from_be_bytes([s0, s1]));
    }
    // Without the flag the type field has no meaning.
    let mut next = if flags & EXTENSION != 0 { next } else { 0 };
    while next != 0 {
        // Each extension header has at least four bytes, so the loop ends.
        let length = usize::from(*rest.first().ok_or(Unreadable::Malformed)?) * 4;
        let (extension, behind) = rest.split_at_checked(length).ok_or(Unreadable::Malformed)?;
        let [_, first, second, .., last] = *extension else {
            return Err(Unreadable::Malformed);
        };
        match next {
            // PDU types 0 (downlink) and 1 (uplink) both have the QFI here.
            CONTAINER if first >> 4 <= 1 => header.qfi = Some(second & 0x3f),
            CONTAINER => return Err(Unreadable::Malformed),
            kind if kind & MUST_BE_KNOWN != 0 => return Err(Unreadable::Extension),
            _ => {}
        }
        header.length += length;
        (next, rest) = (last, behind);
    }
    Ok(())
}

/// Returns the bytes of a G-PDU's header.
#[inline]
pub fn length(qfi: Option<u8>) -> usize {
    qfi.map_or(HEADER, |_| WITH_CONTAINER)
}

/// Writes the header of a G-PDU with `inner` bytes of payload. `uplink` selects the PDU type of the container. Returns
/// `None` if there is no room, or the packet is too long.
#[inline]
pub fn write(out: &mut [u8], teid: u32, qfi: Option<u8>, uplink: bool, inner: usize) -> Option<()> {
    let options = length(qfi) - HEADER;
    let length = u16::try_from(options + inner).ok()?;
    let [l0, l1] = length.to_be_bytes();
    let [t0, t1, t2, t3] = teid.to_be_bytes();
    let flags = if qfi.is_some() { PLAIN | EXTENSION } else { PLAIN };
    *out.first_chunk_mut()? = [flags, message::G_PDU, l0, l1, t0, t1, t2, t3];
    if let Some(qfi) = qfi {
        let kind = u8::from(uplink) << 4;
        *out.get_mut(HEADER..)?.first_chunk_mut()? = [0, 0, 0, CONTAINER, 1, kind, qfi & 0x3f, 0];
    }
    Some(())
}

/// Bytes of an echo response.
pub const ECHO_RESPONSE: usize = 14;

/// Returns the response to an echo request.
pub fn echo_response(sequence: u16) -> [u8; ECHO_RESPONSE] {
    let [s0, s1] = sequence.to_be_bytes();
    let kind = message::ECHO_RESPONSE;
    // The restart counter is unused in the user plane, and 0.
    [PLAIN | SEQUENCE, kind, 0, 6, 0, 0, 0, 0, s0, s1, 0, 0, RECOVERY, 0]
}

/// Largest size of an error indication, in bytes.
pub const ERROR_INDICATION: usize = 40;

/// Writes an error indication for a packet sent to TEID `teid` at `address`, from UDP port `port`. Returns its length.
pub fn error_indication(out: &mut [u8; ERROR_INDICATION], teid: u32, address: &[u8], port: u16) -> usize {
    let length = 16 + 5 + 3 + address.len();
    let message = (length - HEADER) as u8;
    let [p0, p1] = port.to_be_bytes();
    let [t0, t1, t2, t3] = teid.to_be_bytes();
    let (kind, flags) = (message::ERROR_INDICATION, PLAIN | SEQUENCE | EXTENSION);
    let head = [flags, kind, 0, message, 0, 0, 0, 0, 0, 0, 0, UDP_PORT, 1, p0, p1, 0];
    let elements = [TEID_DATA, t0, t1, t2, t3, PEER_ADDRESS, 0, address.len() as u8];
    let bytes = head.iter().chain(&elements).chain(address);
    out.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    length
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read() {
        for (qfi, uplink) in [(None, false), (Some(9), false), (Some(63), true)] {
            let mut bytes = [0xee; 60];
            let inner = 60 - length(qfi);
            write(&mut bytes, 0xdead_beef, qfi, uplink, inner).unwrap();
            let expected = Header {
                message: message::G_PDU,
                teid: 0xdead_beef,
                sequence: None,
                qfi,
                length: length(qfi),
                end: 60,
            };
            assert_eq!(parse(&bytes), Ok(expected));
        }
        assert_eq!(write(&mut [0; 7], 1, None, true, 0), None);
        assert_eq!(write(&mut [0; 15], 1, Some(1), true, 0), None);
        assert_eq!(write(&mut [0; 16], 1, Some(1), true, 65_528), None);
    }

    /// Headers as free5GC and a commercial gNB send them, taken from captures.
    #[test]
    fn headers_by_hand() {
        // An uplink G-PDU with a container of PDU type 1, QFI 1.
        let gnb = [0x34, 0xff, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0x85, 1, 0x10, 1, 0];
        let header = parse(&gnb).unwrap();
        assert_eq!((header.teid, header.qfi, header.length), (1, Some(1), 16));
        // The same with a sequence number, a service class indicator in front, and a longer container.
        let long = [
            0x36, 0xff, 0, 20, 0, 0, 0, 1, 0x12, 0x34, 0, 0x20, 1, 7, 7, 0x85, 2, 0x18, 0x45, 0, 0, 0, 0, 0, 0x45, 0,
            0, 0,
        ];
        let header = parse(&long).unwrap();
        assert_eq!((header.sequence, header.qfi), (Some(0x1234), Some(5)));
        assert_eq!((header.length, header.end), (24, 28));
        // An echo request with a sequence number; its N-PDU number and next type mean nothing.
        let echo = [0x32, 1, 0, 4, 0, 0, 0, 0, 0, 7, 0xff, 0xff];
        let header = parse(&echo).unwrap();
        assert_eq!(
            (header.message, header.sequence, header.length),
            (message::ECHO_REQUEST, Some(7), 12)
        );
    }

    #[test]
    fn what_is_wrong_is_told() {
        use Unreadable::{Extension, Malformed};
        let good = [0x34, 0xff, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0x85, 1, 0x10, 1, 0];
        let changed = |at: usize, to: u8| {
            let mut bytes = good;
            bytes[at] = to;
            parse(&bytes).map(|_| ())
        };
        for (at, to, wrong) in [
            (0, 0x54, Malformed),  // version 2
            (0, 0x24, Malformed),  // GTP'
            (3, 9, Malformed),     // longer than the packet
            (3, 7, Malformed),     // extension header beyond the end
            (3, 3, Malformed),     // options beyond the end
            (12, 0, Malformed),    // extension header of length 0
            (12, 2, Malformed),    // beyond the end
            (13, 0x20, Malformed), // unknown PDU type
            (15, 0x85, Malformed), // missing next extension header
            (11, 0xc0, Extension),
            (11, 0x84, Extension),
        ] {
            assert_eq!(changed(at, to), Err(wrong), "byte {at} is {to:#x}");
        }
        assert_eq!(changed(11, 0x20), Ok(()));
        assert_eq!(parse(&good[..7]), Err(Malformed));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_header_within_them_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..80), flags in 0x30u8..0x38,
        ) {
            let mut bytes = bytes;
            if let [first, _, high, ..] = &mut bytes[..] {
                (*first, *high) = (flags, 0);
            }
            if let Ok(header) = parse(&bytes) {
                prop_assert!(header.length >= HEADER && header.length <= header.end);
                prop_assert!(header.end <= bytes.len() && header.length % 4 == 0);
                prop_assert!(header.qfi.is_none_or(|qfi| qfi < 64));
            }
        }
    }

    #[test]
    fn answers_are_as_the_standard_says() {
        let echo = echo_response(0x0102);
        let header = parse(&echo).unwrap();
        assert_eq!((header.message, header.teid), (message::ECHO_RESPONSE, 0));
        assert_eq!((header.sequence, header.end), (Some(0x0102), echo.len()));
        let mut bytes = [0; ERROR_INDICATION];
        for address in [&[192, 0, 2, 1][..], &[7; 16]] {
            let length = error_indication(&mut bytes, 0x0a0b_0c0d, address, 40_000);
            let header = parse(&bytes[..length]).unwrap();
            assert_eq!((header.message, header.teid), (message::ERROR_INDICATION, 0));
            assert_eq!((header.length, header.end), (16, length));
            assert_eq!(bytes[13..15], 40_000u16.to_be_bytes());
            let elements = [&[16, 0xa, 0xb, 0xc, 0xd, 133, 0, address.len() as u8], address].concat();
            assert_eq!(bytes[16..length], elements);
        }
    }
}
