//! Classification of DNS packets, and the hashes of their accounts.

use super::rules::CompiledRules;
use std::net::IpAddr;
use tailwater_chain::batch::Packet;
use tailwater_net::FlowKey;
use tailwater_net::dns::{Message, Name, kind, rcode};

/// Kinds of responses, each with its own limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseKind {
    /// Response with an answer.
    Answer,
    /// NODATA: the name has no record of the type.
    NoData,
    /// Referral to other servers.
    Referral,
    /// NXDOMAIN: the name does not exist.
    NxDomain,
    /// Response with another code, or one that cannot be parsed.
    Error,
}

/// Direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// To a server.
    Query,
    /// From a server.
    Response,
}

/// Returns the direction of a UDP packet, or `None` if neither port is a server's.
pub(super) fn direction(ports: &[u16], key: &FlowKey, message: Option<&Message<'_>>) -> Option<Direction> {
    let is_server = |port: u16| ports.contains(&port);
    match (is_server(key.destination_port()), is_server(key.source_port())) {
        (false, false) => None,
        (true, false) => Some(Direction::Query),
        (false, true) => Some(Direction::Response),
        // Both ports are servers': only the message shows the direction.
        (true, true) => Some(match message {
            Some(message) if !message.is_response() => Direction::Query,
            _ => Direction::Response,
        }),
    }
}

/// Classification of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResponseClass {
    pub(super) sort: ResponseKind,
    /// Offset of the question's end in the message, if the question can be parsed.
    pub(super) question_end: Option<usize>,
    /// Hash of the account.
    pub(super) hash: Hash,
}

/// Classifies a response. Its account is that of the name and type for an answer, and that of the zone for a denial or
/// a referral.
pub(super) fn subject(message: Option<&Message<'_>>, name: &mut Name, client: Hash) -> ResponseClass {
    let question = message.and_then(|message| Some((message, message.question(name)?)));
    let Some((message, question)) = question.filter(|(message, _)| message.is_response()) else {
        return ResponseClass {
            sort: ResponseKind::Error,
            question_end: None,
            hash: client.class(ResponseKind::Error as u64),
        };
    };
    let (sort, zone) = match message.rcode() {
        rcode::NO_ERROR if message.answers() > 0 => (ResponseKind::Answer, None),
        rcode::NO_ERROR => {
            let asked = client.bytes(name.as_bytes());
            match message.authority(&question, name) {
                Some(kind::NS) if !message.is_authoritative() => (ResponseKind::Referral, None),
                _ => (ResponseKind::NoData, Some(asked)),
            }
        }
        rcode::NX_DOMAIN => {
            let asked = client.bytes(name.as_bytes());
            match message.authority(&question, name) {
                Some(kind::SOA) => (ResponseKind::NxDomain, None),
                _ => (ResponseKind::NxDomain, Some(asked)),
            }
        }
        _ => (ResponseKind::Error, Some(client)),
    };
    let hash = zone.unwrap_or_else(|| client.bytes(name.as_bytes()));
    let hash = match sort {
        ResponseKind::Answer => hash.word(u64::from(question.kind) << 16 | u64::from(question.class)),
        _ => hash,
    };
    ResponseClass {
        sort,
        question_end: Some(question.end),
        hash: hash.class(sort as u64),
    }
}

/// Classes of accounts other than those of the kinds of responses.
pub(super) mod class {
    pub(in super::super) const ALL: u64 = 5;
    pub(in super::super) const QUERIES: u64 = 6;
    pub(in super::super) const BYTES: u64 = 7;
    pub(in super::super) const FRAGMENTS: u64 = 8;
    pub(in super::super) const WAITING: u64 = 9;
    pub(in super::super) const QUESTION: u64 = 10;
}

/// State of a keyed hash. Each word is multiplied with the state, and the product folded to 64 bits, as in the wyhash
/// family and [`FlowKey::hash`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hash {
    seed: u64,
    state: u64,
}

impl Hash {
    pub(super) fn new(seed: u64) -> Hash {
        let seed = seed ^ 0x2d35_8dcc_aa6c_78a5;
        Hash { seed, state: seed }
    }

    #[inline]
    pub(super) fn word(self, word: u64) -> Hash {
        let product = u128::from(word ^ self.seed) * u128::from(self.state ^ 0xa076_1d64_78bd_642f);
        Hash {
            state: product as u64 ^ (product >> 64) as u64,
            ..self
        }
    }

    #[inline]
    pub(super) fn bytes(mut self, bytes: &[u8]) -> Hash {
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self = self.word(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.word(u64::from_le_bytes(last)).word(bytes.len() as u64)
    }

    fn address(self, address: IpAddr, masks: Option<&[u128; 2]>) -> Hash {
        let (bits, mask, version) = match address {
            IpAddr::V4(address) => (u128::from(address.to_bits()), 0, 4),
            IpAddr::V6(address) => (address.to_bits(), 1, 6),
        };
        let bits = masks.map_or(bits, |masks| bits & masks[mask]);
        self.word(bits as u64 ^ version << 60).word((bits >> 64) as u64)
    }

    /// Hashes the prefix of a client.
    pub(super) fn of_client(seed: u64, rules: &CompiledRules, client: IpAddr) -> Hash {
        Hash::new(seed).address(client, Some(&rules.masks))
    }

    /// Derives the hash for accounts of a class.
    #[inline]
    pub(super) fn class(self, class: u64) -> Hash {
        self.word(class << 32 | class)
    }

    /// Hashes a datagram by its addresses and identification number, which all its fragments share.
    pub(super) fn of_datagram(seed: u64, packet: &Packet, identification: u32) -> Hash {
        let key = &packet.headers.key;
        Hash::new(seed)
            .address(key.source(), None)
            .address(key.destination(), None)
            .word(identification.into())
            .class(class::FRAGMENTS)
    }

    /// Hashes a query by its addresses, ports and DNS message ID. `key` is the query's own, not the response's.
    pub(super) fn of_query(seed: u64, key: &FlowKey, id: u16) -> Hash {
        let ports = u64::from(key.source_port()) << 16 | u64::from(key.destination_port());
        Hash::new(seed)
            .address(key.source(), None)
            .address(key.destination(), None)
            .word(ports << 16 | u64::from(id))
            .class(class::WAITING)
    }

    /// Hashes a question.
    pub(super) fn of_question(seed: u64, name: &Name, [kind, of]: [u16; 2]) -> Hash {
        Hash::new(seed)
            .bytes(name.as_bytes())
            .word(u64::from(kind) << 16 | u64::from(of))
            .class(class::QUESTION)
    }

    pub(super) fn value(self) -> u64 {
        self.state
    }
}
