use super::*;
use crate::arp::ArpView;
use crate::checksum::{Checksum, verify_network, verify_transport};
use crate::ethernet::EthernetView;
use crate::ipv4::Ipv4View;
use crate::ipv6::Ipv6View;
use crate::parse::{Fragment, parse};
use crate::protocol::ethertype;
use crate::tcp::TcpView;
use crate::vlan;

fn v4(protocol: u8) -> FlowKey {
    FlowKey::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), protocol, 7, 7)
}

fn v6(protocol: u8) -> FlowKey {
    FlowKey::v6([0x20; 16].into(), [0x21; 16].into(), protocol, 7, 7)
}

/// Compares byte by byte, with checksums computed by hand (RFC 1071).
#[test]
fn known_udp_packet() {
    let key = FlowKey::v4([192, 168, 0, 1].into(), [192, 168, 0, 199].into(), 17, 4000, 53);
    let frame = FrameBuilder::new(&key)
        .dont_fragment(false)
        .identification(1)
        .payload(b"hi")
        .to_vec()
        .unwrap();
    let ip: u32 = 0x4500 + 0x1e + 1 + 0x4011 + 0xc0a8 + 1 + 0xc0a8 + 0xc7;
    let ip = !((ip & 0xffff) + (ip >> 16)) as u16;
    let udp: u32 = 0xc0a8 + 1 + 0xc0a8 + 0xc7 + 17 + 10 + 4000 + 53 + 10 + 0x6869;
    let udp = !((udp & 0xffff) + (udp >> 16)) as u16;
    let mut expected = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    expected.extend([0x45, 0, 0, 30, 0, 1, 0, 0, 64, 17]);
    expected.extend(ip.to_be_bytes());
    expected.extend([192, 168, 0, 1, 192, 168, 0, 199]);
    expected.extend([0x0f, 0xa0, 0, 53, 0, 10]);
    expected.extend(udp.to_be_bytes());
    expected.extend(b"hi");
    assert_eq!(frame, expected);
}

#[test]
fn every_protocol_has_its_header() {
    for (key, header) in [
        (v4(protocol::TCP), 20),
        (v6(protocol::TCP), 20),
        (v4(protocol::UDP), 8),
        (v6(protocol::UDP), 8),
        (v4(protocol::SCTP), 12),
        (v4(protocol::ICMP), 8),
        (v6(protocol::ICMPV6), 8),
    ] {
        let frame = FrameBuilder::new(&key).payload(b"abc").to_vec().unwrap();
        let headers = parse(&frame).unwrap();
        assert_eq!(headers.key, key);
        assert_eq!(headers.payload_offset - headers.transport_offset, header);
        assert_eq!(headers.payload(&frame), b"abc");
        let network = if key.is_v4() {
            Checksum::Correct
        } else {
            Checksum::Absent
        };
        assert_eq!(verify_network(&frame, &headers), network);
        let transport = match key.protocol() {
            protocol::SCTP => Checksum::Unknown,
            _ => Checksum::Correct,
        };
        assert_eq!(verify_transport(&frame, &headers), transport);
    }
    // Other protocols have no transport header and no ports.
    let frame = FrameBuilder::new(&v4(47)).payload(b"abc").to_vec().unwrap();
    let headers = parse(&frame).unwrap();
    assert_eq!((headers.key.protocol(), headers.key.source_port()), (47, 0));
    assert_eq!(headers.payload(&frame), b"abc");
}

