//! Text format of sessions, one per line:
//!
//! ```text
//! 1 ue 10.60.0.1 teid 0x1001 peer 192.0.2.10 peerTeid 0x2001 profile internet
//! 2 ue 10.60.0.2 ue6 2001:db8:60:2::/64 teid 4098 profile internet
//! ```
//!
//! A line has the session's number, then pairs of keyword and value in any order. Empty lines and text after `#` are
//! ignored.

use super::session::{MAX_SESSIONS, Session, Tunnel};
use crate::firewall::language::{MAX_REPORTED, Mistake};
use ipnet::IpNet;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use tailwater_api::error::{nearest, quoted};
use tailwater_api::values::prefix_of;

/// Names sessions may refer to.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Profile indices by name.
    pub profiles: HashMap<String, u16>,
    /// Presence of a local IPv4 and IPv6 address.
    pub versions: [bool; 2],
}

const WORDS: [&str; 6] = ["ue", "ue6", "teid", "peer", "peerTeid", "profile"];

/// Parses all sessions of a text, at most `most`.
///
/// # Errors
/// Lists every line that is malformed or conflicts with another, up to [`MAX_REPORTED`], and the number of further
/// ones.
pub fn parse(text: &str, names: &Names, most: usize) -> Result<Vec<Session>, (Vec<Mistake>, usize)> {
    let most = most.min(MAX_SESSIONS);
    let (mut sessions, mut lines) = (Vec::new(), Vec::new());
    let mut told = MistakeList::default();
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.split('#').next().unwrap_or_default();
        if text.trim().is_empty() {
            continue;
        }
        match parse_session(text, names) {
            _ if sessions.len() == most => {
                told.push(line, 1, format!("expected at most {most} sessions"), None);
            }
            Ok(session) => {
                sessions.push(session);
                lines.push(line as u32);
            }
            Err(mistake) => told.push(line, mistake.column, mistake.message, mistake.suggestion),
        }
    }
    told.repeated(&sessions, &lines);
    match told.wrong {
        0 => Ok(sessions),
        wrong => {
            told.mistakes.sort_by_key(|mistake| mistake.line);
            told.mistakes.truncate(MAX_REPORTED);
            let more = wrong - told.mistakes.len();
            Err((told.mistakes, more))
        }
    }
}

#[derive(Default)]
struct MistakeList {
    mistakes: Vec<Mistake>,
    wrong: usize,
}

impl MistakeList {
    fn push(&mut self, line: usize, column: usize, message: String, suggestion: Option<String>) {
        self.wrong += 1;
        // Room for malformed and for conflicting lines; they are sorted later.
        if self.mistakes.len() < 2 * MAX_REPORTED {
            self.mistakes.push(Mistake {
                line,
                column,
                message,
                suggestion,
            });
        }
    }

    /// Reports values that occur in more than one session.
    fn repeated(&mut self, sessions: &[Session], lines: &[u32]) {
        let mut seen: Vec<(u64, u32)> = Vec::with_capacity(sessions.len());
        for (what, of) in OWN {
            seen.clear();
            seen.extend(sessions.iter().zip(lines).filter_map(|(s, line)| Some((of(s)?, *line))));
            seen.sort_unstable();
            let mut first = None;
            for (value, line) in &seen {
                match first {
                    Some((known, before)) if known == value => {
                        let message = format!("expected a unique {what}, found that of line {before}");
                        self.push(*line as usize, 1, message, None);
                    }
                    _ => first = Some((value, line)),
                }
            }
        }
    }
}

type Of = fn(&Session) -> Option<u64>;

/// Values that must be unique among sessions.
const OWN: [(&str, Of); 4] = [
    ("number", |session| Some(session.id)),
    ("teid", |session| Some(session.teid.into())),
    ("ue", |session| session.address.map(|address| address.to_bits().into())),
    ("ue6", |session| session.prefix),
];

/// Creates a mistake at a byte offset of a line.
fn mistake(line: &str, at: usize, message: String) -> Mistake {
    let before = line.get(..at).unwrap_or(line);
    Mistake {
        line: 1,
        column: before.chars().count() + 1,
        message,
        suggestion: None,
    }
}

/// Words of a line with their offsets.
struct Words<'a> {
    line: &'a str,
    at: usize,
}

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<(usize, &'a str)> {
        let rest = self.line.get(self.at..)?;
        let start = self.at + rest.find(|c: char| !c.is_whitespace())?;
        let rest = self.line.get(start..)?;
        let length = rest.find(char::is_whitespace).unwrap_or(rest.len());
        self.at = start + length;
        Some((start, rest.get(..length)?))
    }

    fn expected(&self, what: &str, found: Option<(usize, &str)>) -> Mistake {
        let (at, found) = match found {
            Some((at, word)) => (at, quoted(word)),
            None => (self.line.trim_end().len(), "nothing".to_owned()),
        };
        mistake(self.line, at, format!("expected {what}, found {found}"))
    }
}

