//! Scalars of a spec: durations, rates, prefixes, ports, protocols, MAC addresses, labels.

use crate::error::{SpecError, nearest, quoted};
use crate::located::{Located, decimal, digits};
use crate::schema::Type;
use ipnet::{IpNet, Ipv4Net};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use tailwater_net::Nanos;
use tailwater_sdk::host::is_label;

/// Protocols with a name; all others are specified by number.
const PROTOCOLS: [(&str, u8); 10] = [
    ("icmp", 1),
    ("igmp", 2),
    ("tcp", 6),
    ("udp", 17),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("icmpv6", 58),
    ("ospf", 89),
    ("sctp", 132),
];

/// Throughput objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Throughput {
    /// Packets per second.
    PacketsPerSecond(u64),
    /// Bits per second, counted over whole Ethernet frames without preamble, frame check sequence and inter-frame gap.
    BitsPerSecond(u64),
}

/// Treatment of a class of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketAction {
    /// Drop the packets.
    Drop,
    /// Pass the packets unchanged.
    Pass,
}

impl PacketAction {
    /// Its words.
    pub const TYPE: Type = Type::Words(&["drop", "pass"]);

    /// Parses `drop` or `pass`.
    pub fn parse(node: &Located<'_>) -> Result<Self, SpecError> {
        node.word(&[("drop", PacketAction::Drop), ("pass", PacketAction::Pass)])
    }
}

/// Parses a duration such as `200us` in a range.
///
/// # Errors
/// If the node is no duration with a unit, or is out of range.
pub fn duration(node: &Located<'_>, range: RangeInclusive<Nanos>) -> Result<Nanos, SpecError> {
    const WHAT: &str = "a duration such as 200us";
    const UNITS: [(&str, f64); 6] = [
        ("ns", 1.0),
        ("us", 1e3),
        // Micro sign and Greek mu look the same.
        ("\u{b5}s", 1e3),
        ("\u{3bc}s", 1e3),
        ("ms", 1e6),
        ("s", 1e9),
    ];
    let text = node.text(WHAT)?;
    let (number, unit) = number_and_unit(text);
    let Some(value) = decimal(number) else {
        return Err(node.expected(WHAT));
    };
    let Some((_, nanos)) = UNITS.iter().find(|&&(name, _)| name == unit) else {
        let what = "a duration with one of the units ns, us, ms, s";
        let suggestion = meant_duration(number, unit, &range);
        return Err(node.expected(what).suggest(suggestion));
    };
    let nanos = Nanos((value * nanos).round() as u64);
    if !range.contains(&nanos) {
        let (low, high) = (range.start(), range.end());
        return Err(node.expected(&format!("a duration from {low} to {high}")));
    }
    Ok(nanos)
}

/// Returns the duration that was probably meant by a number with an unknown unit, in a form that [`duration`] accepts:
/// `5ms` for `5m` where minutes are out of range, `300s` where they are not. `None` if no meaning is in range.
pub fn meant_duration(number: &str, unit: &str, range: &RangeInclusive<Nanos>) -> Option<String> {
    let value = decimal(number)?;
    // Of several meanings the first in range.
    let meanings: &[(&str, f64)] = match &*unit.to_lowercase() {
        "n" | "ns" | "nsec" | "nsecs" | "nanos" | "nanosecond" | "nanoseconds" => &[("ns", 1.0)],
        "u" | "us" | "\u{3bc}" | "\u{3bc}s" | "\u{b5}" | "usec" | "usecs" | "micros" | "microsecond"
        | "microseconds" => &[("us", 1e3)],
        "ms" | "msec" | "msecs" | "millis" | "millisecond" | "milliseconds" => &[("ms", 1e6)],
        "s" | "sec" | "secs" | "second" | "seconds" => &[("s", 1e9)],
        "m" => &[("", 60e9), ("ms", 1e6)],
        "min" | "mins" | "minute" | "minutes" => &[("", 60e9)],
        "h" | "hr" | "hour" | "hours" => &[("", 3600e9)],
        "d" | "day" | "days" => &[("", 86_400e9)],
        _ => &[],
    };
    meanings.iter().find_map(|(name, nanos)| {
        let meant = Nanos((value * nanos).round() as u64);
        range.contains(&meant).then(|| match *name {
            // Longer units are none of a spec's.
            "" => format!("{}s", meant.0 as f64 / 1e9),
            name => format!("{number}{name}"),
        })
    })
}

