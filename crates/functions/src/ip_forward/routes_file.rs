//! Files of routes.
//!
//! Each line has a prefix and, after blanks, the name or address of a next hop, or `local` or `blackhole`. A prefix
//! alone is assigned one of the next hops by a hash of the prefix, independent of the other routes. A bare address is a
//! prefix of full length. `#` begins a comment.
//!
//! ```text
//! 0.0.0.0/0        upstream
//! 198.18.0.0/15    192.0.2.1
//! 198.18.64.0/18   blackhole     # scrubbed
//! 2001:db8::/32
//! ```

use super::route::{MAX_ROUTES, NextHop, Route, Target};
use ipnet::{IpNet, Ipv4Net};
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

/// Maximum number of bytes of an invalid field quoted in an error.
const QUOTED: usize = 40;

/// Usual length of a line in bytes, for the first guess of the number of routes.
const USUAL_LINE: usize = 16;

/// Expected content of an invalid field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// An address, optionally with a prefix length.
    Prefix,
    /// A prefix length within the address's width.
    PrefixLength,
    /// No address bits beyond the prefix length. Contains the prefix without them.
    NoHostBits(IpNet),
    /// A next hop.
    NextHop,
    /// An explicit next hop, because there are none to choose from by hash.
    SomeNextHop,
    /// Nothing after the next hop.
    EndOfLine,
    /// Text in UTF-8.
    Utf8,
    /// No more routes.
    EndOfRoutes,
    /// A prefix that occurs once. Contains the line of its first occurrence.
    Once(u32),
}

/// Parse error, with its position, the expected content and the text found there.
///
/// The message is one line. It does not name the file, which is unknown to the parser.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: expected {expected}, found {found}")]
pub struct ParseError {
    /// Line number, from 1.
    pub line: usize,
    /// Column in bytes, from 1.
    pub column: usize,
    /// The expected content.
    pub expected: Expected,
    /// The text found instead, quoted and shortened, or `nothing`.
    pub found: String,
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expected::Prefix => f.write_str("a prefix such as 198.18.0.0/15 or 2001:db8::/32"),
            Expected::PrefixLength => f.write_str("a length of at most 32 (IPv6: 128) bits"),
            Expected::NoHostBits(prefix) => {
                write!(f, "no address bits beyond the length ({prefix})")
            }
            Expected::NextHop => f.write_str("local, blackhole, or the name or address of one of nextHops"),
            Expected::SomeNextHop => f.write_str("a next hop, as nextHops has none"),
            Expected::EndOfLine => f.write_str("the end of the line"),
            Expected::Utf8 => f.write_str("text in UTF-8"),
            Expected::EndOfRoutes => write!(f, "at most {MAX_ROUTES} routes"),
            Expected::Once(line) => write!(f, "each prefix once (first on line {line})"),
        }
    }
}

/// Map from names and addresses used in routes to targets.
pub struct Names<'a> {
    names: HashMap<&'a str, Target>,
    addresses: HashMap<IpAddr, Target>,
    count: u64,
}

