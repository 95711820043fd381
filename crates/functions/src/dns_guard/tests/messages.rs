//! Messages of clients and servers.

use super::SERVER;
use std::net::IpAddr;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::{FlowKey, protocol};

/// Type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says {
    Asks,
    Answers,
    NoData,
    Refers,
    Denies,
    DeniesWithoutZone,
    Fails,
}

#[derive(Clone, Debug)]
pub(super) struct Spoken {
    pub(super) says: Says,
    pub(super) client: IpAddr,
    pub(super) port: u16,
    pub(super) id: u16,
    /// Labels of the name. The last two are its zone.
    pub(super) name: [&'static str; 3],
    pub(super) kind: u16,
    /// Additional bytes.
    pub(super) extra: usize,
}

impl Spoken {
    pub(super) fn message(&self) -> Vec<u8> {
        let (flags, counts): ([u8; 2], [u8; 3]) = match self.says {
            Says::Asks => ([1, 0], [0, 0, 1]),
            Says::Answers => ([0x84, 0], [1, 0, 0]),
            Says::NoData => ([0x84, 0], [0, 1, 0]),
            Says::Refers => ([0x80, 0], [0, 1, 0]),
            Says::Denies => ([0x84, 3], [0, 1, 0]),
            Says::DeniesWithoutZone => ([0x84, 3], [0, 0, 0]),
            Says::Fails => ([0x80, 2], [0, 0, 0]),
        };
        let mut bytes = self.id.to_be_bytes().to_vec();
        bytes.extend(flags);
        bytes.extend([0, 1]);
        counts.iter().for_each(|count| bytes.extend([0, *count]));
        let zone = bytes.len() + 1 + self.name[0].len();
        for label in self.name {
            bytes.push(label.len() as u8);
            bytes.extend(label.as_bytes());
        }
        bytes.push(0);
        bytes.extend([self.kind.to_be_bytes(), [0, 1]].concat());
        let owner = match self.says {
            Says::Answers => Some((0xc00c_u16, self.kind)),
            Says::NoData | Says::Denies => Some((0xc000 | zone as u16, 6)),
            Says::Refers => Some((0xc000 | zone as u16, 2)),
            Says::Asks => {
                bytes.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
                None
            }
            _ => None,
        };
        if let Some((owner, kind)) = owner {
            bytes.extend([owner, kind, 1, 0, 60].iter().flat_map(|word| word.to_be_bytes()));
            bytes.extend((self.extra as u16).to_be_bytes());
        }
        bytes.extend(vec![0xaa; self.extra]);
        bytes
    }

    pub(super) fn key(&self) -> FlowKey {
        let key = match self.client {
            IpAddr::V4(client) => FlowKey::v4(client, SERVER, protocol::UDP, self.port, 53),
            IpAddr::V6(client) => {
                let server = SERVER.to_ipv6_mapped();
                FlowKey::v6(client, server, protocol::UDP, self.port, 53)
            }
        };
        match self.says {
            Says::Asks => key,
            _ => key.reversed(),
        }
    }

    pub(super) fn frame(&self) -> Vec<u8> {
        let message = self.message();
        FrameBuilder::new(&self.key()).payload(&message).to_vec().unwrap()
    }

    /// Returns the expected message after truncation.
    pub(super) fn truncated(&self) -> Vec<u8> {
        let mut message = self.message();
        let name: usize = self.name.iter().map(|label| label.len() + 1).sum();
        message.truncate(12 + name + 1 + 4);
        message[2] |= 2;
        message[6..12].fill(0);
        message
    }
}

/// Returns a query or a response of the server.
pub(super) fn says(says: Says, client: &str) -> Spoken {
    Spoken {
        says,
        client: client.parse().unwrap(),
        port: 4000,
        id: 9,
        name: ["www", "example", "com"],
        kind: 1,
        extra: 200,
    }
}