/// Parses a rate such as `2Mpps` or `10Gbps`.
///
/// # Errors
/// If the node is no rate with a unit, or is out of range.
pub fn throughput(node: &Located<'_>) -> Result<Throughput, SpecError> {
    const WHAT: &str = "a rate such as 2Mpps or 10Gbps";
    const UNITS: [(&str, Throughput); 7] = [
        ("pps", Throughput::PacketsPerSecond(1)),
        ("kpps", Throughput::PacketsPerSecond(1_000)),
        ("Mpps", Throughput::PacketsPerSecond(1_000_000)),
        ("bps", Throughput::BitsPerSecond(1)),
        ("kbps", Throughput::BitsPerSecond(1_000)),
        ("Mbps", Throughput::BitsPerSecond(1_000_000)),
        ("Gbps", Throughput::BitsPerSecond(1_000_000_000)),
    ];
    const MOST: u64 = 10_000_000_000_000;
    let text = node.text(WHAT)?;
    let (number, unit) = number_and_unit(text);
    let Some(value) = decimal(number) else {
        return Err(node.expected(WHAT));
    };
    let Some(&(_, unit)) = UNITS.iter().find(|&&(name, _)| name == unit) else {
        // Suggests a unit only if the case differs: a wrong guess would be off by a factor of a thousand.
        let same = |unit: &str| UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
        let other = [
            ("bit/s", "bps"),
            ("b/s", "bps"),
            ("bit", "bps"),
            ("p/s", "pps"),
            ("pkt/s", "pps"),
        ];
        let other = other.iter().find_map(|(written, name)| {
            let prefix = unit.strip_suffix(written)?;
            same(&format!("{prefix}{name}"))
        });
        let same = same(unit).or(other);
        let suggestion = same.map(|(name, _)| format!("{number}{name}"));
        let what = "a rate with one of the units pps, kpps, Mpps, bps, kbps, Mbps, Gbps";
        return Err(node.expected(what).suggest(suggestion));
    };
    let scaled = |unit: u64| {
        let rate = (value * unit as f64).round() as u64;
        let what = "a rate from 1pps to 10000000Mpps, or 1bps to 10000Gbps";
        let in_range = (1..=MOST).contains(&rate);
        in_range.then_some(rate).ok_or_else(|| node.expected(what))
    };
    Ok(match unit {
        Throughput::PacketsPerSecond(unit) => Throughput::PacketsPerSecond(scaled(unit)?),
        Throughput::BitsPerSecond(unit) => Throughput::BitsPerSecond(scaled(unit)?),
    })
}

/// Splits `12.5us` into `12.5` and `us`.
pub fn number_and_unit(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    (number, unit.trim_start())
}

