use super::function::ForwardOptions;
use super::routes_file::{Expected, ParseError, parse};
use super::*;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use tailwater_chain::live::Live;
use tailwater_chain::rig::{ChainRig, INPUT, udp};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::checksum::{Checksum, verify_network, verify_transport};
use tailwater_net::parse::parse as parse_frame;
use tailwater_net::vlan::VlanTag;
use tailwater_net::{FlowKey, Nanos, protocol};

const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 0xee];

fn hops(count: u8) -> Vec<NextHop> {
    let hop = |i: u8| NextHop {
        name: format!("hop-{i}"),
        mac: [2, 0, 0, 0, 1, i],
        source_mac: (i % 2 == 1).then_some([2, 0, 0, 0, 2, i]),
        address: Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, i))),
    };
    (0..count).map(hop).collect()
}

fn route(prefix: &str, target: Target) -> Route {
    let prefix = prefix.parse().unwrap();
    Route { prefix, target }
}

fn table(routes: &[Route], default: Option<Target>) -> RouteTable {
    RouteTable::new(routes, default, &hops(8), SOURCE).unwrap()
}

/// Returns the prefix's first and last address and their neighbours outside.
fn boundaries(prefix: &IpNet) -> [IpAddr; 4] {
    match prefix {
        IpNet::V4(prefix) => {
            let (first, last) = (prefix.network().to_bits(), prefix.broadcast().to_bits());
            let ends = [first.wrapping_sub(1), first, last, last.wrapping_add(1)];
            ends.map(|bits| Ipv4Addr::from_bits(bits).into())
        }
        IpNet::V6(prefix) => {
            let (first, last) = (prefix.network().to_bits(), prefix.broadcast().to_bits());
            let ends = [first.wrapping_sub(1), first, last, last.wrapping_add(1)];
            ends.map(|bits| Ipv6Addr::from_bits(bits).into())
        }
    }
}

#[test]
fn nested_prefixes_of_every_length() {
    let targets = (0..).map(|i| Target::NextHop(i % 8));
    let v4 = (0..=32).map(|length| {
        let address = Ipv4Addr::from_bits(0xc612_a5a7);
        IpNet::V4(Ipv4Net::new(address, length).unwrap().trunc())
    });
    let v6 = (0..=128).map(|length| {
        let address = Ipv6Addr::from_bits(0x2001_0db8_a5a5_5a5a_0123_4567_89ab_cdef);
        IpNet::V6(Ipv6Net::new(address, length).unwrap().trunc())
    });
    let routes: Vec<_> = v4
        .chain(v6)
        .zip(targets)
        .map(|(prefix, target)| Route { prefix, target })
        .collect();
    let table = table(&routes, None);
    for route in &routes {
        for address in boundaries(&route.prefix) {
            assert_eq!(table.find(address), linear::find(&routes, address));
        }
    }
    // An empty table without a default has no routes.
    let empty = self::table(&[], None);
    assert_eq!(empty.find(IpAddr::V4(Ipv4Addr::BROADCAST)), None);
    assert_eq!(empty.find(IpAddr::V6(Ipv6Addr::LOCALHOST)), None);
    let default = self::table(&[], Some(Target::NextHop(3)));
    let found = default.find(IpAddr::V6(Ipv6Addr::LOCALHOST));
    assert_eq!(found, Some(Target::NextHop(3)));
}

/// Generates addresses that share many leading bits, so that prefixes nest.
fn v4_address() -> impl Strategy<Value = u32> {
    let near = prop::sample::select(vec![0u32, 0xc612_0000, 0xc612_00ff, 0xc613_fffe, u32::MAX]);
    (near, 0u32..1 << 10, 0u32..22).prop_map(|(near, bits, shift)| near ^ (bits << shift))
}

fn v6_address() -> impl Strategy<Value = u128> {
    let near = vec![
        0,
        0x2001_0db8 << 96,
        0x2001_0db8_ffff_ffff << 64,
        (0x2a00 << 112) | 0xffff,
        u128::MAX,
    ];
    let near = prop::sample::select(near);
    (near, 0u128..1 << 16, 0u32..112).prop_map(|(near, bits, shift)| near ^ (bits << shift))
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        8 => (0u16..8).prop_map(Target::NextHop),
        1 => Just(Target::Local),
        1 => Just(Target::Blackhole),
    ]
}

