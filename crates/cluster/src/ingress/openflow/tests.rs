//! The codec against messages of Open vSwitch 3.1, and against itself.

use super::super::rule::{Action, FlowMatch, FlowRule, MaskedAddress};
use super::*;
use proptest::prelude::*;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

fn decode(hex: &str) -> (u32, Message) {
    let bytes = bytes(hex);
    assert_eq!(length_of(&bytes), Ok(Some(bytes.len())));
    Message::decode(&bytes).unwrap()
}

/// Rule of 10.1.0.0/16 that sends packets to a server.
fn rule() -> FlowRule {
    FlowRule {
        cookie: 0x5457_0000_0000_0001,
        priority: 100,
        matching: FlowMatch {
            eth_type: Some(0x0800),
            destination: Some(MaskedAddress::V4 {
                value: 0x0a01_0000,
                mask: 0xffff_0000,
            }),
            ..FlowMatch::default()
        },
        action: Action::Server {
            mac: [2, 0, 0, 0, 0, 1],
            port: 2,
        },
    }
}

#[test]
fn messages_of_open_vswitch_are_read() {
    assert_eq!(
        decode("0400 0010 00000003 0001 0008 00000010"),
        (3, Message::Hello(true))
    );
    let features = Features {
        datapath: 0x0000_fe7e_0a0c_c446,
        tables: 254,
    };
    assert_eq!(
        decode("04060020000000020000fe7e0a0cc44600000000fe0000000000004f00000000"),
        (2, Message::FeaturesReply(features))
    );
    assert_eq!(decode("0403000b00000012616263").1, Message::EchoReply(b"abc".to_vec()));
    assert_eq!(decode("0415000800000011"), (17, Message::BarrierReply));
    let port = |number, name: &str, is_up| PortDescription {
        number,
        name: name.to_owned(),
        is_up,
    };
    let ports = decode(
        "041300d000000003000d000000000000fffffffe00000000fe7e0a0cc4460000627230000000000000000000000000000000\
         00000000000400000000000000000000000000000000000000000000000000000001 00000000aa55aa550002000070310000\
         00000000000000000000000000000000000000040000000000000000000000000000000000000000000000000000000200000000\
         aa55aa55000100007032000000000000000000000000000000000000000000040000000000000000000000000000000000000000\
         00000000",
    );
    let expected = vec![port(0xffff_fffe, "br0", true), port(1, "p1", true), port(2, "p2", true)];
    let expected = Multipart {
        items: expected,
        more: false,
    };
    assert_eq!(ports, (3, Message::Ports(expected)));
    let status = decode(
        "040c00500000000002000000000000000000000200000000aa55aa55000100007032000000000000000000000000000000000001\
         00000001000000000000000000000000000000000000000000000000",
    );
    let down = Message::PortStatus {
        is_removed: false,
        port: port(2, "p2", false),
    };
    assert_eq!(status, (0, down));
    let removed = decode(
        "040c00500000000001000000000000000000000200000000aa55aa55000100007032000000000000000000000000000000000001\
         00000001000000000000000000000000000000000000000000000000",
    );
    assert!(matches!(removed.1, Message::PortStatus { is_removed: true, .. }));
    let packet = decode(
        "040a005400000000ffffffff002a010054570000000000020001000c8000000400000001000000000000 505400000007\
         505400000005 0800 4500001c000000004011f979c0a80001c0a80002000800090008 0000",
    );
    let Message::PacketIn(packet) = packet.1 else {
        panic!("{packet:?}");
    };
    assert_eq!((packet.cookie, packet.in_port), (0x5457_0000_0000_0002, Some(1)));
    assert_eq!(packet.frame[..6], [0x50, 0x54, 0, 0, 0, 7]);
    assert_eq!(packet.frame.len(), 42);
}

#[test]
fn rules_of_open_vswitch_are_read() {
    let flows = decode(
        "041300800000000d0001000000000000007000000000000017e6c640006400000000000000000000545700000000000100000000\
         0000000000000000000000000001001680000a020800800019080a010000ffff00000000000400280000000000190010800006060\
         2000000000100000000001000000002ffff000000000000",
    );
    let flow = FlowStatistics {
        rule: rule(),
        packets: 0,
        bytes: 0,
    };
    let expected = Multipart {
        items: vec![flow],
        more: false,
    };
    assert_eq!(flows, (13, Message::Flows(expected)));
    // The first of its tables, with room for three rules, without the properties.
    let tables = decode(
        "0413005000000018000c0001000000000040000000000000000000000000000000000000000000000000000000000000000000000000\
         0000ffffffffffffffffffffffffffffffff0000000000000003",
    );
    let expected = Multipart {
        items: vec![(0, 3)],
        more: true,
    };
    assert_eq!(tables.1, Message::Tables(expected));
}

