mod answers;
mod lines;
mod live;
mod oracle;
mod packets;
mod rates;

use super::*;
use crate::ipsec::DontFragment;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use tailwater_api::PacketAction;
use tailwater_chain::batch::Batch;
use tailwater_chain::function::{FlowStates, NetworkFunction};
use tailwater_chain::rig::{ChainRig, INPUT};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::parse::parse;
use tailwater_net::{FlowKey, Nanos, protocol};

/// Function that fails if a packet's parsed headers disagree with its frame.
struct HeadersAreTrue;

impl NetworkFunction for HeadersAreTrue {
    fn kind(&self) -> &'static str {
        "HeadersAreTrue"
    }
    fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
        for i in 0..batch.len() {
            let (packet, frame) = batch.packet_mut(i);
            let mut expected = parse(frame).unwrap();
            if packet.headers.key.is_fragment() {
                expected.key = expected.key.of_fragment();
            }
            assert_eq!(packet.headers, expected);
            assert_eq!(packet.length(), frame.len());
        }
    }
}

/// Addresses of the UPF; the base station's follow.
const CORE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
const STATION: [&str; 2] = ["192.0.2.10", "2001:db8::10"];
const SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn options(role: Role) -> Options {
    let own = match role {
        Role::Core => CORE,
        Role::Access => STATION,
    };
    Options {
        role,
        addresses: own.map(address).to_vec(),
        capacity: 256,
        mtu: 1500,
        error_sources: [None; 2],
        others: PacketAction::Drop,
        check_qfi: false,
        flow_ports: false,
        checksums: false,
        ttl: 64,
        dont_fragment: DontFragment::Copy,
        errors_per_second: 1000,
        cached: false,
    }
}

fn treatment(qfi: Option<u8>) -> Treatment {
    Treatment {
        qfi,
        dscp: None,
        open: [true; 2],
        rates: [None; 2],
        in_session_rate: true,
        counted: true,
    }
}

/// Returns a profile with all packets in one QoS flow.
fn profile(name: &str, qfi: Option<u8>) -> Profile {
    Profile {
        name: name.to_owned(),
        rules: Vec::new(),
        rest: Some(treatment(qfi)),
        session_rates: [None; 2],
        volume: None,
        time: None,
    }
}

fn user(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a3c_0000 + number)
}

fn prefix(number: u32) -> u64 {
    0x2001_0db8_0060_0000 + u64::from(number)
}

/// Returns a session whose tunnel to the base station uses IPv6 if `over_v6`.
fn session(number: u32, over_v6: bool) -> Session {
    Session {
        id: number.into(),
        address: Some(user(number)),
        prefix: Some(prefix(number)),
        teid: 0x1000 + number,
        tunnel: Some(Tunnel {
            peer: address(STATION[usize::from(over_v6)]),
            teid: 0x2000 + number,
        }),
        profile: 0,
    }
}

/// Returns the same session from the base station's side.
fn at_station(session: &Session) -> Session {
    let tunnel = session.tunnel.unwrap();
    let core = CORE[usize::from(tunnel.peer.is_ipv6())];
    Session {
        teid: tunnel.teid,
        tunnel: Some(Tunnel {
            peer: address(core),
            teid: session.teid,
        }),
        ..*session
    }
}

fn table(options: Options, profiles: &[Profile], sessions: &[Session]) -> Arc<UpfTable> {
    let table = Arc::new(UpfTable::new(options, profiles, true, 3));
    replace(&table, sessions).unwrap();
    assert_eq!(table.sessions(), sessions.len());
    table
}

/// Replaces the file's sessions.
fn replace(table: &Arc<UpfTable>, sessions: &[Session]) -> Result<AppliedSessions, Vec<(usize, SessionError)>> {
    UpfTable::prepare(table, &sessions.into()).map(Prepared::put)
}

fn rig(table: &Arc<UpfTable>) -> ChainRig {
    let upf = Upf::new(Arc::clone(table));
    ChainRig::new(vec![Box::new(upf), Box::new(HeadersAreTrue)], INPUT)
}

fn run(rig: &mut ChainRig, frame: &[u8]) -> Option<Vec<u8>> {
    run_at(rig, frame, Nanos::from_secs(1))
}

fn run_at(rig: &mut ChainRig, frame: &[u8], now: Nanos) -> Option<Vec<u8>> {
    let mut sent = rig.run(&[frame.to_vec()], now);
    assert!(sent.len() <= 1);
    sent.pop()
}

/// Asserts that a frame is dropped for this reason.
#[track_caller]
fn assert_dropped(rig: &mut ChainRig, frame: &[u8], reason: &str) {
    let name = format!("upf/{reason}");
    let before = rig.count(&name);
    assert_eq!(run(rig, frame), None);
    assert_eq!(rig.count(&name), before + 1, "{reason}");
}

/// Returns a datagram to a UE, `length` bytes in total.
fn down(number: u32, length: usize) -> Vec<u8> {
    let key = FlowKey::v4(SERVER, user(number), protocol::UDP, 53, 4000);
    let payload = vec![number as u8; length - 28];
    FrameBuilder::new(&key).payload(&payload).to_vec().unwrap()
}

/// Returns a frame from the base station to the UPF with this UDP payload.
fn to_core(payload: &[u8]) -> Vec<u8> {
    let (IpAddr::V4(from), IpAddr::V4(to)) = (address(STATION[0]), address(CORE[0])) else {
        unreachable!();
    };
    let key = FlowKey::v4(from, to, protocol::UDP, 40_000, gtp::PORT);
    FrameBuilder::new(&key).payload(payload).to_vec().unwrap()
}

/// Returns the IP packet of a frame.
fn datagram(frame: &[u8]) -> &[u8] {
    parse(frame).unwrap().datagram(frame)
}

/// Returns a G-PDU of this session with an IP packet.
fn tunnelled(number: u32, inner: &[u8]) -> Vec<u8> {
    let mut payload = vec![0x30, 255, 0, 0, 0, 0, 0, 0];
    payload[2..4].copy_from_slice(&(inner.len() as u16).to_be_bytes());
    payload[4..8].copy_from_slice(&(0x1000 + number).to_be_bytes());
    payload.extend(inner);
    to_core(&payload)
}