fn routes() -> impl Strategy<Value = Vec<Route>> {
    let v4 = (v4_address(), 0u8..=32)
        .prop_map(|(bits, length)| IpNet::V4(Ipv4Net::new(bits.into(), length).unwrap().trunc()));
    let v6 = (v6_address(), 0u8..=128)
        .prop_map(|(bits, length)| IpNet::V6(Ipv6Net::new(bits.into(), length).unwrap().trunc()));
    let prefix = prop_oneof![v4, v6];
    let route = (prefix, target()).prop_map(|(prefix, target)| Route { prefix, target });
    prop::collection::vec(route, 0..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn tables_agree_with_a_linear_scan(
        mut routes in routes(),
        v4 in prop::collection::vec(v4_address(), 64),
        v6 in prop::collection::vec(v6_address(), 64),
        rebuilt in 0usize..3,
    ) {
        let mut probes: Vec<IpAddr> = routes.iter().flat_map(|r| boundaries(&r.prefix)).collect();
        probes.extend(v4.into_iter().map(|bits| IpAddr::V4(bits.into())));
        probes.extend(v6.into_iter().map(|bits| IpAddr::V6(bits.into())));
        let check = |routes: &[Route]| {
            let table = table(routes, None);
            for &address in &probes {
                prop_assert_eq!(table.find(address), linear::find(routes, address), "{}", address);
            }
            Ok(())
        };
        check(&routes)?;
        // A change of routes builds a new table: some routes are removed, one changes its target.
        for _ in 0..rebuilt {
            routes.truncate(2 * routes.len() / 3);
            if let Some(route) = routes.first_mut() {
                route.target = Target::Local;
            }
            check(&routes)?;
        }
    }
}

#[test]
fn tables_have_limits() {
    let refused = |routes: &[Route], hops: &[NextHop]| RouteTable::new(routes, None, hops, SOURCE).err().unwrap();
    let long = |i: u32| Route {
        prefix: IpNet::V4(Ipv4Net::new((i << 8).into(), 25).unwrap()),
        target: Target::Local,
    };
    let routes: Vec<_> = (0..=32_768).map(long).collect();
    assert!(matches!(refused(&routes, &[]), TableError::TooManyLongPrefixes));
    let table = table(&routes[1..], None);
    assert_eq!(table.find([0, 128, 0, 1].into()), Some(Target::Local));
    assert_eq!(table.find([0, 128, 0, 128].into()), None);
    let unknown = [route("10.0.0.0/8", Target::NextHop(8))];
    assert!(matches!(refused(&unknown, &hops(8)), TableError::NextHops));
}

#[test]
fn the_memory_is_what_the_documentation_says() {
    let mib = table(&[], None).memory_bytes() as f64 / f64::from(1 << 20);
    assert!((36.0..36.1).contains(&mib), "{mib}");
}

fn v6(destination: Ipv6Addr, hop_limit: u8) -> Vec<u8> {
    let source = "2001:db8::1".parse().unwrap();
    let key = FlowKey::v6(source, destination, protocol::UDP, 1000, 53);
    let builder = FrameBuilder::new(&key).ttl(hop_limit);
    builder.payload(b"question").to_vec().unwrap()
}

fn v4(destination: [u8; 4], ttl: u8) -> Vec<u8> {
    let source = Ipv4Addr::new(10, 0, 0, 1);
    let key = FlowKey::v4(source, destination.into(), protocol::UDP, 1000, 53);
    let builder = FrameBuilder::new(&key).ttl(ttl);
    builder.payload(b"question").to_vec().unwrap()
}

fn options(in_flow: bool, pass_local: bool) -> ForwardOptions {
    ForwardOptions { pass_local, in_flow }
}

fn rig(routes: &[Route], options: ForwardOptions) -> ChainRig {
    let function = IpForward::new(Arc::new(Live::new(table(routes, None))), options);
    ChainRig::new(vec![Box::new(function)], INPUT)
}

fn some_routes() -> Vec<Route> {
    vec![
        route("198.18.0.0/15", Target::NextHop(0)),
        route("198.18.7.0/24", Target::NextHop(1)),
        route("198.18.7.128/25", Target::NextHop(2)),
        route("198.18.8.0/24", Target::Blackhole),
        route("192.0.2.254/32", Target::Local),
        route("2001:db8::/32", Target::NextHop(3)),
        route("2001:db8:7::/48", Target::NextHop(4)),
        route("2001:db8:7::42/128", Target::Local),
    ]
}

/// Returns the expected frame: next hop by the oracle, checksum of the header computed from scratch.
fn expected(frame: &[u8], routes: &[Route]) -> Option<Vec<u8>> {
    let headers = parse_frame(frame).unwrap();
    let Some(Target::NextHop(hop)) = linear::find(routes, headers.key.destination()) else {
        return None;
    };
    let hop = &hops(8)[usize::from(hop)];
    let mut frame = frame.to_vec();
    frame[..6].copy_from_slice(&hop.mac);
    frame[6..12].copy_from_slice(&hop.source_mac.unwrap_or(SOURCE));
    let start = usize::from(headers.network_offset);
    let ttl = start + if headers.key.is_v4() { 8 } else { 7 };
    frame[ttl] = frame[ttl].checked_sub(1).filter(|ttl| *ttl > 0)?;
    if headers.key.is_v4() {
        let mut header = tailwater_net::ipv4::Ipv4View::new(&mut frame[start..]).unwrap();
        header.fill_checksum();
    }
    Some(frame)
}

#[test]
fn packets_go_to_the_next_hop() {
    let routes = some_routes();
    let tag = VlanTag::customer(7);
    let key = FlowKey::v4([10, 0, 0, 2].into(), [198, 18, 7, 200].into(), protocol::TCP, 9, 80);
    let tagged = FrameBuilder::new(&key).vlan(tag).to_vec().unwrap();
    let with_options = FrameBuilder::new(&key).ip_options(&[1; 8]).to_vec();
    let frames = [
        udp(1),
        tagged,
        with_options.unwrap(),
        v4([198, 18, 7, 1], 2),
        v4([198, 18, 7, 128], 255),
        v6("2001:db8::77".parse().unwrap(), 64),
        v6("2001:db8:7::43".parse().unwrap(), 2),
    ];
    for in_flow in [false, true] {
        let mut rig = rig(&routes, options(in_flow, false));
        let sent = rig.run(&frames, Nanos::from_secs(1));
        assert_eq!(sent.len(), frames.len());
        for (frame, sent) in frames.iter().zip(sent) {
            assert_eq!(sent, expected(frame, &routes).unwrap());
            let headers = parse_frame(&sent).unwrap();
            assert_ne!(verify_network(&sent, &headers), Checksum::Wrong);
            assert_eq!(verify_transport(&sent, &headers), Checksum::Correct);
        }
    }
}

#[test]
fn every_drop_has_its_reason() {
    let frames = [
        v4([203, 0, 113, 1], 64),
        v6("2001:4::1".parse().unwrap(), 64),
        v4([198, 18, 7, 1], 1),
        v4([198, 18, 7, 1], 0),
        v6("2001:db8::1".parse().unwrap(), 1),
        v4([198, 18, 8, 1], 64),
        // The route is evaluated before the TTL.
        v4([198, 18, 8, 1], 1),
        v4([192, 0, 2, 254], 1),
        v6("2001:db8:7::42".parse().unwrap(), 64),
    ];
    let local = [frames[7].clone(), frames[8].clone()];
    for (in_flow, pass_local) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut rig = rig(&some_routes(), options(in_flow, pass_local));
        let sent = rig.run(&frames, Nanos::from_secs(1));
        let passed: &[Vec<u8>] = if pass_local { &local } else { &[] };
        assert_eq!(sent, passed);
        let count = |reason: &str| rig.count(&format!("ipforward/{reason}"));
        let counts = ["no-route", "ttl-expired", "blackhole", "local"].map(count);
        assert_eq!(counts, [2, 3, 2, if pass_local { 0 } else { 2 }]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn batches_agree_with_the_oracle(
        routes in routes(),
        packets in prop::collection::vec((any::<bool>(), v4_address(), v6_address(), 0u8..5), 64),
        in_flow in any::<bool>(),
    ) {
        let frames: Vec<_> = packets
            .into_iter()
            .map(|(is_v4, four, six, ttl)| match is_v4 {
                true => v4(Ipv4Addr::from_bits(four).octets(), ttl),
                false => v6(Ipv6Addr::from_bits(six), ttl),
            })
            .collect();
        let wanted: Vec<_> = frames.iter().filter_map(|frame| expected(frame, &routes)).collect();
        let sent = rig(&routes, options(in_flow, false)).run(&frames, Nanos::from_secs(1));
        prop_assert_eq!(sent, wanted);
    }
}

#[test]
fn routes_files_are_read() {
    let text = b"# comment\n\n198.18.0.0/15 hop-3\n0.0.0.0/0\t192.0.2.1  # default\r\n\
                 2001:db8::/32\n10.0.0.1 local\n 10.0.0.2/32 blackhole";
    let routes = parse(text, &hops(4)).unwrap();
    let bare = routes_file::Names::new(&hops(4)).of_prefix(&"2001:db8::/32".parse().unwrap());
    let expected = [
        route("0.0.0.0/0", Target::NextHop(1)),
        route("10.0.0.1/32", Target::Local),
        route("10.0.0.2/32", Target::Blackhole),
        route("198.18.0.0/15", Target::NextHop(3)),
        route("2001:db8::/32", bare.unwrap()),
    ];
    assert_eq!(routes, expected);
    // Bare prefixes are spread evenly over the next hops, independent of the other routes.
    let many: Vec<u8> = (0..4000u32)
        .flat_map(|i| format!("{}/24\n", Ipv4Addr::from_bits(i << 8)).into_bytes())
        .collect();
    let routes = parse(&many, &hops(4)).unwrap();
    for hop in 0..4 {
        let target = Target::NextHop(hop);
        let count = routes.iter().filter(|route| route.target == target).count();
        assert!((900..1100).contains(&count), "{count} routes to {hop}");
    }
}

#[test]
fn wrong_routes_files_say_where() {
    let error = |text: &[u8], count| parse(text, &hops(count)).unwrap_err();
    let fails = |text: &[u8], line, column, expected, found: &str| {
        let wanted = ParseError {
            line,
            column,
            expected,
            found: found.to_owned(),
        };
        assert_eq!(error(text, 1), wanted);
    };
    fails(b"\nten/8", 2, 1, Expected::Prefix, "\"ten/8\"");
    fails(b"10.0.0.0/33", 1, 1, Expected::PrefixLength, "\"10.0.0.0/33\"");
    fails(b"10.0.0.0/+8", 1, 1, Expected::PrefixLength, "\"10.0.0.0/+8\"");
    fails(b"::/129", 1, 1, Expected::PrefixLength, "\"::/129\"");
    let truncated = Expected::NoHostBits("10.0.0.0/8".parse().unwrap());
    fails(b"  10.1.0.0/8", 1, 3, truncated, "\"10.1.0.0/8\"");
    fails(b"10.0.0.0/8 hop-1", 1, 12, Expected::NextHop, "\"hop-1\"");
    fails(b"10.0.0.0/8 local x", 1, 18, Expected::EndOfLine, "\"x\"");
    fails(b"10.0.0.0/8 \xff", 1, 12, Expected::Utf8, "byte 0xFF");
    let text = b"::/0\n10.0.0.0/8\n10.0.0.0/8 local";
    fails(text, 3, 1, Expected::Once(2), "10.0.0.0/8 again");
    let shown = error(b"10.0.0.0/8", 0).to_string();
    let wanted = "line 1, column 11: expected a next hop, as nextHops has none, found nothing";
    assert_eq!(shown, wanted);
}

/// Generates text similar to a routes file, with errors.
fn nearly_routes() -> impl Strategy<Value = Vec<u8>> {
    let pieces = [
        "0.0.0.0/0",
        "10.0.0.0/8",
        "10.0.0.1",
        "10.0.0.1/8",
        "/",
        "2001:db8::/32",
        "::/129",
        "::",
        " ",
        "\t",
        "\n",
        "\r\n",
        "#",
        "hop-1",
        "192.0.2.1",
        "local",
        "blackhole",
        "+",
        "\u{e9}",
        "255.255.255.255/32",
    ];
    let piece = prop_oneof![
        12 => prop::sample::select(pieces.to_vec()).prop_map(|piece| piece.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..60),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_are_read_or_refused(text in nearly_routes()) {
        match parse(&text, &hops(2)) {
            Ok(routes) => {
                prop_assert!(routes.is_sorted_by(|a, b| a.prefix < b.prefix));
                prop_assert!(routes.iter().all(|route| route.prefix == route.prefix.trunc()));
            }
            Err(error) => {
                let lines: Vec<_> = text.split(|byte| *byte == b'\n').collect();
                prop_assert!((1..=lines.len()).contains(&error.line));
                prop_assert!((1..=lines[error.line - 1].len() + 1).contains(&error.column));
                let shown = error.to_string();
                prop_assert!(!shown.contains(['\n', '\r']) && shown.len() < 400, "{}", shown);
            }
        }
    }
}

proptest! {
    #[test]
    fn plain_lines_are_read_as_all_others(
        lines in prop::collection::vec("[0-9]{1,3}\\.(0|01|7|255|256)\\.0\\.0/(0|8|08|16|24|32|33|99)?(\r|\\.)?", 0..8),
    ) {
        // A blank at the end of a line makes it one that is not plain.
        let [plain, other] = ["\n", " \n"].map(|end| {
            let text: String = lines.iter().flat_map(|line| [line, end]).collect();
            parse(text.as_bytes(), &hops(3))
        });
        prop_assert_eq!(plain, other);
    }
}

/// Returns the full BGP table, or `None` with a message if the test data is missing.
fn full_table() -> Option<Vec<u8>> {
    let Some(data) = std::env::var_os("TAILWATER_TEST_DATA") else {
        eprintln!("skipped: TAILWATER_TEST_DATA is not set");
        return None;
    };
    let path = std::path::Path::new(&data).join("prefixes/bgp_fulltable_2023-12_iprbench.txt.xz");
    let output = std::process::Command::new("xz").arg("-dc").arg(&path).output();
    match output {
        Ok(output) if output.status.success() => Some(output.stdout),
        _ => {
            eprintln!("skipped: xz cannot decompress {}", path.display());
            None
        }
    }
}

/// Finds the longest matching route in a map by prefix: an oracle for a million routes.
fn longest(map: &std::collections::HashMap<IpNet, Target>, address: IpAddr) -> Option<Target> {
    let most = if address.is_ipv4() { 32 } else { 128 };
    (0..=most).rev().find_map(|length| {
        let prefix = IpNet::new(address, length).unwrap().trunc();
        map.get(&prefix).copied()
    })
}

#[test]
fn the_full_bgp_table_agrees_with_a_map_of_prefixes() {
    let Some(text) = full_table() else { return };
    let routes = parse(&text, &hops(8)).unwrap();
    assert_eq!(routes.len(), 901_899 + 160_147);
    let table = table(&routes, None);
    let mib = table.memory_bytes() >> 20;
    assert!(mib < 64, "{mib} MiB");
    let map = routes.iter().map(|route| (route.prefix, route.target)).collect();
    // A deterministic sequence of random addresses and addresses around prefix boundaries.
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state ^ (state >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    };
    let mut check = |address: IpAddr| {
        assert_eq!(table.find(address), longest(&map, address), "{address}");
    };
    for _ in 0..20_000 {
        check(Ipv4Addr::from_bits(random() as u32).into());
        let low = u128::from(random()) << 64 | u128::from(random());
        check(Ipv6Addr::from_bits(low >> 3 | 1 << 125).into());
        let route = &routes[random() as usize % routes.len()];
        boundaries(&route.prefix).into_iter().for_each(&mut check);
    }
}
