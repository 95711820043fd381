//! Tests against a reference implementation that uses only lists and builds packets from scratch.

use super::*;
use crate::acl::linear;
use proptest::prelude::*;
use tailwater_net::vlan::VlanTag;

/// Frame sent, or drop reason.
type Outcome = Result<Vec<u8>, &'static str>;

struct Oracle {
    sessions: Vec<Session>,
    profiles: Vec<Profile>,
    mtu: usize,
    sent: u16,
}

impl Oracle {
    fn find(&self, profile: u16, key: &FlowKey, direction: LinkDirection) -> Result<Treatment, &'static str> {
        let profile = &self.profiles[usize::from(profile)];
        let mut rules = profile.rules.iter();
        let rule = rules.find(|rule| linear::matches(rule.flows.of(direction), key));
        let treatment = rule.map(|rule| &rule.treatment).or(profile.rest.as_ref());
        let treatment = treatment.ok_or("no-rule")?.clone();
        match treatment.open[usize::from(direction == LinkDirection::Down)] {
            true => Ok(treatment),
            false => Err("gate-closed"),
        }
    }

    fn of_user(&self, user: IpAddr) -> Option<&Session> {
        self.sessions.iter().find(|session| match user {
            IpAddr::V4(user) => session.address == Some(user),
            IpAddr::V6(user) => session.prefix == Some((user.to_bits() >> 64) as u64),
        })
    }

    /// Encapsulates the IP packet `inner` of a frame with link header `link`.
    fn down(&mut self, link: &[u8], inner: &[u8], key: &FlowKey) -> Outcome {
        let session = *self.of_user(key.destination()).ok_or("unknown-user")?;
        // The tunnel is checked after rules and before their gates.
        let treatment = self.find(session.profile, key, LinkDirection::Down);
        if treatment == Err("no-rule") {
            return Err("no-rule");
        }
        let tunnel = session.tunnel.ok_or("no-tunnel")?;
        let treatment = treatment?;
        let mut gtp = match treatment.qfi {
            None => vec![0x30, 255, 0, 0, 0, 0, 0, 0],
            Some(qfi) => vec![0x34, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x85, 1, 0, qfi, 0],
        };
        let length = (gtp.len() - 8 + inner.len()) as u16;
        gtp[2..4].copy_from_slice(&length.to_be_bytes());
        gtp[4..8].copy_from_slice(&tunnel.teid.to_be_bytes());
        gtp.extend(inner);
        let v6 = tunnel.peer.is_ipv6();
        if gtp.len() + if v6 { 48 } else { 28 } > self.mtu {
            return Err("too-big");
        }
        let (class, whole) = match inner[0] >> 4 {
            4 => (inner[1], inner[6] & 0x40 != 0),
            _ => (inner[0] << 4 | inner[1] >> 4, true),
        };
        let dscp = treatment.dscp.unwrap_or(class >> 2);
        self.sent += 1;
        let own = address(CORE[usize::from(v6)]);
        let key = match (own, tunnel.peer) {
            (IpAddr::V4(own), IpAddr::V4(peer)) => FlowKey::v4(own, peer, protocol::UDP, gtp::PORT, gtp::PORT),
            (IpAddr::V6(own), IpAddr::V6(peer)) => FlowKey::v6(own, peer, protocol::UDP, gtp::PORT, gtp::PORT),
            _ => unreachable!(),
        };
        let mut builder = FrameBuilder::new(&key)
            .dscp_ecn(dscp, class & 3)
            .identification(self.sent)
            .dont_fragment(whole)
            .ttl(64)
            .payload(&gtp);
        if !v6 {
            builder = builder.without_udp_checksum();
        }
        Ok(Oracle::linked(link, &builder.to_vec().unwrap()[14..]))
    }

    /// Joins the link header and the IP packet.
    fn linked(link: &[u8], packet: &[u8]) -> Vec<u8> {
        let mut frame = [link, packet].concat();
        let kind: [u8; 2] = if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
        frame[link.len() - 2..link.len()].copy_from_slice(&kind);
        frame
    }

    fn up(&self, link: &[u8], teid: u32, inner: &[u8], key: &FlowKey) -> Outcome {
        let session = self.sessions.iter().find(|session| session.teid == teid);
        let session = session.ok_or("unknown-teid")?;
        if self.of_user(key.source()).map(|session| session.id) != Some(session.id) {
            return Err("not-its-address");
        }
        self.find(session.profile, key, LinkDirection::Up)?;
        Ok(Oracle::linked(link, inner))
    }
}

