//! Tests of the text format of sessions.

use super::super::language::{Names, parse, parse_session};
use super::*;
use proptest::prelude::*;

fn names() -> Names {
    Names {
        profiles: [("internet".to_owned(), 0), ("voice".to_owned(), 1)].into(),
        versions: [true, true],
    }
}

#[test]
fn sessions_are_read() {
    let text = "\
# comment
1 ue 10.60.0.1 teid 0x1001 peer 192.0.2.10 peerTeid 0x2001 profile internet

2   profile voice teid 4098 ue6 2001:db8:60:2::/64  # idle
0x3 ue 10.60.0.3 ue6 2001:db8:60:3::/64 teid 3 peer 2001:db8::10 peerTeid 4294967295 profile voice\r
";
    let sessions = parse(text, &names(), 100).unwrap();
    let tunnel = |peer, teid| {
        Some(Tunnel {
            peer: address(peer),
            teid,
        })
    };
    let expected = [
        Session {
            id: 1,
            address: Some([10, 60, 0, 1].into()),
            prefix: None,
            teid: 0x1001,
            tunnel: tunnel("192.0.2.10", 0x2001),
            profile: 0,
        },
        Session {
            id: 2,
            address: None,
            prefix: Some(0x2001_0db8_0060_0002),
            teid: 4098,
            tunnel: None,
            profile: 1,
        },
        Session {
            id: 3,
            address: Some([10, 60, 0, 3].into()),
            prefix: Some(0x2001_0db8_0060_0003),
            teid: 3,
            tunnel: tunnel("2001:db8::10", u32::MAX),
            profile: 1,
        },
    ];
    assert_eq!(sessions, expected);
}

#[test]
fn every_mistake_is_told_with_its_place() {
    let good = "ue 10.0.0.1 teid 1 profile internet";
    for (line, column, expected) in [
        ("x ue 10.0.0.1", 1, "expected the number of a session, found \"x\""),
        ("1", 2, "expected ue or ue6, an address of the user, found nothing"),
        (
            "1 ue 10.0.0.1 teid 1",
            21,
            "expected profile, the name of a profile, found nothing",
        ),
        (
            "1 ue 10.0.0.1 profile voice",
            28,
            "expected teid, the local tunnel identifier, found nothing",
        ),
        (
            "1 ue 10.0.0.300",
            6,
            "expected an IPv4 address of a host, found \"10.0.0.300\"",
        ),
        (
            "1 ue 0.0.0.0",
            6,
            "expected an IPv4 address of a host, found \"0.0.0.0\"",
        ),
        (
            "1 ue 224.0.0.1",
            6,
            "expected an IPv4 address of a host, found \"224.0.0.1\"",
        ),
        ("1 ue6 2001:db8::/48", 7, "expected an IPv6 prefix of 64 bits"),
        ("1 ue6 fe80::/64", 7, "expected an IPv6 prefix of 64 bits"),
        ("1 ue6 ff02::/64", 7, "expected an IPv6 prefix of 64 bits"),
        ("1 ue6 ::/64", 7, "expected an IPv6 prefix of 64 bits"),
        ("1 teid 0", 8, "expected a tunnel's identifier from 1 to 4294967295"),
        ("1 teid 4294967296", 8, "expected a tunnel's identifier from 1"),
        ("1 teid 0x", 8, "expected a tunnel's identifier from 1"),
        ("1 teid +5", 8, "expected a tunnel's identifier from 1"),
        ("1 teid", 7, "expected a value after teid, found nothing"),
        ("1 teid 5 teid 6", 10, "expected teid once, found it twice"),
        (
            "1 tied 5",
            3,
            "expected one of ue, ue6, teid, peer, peerTeid, profile, found \"tied\"",
        ),
        ("1 peer 0.0.0.0", 8, "expected an IP address of a host"),
        ("1 peer 255.255.255.255", 8, "expected an IP address of a host"),
        ("1 profile voise", 11, "expected the name of a profile, found \"voise\""),
        (
            &format!("1 {good} peer 192.0.2.1"),
            53,
            "expected peerTeid with peer, found nothing",
        ),
        (
            &format!("1 {good} peerTeid 1"),
            49,
            "expected peer with peerTeid, found nothing",
        ),
    ] {
        let mistake = parse_session(line, &names()).unwrap_err();
        assert!(mistake.message.starts_with(expected), "{line}: {mistake}");
        assert_eq!(mistake.column, column, "{line}: {mistake}");
    }
    let suggested = |line| parse_session(line, &names()).unwrap_err().suggestion;
    assert_eq!(suggested("1 tied 5").as_deref(), Some("teid"));
    assert_eq!(suggested("1 profile voise").as_deref(), Some("voice"));
    let v4 = Names {
        versions: [true, false],
        ..names()
    };
    let message = parse_session("1 peer 2001:db8::1", &v4).unwrap_err().message;
    assert!(
        message.starts_with("expected an IPv4 address, as the local address"),
        "{message}"
    );
}

/// All mistakes are reported in order, malformed and conflicting lines together.
#[test]
fn all_that_is_wrong_is_told_at_once() {
    let text = "\
1 ue 10.0.0.1 teid 1 profile internet
2 ue 10.0.0.2 teid 1 profile internet
3 ue 10.0.0.1 teid 3 profile internet
oops
1 ue 10.0.0.4 ue6 2001:db8::/64 teid 4 profile internet
5 ue6 2001:db8::/64 teid 5 profile internet
6 ue 10.0.0.6 teid 6 profile internet
";
    let (mistakes, more) = parse(text, &names(), 100).unwrap_err();
    let told: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
    let expected = [
        "2:1: expected a unique teid, found that of line 1",
        "3:1: expected a unique ue, found that of line 1",
        "4:1: expected the number of a session, found \"oops\"",
        "5:1: expected a unique number, found that of line 1",
        "6:1: expected a unique ue6, found that of line 5",
    ];
    assert_eq!((told, more), (expected.map(str::to_owned).to_vec(), 0));
    let many: String = (0..3000).map(|_| "oops\n").collect();
    let (mistakes, more) = parse(&many, &names(), 100).unwrap_err();
    assert_eq!((mistakes.len(), more), (1000, 2000));
    let lines = (1..5).map(|i| format!("{i} ue 10.0.0.{i} teid {i} profile voice\n"));
    let (mistakes, more) = parse(&lines.collect::<String>(), &names(), 2).unwrap_err();
    assert_eq!((mistakes.len(), more, mistakes[0].line), (2, 0, 3));
    assert_eq!(mistakes[0].message, "expected at most 2 sessions");
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_with_places(text in "[0-9a-zA-Z:./# \n]{0,200}") {
        if let Err((mistakes, more)) = parse(&text, &names(), 100) {
            let lines = text.lines().count();
            prop_assert!(!mistakes.is_empty() && more == 0);
            for mistake in mistakes {
                prop_assert!((1..=lines).contains(&mistake.line) && mistake.column > 0);
            }
        }
    }
}
