//! Checksums that a sender in the kernel left to a device. Over a veth pair, no device completes them.

use std::net::IpAddr;
use tailwater_net::checksum::{sum, transport_v4, transport_v6, udp_field};

use tailwater_net::parse::{Fragment, parse};
use tailwater_net::protocol;

/// Completes the TCP or UDP checksum of a frame whose checksum field holds the sum of the pseudo header. Leaves any
/// other frame unchanged: the incomplete checksum is then that of another protocol, or inside a tunnel.
#[cold]
pub(crate) fn complete(frame: &mut [u8]) {
    let Ok(headers) = parse(frame) else {
        return;
    };
    let protocol = headers.key.protocol();
    let field = match protocol {
        protocol::TCP => 16,
        protocol::UDP => 6,
        _ => return,
    };
    if headers.fragment != Fragment::Whole {
        return;
    }
    let pseudo = match (headers.key.source(), headers.key.destination()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => !transport_v4(source, destination, protocol, &[]),
        (IpAddr::V6(source), IpAddr::V6(destination)) => !transport_v6(source, destination, protocol, &[]),
        _ => return,
    };
    let range = usize::from(headers.transport_offset)..usize::from(headers.end);
    let Some(segment) = frame.get_mut(range) else {
        return;
    };
    let Some(found) = segment.get(field..field + 2) else {
        return;
    };
    // Ones' complement sums are equal modulo 0xffff.
    let expected = (u64::from(pseudo) + segment.len() as u64) % 0xffff;
    if u64::from(u16::from_be_bytes([found[0], found[1]])) % 0xffff != expected {
        return;
    }
    let checksum = match protocol {
        protocol::UDP => udp_field(!sum(segment)),
        _ => !sum(segment),
    };
    segment[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_net::FlowKey;
    use tailwater_net::builder::FrameBuilder;
    use tailwater_net::vlan::VlanTag;

    /// Frames with correct checksums: IPv4 and IPv6, TCP and UDP, odd lengths, one with a tag.
    fn frames() -> Vec<Vec<u8>> {
        let keys = [protocol::TCP, protocol::UDP].map(|protocol| {
            let v4 = FlowKey::v4([10, 0, 0, 1].into(), [192, 0, 2, 80].into(), protocol, 4000, 80);
            let [from, to] = ["2001:db8::1", "2001:db8::2"].map(|address| address.parse().unwrap());
            [v4, FlowKey::v6(from, to, protocol, 4000, 80)]
        });
        let plain = keys.as_flattened().iter().map(|key| {
            let frame = FrameBuilder::new(key).payload(b"an odd number of").to_vec();
            frame.unwrap()
        });
        let tagged = FrameBuilder::new(&keys[0][0])
            .vlan(VlanTag::customer(5))
            .payload(b"odd")
            .to_vec();
        plain.chain([tagged.unwrap()]).collect()
    }

    /// Replaces the checksum by the sum of the pseudo header, as the kernel does. Returns the field's position.
    fn make_partial(frame: &mut [u8]) -> usize {
        let headers = parse(frame).unwrap();
        let transport = usize::from(headers.transport_offset);
        let at = transport + if headers.key.protocol() == protocol::TCP { 16 } else { 6 };
        frame[at..at + 2].fill(0);
        let segment = &frame[transport..usize::from(headers.end)];
        let without = |segment: &[u8]| match (headers.key.source(), headers.key.destination()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => transport_v4(from, to, headers.key.protocol(), segment),
            (IpAddr::V6(from), IpAddr::V6(to)) => transport_v6(from, to, headers.key.protocol(), segment),
            _ => unreachable!(),
        };
        let pseudo = !without(&vec![0; segment.len()]);
        frame[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
        at
    }

    #[test]
    fn a_partial_checksum_is_completed() {
        for correct in frames() {
            let mut frame = correct.clone();
            make_partial(&mut frame);
            assert_ne!(frame, correct);
            complete(&mut frame);
            assert_eq!(frame, correct);
        }
    }

    #[test]
    fn a_field_that_is_not_the_pseudo_headers_sum_stays() {
        for correct in frames() {
            let mut complete_already = correct.clone();
            complete(&mut complete_already);
            assert_eq!(complete_already, correct);
            let mut other = correct;
            let at = make_partial(&mut other);
            other[at] ^= 1;
            let before = other.clone();
            complete(&mut other);
            assert_eq!(other, before);
        }
    }

    #[test]
    fn frames_without_such_a_checksum_stay() {
        let key = FlowKey::v4([10, 0, 0, 1].into(), [192, 0, 2, 80].into(), protocol::ICMP, 0, 0);
        let icmp = FrameBuilder::new(&key).payload(b"ping").to_vec().unwrap();
        for frame in [icmp, Vec::new(), vec![0xff; 14], vec![0; 60]] {
            let mut same = frame.clone();
            complete(&mut same);
            assert_eq!(same, frame);
        }
    }
}
