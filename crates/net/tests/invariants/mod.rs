//! Properties of every frame, whatever its bytes. Checked by property tests, by the replay of regressions and by the
//! fuzz target `parse`.

use tailwater_net::arp::ArpView;
use tailwater_net::checksum::{self, Checksum};
use tailwater_net::ethernet::EthernetView;
use tailwater_net::icmp::{self, IcmpView};
use tailwater_net::ipv4::Ipv4View;
use tailwater_net::ipv6::Ipv6View;
use tailwater_net::parse::{Fragment, Headers, Malformed, Network, parse};
use tailwater_net::protocol::{self, ethertype};
use tailwater_net::tcp::{TcpFlags, TcpView};
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::udp::UdpView;
use tailwater_net::{FlowKey, builder, tunnel, vlan};

/// Checks all properties, and panics if one is violated.
pub fn check(frame: &[u8]) {
    let parsed = parse(frame);
    assert_eq!(parsed, oracle(frame), "parse and its oracle differ");
    views(frame);
    let Ok(headers) = parsed else {
        return;
    };
    offsets(frame, &headers);
    let _ = checksum::verify_network(frame, &headers);
    let _ = checksum::verify_transport(frame, &headers);
    if let Some(quote) = icmp::quoted(frame, &headers) {
        assert!(headers.payload_offset <= quote.network_offset);
        assert!(quote.network_offset < quote.transport_offset);
        assert!(quote.transport_offset <= headers.end);
    }
    let rss = RssHasher::symmetric();
    assert_eq!(
        rss.hash(&headers.key),
        rss.hash(&headers.key.reversed()),
        "{:?}",
        headers.key
    );
    fragments(frame, &headers);
    tunnels(frame, headers);
    parsed_headers_of_another_frame(frame, &headers);
}

/// Packets inside tunnels lie inside the frame, each behind the header of the one around it.
fn tunnels(frame: &[u8], mut outer: Headers) {
    for _ in 0..tunnel::MAX_TUNNELS {
        let Ok(Some(inner)) = tunnel::inner(frame, &outer) else {
            return;
        };
        assert!(inner.network_offset > outer.network_offset && inner.end <= outer.end);
        assert!(
            [
                inner.network_offset,
                inner.transport_offset,
                inner.payload_offset,
                inner.end
            ]
            .is_sorted()
        );
        let _ = checksum::verify_transport(frame, &inner);
        outer = inner;
    }
}

/// All offsets lie in order inside the frame.
fn offsets(frame: &[u8], headers: &Headers) {
    let order = [
        14,
        headers.network_offset,
        headers.transport_offset,
        headers.payload_offset,
        headers.end,
    ];
    assert!(order.is_sorted(), "{headers:?}");
    assert!(headers.end as usize <= frame.len());
    let tags = vlan::tags(frame).count();
    assert_eq!(headers.network_offset as usize, 14 + 4 * tags);
    assert_eq!(headers.network == Network::NotIp, headers.key == FlowKey::default());
    if headers.fragment == Fragment::Later {
        assert_eq!(headers.transport_offset, headers.payload_offset);
        assert_eq!(headers.key.source_port(), 0);
        assert_eq!(headers.key.destination_port(), 0);
    }
    assert_eq!(headers.key.reversed().reversed(), headers.key);
}

/// Headers mistakenly used with a shorter frame must not cause a panic.
fn parsed_headers_of_another_frame(frame: &[u8], headers: &Headers) {
    let shorter = &frame[..frame.len() / 2];
    let _ = checksum::verify_network(shorter, headers);
    let _ = checksum::verify_transport(shorter, headers);
    let _ = icmp::quoted(shorter, headers);
    assert!(headers.payload(shorter).len() <= shorter.len());
}

/// Fragments of a whole datagram parse, and carry the datagram's data.
fn fragments(frame: &[u8], headers: &Headers) {
    if !headers.has_transport() || headers.fragment != Fragment::Whole {
        return;
    }
    let head = (headers.transport_offset - headers.network_offset) as usize;
    // Room for the longest transport header, so that no fragment is tiny.
    let Ok(fragments) = builder::fragment(frame, head + 8 + 64, 7) else {
        return;
    };
    let mut data: Vec<u8> = Vec::new();
    for fragment in &fragments {
        match parse(fragment) {
            Ok(headers) => data.extend(headers.transport(fragment)),
            // Fragmentation adds a fragment header, which can be one too many for IPv6. A datagram of 65,535 bytes has
            // no room for it.
            Err(Malformed::TooManyExtensions | Malformed::RepeatedFragmentHeader | Malformed::FragmentOverflow)
                if headers.network == Network::V6 =>
            {
                return;
            }
            Err(reason) => panic!("a fragment is malformed: {reason}"),
        }
    }
    assert_eq!(data, headers.transport(frame));
}