#[test]
fn all_fields_arrive() {
    let source = MacAddress([1; 6]);
    let destination = MacAddress([3; 6]);
    let tags = [VlanTag::service(100), VlanTag::customer(200)];
    let base = |key| {
        FrameBuilder::new(key)
            .macs(source, destination)
            .vlan(tags[0])
            .vlan(tags[1])
            .ttl(9)
            .dscp_ecn(46, 1)
    };
    let key = v4(protocol::TCP);
    let fields = TcpFields {
        sequence: 1,
        acknowledgment: 2,
        flags: TcpFlags::SYN,
        window: 3,
        urgent_pointer: 4,
        options: &[2, 4, 5, 0xb4],
    };
    let frame = base(&key)
        .identification(77)
        .ip_options(&[1, 1, 1, 0])
        .tcp(fields)
        .frame_length(128)
        .to_vec()
        .unwrap();
    assert_eq!(frame.len(), 128);
    let ethernet = EthernetView::new(&frame).unwrap();
    assert_eq!((ethernet.source(), ethernet.destination()), (source, destination));
    assert_eq!(vlan::tags(&frame).collect::<Vec<_>>(), tags);
    let headers = parse(&frame).unwrap();
    assert_eq!(headers.end, 128);
    let ip = Ipv4View::new(headers.datagram(&frame)).unwrap();
    assert_eq!((ip.ttl(), ip.dscp(), ip.ecn(), ip.identification()), (9, 46, 1, 77));
    assert!(ip.dont_fragment() && ip.checksum_is_correct());
    assert_eq!((ip.header_length(), ip.options().count()), (24, 3));
    let tcp = TcpView::new(headers.transport(&frame)).unwrap();
    assert_eq!(
        (tcp.sequence(), tcp.acknowledgment(), tcp.flags()),
        (1, 2, TcpFlags::SYN)
    );
    assert_eq!((tcp.window(), tcp.urgent_pointer(), tcp.header_length()), (3, 4, 24));
    assert_eq!(verify_transport(&frame, &headers), Checksum::Correct);

    let key = v6(protocol::UDP);
    let frame = base(&key)
        .flow_label(0xabcde)
        .extensions(&[
            (protocol::HOP_BY_HOP, &[1, 4, 0, 0, 0, 0]),
            (protocol::DESTINATION_OPTIONS, &[0; 14]),
        ])
        .to_vec()
        .unwrap();
    let headers = parse(&frame).unwrap();
    assert_eq!(headers.key, key);
    let ip = Ipv6View::new(headers.datagram(&frame)).unwrap();
    assert_eq!(
        (ip.hop_limit(), ip.dscp(), ip.ecn(), ip.flow_label()),
        (9, 46, 1, 0xabcde)
    );
    let lengths: Vec<_> = ip.extensions().map(|e| e.unwrap().bytes.len()).collect();
    assert_eq!(lengths, [8, 16]);
    assert_eq!(verify_transport(&frame, &headers), Checksum::Correct);
}

#[test]
fn arp_request() {
    let request = Arp {
        operation: arp::REQUEST,
        sender_mac: MacAddress([2; 6]),
        sender_ip: [10, 0, 0, 1].into(),
        target_mac: MacAddress::default(),
        target_ip: [10, 0, 0, 2].into(),
    };
    let frame = FrameBuilder::arp(request)
        .vlan(VlanTag::customer(5))
        .pad_to_minimum()
        .to_vec()
        .unwrap();
    assert_eq!(frame.len(), 60);
    let ethernet = EthernetView::new(&frame).unwrap();
    assert_eq!(ethernet.destination(), MacAddress::BROADCAST);
    assert_eq!(ethernet.network(), Ok((ethertype::ARP, 18)));
    let view = ArpView::new(&frame[18..]).unwrap();
    assert_eq!(
        (view.operation(), view.sender_mac(), view.sender_ip()),
        (arp::REQUEST, request.sender_mac, request.sender_ip)
    );
    assert_eq!(
        (view.target_mac(), view.target_ip()),
        (request.target_mac, request.target_ip)
    );
}

#[test]
fn padding_is_outside_the_datagram() {
    let frame = FrameBuilder::new(&v4(protocol::UDP)).pad_to_minimum().to_vec().unwrap();
    let headers = parse(&frame).unwrap();
    assert_eq!((frame.len(), headers.end), (60, 42));
}

