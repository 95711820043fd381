//! Tests of fragmented responses.

use super::*;
use std::net::{IpAddr, Ipv6Addr};
use tailwater_net::FlowKey;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::parse::Fragment;

/// Later fragments of a response are treated like the first, and a truncated response is a complete datagram.
#[test]
fn fragments_follow_their_first() {
    for (address, server) in [
        ("10.0.0.1", IpAddr::V4(SERVER)),
        ("2001:db8::1", Ipv6Addr::LOCALHOST.into()),
    ] {
        for (slip, policy, expected) in [
            (0, Fragments::Follow, [0, 0]),
            (1, Fragments::Follow, [1, 0]),
            (0, Fragments::Pass, [0, 1]),
            (0, Fragments::Drop, [0, 0]),
        ] {
            let mut rig = guard(GuardRules {
                limits: Limits {
                    responses: Some(1),
                    ..Limits::default()
                },
                slip,
                fragments: policy,
                ..rules()
            });
            let answer = Spoken {
                extra: 1000,
                ..says(Says::Answers, address)
            };
            let now = Nanos::from_secs(1);
            let [first, later] = fragments(&answer, server, 1);
            let sent = rig.run(&[first, later], now);
            let allowed = if policy == Fragments::Drop { 1 } else { 2 };
            assert_eq!(sent.len(), allowed, "the first response is within the rate");
            let [first, later] = fragments(&answer, server, 2);
            let sent = rig.run(std::slice::from_ref(&first), now);
            assert_eq!(sent.len(), expected[0]);
            for sent in sent {
                let headers = parse(&sent).unwrap();
                assert_eq!(headers.fragment, Fragment::Whole);
                assert_ne!(verify_network(&sent, &headers), Checksum::Wrong);
                assert_eq!(verify_transport(&sent, &headers), Checksum::Correct);
                assert_eq!(headers.payload(&sent), answer.truncated());
            }
            assert_eq!(rig.run(&[later], now).len(), expected[1]);
            // Fragments of another datagram are independent, and after 30 seconds the datagram is forgotten.
            let [_, other] = fragments(&answer, server, 3);
            let others = usize::from(policy != Fragments::Drop);
            assert_eq!(rig.run(&[other], now).len(), others);
            let [_, later] = fragments(&answer, server, 2);
            assert_eq!(rig.run(&[later], Nanos::from_secs(40)).len(), others);
        }
    }
}

#[test]
fn explanations_tell_fragments_by_their_first() {
    let mut strict = guard(GuardRules {
        mode: Mode::Strict,
        ..rules()
    });
    let answer = Spoken {
        extra: 1000,
        ..says(Says::Answers, "10.0.0.1")
    };
    let now = Nanos::from_secs(1);
    let [first, later] = fragments(&answer, SERVER.into(), 1);
    assert_eq!(strict.explain(&later, now), ["later fragment"]);
    let unsolicited = "no query of 10.0.0.1 waits for the response";
    assert_eq!(strict.explain(&first, now), [unsolicited]);
    let follows = "later fragment, its first one was dropped";
    assert_eq!(strict.explain(&later, now), [follows]);
}

/// A client that has sent no query gets at most the burst, however few bytes of a response are in its first fragment.
#[test]
fn fragments_count_towards_amplification_as_the_whole_does() {
    let answer = Spoken {
        extra: 1000,
        ..says(Says::Answers, "10.0.0.1")
    };
    let bytes = answer.message().len() as u32;
    for (burst, passed) in [(bytes, 2), (bytes - 1, 0)] {
        let mut rig = guard(GuardRules {
            amplification: Some(Amplification { ratio: 1, burst }),
            slip: 0,
            ..rules()
        });
        let sent = rig.run(&fragments(&answer, SERVER.into(), 1), Nanos::from_secs(1));
        assert_eq!(sent.len(), passed, "burst {burst}");
    }
}

/// The number of a dropped datagram is reused by a datagram that passes. The later fragments of the new one pass as
/// well.
#[test]
fn fragments_of_a_number_that_was_dropped_before_follow_their_own_first() {
    let mut rig = guard(GuardRules {
        limits: Limits {
            responses: Some(1),
            ..Limits::default()
        },
        slip: 0,
        ..rules()
    });
    let answer = Spoken {
        extra: 1000,
        ..says(Says::Answers, "10.0.0.1")
    };
    let datagram = |number| fragments(&answer, SERVER.into(), number);
    let now = Nanos::from_secs(1);
    assert_eq!(rig.run(&datagram(1), now).len(), 2);
    assert_eq!(rig.run(&datagram(2), now).len(), 0);
    assert_eq!(rig.run(&datagram(2), Nanos::from_secs(20)).len(), 2);
}

/// Returns the two fragments of a server's response.
fn fragments(spoken: &Spoken, server: IpAddr, number: u16) -> [Vec<u8>; 2] {
    let key = match (server, spoken.client) {
        (IpAddr::V4(server), IpAddr::V4(client)) => FlowKey::v4(server, client, 17, 53, 4000),
        (IpAddr::V6(server), IpAddr::V6(client)) => FlowKey::v6(server, client, 17, 53, 4000),
        _ => panic!("two versions"),
    };
    let whole = FrameBuilder::new(&key)
        .identification(number)
        .payload(&spoken.message())
        .to_vec()
        .unwrap();
    const CUT: usize = 504;
    let header = if server.is_ipv4() { 34 } else { 54 };
    let datagram = &whole[header..];
    [(0, &datagram[..CUT]), (CUT, &datagram[CUT..])].map(|(offset, data)| {
        let mut frame = whole[..header].to_vec();
        let more = u16::from(offset == 0);
        if server.is_ipv4() {
            frame[16..18].copy_from_slice(&(20 + data.len() as u16).to_be_bytes());
            let bits = (offset as u16 / 8) | more << 13;
            frame[20..22].copy_from_slice(&bits.to_be_bytes());
            frame[24..26].fill(0);
            let sum = !tailwater_net::checksum::sum(&frame[14..34]);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        } else {
            frame[18..20].copy_from_slice(&(8 + data.len() as u16).to_be_bytes());
            frame[20] = 44;
            frame.extend([17, 0]);
            frame.extend(((offset as u16) | more).to_be_bytes());
            frame.extend(u32::from(number).to_be_bytes());
        }
        frame.extend(data);
        frame
    })
}