impl<'a> Names<'a> {
    /// Builds the map of these next hops. Of equal names or addresses the first counts.
    pub fn new(next_hops: &'a [NextHop]) -> Names<'a> {
        let words = [("local", Target::Local), ("blackhole", Target::Blackhole)];
        let mut names = HashMap::from(words);
        let mut addresses = HashMap::new();
        for (place, hop) in (0..).zip(next_hops) {
            names.entry(&*hop.name).or_insert(Target::NextHop(place));
            if let Some(address) = hop.address {
                addresses.entry(address).or_insert(Target::NextHop(place));
            }
        }
        let count = next_hops.len() as u64;
        Names {
            names,
            addresses,
            count,
        }
    }

    /// Returns the target with this name or address.
    pub fn find(&self, text: &str) -> Option<Target> {
        let by_address = || self.addresses.get(&text.parse().ok()?);
        self.names.get(text).or_else(by_address).copied()
    }

    /// Returns the next hop of a prefix without an explicit one, or `None` if there are no next hops.
    pub fn of_prefix(&self, prefix: &IpNet) -> Option<Target> {
        let bits = match prefix {
            IpNet::V4(prefix) => u64::from(prefix.addr().to_bits()) << 8,
            IpNet::V6(prefix) => {
                let bits = prefix.addr().to_bits();
                (bits >> 64) as u64 ^ (bits as u64).rotate_left(7)
            }
        };
        // Fibonacci hashing: the product's high bits depend on all lower bits.
        let mixed = (bits ^ u64::from(prefix.prefix_len())).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let place = ((mixed >> 32) * self.count) >> 32;
        (self.count > 0).then_some(Target::NextHop(place as u16))
    }

    /// Returns the route of a prefix without an explicit next hop, if there are next hops.
    fn route(&self, prefix: Ipv4Net) -> Option<Route> {
        let prefix = IpNet::V4(prefix);
        let target = self.of_prefix(&prefix)?;
        Some(Route { prefix, target })
    }
}

/// Parses a file of routes. Returns them sorted by prefix.
///
/// # Errors
/// The first invalid line, a repeated prefix, or a line beyond [`MAX_ROUTES`] routes.
pub fn parse(text: &[u8], next_hops: &[NextHop]) -> Result<Vec<Route>, ParseError> {
    let names = Names::new(next_hops);
    let mut routes: Vec<(Route, u32)> = Vec::with_capacity((text.len() / USUAL_LINE).min(MAX_ROUTES));
    let (mut rest, mut number) = (text, 0);
    while !rest.is_empty() {
        number += 1;
        let plain = plain_v4(rest);
        let taken = plain.map_or_else(|| line_length(rest), |(_, taken)| taken);
        let (line, others) = rest.split_at(taken);
        rest = others;
        let line = Line {
            number,
            line: line.strip_suffix(b"\n").unwrap_or(line),
        };
        let route = match plain.and_then(|(prefix, _)| names.route(prefix)) {
            Some(route) => Some(route),
            None => line.route(&names)?,
        };
        let Some(route) = route else {
            continue;
        };
        if routes.len() == MAX_ROUTES {
            return Err(line.error(0, Expected::EndOfRoutes));
        }
        routes.push((route, number));
    }
    if !routes.is_sorted_by(|(a, _), (b, _)| comes_before(&a.prefix, &b.prefix)) {
        routes.sort_by_key(|(route, _)| route.prefix);
    }
    let again = routes
        .windows(2)
        .filter(|pair| pair[0].0.prefix == pair[1].0.prefix)
        .min_by_key(|pair| pair[1].1);
    if let Some([(_, first), (route, line)]) = again {
        return Err(ParseError {
            line: *line as usize,
            column: 1,
            expected: Expected::Once(*first),
            found: format!("{} again", route.prefix),
        });
    }
    Ok(routes.into_iter().map(|(route, _)| route).collect())
}

/// Strict order of prefixes, the same as theirs, which compares addresses byte by byte.
fn comes_before(a: &IpNet, b: &IpNet) -> bool {
    match (a, b) {
        (IpNet::V4(a), IpNet::V4(b)) => {
            let key = |net: &Ipv4Net| (net.addr().to_bits(), net.prefix_len());
            key(a) < key(b)
        }
        (a, b) => a < b,
    }
}

/// Length of the first line, with its end.
fn line_length(text: &[u8]) -> usize {
    let end = text.iter().position(|byte| *byte == b'\n');
    end.map_or(text.len(), |end| end + 1)
}

/// Parses the first line if it is nothing but an IPv4 prefix with its length, as nearly all lines of a dump are. Returns
/// the prefix and the length of the line with its end, or `None` for all other lines, also invalid ones.
fn plain_v4(text: &[u8]) -> Option<(Ipv4Net, usize)> {
    let mut at = 0;
    let mut address = 0;
    for end in [b'.', b'.', b'.', b'/'] {
        let part = decimal(text, &mut at, 255)?;
        if *text.get(at)? != end {
            return None;
        }
        at += 1;
        address = address << 8 | part;
    }
    let length = decimal(text, &mut at, 32)?;
    if text.get(at) == Some(&b'\r') {
        at += 1;
    }
    if *text.get(at)? != b'\n' {
        return None;
    }
    let host_bits = u64::from(address) << length & u64::from(u32::MAX);
    let prefix = Ipv4Net::new(Ipv4Addr::from_bits(address), length as u8).ok()?;
    (host_bits == 0).then_some((prefix, at + 1))
}

/// Parses a number of one to three digits without leading zeros, up to `most`, and moves `at` behind it.
fn decimal(text: &[u8], at: &mut usize, most: u32) -> Option<u32> {
    let start = *at;
    let mut number = 0;
    while let Some(digit) = text.get(*at).filter(|byte| byte.is_ascii_digit()) {
        number = number * 10 + u32::from(digit - b'0');
        *at += 1;
        if number > most {
            return None;
        }
    }
    let digits = *at - start;
    let plain = digits == 1 || digits > 1 && text[start] != b'0';
    plain.then_some(number)
}

/// Line being parsed.
struct Line<'a> {
    number: u32,
    line: &'a [u8],
}

