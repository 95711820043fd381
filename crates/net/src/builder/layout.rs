//! Lengths of a frame's parts, and their limits.

use super::error::BuildError;
use super::{FrameBuilder, Network, Transport};
use crate::parse::MAX_FRAME;
use crate::vlan::{MAX_VLAN_TAGS, TAG};
use crate::{arp, ethernet, icmp, ipv4, ipv6, tcp, udp};

/// Lengths of a frame's parts in bytes.
pub(super) struct Layout {
    /// Ethernet header and VLAN tags.
    pub(super) link: usize,
    /// IP header with options or extensions, or ARP packet.
    pub(super) network: usize,
    /// Transport header.
    pub(super) transport: usize,
    /// Transport header and payload, with the padding of [`FrameBuilder::frame_length`].
    pub(super) upper: usize,
    /// Whole frame, with Ethernet padding.
    pub(super) frame: usize,
}

impl FrameBuilder<'_> {
    /// Checks all limits, and computes the lengths.
    #[inline]
    pub(super) fn layout(&self) -> Result<Layout, BuildError> {
        if self.tag_count > MAX_VLAN_TAGS {
            return Err(BuildError::VlanTags(self.tag_count));
        }
        let link = ethernet::HEADER + self.tag_count * TAG;
        let network = match &self.network {
            Network::Arp(_) => arp::PACKET,
            Network::Ip(key) => match key.version() {
                4 => ipv4::HEADER + check_options(self.ip_options)?,
                6 => ipv6::HEADER + self.extensions_length()?,
                _ => return Err(BuildError::NotIp),
            },
        };
        let transport = match &self.transport {
            Transport::Tcp(fields) => tcp::HEADER + check_options(fields.options)?,
            Transport::Udp { .. } => udp::HEADER,
            Transport::Sctp => 12,
            Transport::Icmp { .. } => icmp::HEADER,
            Transport::Raw => 0,
        };
        let mut upper = transport + self.payload.len();
        if let Some(wanted) = self.frame_length {
            let needed = link + network + upper;
            if needed > wanted {
                return Err(BuildError::FrameLength { wanted, needed });
            }
            upper += wanted - needed;
        }
        let mut frame = link + network + upper;
        if self.pad {
            frame = frame.max(ethernet::MIN_FRAME);
        }
        if frame > MAX_FRAME {
            return Err(BuildError::TooLong(frame));
        }
        Ok(Layout {
            link,
            network,
            transport,
            upper,
            frame,
        })
    }

    fn extensions_length(&self) -> Result<usize, BuildError> {
        let mut total = 0;
        for (_, data) in self.extensions {
            let length = 2 + data.len();
            if !length.is_multiple_of(8) || length > 2048 {
                return Err(BuildError::Extension(length));
            }
            total += length;
        }
        Ok(total)
    }
}

/// Returns the length of the options, if it is valid.
fn check_options(options: &[u8]) -> Result<usize, BuildError> {
    match options.len() {
        length if length <= 40 && length.is_multiple_of(4) => Ok(length),
        length => Err(BuildError::Options(length)),
    }
}