/// No view panics, whatever its bytes, nor do its setters, whatever their arguments.
fn views(frame: &[u8]) {
    // Usual offsets of headers, and all bytes of the frame interpreted as headers.
    for offset in [0, 14, 18, 34, 38, 54] {
        let bytes = frame.get(offset..).unwrap_or_default();
        read_views(bytes);
        let mut bytes = bytes.to_vec();
        bytes.truncate(128);
        write_views(&mut bytes);
    }
}

fn read_views(bytes: &[u8]) {
    if let Ok(view) = EthernetView::new(bytes) {
        let _ = (view.source(), view.destination(), view.ethertype());
        if let Ok((_, offset)) = view.network() {
            assert!(offset <= bytes.len());
        }
    }
    if let Ok(view) = vlan::VlanView::new(bytes) {
        let _ = (view.id(), view.priority(), view.drop_eligible(), view.payload());
    }
    if let Ok(view) = ArpView::new(bytes) {
        let _ = (view.operation(), view.sender_mac(), view.target_ip());
    }
    if let Ok(view) = Ipv4View::new(bytes) {
        let total = view.total_length() as usize;
        assert_eq!(view.header_length() + view.payload().len(), total);
        let options: usize = view.options().map(|o| o.map_or(0, |o| o.data.len() + 1)).sum();
        assert!(options <= view.header_length() - 20);
        let _ = view.checksum_is_correct();
    }
    if let Ok(view) = Ipv6View::new(bytes) {
        assert_eq!(view.payload().len(), view.payload_length() as usize);
        let extensions = view.extensions();
        assert!(extensions.clone().count() <= tailwater_net::ipv6::MAX_EXTENSIONS + 1);
        let length: usize = extensions.flatten().map(|e| e.bytes.len()).sum();
        assert!(length <= view.payload().len());
    }
    if let Ok(view) = TcpView::new(bytes) {
        assert_eq!(view.header_length() + view.payload().len(), bytes.len());
        assert!(view.options().count() <= 41);
        let _ = (view.flags().to_string(), view.window());
    }
    if let Ok(view) = UdpView::new(bytes) {
        assert_eq!(view.payload().len() + 8, view.length() as usize);
    }
    if let Ok(view) = UdpView::first_fragment(bytes) {
        assert!(view.payload().len() + 8 <= bytes.len());
    }
    for view in [IcmpView::new(bytes), IcmpView::new_v6(bytes)].into_iter().flatten() {
        let _ = (view.kind(), view.rest_of_header(), view.payload());
    }
}

/// Setters that write a wrong length into a header must not make later calls panic.
fn write_views(bytes: &mut [u8]) {
    if let Ok(mut view) = Ipv4View::new(&mut *bytes) {
        view.decrement_ttl();
        view.set_header_length(60);
        view.fill_checksum();
        view.set_total_length(u16::MAX);
        let _ = (view.payload_mut().len(), view.options().count());
        view.set_total_length(0);
        assert!(view.payload().is_empty());
    }
    if let Ok(mut view) = Ipv6View::new(&mut *bytes) {
        view.decrement_hop_limit();
        view.set_payload_length(u16::MAX);
        let _ = (view.payload_mut().len(), view.extensions().count());
    }
    if let Ok(mut view) = TcpView::new(&mut *bytes) {
        view.set_flags(TcpFlags(0xff));
        view.set_header_length(60);
        let _ = (view.payload_mut().len(), view.options().count());
        view.set_header_length(0);
        let _ = (view.payload().len(), view.options().count());
    }
    if let Ok(mut view) = UdpView::new(&mut *bytes) {
        view.set_length(0);
        let _ = (view.payload().len(), view.payload_mut().len());
        view.set_length(u16::MAX);
        let _ = (view.payload().len(), view.payload_mut().len());
    }
    if let Ok(mut view) = IcmpView::new_v6(&mut *bytes) {
        view.set_sequence(1);
        let _ = (view.sequence(), view.payload_mut().len());
    }
}

