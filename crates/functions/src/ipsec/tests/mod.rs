mod changes;
mod ends;
mod hostile;
mod oracle;
mod sequence;
mod tunnels;
mod vectors;

use super::*;
use crate::acl;
use std::net::IpAddr;
use std::sync::Arc;
use tailwater_chain::batch::Batch;
use tailwater_chain::function::{FlowStates, NetworkFunction};
use tailwater_chain::live::Live;
use tailwater_chain::rig::{ChainRig, INPUT};
use tailwater_net::Nanos;
use tailwater_net::parse::parse;

/// Function that fails if a packet's parsed headers disagree with its frame.
struct HeadersAreTrue;

impl NetworkFunction for HeadersAreTrue {
    fn kind(&self) -> &'static str {
        "HeadersAreTrue"
    }
    fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
        for i in 0..batch.len() {
            let (packet, frame) = batch.packet_mut(i);
            assert_eq!(packet.headers, parse(frame).unwrap());
            assert_eq!(packet.length(), frame.len());
        }
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    let pairs = digits.chunks(2);
    pairs.map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

/// Initialisation vector of the first packet.
const IV_BASE: u64 = 0x0102_0304_0506_0708;

fn association(cipher: Cipher, extended: bool) -> Association {
    let key = (0..).take(cipher.keying_bytes()).collect();
    Association {
        name: "a".to_owned(),
        spi: 0x1001,
        keying: Keying::new(cipher, key).unwrap(),
        extended,
    }
}

fn any_packet() -> acl::Rule {
    acl::Rule {
        source: None,
        destination: None,
        source_ports: 0..=u16::MAX,
        destination_ports: 0..=u16::MAX,
        protocol: None,
        action: acl::Action::Allow,
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Both ends of one association.
#[derive(Clone, Debug)]
struct Ends {
    out: Outbound,
    back: Inbound,
    mtu: u16,
}

impl Ends {
    fn new(cipher: Cipher, extended: bool) -> Ends {
        let association = association(cipher, extended);
        Ends {
            out: Outbound {
                association: association.clone(),
                source: address("192.0.2.1"),
                destination: address("192.0.2.2"),
                udp: None,
                ttl: 64,
                dscp: None,
                dont_fragment: DontFragment::Copy,
                first: 1,
            },
            back: Inbound {
                association,
                destination: address("192.0.2.2"),
                udp: None,
                window: Some(WINDOW),
                first: 1,
                allow: Vec::new(),
            },
            mtu: 1500,
        }
    }

    fn over_ipv6(mut self) -> Ends {
        self.out.source = address("2001:db8::1");
        self.out.destination = address("2001:db8::2");
        self.back.destination = self.out.destination;
        self
    }

    fn in_udp(mut self) -> Ends {
        self.out.udp = Some(UdpPorts {
            source: 40_000,
            destination: 4500,
        });
        self.back.udp = Some(4500);
        self
    }

    /// Returns the sender's rules: everything goes into the tunnel.
    fn sending(&self) -> IpsecRules {
        IpsecRules {
            outbound: vec![self.out.clone()],
            policies: vec![Policy {
                rule: any_packet(),
                action: PolicyAction::Protect(0),
            }],
            ..self.receiving_nothing()
        }
    }

    fn receiving(&self) -> IpsecRules {
        IpsecRules {
            inbound: vec![self.back.clone()],
            ..self.receiving_nothing()
        }
    }

    fn receiving_nothing(&self) -> IpsecRules {
        IpsecRules {
            outbound: Vec::new(),
            inbound: Vec::new(),
            policies: Vec::new(),
            default: PolicyAction::Drop,
            mtu: self.mtu,
            pass_ike: true,
            pass_keep_alives: false,
        }
    }

    /// Returns a sender and a receiver.
    fn rigs(&self) -> (ChainRig, ChainRig) {
        (rig(&self.sending()), rig(&self.receiving()))
    }
}

fn table(rules: &IpsecRules) -> Arc<Live<IpsecTable>> {
    Arc::new(Live::new(IpsecTable::starting_at(rules, IV_BASE).unwrap()))
}

fn instance(table: &Arc<Live<IpsecTable>>) -> ChainRig {
    let ipsec = Ipsec::new(Arc::clone(table));
    ChainRig::new(vec![Box::new(ipsec), Box::new(HeadersAreTrue)], INPUT)
}

fn rig(rules: &IpsecRules) -> ChainRig {
    instance(&table(rules))
}

fn run(rig: &mut ChainRig, frame: &[u8]) -> Option<Vec<u8>> {
    let mut sent = rig.run(&[frame.to_vec()], Nanos::from_secs(1));
    assert!(sent.len() <= 1);
    sent.pop()
}

/// Asserts that a frame is dropped for this reason.
#[track_caller]
fn assert_dropped(rig: &mut ChainRig, frame: &[u8], reason: &str) {
    let name = format!("ipsec/{reason}");
    let before = rig.count(&name);
    assert_eq!(run(rig, frame), None);
    assert_eq!(rig.count(&name), before + 1, "{reason}");
}

/// Returns the frame without bytes behind its IP packet.
fn without_padding(frame: &[u8]) -> &[u8] {
    &frame[..parse(frame).unwrap().end.into()]
}

const CIPHERS: [Cipher; 3] = [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];
