//! Fragmentation of a datagram.

use std::error::Error;
use std::fmt;

use crate::bytes::{put_u8, put_u16, put_u32};
use crate::ipv4::Ipv4View;
use crate::ipv6;
use crate::malformed::Malformed;
use crate::parse::{Fragment, Network, parse};
use crate::protocol;

/// Errors of fragmenting a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentError {
    /// The frame is malformed.
    Malformed(Malformed),
    /// The frame is not an IP packet, or is a fragment already.
    NotWhole,
    /// The MTU has no room for the headers and 8 bytes of data.
    MtuTooSmall {
        /// Requested MTU in bytes.
        mtu: usize,
        /// Smallest possible MTU in bytes.
        needed: usize,
    },
}

impl fmt::Display for FragmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FragmentError::Malformed(malformed) => malformed.fmt(f),
            FragmentError::NotWhole => f.write_str("the frame does not contain a whole IP datagram"),
            FragmentError::MtuTooSmall { mtu, needed } => write!(
                f,
                "an MTU of {mtu} bytes is too small: the headers and 8 bytes of data take {needed}"
            ),
        }
    }
}

impl Error for FragmentError {}

impl From<Malformed> for FragmentError {
    fn from(malformed: Malformed) -> FragmentError {
        FragmentError::Malformed(malformed)
    }
}

/// Fragments the datagram in `frame` as its sender would for an MTU of `mtu` bytes (IP header included), ignoring "do
/// not fragment". A datagram that fits is returned unchanged, without Ethernet padding. `identification` is the same in
/// all fragments; IPv4 uses its low 16 bits.
///
/// The IPv6 fragment header is inserted right before the upper layer.
///
/// # Errors
/// The frame is malformed, is not a whole IP datagram, or the MTU is too small.
pub fn fragment(frame: &[u8], mtu: usize, identification: u32) -> Result<Vec<Vec<u8>>, FragmentError> {
    let headers = parse(frame)?;
    if headers.network == Network::NotIp || headers.fragment != Fragment::Whole {
        return Err(FragmentError::NotWhole);
    }
    let start = headers.network_offset as usize;
    let head = frame.get(..headers.transport_offset as usize).unwrap_or_default();
    let data = headers.transport(frame);
    if head.len() + data.len() - start <= mtu {
        return Ok(vec![[head, data].concat()]);
    }
    let fragment_header = match headers.network {
        Network::V6 => 8,
        _ => 0,
    };
    let room = mtu.saturating_sub(head.len() - start + fragment_header) / 8 * 8;
    if room == 0 {
        return Err(FragmentError::MtuTooSmall {
            mtu,
            needed: head.len() - start + fragment_header + 8,
        });
    }
    let count = data.len().div_ceil(room);
    let mut fragments = Vec::with_capacity(count);
    for (index, part) in data.chunks(room).enumerate() {
        let mut fragment = head.to_vec();
        let offset = index * room;
        let more = index + 1 < count;
        if fragment_header == 0 {
            fragment.extend(part);
            finish_v4(&mut fragment, start, offset, more, identification as u16)?;
        } else {
            fragment.extend([0; 8]);
            fragment.extend(part);
            let at = head.len();
            put_u8(&mut fragment, at, headers.key.protocol());
            put_u16(&mut fragment, at + 2, offset as u16 | more as u16);
            put_u32(&mut fragment, at + 4, identification);
            let length = fragment.len() - start - ipv6::HEADER;
            put_u16(&mut fragment, start + 4, length as u16);
            let name_at = last_next_header(head, start);
            put_u8(&mut fragment, name_at, protocol::FRAGMENT);
        }
        fragments.push(fragment);
    }
    Ok(fragments)
}

/// Writes the IPv4 header of a fragment.
fn finish_v4(frame: &mut [u8], start: usize, offset: usize, more: bool, identification: u16) -> Result<(), Malformed> {
    let packet = frame.get_mut(start..).unwrap_or_default();
    let length = packet.len() as u16;
    // The total length field still has the whole datagram's value.
    put_u16(packet, 2, length);
    let mut view = Ipv4View::new(packet)?;
    view.set_dont_fragment(false);
    view.set_more_fragments(more);
    view.set_fragment_offset(offset);
    view.set_identification(identification);
    view.fill_checksum();
    Ok(())
}

/// Returns the offset of the field that names the upper layer, in the IPv6 header or its last extension header. `head`
/// ends where the upper layer starts.
fn last_next_header(head: &[u8], start: usize) -> usize {
    let first = start + ipv6::HEADER;
    let next = head.get(start + 6).copied().unwrap_or_default();
    let extensions = head.get(first..).unwrap_or_default();
    let (mut name_at, mut offset) = (start + 6, first);
    for extension in ipv6::Extensions::new(next, extensions).map_while(Result::ok) {
        name_at = offset;
        offset += extension.bytes.len();
    }
    name_at
}