#[test]
fn answers_about_bundles_are_read() {
    let opened = Message::BundleControl {
        bundle: 7,
        step: BundleStep::Opened,
    };
    assert_eq!(decode("040400180000000a4f4e4600000008fc0000000700010000"), (10, opened));
    let committed = Message::BundleControl {
        bundle: 7,
        step: BundleStep::Committed,
    };
    assert_eq!(
        decode("040400180000000c4f4e4600000008fc0000000700050000"),
        (12, committed)
    );
    // The table is full: an error about the change, with the change, and one about the commit.
    let full = decode("0401001400000020 0005 0001 04040088000000 20");
    assert_eq!(full, (0x20, Message::Error(ErrorMessage::TABLE_FULL)));
    let failed = decode("0401002800000028ffff09094f4e460004040018000000284f4e4600000008fc0000000900040003");
    assert!(matches!(failed, (0x28, Message::Error(_))));
}

#[test]
fn requests_have_the_bytes_that_open_vswitch_took() {
    let written = |transaction, message: Message| {
        let mut out = Vec::new();
        message.encode(transaction, &mut out);
        out
    };
    assert_eq!(
        written(1, Message::Hello(true)),
        bytes("04000010000000010001000800000010")
    );
    let change = FlowMod {
        command: FlowCommand::Add,
        rule: rule(),
    };
    let add = Message::BundleAdd { bundle: 7, change };
    // Lengths: 8 of the header, 40 of the fixed part, 24 of the match and 40 of the instruction are 112.
    let expected = "04040088 0000000b 4f4e4600 000008fd 00000007 0000 0003 040e0070 0000000b 5457000000000001\
         0000000000000000 00 00 0000 0000 0064 ffffffff ffffffff ffffffff 0000 0000\
         0001 0016 80000a02 0800 80001908 0a010000 ffff0000 0000 0004 0028 00000000\
         0019 0010 80000606 020000000001 0000 0000 0010 00000002 0000 000000000000";
    assert_eq!(written(11, add), bytes(expected));
    let open = Message::BundleControl {
        bundle: 7,
        step: BundleStep::Open,
    };
    assert_eq!(
        written(10, open),
        bytes("040400180000000a4f4e4600000008fc0000000700000003")
    );
    let packet = Message::PacketOut {
        action: Action::Ports(vec![1]),
        frame: vec![2; 4],
    };
    assert_eq!(
        written(50, packet),
        bytes("040d002c00000032fffffffffffffffd00100000000000000000001000000001000000000000000002020202")
    );
}

#[test]
fn errors_have_the_field() {
    let read = |hex: &str| Message::decode(&bytes(hex)).unwrap_err().to_string();
    assert_eq!(
        read("0406000c0000000200000000"),
        "features.datapath_id: expected 8 bytes, found 4"
    );
    assert_eq!(
        read("040400180000000a4f4e4600000008fc0000000700090000"),
        "bundle.type: expected 0 to 7, found 9"
    );
    assert_eq!(
        read("04040020000000014f4e4600000008fd0000000700000003 0404000800000001"),
        "bundle_add.type: expected 14 (a flow mod), found 4"
    );
    assert_eq!(
        read("041300120000000d00010000000000000001"),
        "flow_stats.length: expected 2 or more, found 1"
    );
    assert_eq!(
        read("041300140000000d000c00000000000000400000"),
        "table_features.length: expected 62 bytes, found 2"
    );
    let header = |hex: &str| length_of(&bytes(hex)).unwrap_err().to_string();
    assert_eq!(
        header("0106000800000000"),
        "header.version: expected 4 (OpenFlow 1.3), found 1"
    );
    assert_eq!(header("0406000700000000"), "header.length: expected 8 or more, found 7");
    // A hello of another version is read: its bitmap decides.
    assert_eq!(decode("0600001000000003000100080000007f").1, Message::Hello(true));
    assert_eq!(decode("0600001000000003000100080000006f").1, Message::Hello(false));
    assert_eq!(decode("0100000800000003").1, Message::Hello(false));
    assert_eq!(length_of(&[4, 0, 0]), Ok(None));
}

fn addresses() -> impl Strategy<Value = Option<MaskedAddress>> {
    let v4 = (any::<u32>(), 1_u32..).prop_map(|(value, mask)| MaskedAddress::V4 {
        value: value & mask,
        mask,
    });
    let v6 = (any::<u128>(), 1_u128..).prop_map(|(value, mask)| MaskedAddress::V6 {
        value: value & mask,
        mask,
    });
    proptest::option::of(prop_oneof![v4, v6])
}

fn actions() -> impl Strategy<Value = Action> {
    prop_oneof![
        Just(Action::Drop),
        Just(Action::Normal),
        Just(Action::Controller),
        proptest::collection::vec(0_u32..1000, 1..4).prop_map(Action::Ports),
        (any::<[u8; 6]>(), 0_u32..1000).prop_map(|(mac, port)| Action::Server { mac, port }),
    ]
}

