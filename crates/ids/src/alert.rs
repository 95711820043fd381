//! Alerts raised by matching rules.

use crate::buffer::Buffer;
use crate::rule::App;
use crate::unit::Unit;
use tailwater_net::{FlowKey, Nanos};

/// Bytes of text an alert carries.
const TEXT: usize = 192;
/// Longest name in an alert, in bytes.
const NAME: usize = 64;

/// Details of the message, truncated to the space available.
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

    /// Returns the method of a request.
    pub fn method(&self) -> &[u8] {
        self.part(0, self.ends[0])
    }

    /// Returns the host, or the name queried.
    pub fn name(&self) -> &[u8] {
        self.part(self.ends[0], self.ends[1])
    }

    /// Returns the target of a request.
    pub fn target(&self) -> &[u8] {
        self.part(self.ends[1], self.ends[2])
    }
}

/// Match of a rule.
#[derive(Clone, Copy, Debug)]
pub struct Alert {
    /// Index of the rule in its [set](crate::ruleset::RuleSet::rule).
    pub rule: u32,
    /// Version number of the rule set.
    pub version: u32,
    /// Addresses and ports of the packet.
    pub key: FlowKey,
    /// Arrival time of the packet.
    pub time: Nanos,
    /// `true` if the packet goes to the server.
    pub to_server: bool,
    /// `true` if the packet is dropped.
    pub dropped: bool,
    /// Application protocol.
    pub app: Option<App>,
    /// Details of the message.
    pub detail: Detail,
}
