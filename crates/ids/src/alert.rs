//! What is told of a match.

use crate::buffer::Buffer;
use crate::rule::App;
use crate::unit::Unit;
use tailwater_net::{FlowKey, Nanos};

/// Bytes of texts that an alert takes along.
const TEXT: usize = 192;
/// Most bytes of a name.
const NAME: usize = 64;

/// What a message was about, as much as there is room for.
#[derive(Clone, Copy, Debug)]
pub struct Detail {
    ends: [u8; 3],
    text: [u8; TEXT],
}

impl Detail {
    pub(crate) fn of(unit: &Unit<'_>) -> Detail {
        let get = |buffer: Buffer| unit.get(buffer.into()).unwrap_or_default();
        let name = [Buffer::Host, Buffer::ServerName, Buffer::DnsQuery];
        let name = name.into_iter().map(get).find(|name| !name.is_empty());
        let parts = [
            (get(Buffer::Method), 16),
            (name.unwrap_or_default(), NAME),
            (get(Buffer::Uri), TEXT),
        ];
        let mut detail = Detail {
            ends: [0; 3],
            text: [0; TEXT],
        };
        let mut at = 0;
        for ((part, most), end) in parts.into_iter().zip(&mut detail.ends) {
            let length = part.len().min(most).min(TEXT - at);
            detail.text[at..at + length].copy_from_slice(&part[..length]);
            at += length;
            *end = at as u8;
        }
        detail
    }

    fn part(&self, from: u8, to: u8) -> &[u8] {
        &self.text[from.into()..to.into()]
    }

    /// The method of a request.
    pub fn method(&self) -> &[u8] {
        self.part(0, self.ends[0])
    }

    /// The host, or the name that was asked for.
    pub fn name(&self) -> &[u8] {
        self.part(self.ends[0], self.ends[1])
    }

    /// The target of a request.
    pub fn target(&self) -> &[u8] {
        self.part(self.ends[1], self.ends[2])
    }
}

/// A match of a rule.
#[derive(Clone, Copy, Debug)]
pub struct Alert {
    /// The rule: its place in its [set](crate::ruleset::RuleSet::rule).
    pub rule: u32,
    /// Which set that is.
    pub version: u32,
    /// The packet's addresses and ports.
    pub key: FlowKey,
    /// When it arrived.
    pub time: Nanos,
    /// Whether it goes to the server.
    pub to_server: bool,
    /// Whether it is dropped.
    pub dropped: bool,
    /// The protocol above TCP or UDP.
    pub app: Option<App>,
    /// What the message was about.
    pub detail: Detail,
}