fn profiles() -> Vec<Profile> {
    let rule = |flows: &str, open, qfi, dscp| Rule {
        flows: parse_flows(flows).unwrap(),
        treatment: Treatment {
            open,
            dscp,
            ..treatment(qfi)
        },
    };
    let both = [true; 2];
    vec![
        profile("plain", None),
        Profile {
            rules: vec![
                rule("permit out udp from any 53 to assigned", both, Some(5), Some(46)),
                rule("permit out tcp from any 80 to assigned", [true, false], Some(1), None),
                rule("permit out tcp from any to assigned 4000", [false, true], None, Some(0)),
            ],
            ..profile("ruled", Some(9))
        },
        Profile {
            rules: vec![rule("permit out udp from any to any", both, Some(7), None)],
            rest: None,
            ..profile("strict", None)
        },
    ]
}

/// Packet of a UE or to one: UE, remote port, protocol, payload length, IPv6 flag.
type Drawn = (u32, u16, u8, usize, bool);

/// Strategy for packets: uplink flag, session whose tunnel is used, packet, traffic class, "don't fragment".
fn packets() -> impl Strategy<Value = Vec<(bool, u32, Drawn, u8, bool)>> {
    let protocols = prop::sample::select(vec![protocol::UDP, protocol::TCP]);
    let ports = prop::sample::select(vec![53u16, 80, 443]);
    let length = prop_oneof![4 => 0usize..60, 1 => 1380usize..1460];
    let packet = (1u32..14, ports, protocols, length, any::<bool>());
    prop::collection::vec((any::<bool>(), 1u32..14, packet, any::<u8>(), any::<bool>()), 1..30)
}

fn frame((number, port, kind, length, v6): Drawn, up: bool, class: u8, whole: bool) -> Vec<u8> {
    let key = match v6 {
        false => FlowKey::v4(user(number), SERVER, kind, 4000, port),
        true => {
            let host = (u128::from(prefix(number)) << 64 | u128::from(port)).into();
            FlowKey::v6(host, "2001:db8:ffff::1".parse().unwrap(), kind, 4000, port)
        }
    };
    let key = if up { key } else { key.reversed() };
    let payload = vec![class; length];
    let builder = FrameBuilder::new(&key)
        .dscp_ecn(class >> 2, class & 3)
        .dont_fragment(whole)
        .vlan(VlanTag::customer(42))
        .payload(&payload)
        .pad_to_minimum();
    builder.to_vec().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn packets_are_as_a_plain_implementation_makes_them(packets in packets(), cached in any::<bool>()) {
        let sessions: Vec<_> = (1..12).map(|number| Session {
            tunnel: session(number, number % 2 == 0).tunnel.filter(|_| number % 5 != 0),
            prefix: (number % 3 != 0).then(|| prefix(number)),
            profile: (number % 3) as u16,
            ..session(number, false)
        }).collect();
        let options = Options { cached, errors_per_second: 0, ..options(Role::Core) };
        let mut rig = rig(&table(options, &profiles(), &sessions));
        let mut oracle = Oracle { sessions, profiles: profiles(), mtu: 1500, sent: 0 };
        for (up, tunnel, drawn, class, whole) in packets {
            let plain = frame(drawn, up, class, whole);
            let (link, inner) = (&plain[..18], datagram(&plain));
            let key = parse(&plain).unwrap().key;
            let (given, expected) = match up {
                false => (plain.clone(), oracle.down(link, inner, &key)),
                true => {
                    let given = tunnelled(tunnel, inner);
                    // The outer ECN bits indicate no congestion.
                    let expected = oracle.up(&given[..14], 0x1000 + tunnel, inner, &key);
                    (given, expected)
                }
            };
            match expected {
                Ok(frame) => {
                    let sent = run(&mut rig, &given);
                    prop_assert_eq!(sent, Some(frame));
                }
                Err(reason) => assert_dropped(&mut rig, &given, reason),
            }
        }
    }
}