/// Parses one session. The line number of a mistake is 1.
///
/// # Errors
/// Names the first mistake.
pub fn parse_session(line: &str, names: &Names) -> Result<Session, Mistake> {
    let mut words = Words { line, at: 0 };
    let first = words.next();
    let id = first.and_then(|(_, word)| number(word));
    let id = id.ok_or_else(|| words.expected("the number of a session", first))?;
    let (mut address, mut prefix, mut teid) = (None, None, None);
    let (mut peer, mut peer_teid, mut profile) = (None, None, None);
    let mut given = [false; WORDS.len()];
    while let Some((at, word)) = words.next() {
        let Some(place) = WORDS.iter().position(|known| *known == word) else {
            let what = format!("one of {}", WORDS.join(", "));
            return Err(Mistake {
                suggestion: nearest(word, WORDS).map(str::to_owned),
                ..words.expected(&what, Some((at, word)))
            });
        };
        if std::mem::replace(&mut given[place], true) {
            let message = format!("expected {word} once, found it twice");
            return Err(mistake(line, at, message));
        }
        let value = words.next();
        let Some((_, text)) = value else {
            return Err(words.expected(&format!("a value after {word}"), None));
        };
        match word {
            "ue" => address = Some(user(text).ok_or_else(|| words.expected(UE, value))?),
            "ue6" => prefix = Some(user_prefix(text).ok_or_else(|| words.expected(UE6, value))?),
            "teid" => teid = Some(tunnel_id(text).ok_or_else(|| words.expected(TEID, value))?),
            "peerTeid" => {
                peer_teid = Some(tunnel_id(text).ok_or_else(|| words.expected(TEID, value))?);
            }
            "peer" => peer = Some(other_end(text, names).map_err(|what| words.expected(&what, value))?),
            _ => {
                let known = names.profiles.get(text);
                profile = Some(*known.ok_or_else(|| Mistake {
                    suggestion: nearest(text, names.profiles.keys().map(String::as_str)).map(str::to_owned),
                    ..words.expected("the name of a profile", value)
                })?);
            }
        }
    }
    let missing = |what: &str| words.expected(what, None);
    if address.is_none() && prefix.is_none() {
        return Err(missing("ue or ue6, an address of the user"));
    }
    let tunnel = match (peer, peer_teid) {
        (Some(peer), Some(teid)) => Some(Tunnel { peer, teid }),
        (None, None) => None,
        (Some(_), None) => return Err(missing("peerTeid with peer")),
        (None, Some(_)) => return Err(missing("peer with peerTeid")),
    };
    Ok(Session {
        id,
        address,
        prefix,
        teid: teid.ok_or_else(|| missing("teid, the local tunnel identifier"))?,
        tunnel,
        profile: profile.ok_or_else(|| missing("profile, the name of a profile"))?,
    })
}

const UE: &str = "an IPv4 address of a host";
const UE6: &str = "an IPv6 prefix of 64 bits such as 2001:db8:60:1::/64";
const TEID: &str = "a tunnel's identifier from 1 to 4294967295, such as 4097 or 0x1001";

/// Parses a decimal number, or a hexadecimal one with `0x`.
pub(super) fn number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    let all = digits.chars().all(|digit| digit.is_digit(radix));
    all.then(|| u64::from_str_radix(digits, radix).ok()).flatten()
}

fn tunnel_id(text: &str) -> Option<u32> {
    let id = u32::try_from(number(text)?).ok()?;
    (id != 0).then_some(id)
}

fn user(text: &str) -> Option<Ipv4Addr> {
    let address: Ipv4Addr = text.parse().ok()?;
    let no_host = address.is_unspecified() || address.is_multicast() || address.is_broadcast();
    (!no_host).then_some(address)
}

fn user_prefix(text: &str) -> Option<u64> {
    match prefix_of(text).ok()? {
        IpNet::V6(prefix) if prefix.prefix_len() == 64 => {
            let bits = (prefix.network().to_bits() >> 64) as u64;
            // Unspecified, link-local and multicast prefixes are rejected.
            (bits != 0 && bits >> 54 != 0xfe80 >> 6 && bits >> 56 != 0xff).then_some(bits)
        }
        _ => None,
    }
}

fn other_end(text: &str, names: &Names) -> Result<IpAddr, String> {
    let address: Option<IpAddr> = text.parse().ok();
    let no_host = |address: &IpAddr| {
        let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
        address.is_unspecified() || address.is_multicast() || broadcast
    };
    let address = address.filter(|address| !no_host(address));
    let address = address.ok_or("an IP address of a host")?;
    match (address, names.versions) {
        (IpAddr::V4(_), [true, _]) | (IpAddr::V6(_), [_, true]) => Ok(address),
        (IpAddr::V4(_), _) => Err("an IPv6 address, as the local address".to_owned()),
        (IpAddr::V6(_), _) => Err("an IPv4 address, as the local address".to_owned()),
    }
}