/// Parses a size such as `22MiB`, in bytes; errors call it `what`.
pub fn size(node: &Located<'_>, range: RangeInclusive<u64>, what: &str) -> Result<u64, SpecError> {
    const UNITS: [(&str, f64); 3] = [("KiB", 1024.0), ("MiB", 1_048_576.0), ("GiB", 1_073_741_824.0)];
    let (number, unit) = number_and_unit(node.text(what)?);
    let value = decimal(number);
    let bytes = |factor: f64| value.map(|value| (value * factor).round() as u64);
    let in_range = |factor: f64| bytes(factor).filter(|bytes| range.contains(bytes));
    if let Some((_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) {
        return in_range(*factor).ok_or_else(|| node.expected(what));
    }
    // `22M`, `22MB` and `22mib`.
    let letter = unit.to_ascii_lowercase();
    let meant = UNITS.iter().find(|(name, factor)| {
        let name = name.to_ascii_lowercase();
        [&name[..1], &name.replace('i', ""), &name].contains(&&*letter) && in_range(*factor).is_some()
    });
    let suggestion = meant.map(|(name, _)| format!("{number}{name}"));
    Err(node.expected(what).suggest(suggestion))
}

/// Description of the text that was expected.
#[derive(Clone, Debug)]
pub struct Expected {
    /// The expectation, as it follows "expected".
    pub what: String,
    /// The nearest valid value.
    pub suggestion: Option<String>,
}

impl From<&str> for Expected {
    fn from(what: &str) -> Expected {
        Expected {
            what: what.to_owned(),
            suggestion: None,
        }
    }
}

impl Expected {
    fn at(self, node: &Located<'_>) -> SpecError {
        node.expected(&self.what).suggest(self.suggestion)
    }
}

/// Parses an IPv4 or IPv6 prefix, or an address, which is a prefix of full length.
pub fn prefix(node: &Located<'_>) -> Result<IpNet, SpecError> {
    prefix_of(node.text(PREFIX)?).map_err(|expected| expected.at(node))
}

const PREFIX: &str = "an IP prefix such as 10.0.0.0/8 or 2001:db8::/32";

/// Same as [`prefix`], of a text.
pub fn prefix_of(text: &str) -> Result<IpNet, Expected> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else {
        return Err(PREFIX.into());
    };
    let most = if address.is_ipv4() { 32 } else { 128 };
    let length = match length {
        None => most,
        Some(length) => match digits(length) {
            Some(length) if length <= u64::from(most) => length as u8,
            _ => return Err(format!("a prefix length from 0 to {most}").as_str().into()),
        },
    };
    let prefix = IpNet::new(address, length).map_err(|_| PREFIX)?;
    // In 10.1.2.3/8, the length or the address may be wrong: the user must decide.
    if prefix.trunc() != prefix {
        return Err(Expected {
            what: format!("no address bits beyond the prefix length {length}"),
            suggestion: Some(prefix.trunc().to_string()),
        });
    }
    Ok(prefix)
}

/// Parses an IPv4 prefix or address.
pub fn prefix_v4(node: &Located<'_>) -> Result<Ipv4Net, SpecError> {
    match prefix(node)? {
        IpNet::V4(prefix) => Ok(prefix),
        IpNet::V6(_) => Err(node.expected("an IPv4 prefix or address")),
    }
}

/// Parses a port, a range of ports, or `any`, which is the full range.
pub fn ports(node: &Located<'_>) -> Result<RangeInclusive<u16>, SpecError> {
    ports_of(node.text(PORTS)?).map_err(|expected| expected.at(node))
}

const PORTS: &str = "a port from 0 to 65535, a range such as 80-443, or any";

/// Same as [`ports`], of a text.
pub fn ports_of(text: &str) -> Result<RangeInclusive<u16>, Expected> {
    if text == "any" {
        return Ok(0..=u16::MAX);
    }
    let port = |text: &str| digits(text).and_then(|port| u16::try_from(port).ok());
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    match (port(low.trim_end()), port(high.trim_start())) {
        (Some(low), Some(high)) if low <= high => Ok(low..=high),
        (Some(low), Some(high)) => Err(Expected {
            what: "a range of ports from low to high".to_owned(),
            suggestion: Some(format!("{high}-{low}")),
        }),
        _ => Err(Expected {
            what: PORTS.to_owned(),
            suggestion: nearest(text, ["any"]).map(str::to_owned),
        }),
    }
}

/// Parses an IP protocol by name or number.
pub fn protocol(node: &Located<'_>) -> Result<u8, SpecError> {
    protocol_of(node.text(PROTOCOL)?).map_err(|expected| expected.at(node))
}

const PROTOCOL: &str = "a protocol such as tcp, udp or icmp, or a number from 0 to 255";

