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

/// Flags of an alert's words.
const TO_SERVER: u64 = 1;
const DROPPED: u64 = 2;

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

impl Alert {
    /// Number of [words](Alert::to_words) of an alert.
    pub const WORDS: usize = 8 + TEXT / 8;

    /// Returns the alert as words, for another process.
    pub fn to_words(&self) -> [u64; Alert::WORDS] {
        let mut words = [0; Alert::WORDS];
        let (head, text) = words.split_at_mut(8);
        head[0] = u64::from(self.rule) | u64::from(self.version) << 32;
        head[1..6].copy_from_slice(&self.key.words());
        head[6] = self.time.0;
        let flags = if self.to_server { TO_SERVER } else { 0 } | if self.dropped { DROPPED } else { 0 };
        let [method, name, target] = self.detail.ends.map(u64::from);
        let app = self.app.map_or(0, |app| app as u64);
        head[7] = flags | app << 8 | method << 16 | name << 24 | target << 32;
        for (word, bytes) in text.iter_mut().zip(self.detail.text.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        words
    }

    /// Returns the alert of these words, which may be any; `None` if they are none.
    pub fn from_words(words: &[u64; Alert::WORDS]) -> Option<Alert> {
        let (head, text) = words.split_first_chunk::<8>()?;
        let [first, k0, k1, k2, k3, k4, time, last] = *head;
        let [flags, app, method, name, target, 0, 0, 0] = last.to_le_bytes() else {
            return None;
        };
        let app = match app {
            0 => None,
            number => Some(App::NAMES.iter().find(|(_, app)| *app as u8 == number)?.1),
        };
        let is_ordered = method <= name && name <= target && usize::from(target) <= TEXT;
        if !is_ordered || u64::from(flags) & !(TO_SERVER | DROPPED) != 0 {
            return None;
        }
        let mut detail = Detail {
            ends: [method, name, target],
            text: [0; TEXT],
        };
        for (bytes, word) in detail.text.as_chunks_mut().0.iter_mut().zip(text) {
            *bytes = word.to_le_bytes();
        }
        Some(Alert {
            rule: first as u32,
            version: (first >> 32) as u32,
            key: FlowKey::from_words([k0, k1, k2, k3, k4]),
            time: Nanos(time),
            to_server: u64::from(flags) & TO_SERVER != 0,
            dropped: u64::from(flags) & DROPPED != 0,
            app,
            detail,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A process may write any words.
        #[test]
        fn words_are_an_alert_or_none(
            mut words in prop::collection::vec(any::<u64>(), Alert::WORDS), ends: [u8; 3], app in 0u8..14,
        ) {
            let [method, name, target] = ends.map(u64::from);
            if words[0].is_multiple_of(2) {
                words[7] = words[7] & 3 | u64::from(app) << 8 | method << 16 | name << 24 | target << 32;
            }
            let words: [u64; Alert::WORDS] = words.try_into().unwrap();
            let alert = Alert::from_words(&words);
            let fits = method <= name && name <= target && target <= 192 && app < 13;
            if words[0].is_multiple_of(2) {
                prop_assert_eq!(alert.is_some(), fits);
            }
            if let Some(alert) = alert {
                prop_assert_eq!(alert.to_words(), words);
                let detail = &alert.detail;
                let all = [detail.method(), detail.name(), detail.target()].map(<[u8]>::len);
                prop_assert!(all.iter().sum::<usize>() <= TEXT);
            }
        }
    }
}
