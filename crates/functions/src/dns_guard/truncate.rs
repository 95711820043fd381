//! Truncation of a response, so that the client retries over TCP, where its address cannot be forged.

use std::net::IpAddr;
use tailwater_chain::batch::Batch;
use tailwater_net::checksum::{transport_v4, transport_v6, udp_field};
use tailwater_net::dns;
use tailwater_net::ipv6;
use tailwater_net::parse::{Network, parse};
use tailwater_net::protocol;
use tailwater_net::udp::{self, UdpView};

/// Sets TC and removes everything after the question, which ends at byte `question_end` of the message. A first
/// fragment becomes a whole datagram. Returns `false` for packets with IPv6 extension headers other than the fragment
/// header.
pub(super) fn truncate(batch: &mut Batch, i: usize, question_end: usize) -> bool {
    rewrite(batch, i, question_end).is_some()
}

fn rewrite(batch: &mut Batch, i: usize, question_end: usize) -> Option<()> {
    let headers = batch.packet(i).headers;
    let extensions = headers.transport_offset - headers.network_offset;
    if headers.network == Network::V6 && usize::from(extensions) > ipv6::HEADER {
        let fragment = usize::from(headers.network_offset) + ipv6::HEADER;
        let next = batch.frame(i).get(fragment - ipv6::HEADER + 6)?;
        if extensions != 48 || *next != protocol::FRAGMENT {
            return None;
        }
    }
    let end = usize::from(headers.payload_offset) + question_end;
    let more = usize::from(headers.end).checked_sub(end)?;
    let (packet, frame) = batch.shrink_back(i, more)?;
    let (network, rest) = frame.split_at_mut_checked(headers.transport_offset.into())?;
    let datagram = rest.get_mut(..udp::HEADER + question_end)?;
    let message = &mut datagram[udp::HEADER..];
    message.get_mut(..dns::HEADER)?;
    message[2] |= 0x02;
    // Clears the counts of answers, authorities and additional records.
    message[6..dns::HEADER].fill(0);
    let length = datagram.len() as u16;
    let mut view = UdpView::first_fragment(&mut *datagram).ok()?;
    view.set_length(length);
    view.set_checksum(0);
    let key = headers.key;
    let sum = match (key.source(), key.destination()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => transport_v4(source, destination, protocol::UDP, datagram),
        (IpAddr::V6(source), IpAddr::V6(destination)) => transport_v6(source, destination, protocol::UDP, datagram),
        _ => return None,
    };
    UdpView::first_fragment(&mut *datagram)
        .ok()?
        .set_checksum(udp_field(sum));
    let ip = network.get_mut(headers.network_offset.into()..)?;
    match headers.network {
        Network::V4 => {
            let total = ip.len() as u16 + length;
            let header = ip.first_chunk_mut::<20>()?;
            header[2..4].copy_from_slice(&total.to_be_bytes());
            header[6] &= !0x20;
            header[10..12].fill(0);
            let sum = !tailwater_net::checksum::sum(ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        _ => {
            let payload = (ip.len() - ipv6::HEADER) as u16 + length;
            ip[4..6].copy_from_slice(&payload.to_be_bytes());
            if let Some(fragment) = ip.get_mut(ipv6::HEADER..).filter(|rest| rest.len() == 8) {
                fragment[3] &= !1;
            }
        }
    }
    packet.headers = parse(frame).ok()?;
    Some(())
}