/// Slow reference implementation of `parse`: one view after the other.
fn oracle(frame: &[u8]) -> Result<Headers, Malformed> {
    if frame.len() > 65_535 {
        return Err(Malformed::Oversize);
    }
    let (kind, start) = EthernetView::new(frame)?.network()?;
    let bytes = &frame[start..];
    let mut headers = Headers {
        network_offset: start as u16,
        transport_offset: start as u16,
        payload_offset: start as u16,
        end: frame.len() as u16,
        ..Headers::default()
    };
    if kind == ethertype::IPV4 {
        let ip = Ipv4View::new(bytes)?;
        headers.network = Network::V4;
        headers.transport_offset += ip.header_length() as u16;
        headers.end = headers.network_offset + ip.total_length();
        headers.fragment = oracle_fragment(
            ip.fragment_offset(),
            ip.more_fragments(),
            ip.payload().len(),
            ip.protocol(),
        )?;
        let (ports, header) = oracle_transport(ip.payload(), ip.protocol(), headers.fragment, true)?;
        headers.payload_offset = headers.transport_offset + header as u16;
        headers.key = FlowKey::v4(ip.source(), ip.destination(), ip.protocol(), ports.0, ports.1);
    } else if kind == ethertype::IPV6 {
        let ip = Ipv6View::new(bytes)?;
        headers.network = Network::V6;
        headers.end = headers.network_offset + 40 + ip.payload_length();
        let mut extensions = ip.extensions();
        let mut seen = Vec::new();
        while let Some(extension) = extensions.next() {
            // The position of a header is validated before its length.
            let extension = match extension {
                Err(Malformed::TruncatedExtension)
                    if !seen.is_empty() && extensions.remainder().0 == protocol::HOP_BY_HOP =>
                {
                    return Err(Malformed::HopByHopNotFirst);
                }
                Err(Malformed::TooManyExtensions) if extensions.remainder().0 == protocol::HOP_BY_HOP => {
                    return Err(Malformed::HopByHopNotFirst);
                }
                other => other?,
            };
            if extension.kind == protocol::HOP_BY_HOP && !seen.is_empty() {
                return Err(Malformed::HopByHopNotFirst);
            }
            if let Some((offset, more)) = extension.fragment() {
                if seen.contains(&protocol::FRAGMENT) {
                    return Err(Malformed::RepeatedFragmentHeader);
                }
                let data = extensions.remainder().1.len();
                headers.fragment = oracle_fragment(offset, more, data, extension.next_header)?;
            }
            seen.push(extension.kind);
        }
        let (upper, data) = extensions.remainder();
        headers.transport_offset = headers.end - data.len() as u16;
        let (ports, header) = oracle_transport(data, upper, headers.fragment, false)?;
        headers.payload_offset = headers.transport_offset + header as u16;
        headers.key = FlowKey::v6(ip.source(), ip.destination(), upper, ports.0, ports.1);
    }
    Ok(headers)
}

fn oracle_fragment(offset: usize, more: bool, data: usize, upper: u8) -> Result<Fragment, Malformed> {
    let fragment = match (offset, more) {
        (0, false) => return Ok(Fragment::Whole),
        (0, true) => Fragment::First,
        _ => Fragment::Later,
    };
    if more && !data.is_multiple_of(8) {
        Err(Malformed::FragmentLength)
    } else if offset + data > 65_535 {
        Err(Malformed::FragmentOverflow)
    } else if offset == 8 && upper == protocol::TCP {
        Err(Malformed::FragmentOverlap)
    } else {
        Ok(fragment)
    }
}

/// Returns ports and header length.
fn oracle_transport(data: &[u8], upper: u8, fragment: Fragment, v4: bool) -> Result<((u16, u16), usize), Malformed> {
    if fragment == Fragment::Later {
        return Ok(((0, 0), 0));
    }
    let found = match upper {
        protocol::TCP => {
            TcpView::new(data).map(|tcp| ((tcp.source_port(), tcp.destination_port()), tcp.header_length()))
        }
        protocol::UDP => {
            let view = match fragment {
                Fragment::First => UdpView::first_fragment(data),
                _ => UdpView::new(data),
            };
            view.map(|udp| ((udp.source_port(), udp.destination_port()), 8))
        }
        protocol::SCTP if data.len() < 12 => Err(Malformed::TruncatedSctp),
        protocol::SCTP => {
            let port = |at: usize| u16::from_be_bytes([data[at], data[at + 1]]);
            Ok(((port(0), port(2)), 12))
        }
        protocol::ICMP if v4 => IcmpView::new(data).map(|icmp| match icmp.kind() {
            0 | 8 => ((icmp.identifier(), icmp.identifier()), 8),
            _ => ((0, 0), 8),
        }),
        protocol::ICMPV6 if !v4 => IcmpView::new_v6(data).map(|icmp| match icmp.kind() {
            128 | 129 => ((icmp.identifier(), icmp.identifier()), 8),
            _ => ((0, 0), data.len().min(8)),
        }),
        _ => Ok(((0, 0), 0)),
    };
    found.map_err(|reason| match reason {
        Malformed::TcpDataOffset | Malformed::UdpLength => reason,
        _ if fragment == Fragment::First => Malformed::TinyFragment,
        _ => reason,
    })
}

/// Returns `true` if both checksums of a frame are right, or absent where that is allowed.
#[allow(dead_code, reason = "not every user of this module builds frames")]
pub fn checksums_hold(frame: &[u8], headers: &Headers) -> bool {
    checksum::verify_network(frame, headers) != Checksum::Wrong
        && checksum::verify_transport(frame, headers) != Checksum::Wrong
}
