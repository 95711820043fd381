//! Position of a fragment in its datagram.

use tailwater_net::ipv4::Ipv4View;
use tailwater_net::ipv6::Ipv6View;
use tailwater_net::parse::{Headers, Network};

/// Position of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FragmentPosition {
    /// Identification number of the datagram, unique between its two addresses.
    pub(crate) identification: u32,
    /// Offset of the fragment's data, in bytes.
    pub(crate) offset: usize,
    /// Length of the fragment's data, in bytes.
    pub(crate) length: usize,
}

impl FragmentPosition {
    /// Returns the position of a packet that is a fragment.
    pub(crate) fn of(frame: &[u8], headers: &Headers) -> Option<FragmentPosition> {
        let datagram = headers.datagram(frame);
        if headers.network == Network::V4 {
            let view = Ipv4View::new(datagram).ok()?;
            return Some(FragmentPosition {
                identification: view.identification().into(),
                offset: view.fragment_offset(),
                length: datagram.len().checked_sub(view.header_length())?,
            });
        }
        let view = Ipv6View::new(datagram).ok()?;
        let mut before = tailwater_net::ipv6::HEADER;
        for extension in view.extensions() {
            let extension = extension.ok()?;
            before += extension.bytes.len();
            if let Some((offset, _)) = extension.fragment() {
                let identification = extension.bytes.get(4..8)?;
                return Some(FragmentPosition {
                    identification: u32::from_be_bytes(identification.try_into().ok()?),
                    offset,
                    length: datagram.len().checked_sub(before)?,
                });
            }
        }
        None
    }
}