impl<'a> Line<'a> {
    /// Returns the line's route, or `None` if it has only blanks or a comment.
    fn route(&self, names: &Names<'_>) -> Result<Option<Route>, ParseError> {
        let text = str::from_utf8(self.line).map_err(|error| self.error(error.valid_up_to(), Expected::Utf8))?;
        let text = text.split('#').next().unwrap_or_default();
        let mut fields = text.split_ascii_whitespace();
        let Some(field) = fields.next() else {
            return Ok(None);
        };
        // Offset of a field in its line.
        let at = |field: &str| field.as_ptr() as usize - text.as_ptr() as usize;
        let prefix = parse_prefix(field).map_err(|expected| self.error(at(field), expected))?;
        let target = match fields.next() {
            Some(name) => names.find(name).ok_or((at(name), Expected::NextHop)),
            None => names
                .of_prefix(&prefix)
                .ok_or((text.trim_end().len(), Expected::SomeNextHop)),
        };
        let target = target.map_err(|(at, expected)| self.error(at, expected))?;
        match fields.next() {
            Some(extra) => Err(self.error(at(extra), Expected::EndOfLine)),
            None => Ok(Some(Route { prefix, target })),
        }
    }

    /// Returns an error at a byte offset, quoting the field there.
    fn error(&self, at: usize, expected: Expected) -> ParseError {
        let rest = self.line.get(at..).unwrap_or_default();
        let field = rest.split(|byte| byte.is_ascii_whitespace() || *byte == b'#');
        let field = field.into_iter().next().unwrap_or_default();
        let found = match (&expected, field) {
            (_, []) => "nothing".to_owned(),
            (Expected::Utf8, [byte, ..]) => format!("byte 0x{byte:02X}"),
            _ if field.len() > QUOTED => {
                let short = field.get(..QUOTED).unwrap_or_default();
                format!("{:?}...", String::from_utf8_lossy(short))
            }
            _ => format!("{:?}", String::from_utf8_lossy(field)),
        };
        ParseError {
            line: self.number as usize,
            column: at + 1,
            expected,
            found,
        }
    }
}

/// Parses `address/length` or an address.
fn parse_prefix(text: &str) -> Result<IpNet, Expected> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| Expected::Prefix)?;
    let prefix = match length {
        None => IpNet::from(address),
        // Digits only: the standard parser would also accept a sign.
        Some(length) if length.bytes().all(|digit| digit.is_ascii_digit()) => {
            let length = length.parse().map_err(|_| Expected::PrefixLength)?;
            IpNet::new(address, length).map_err(|_| Expected::PrefixLength)?
        }
        Some(_) => return Err(Expected::PrefixLength),
    };
    match prefix.trunc() {
        same if same == prefix => Ok(prefix),
        shorter => Err(Expected::NoHostBits(shorter)),
    }
}