#[test]
fn buffers_need_not_be_clean() {
    let builder = FrameBuilder::new(&v6(protocol::TCP))
        .extensions(&[(protocol::HOP_BY_HOP, &[1, 4, 0, 0, 0, 0])])
        .payload(b"x")
        .frame_length(100);
    for builder in [builder, FrameBuilder::new(&v4(protocol::SCTP)).pad_to_minimum()] {
        let mut dirty = [0xa5; 200];
        let length = builder.write(&mut dirty).unwrap();
        assert_eq!(dirty[..length], builder.to_vec().unwrap());
        assert_eq!(dirty[length..], [0xa5; 200][length..]);
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let key = v4(protocol::TCP);
    let builder = FrameBuilder::new(&key);
    assert_eq!(
        builder.write(&mut [0; 53]),
        Err(BuildError::BufferTooSmall {
            needed: 54,
            present: 53
        })
    );
    assert_eq!(builder.payload(&[0; 65_500]).length(), Err(BuildError::TooLong(65_554)));
    assert_eq!(
        builder.frame_length(53).length(),
        Err(BuildError::FrameLength { wanted: 53, needed: 54 })
    );
    assert_eq!(builder.ip_options(&[0; 3]).length(), Err(BuildError::Options(3)));
    assert_eq!(builder.ip_options(&[0; 44]).length(), Err(BuildError::Options(44)));
    let extended = FrameBuilder::new(&v6(protocol::TCP)).extensions(&[(60, &[0; 5])]);
    assert_eq!(extended.length(), Err(BuildError::Extension(7)));
    let tagged = (0..4).fold(builder, |builder, id| builder.vlan(VlanTag::customer(id)));
    assert_eq!(tagged.to_vec(), Err(BuildError::VlanTags(4)));
    assert_eq!(FrameBuilder::new(&FlowKey::default()).length(), Err(BuildError::NotIp));
}

#[test]
fn computed_zero_of_udp_is_sent_as_ones() {
    // One of the payload words makes the sum 0xffff.
    for key in [v4(protocol::UDP), v6(protocol::UDP)] {
        let found = (0..=u16::MAX).any(|word| {
            let frame = FrameBuilder::new(&key).payload(&word.to_be_bytes()).to_vec().unwrap();
            let headers = parse(&frame).unwrap();
            let field = &frame[headers.transport_offset as usize + 6..][..2];
            assert_ne!(field, [0, 0]);
            field == [0xff, 0xff] && verify_transport(&frame, &headers) == Checksum::Correct
        });
        assert!(found);
    }
    let key = v4(protocol::UDP);
    let frame = FrameBuilder::new(&key).without_udp_checksum().to_vec().unwrap();
    assert_eq!(verify_transport(&frame, &parse(&frame).unwrap()), Checksum::Absent);
    let key = v6(protocol::UDP);
    let frame = FrameBuilder::new(&key).without_udp_checksum().to_vec().unwrap();
    assert_eq!(verify_transport(&frame, &parse(&frame).unwrap()), Checksum::Wrong);
}

#[test]
fn fragments_hold_the_datagram() {
    let payload: Vec<u8> = (0..3000u32).map(|i| i as u8).collect();
    let options = [1, 1, 1, 0];
    let with_options = FrameBuilder::new(&v4(protocol::UDP)).ip_options(&options);
    let with_extension =
        FrameBuilder::new(&v6(protocol::TCP)).extensions(&[(protocol::HOP_BY_HOP, &[1, 4, 0, 0, 0, 0])]);
    for builder in [
        FrameBuilder::new(&v4(protocol::TCP)).vlan(VlanTag::customer(1)),
        with_options,
        FrameBuilder::new(&v6(protocol::UDP)),
        with_extension,
    ] {
        let frame = builder.payload(&payload).to_vec().unwrap();
        let whole = parse(&frame).unwrap();
        let fragments = fragment(&frame, 1280, 0x1234_5678).unwrap();
        assert_eq!(fragments.len(), 3);
        let mut data: Vec<u8> = Vec::new();
        for (index, fragment) in fragments.iter().enumerate() {
            let headers = parse(fragment).unwrap();
            assert!(fragment.len() - headers.network_offset as usize <= 1280);
            assert_eq!(headers.end as usize, fragment.len());
            assert_ne!(verify_network(fragment, &headers), Checksum::Wrong);
            if index == 0 {
                assert_eq!((headers.fragment, headers.key), (Fragment::First, whole.key));
            } else {
                assert_eq!(headers.fragment, Fragment::Later);
                assert_eq!((headers.key.source_port(), headers.key.destination_port()), (0, 0));
                assert_eq!(headers.key.source(), whole.key.source());
                assert_eq!(headers.key.protocol(), whole.key.protocol());
            }
            data.extend(headers.transport(fragment));
        }
        assert_eq!(data, whole.transport(&frame));
        assert_eq!(fragment(&fragments[0], 600, 1), Err(FragmentError::NotWhole));
        assert!(matches!(
            fragment(&frame, 20, 1),
            Err(FragmentError::MtuTooSmall { mtu: 20, .. })
        ));
        assert_eq!(fragment(&frame, 9000, 1).unwrap(), [frame]);
    }
}