/// Same as [`protocol`], of a text.
pub fn protocol_of(text: &str) -> Result<u8, Expected> {
    if let Some(&(_, number)) = PROTOCOLS.iter().find(|&&(name, _)| name == text) {
        return Ok(number);
    }
    let number = digits(text).and_then(|number| u8::try_from(number).ok());
    number.ok_or_else(|| {
        let names = PROTOCOLS.iter().map(|&(name, _)| name);
        Expected {
            what: PROTOCOL.to_owned(),
            suggestion: nearest(text, names).map(str::to_owned),
        }
    })
}

/// Parses an Ethernet address such as `02:00:00:00:00:01`.
pub fn mac(node: &Located<'_>) -> Result<[u8; 6], SpecError> {
    const WHAT: &str = "a MAC address such as 02:00:00:00:00:01";
    let text = node.text(WHAT)?;
    let mut address = [0; 6];
    let mut parts = text.split([':', '-']);
    for byte in &mut address {
        let part = parts
            .next()
            .filter(|part| part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit()));
        *byte = part
            .and_then(|part| u8::from_str_radix(part, 16).ok())
            .ok_or_else(|| node.expected(WHAT))?;
    }
    match parts.next() {
        None => Ok(address),
        Some(_) => Err(node.expected(WHAT)),
    }
}

/// Parses a name that is an RFC 1123 label, as Kubernetes requires.
///
/// # Errors
/// If the node is no such label.
pub fn label(node: &Located<'_>) -> Result<String, SpecError> {
    const WHAT: &str = "a name of lower-case letters, digits and inner dashes, at most 63 long";
    let text = node.string(WHAT)?;
    if is_label(text) {
        return Ok(text.to_string());
    }
    let error = node.error(format!("expected {WHAT}, found {}", quoted(text)));
    let repaired = text.to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let repaired = repaired.trim_matches('-');
    Err(error.suggest(is_label(repaired).then_some(repaired)))
}

/// Parses a percentile of packets, such as `99.9`.
///
/// # Errors
/// If the node is not a number above 0 and below 100.
pub fn percentile(node: &Located<'_>) -> Result<f64, SpecError> {
    const WHAT: &str = "a number above 0 and below 100, such as 99.9";
    let percentile = node.number(WHAT)?;
    match percentile > 0.0 && percentile < 100.0 {
        true => Ok(percentile),
        false => Err(node.expected(WHAT)),
    }
}

/// Parses a text of one line and at most `most` bytes.
///
/// # Errors
/// If the node is no text, has several lines, or is too long.
pub fn line<'a>(node: &Located<'a>, most: usize) -> Result<&'a str, SpecError> {
    let what = format!("a text of at most {most} bytes on one line");
    let text = node.string(&what)?;
    match text.len() <= most && !text.chars().any(char::is_control) {
        true => Ok(text),
        false => Err(node.expected(&what)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `5m` was taken for 300 s where the longest duration is 10 s.
    #[test]
    fn durations_that_were_meant_are_in_range() {
        let objectives = Nanos::from_micros(1)..=Nanos::from_secs(10);
        let timeouts = Nanos::from_secs(1)..=Nanos::from_secs(86_400);
        for (number, unit, range, expected) in [
            ("5", "m", &objectives, Some("5ms")),
            ("0.1", "m", &objectives, Some("6s")),
            ("5", "m", &timeouts, Some("300s")),
            ("1.1", "min", &timeouts, Some("66s")),
            ("5", "min", &objectives, None),
            ("2", "h", &timeouts, Some("7200s")),
            ("200", "u", &objectives, Some("200us")),
            ("200", "\u{b5}", &objectives, Some("200us")),
            ("200", "US", &objectives, Some("200us")),
            ("2", "millis", &objectives, Some("2ms")),
            ("3", "seconds", &objectives, Some("3s")),
            ("3", "fortnights", &objectives, None),
        ] {
            assert_eq!(
                meant_duration(number, unit, range).as_deref(),
                expected,
                "{number}{unit}"
            );
        }
    }
}