fn rules() -> impl Strategy<Value = FlowRule> {
    let matching = (
        proptest::option::of(any::<u32>()),
        proptest::option::of(any::<u16>()),
        proptest::option::of(0_u16..4096),
        proptest::option::of(any::<u8>()),
        addresses(),
        addresses(),
        // Metadata, which Tailwater does not match.
        prop_oneof![Just(Vec::new()), Just(vec![0x80, 0, 4, 8, 1, 2, 3, 4, 5, 6, 7, 8])],
    );
    let matching = matching.prop_map(
        |(in_port, eth_type, vlan, protocol, source, destination, other)| FlowMatch {
            in_port,
            eth_type,
            vlan,
            protocol,
            source,
            destination,
            other,
        },
    );
    (any::<u64>(), any::<u16>(), matching, actions()).prop_map(|(cookie, priority, matching, action)| FlowRule {
        cookie,
        priority,
        matching,
        action,
    })
}

fn flow_mods() -> impl Strategy<Value = FlowMod> {
    (any::<bool>(), rules()).prop_map(|(adds, mut rule)| {
        if !adds {
            rule.action = Action::Drop;
        }
        let command = if adds { FlowCommand::Add } else { FlowCommand::Delete };
        FlowMod { command, rule }
    })
}

fn messages() -> impl Strategy<Value = Message> {
    let frame = || proptest::collection::vec(any::<u8>(), 0..100);
    let port = || {
        (any::<u32>(), "[a-z0-9-]{0,15}", any::<bool>()).prop_map(|(number, name, is_up)| PortDescription {
            number,
            name,
            is_up,
        })
    };
    let flow = (rules(), any::<u64>(), any::<u64>()).prop_map(|(rule, packets, bytes)| FlowStatistics {
        rule,
        packets,
        bytes,
    });
    let list = |more, items| Message::Flows(Multipart { items, more });
    let steps = [
        BundleStep::Open,
        BundleStep::Opened,
        BundleStep::Close,
        BundleStep::Closed,
        BundleStep::Commit,
        BundleStep::Committed,
        BundleStep::Discard,
        BundleStep::Discarded,
    ];
    prop_oneof![
        any::<bool>().prop_map(Message::Hello),
        (any::<u16>(), any::<u16>()).prop_map(|(kind, code)| Message::Error(ErrorMessage { kind, code })),
        frame().prop_map(Message::EchoRequest),
        frame().prop_map(Message::EchoReply),
        (any::<u64>(), any::<u8>())
            .prop_map(|(datapath, tables)| Message::FeaturesReply(Features { datapath, tables })),
        (any::<u64>(), proptest::option::of(any::<u32>()), frame())
            .prop_map(|(cookie, in_port, frame)| Message::PacketIn(PacketIn { cookie, in_port, frame })),
        (actions(), frame()).prop_map(|(action, frame)| Message::PacketOut { action, frame }),
        (any::<bool>(), port()).prop_map(|(is_removed, port)| Message::PortStatus { is_removed, port }),
        flow_mods().prop_map(Message::FlowMod),
        (any::<u32>(), flow_mods()).prop_map(|(bundle, change)| Message::BundleAdd { bundle, change }),
        (any::<u32>(), proptest::sample::select(steps.to_vec()))
            .prop_map(|(bundle, step)| Message::BundleControl { bundle, step }),
        (proptest::collection::vec(port(), 0..5), any::<bool>())
            .prop_map(|(items, more)| Message::Ports(Multipart { items, more })),
        (
            proptest::collection::vec((any::<u8>(), any::<u32>()), 0..5),
            any::<bool>()
        )
            .prop_map(|(items, more)| Message::Tables(Multipart { items, more })),
        (any::<bool>(), proptest::collection::vec(flow, 0..5)).prop_map(move |(more, items)| list(more, items)),
        proptest::sample::select(vec![
            Message::FeaturesRequest,
            Message::SetConfig,
            Message::PortsRequest,
            Message::TablesRequest,
            Message::FlowsRequest,
            Message::BarrierRequest,
            Message::BarrierReply,
        ]),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(message in messages(), transaction in any::<u32>()) {
        let mut out = vec![0xaa; 3];
        message.encode(transaction, &mut out);
        let out = &out[3..];
        prop_assert_eq!(length_of(out), Ok(Some(out.len())));
        prop_assert_eq!(Message::decode(out), Ok((transaction, message)));
        // Cut anywhere, it is refused or shorter, and never a panic.
        for length in 0..out.len() {
            let _ = Message::decode(&out[..length]);
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0_u8..25) {
        if bytes.len() > 2 {
            (bytes[0], bytes[1]) = (4, kind);
        }
        if let Ok((transaction, message)) = Message::decode(&bytes) {
            // Actions of others' rules are not kept: after one round nothing changes.
            let mut written = Vec::new();
            message.encode(transaction, &mut written);
            // Messages that are not used are written without a body.
            if let Ok(once) = Message::decode(&written) {
                let mut again = Vec::new();
                once.1.encode(transaction, &mut again);
                prop_assert_eq!(Message::decode(&again).unwrap(), once);
            }
        }
    }
}
