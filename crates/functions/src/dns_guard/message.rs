//! What a packet is to the guard, and the hashes of the accounts that it is on.

use super::rules::InForce;
use std::net::IpAddr;
use tailwater_chain::batch::Packet;
use tailwater_net::FlowKey;
use tailwater_net::dns::{Message, Name, kind, rcode};

/// Sorts of responses, each with its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// There is an answer.
    Answer,
    /// The name has nothing of the type.
    NoData,
    /// Others know.
    Referral,
    /// There is no such name.
    NxDomain,
    /// Anything else, and what cannot be read.
    Error,
}

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// To a server.
    Query,
    /// From a server.
    Response,
}

/// Which way a UDP packet with such ports goes; `None` if neither end is a server.
pub(super) fn way(ports: &[u16], key: &FlowKey, message: Option<&Message<'_>>) -> Option<Way> {
    let is_server = |port: u16| ports.contains(&port);
    match (is_server(key.destination_port()), is_server(key.source_port())) {
        (false, false) => None,
        (true, false) => Some(Way::Query),
        (false, true) => Some(Way::Response),
        // Two servers: only the message says who asks.
        (true, true) => Some(match message {
            Some(message) if !message.is_response() => Way::Query,
            _ => Way::Response,
        }),
    }
}

/// What a response is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) sort: Sort,
    /// Where the question ends, in bytes of the message, if it can be read.
    pub(super) question_end: Option<usize>,
    /// The hash of its account's name.
    pub(super) hash: Hash,
}

/// What a response is about. The hash is of what is counted apart: for an answer its name and type, for a denial or referral
/// the zone that says so.
pub(super) fn subject(message: Option<&Message<'_>>, name: &mut Name, client: Hash) -> Subject {
    let question = message.and_then(|message| Some((message, message.question(name)?)));
    let Some((message, question)) = question.filter(|(message, _)| message.is_response()) else {
        return Subject {
            sort: Sort::Error,
            question_end: None,
            hash: client.class(Sort::Error as u64),
        };
    };
    let (sort, zone) = match message.rcode() {
        rcode::NO_ERROR if message.answers() > 0 => (Sort::Answer, None),
        rcode::NO_ERROR => {
            let asked = client.bytes(name.as_bytes());
            match message.authority(&question, name) {
                Some(kind::NS) if !message.is_authoritative() => (Sort::Referral, None),
                _ => (Sort::NoData, Some(asked)),
            }
        }
        rcode::NX_DOMAIN => {
            let asked = client.bytes(name.as_bytes());
            match message.authority(&question, name) {
                Some(kind::SOA) => (Sort::NxDomain, None),
                _ => (Sort::NxDomain, Some(asked)),
            }
        }
        _ => (Sort::Error, Some(client)),
    };
    let hash = zone.unwrap_or_else(|| client.bytes(name.as_bytes()));
    let hash = match sort {
        Sort::Answer => hash.word(u64::from(question.kind) << 16 | u64::from(question.class)),
        _ => hash,
    };
    Subject {
        sort,
        question_end: Some(question.end),
        hash: hash.class(sort as u64),
    }
}

/// Accounts that are not of a sort of responses.
pub(super) mod class {
    pub(in super::super) const ALL: u64 = 5;
    pub(in super::super) const QUERIES: u64 = 6;
    pub(in super::super) const BYTES: u64 = 7;
    pub(in super::super) const FRAGMENTS: u64 = 8;
    pub(in super::super) const WAITING: u64 = 9;
    pub(in super::super) const QUESTION: u64 = 10;
}

/// A keyed hash in the making: each word is multiplied with what was before, folded to 64 bits, as in the wyhash family and
/// [`FlowKey::hash`].
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

    /// Of the prefix that a client is in.
    pub(super) fn of_client(seed: u64, rules: &InForce, client: IpAddr) -> Hash {
        Hash::new(seed).address(client, Some(&rules.masks))
    }

    /// The same for accounts of a class.
    #[inline]
    pub(super) fn class(self, class: u64) -> Hash {
        self.word(class << 32 | class)
    }

    /// Of a datagram, by its number: those of one have it in common, whatever else they have.
    pub(super) fn of_datagram(seed: u64, packet: &Packet, identification: u32) -> Hash {
        let key = &packet.headers.key;
        Hash::new(seed)
            .address(key.source(), None)
            .address(key.destination(), None)
            .word(identification.into())
            .class(class::FRAGMENTS)
    }

    /// Of a query, by its addresses, ports and number; `key` is the query's own.
    pub(super) fn of_query(seed: u64, key: &FlowKey, id: u16) -> Hash {
        let ports = u64::from(key.source_port()) << 16 | u64::from(key.destination_port());
        Hash::new(seed)
            .address(key.source(), None)
            .address(key.destination(), None)
            .word(ports << 16 | u64::from(id))
            .class(class::WAITING)
    }

    /// Of a question.
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
