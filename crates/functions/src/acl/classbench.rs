//! ClassBench rule files and header traces.
//!
//! A rule file has one rule per line, its fields separated by blanks or tabs:
//!
//! ```text
//! @10.1.2.0/24  198.18.0.0/15  0 : 65535  443 : 443  0x06/0xFF  0x0000/0x0200
//! ```
//!
//! The fields are source prefix, destination prefix, source ports, destination ports, protocol/mask and, optionally,
//! TCP flags/mask. Address bits below the prefix length are dropped. The protocol's mask is `0xFF` (exactly this
//! protocol) or `0x00` (any). The flags column is ignored: a flow key has no flags, so a rule applies to the whole
//! flow. Empty lines and lines that begin with `#` are skipped. Prefixes may be IPv6, as ClassBench-ng writes them, but
//! one rule may not mix IP versions. Rules carry no action.
//!
//! Format: Taylor and Turner, "ClassBench: A Packet Classification Benchmark", ToN 2007.

use super::classifier::MAX_RULES;
use super::rule::{Action, Rule};
use ipnet::IpNet;
use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use tailwater_net::flow::FlowKey;

/// Maximum number of bytes of an invalid field quoted in an error.
const QUOTED: usize = 40;

/// Field of a rule or of a trace header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Source prefix or address.
    Source,
    /// Destination prefix or address.
    Destination,
    /// Source port range or port.
    SourcePorts,
    /// Destination port range or port.
    DestinationPorts,
    /// Protocol, with its mask in a rule.
    Protocol,
    /// TCP flags of a trace header.
    Flags,
    /// Rule number of a trace header.
    RuleNumber,
    /// The line as a whole.
    Line,
}

/// Expected content of an invalid field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// `@` before the source prefix.
    At,
    /// `address/length`.
    Prefix,
    /// A prefix length within the address's width.
    PrefixLength,
    /// A prefix of the same IP version as the source's.
    SameVersion,
    /// A port number.
    Port,
    /// `:` between the ends of a port range.
    Colon,
    /// A port not below the range's first.
    RangeEnd,
    /// `0xPP/0xMM`.
    Protocol,
    /// A mask of `0x00` or `0xFF`.
    ProtocolMask,
    /// Nothing after the flags.
    EndOfLine,
    /// Text in UTF-8.
    Utf8,
    /// No more rules.
    EndOfRules,
    /// An IPv4 address as a decimal number.
    AddressNumber,
    /// A protocol as a decimal number up to 255.
    ProtocolNumber,
    /// A decimal number.
    Number,
}

/// Parse error, with its position, the expected content and the text found there.
///
/// The message is one line. It does not name the file, which is unknown to the parser.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {field}: expected {expected}, found {found}")]
pub struct ParseError {
    /// Line number, from 1.
    pub line: usize,
    /// Column in bytes, from 1.
    pub column: usize,
    /// The invalid field.
    pub field: Field,
    /// The expected content.
    pub expected: Expected,
    /// The text found instead.
    pub found: Found,
}

/// Text at the position of an error, shortened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found(Option<String>);

/// Packet header of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceHeader {
    /// The header's 5-tuple.
    pub key: FlowKey,
    /// Number, from 0, of the rule from which the trace generator made the header. An earlier rule may match the header
    /// as well.
    pub rule: u32,
}

/// Parses a rule file. Every rule gets `action`.
///
/// # Errors
///
/// On the first line that is not a rule, or at rule number [`MAX_RULES`] + 1.
pub fn parse_rules(text: &[u8], action: Action) -> Result<Vec<Rule>, ParseError> {
    parse_up_to(MAX_RULES, text, action)
}

/// Parses a rule file and continues after errors. Returns the rules with their line numbers, and the error of every
/// other line. Parsing stops after [`MAX_RULES`] rules.
pub fn parse_lines(text: &[u8], action: Action) -> (Vec<(Rule, usize)>, Vec<ParseError>) {
    let (mut rules, mut errors) = (Vec::new(), Vec::new());
    for line in text.split(|byte| *byte == b'\n').enumerate() {
        let ended = for_line(line, |line| {
            let mut rule = parse_rule(line)?;
            if rules.len() == MAX_RULES {
                return Err(line.error(0, Field::Line, Expected::EndOfRules));
            }
            rule.action = action;
            rules.push((rule, line.number));
            Ok(())
        });
        if let Err(error) = ended {
            let full = error.expected == Expected::EndOfRules;
            errors.push(error);
            if full {
                break;
            }
        }
    }
    (rules, errors)
}

/// Parses at most `limit` rules.
fn parse_up_to(limit: usize, text: &[u8], action: Action) -> Result<Vec<Rule>, ParseError> {
    let mut rules = Vec::new();
    for_each_line(text, |line| {
        let mut rule = parse_rule(line)?;
        if rules.len() == limit {
            return Err(line.error(0, Field::Line, Expected::EndOfRules));
        }
        rule.action = action;
        rules.push(rule);
        Ok(())
    })?;
    Ok(rules)
}

/// Parses a header trace. Each line has source and destination address (IPv4, as numbers), source and destination port,
/// protocol, flags (ignored) and rule number, all decimal.
///
/// # Errors
///
/// On the first line that is not a header.
pub fn parse_trace(text: &[u8]) -> Result<Vec<TraceHeader>, ParseError> {
    let mut headers = Vec::new();
    for_each_line(text, |line| {
        use Expected::{AddressNumber, Number, Port, ProtocolNumber};
        let source = line.number(Field::Source, AddressNumber)?;
        let destination = line.number(Field::Destination, AddressNumber)?;
        let source_port = line.number(Field::SourcePorts, Port)?;
        let destination_port = line.number(Field::DestinationPorts, Port)?;
        let protocol = line.number(Field::Protocol, ProtocolNumber)?;
        line.number::<u32>(Field::Flags, Number)?;
        let rule = line.number(Field::RuleNumber, Number)?;
        line.end()?;
        let [source, destination] = [source, destination].map(Ipv4Addr::from_bits);
        let key = FlowKey::v4(source, destination, protocol, source_port, destination_port);
        headers.push(TraceHeader { key, rule });
        Ok(())
    })?;
    Ok(headers)
}

/// Writes rules as a rule file, preceded by the lines of `comment` as comments.
///
/// The format has no actions and no prefix that covers both IP versions. So actions are omitted, and a rule without
/// prefixes becomes an IPv4 rule.
pub fn write_rules(comment: &str, rules: &[Rule]) -> String {
    let mut text = String::new();
    for line in comment.lines() {
        push(&mut text, format_args!("# {line}\n"));
    }
    for rule in rules {
        let prefixes = [rule.source, rule.destination];
        let v6 = prefixes.iter().flatten().any(|net| net.addr().is_ipv6());
        let any = if v6 { "::/0" } else { "0.0.0.0/0" };
        let prefix = |net: Option<IpNet>| net.map_or_else(|| any.to_owned(), |n| n.to_string());
        push(
            &mut text,
            format_args!(
                "@{}\t{}\t{} : {}\t{} : {}\t",
                prefix(rule.source),
                prefix(rule.destination),
                rule.source_ports.start(),
                rule.source_ports.end(),
                rule.destination_ports.start(),
                rule.destination_ports.end(),
            ),
        );
        match rule.protocol {
            Some(protocol) => push(&mut text, format_args!("0x{protocol:02X}/0xFF")),
            None => push(&mut text, format_args!("0x00/0x00")),
        }
        text.push_str("\t0x0000/0x0000\n");
    }
    text
}

/// Appends formatted text. Writing to a string cannot fail.
fn push(text: &mut String, arguments: fmt::Arguments<'_>) {
    let _ = text.write_fmt(arguments);
}

/// Calls `parse` for each line that is neither empty nor a comment.
fn for_each_line(text: &[u8], mut parse: impl FnMut(&mut Line) -> Result<(), ParseError>) -> Result<(), ParseError> {
    let mut lines = text.split(|byte| *byte == b'\n').enumerate();
    lines.try_for_each(|line| for_line(line, &mut parse))
}

/// Calls `parse` for a line, given with its index from 0, unless the line is empty or a comment.
fn for_line(
    (i, bytes): (usize, &[u8]),
    mut parse: impl FnMut(&mut Line) -> Result<(), ParseError>,
) -> Result<(), ParseError> {
    let mut line = Line {
        text: "",
        number: i + 1,
        at: 0,
    };
    line.text = match str::from_utf8(bytes) {
        Ok(text) => text.trim_end(),
        Err(error) => {
            let (valid, wrong) = bytes.split_at(error.valid_up_to());
            return Err(ParseError {
                line: line.number,
                column: valid.len() + 1,
                field: Field::Line,
                expected: Expected::Utf8,
                found: Found(wrong.first().map(|byte| format!("byte 0x{byte:02X}"))),
            });
        }
    };
    line.skip_blanks();
    match line.rest().bytes().next() {
        None | Some(b'#') => Ok(()),
        Some(_) => parse(&mut line),
    }
}

/// Parses one rule. Its action is a placeholder.
fn parse_rule(line: &mut Line) -> Result<Rule, ParseError> {
    if !line.take_byte(b'@') {
        return Err(line.error(line.at, Field::Source, Expected::At));
    }
    let source = line.prefix(Field::Source)?;
    line.skip_blanks();
    let begin = line.at;
    let destination = line.prefix(Field::Destination)?;
    if source.addr().is_ipv4() != destination.addr().is_ipv4() {
        return Err(line.error(begin, Field::Destination, Expected::SameVersion));
    }
    let source_ports = line.ports(Field::SourcePorts)?;
    let destination_ports = line.ports(Field::DestinationPorts)?;
    let protocol = line.protocol()?;
    // Skips the flags, whatever their value.
    line.token();
    line.end()?;
    Ok(Rule {
        source: Some(source),
        destination: Some(destination),
        source_ports,
        destination_ports,
        protocol,
        action: Action::Allow,
    })
}

/// Cursor in a line that is being parsed.
struct Line<'a> {
    text: &'a str,
    /// Line number, from 1.
    number: usize,
    /// Number of bytes consumed.
    at: usize,
}

impl<'a> Line<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn skip_blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    /// Skips blanks, then consumes and returns the text before the next blank, `end` or end of line.
    fn take_until(&mut self, end: Option<char>) -> &'a str {
        self.skip_blanks();
        let rest = self.rest();
        let length = rest.find(|c: char| c.is_whitespace() || Some(c) == end);
        let (token, _) = rest.split_at(length.unwrap_or(rest.len()));
        self.at += token.len();
        token
    }

    fn token(&mut self) -> &'a str {
        self.take_until(None)
    }

    fn take_byte(&mut self, byte: u8) -> bool {
        let found = self.rest().as_bytes().first() == Some(&byte);
        self.at += usize::from(found);
        found
    }

    /// Returns an error at a byte offset, quoting the token there.
    fn error(&self, at: usize, field: Field, expected: Expected) -> ParseError {
        let rest = self.text.get(at..).unwrap_or_default();
        let found = rest.split_whitespace().next().map(|token| {
            let end = (0..=QUOTED).rev().find(|end| token.is_char_boundary(*end));
            match token.get(..end.unwrap_or(0)) {
                Some(short) if token.len() > QUOTED => format!("{short:?}..."),
                _ => format!("{token:?}"),
            }
        });
        ParseError {
            line: self.number,
            column: at + 1,
            field,
            expected,
            found: Found(found),
        }
    }

    /// Parses `address/length`. Host bits are dropped.
    fn prefix(&mut self, field: Field) -> Result<IpNet, ParseError> {
        self.skip_blanks();
        let begin = self.at;
        let prefix_error = |line: &Self| line.error(begin, field, Expected::Prefix);
        let (address, length) = self.token().split_once('/').ok_or_else(|| prefix_error(self))?;
        let address: IpAddr = address.parse().map_err(|_| prefix_error(self))?;
        let length = decimal(length)
            .and_then(|length| IpNet::new(address, length).ok())
            .ok_or_else(|| self.error(begin, field, Expected::PrefixLength))?;
        Ok(length.trunc())
    }

    /// Parses `first : last`.
    fn ports(&mut self, field: Field) -> Result<RangeInclusive<u16>, ParseError> {
        let (first, _) = self.port(field)?;
        self.skip_blanks();
        if !self.take_byte(b':') {
            return Err(self.error(self.at, field, Expected::Colon));
        }
        let (last, at) = self.port(field)?;
        match first <= last {
            true => Ok(first..=last),
            false => Err(self.error(at, field, Expected::RangeEnd)),
        }
    }

    /// Parses a port. Returns it with its start offset.
    fn port(&mut self, field: Field) -> Result<(u16, usize), ParseError> {
        self.skip_blanks();
        let begin = self.at;
        let port = decimal(self.take_until(Some(':')));
        let port = port.ok_or_else(|| self.error(begin, field, Expected::Port))?;
        Ok((port, begin))
    }

    /// Parses `0xPP/0xMM`.
    fn protocol(&mut self) -> Result<Option<u8>, ParseError> {
        self.skip_blanks();
        let begin = self.at;
        let parsed = self.token().split_once('/');
        let parsed = parsed.and_then(|(value, mask)| Some((hexadecimal(value)?, hexadecimal(mask)?)));
        match parsed {
            Some((protocol, 0xff)) => Ok(Some(protocol)),
            Some((_, 0)) => Ok(None),
            Some(_) => Err(self.error(begin, Field::Protocol, Expected::ProtocolMask)),
            None => Err(self.error(begin, Field::Protocol, Expected::Protocol)),
        }
    }

    /// Parses a decimal number.
    fn number<T: std::str::FromStr>(&mut self, field: Field, expected: Expected) -> Result<T, ParseError> {
        self.skip_blanks();
        let begin = self.at;
        decimal(self.token()).ok_or_else(|| self.error(begin, field, expected))
    }

    /// Checks that nothing but blanks remains.
    fn end(&mut self) -> Result<(), ParseError> {
        self.skip_blanks();
        match self.rest() {
            "" => Ok(()),
            _ => Err(self.error(self.at, Field::Line, Expected::EndOfLine)),
        }
    }
}

/// Parses digits only. The standard parser would also accept a sign.
fn decimal<T: std::str::FromStr>(text: &str) -> Option<T> {
    match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse().ok(),
        false => None,
    }
}

/// Parses `0xHH`.
fn hexadecimal(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("0x").or(text.strip_prefix("0X"))?;
    match digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => u8::from_str_radix(digits, 16).ok(),
        false => None,
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Field::Source => "source",
            Field::Destination => "destination",
            Field::SourcePorts => "source ports",
            Field::DestinationPorts => "destination ports",
            Field::Protocol => "protocol",
            Field::Flags => "flags",
            Field::RuleNumber => "rule number",
            Field::Line => "line",
        })
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expected::At => f.write_str("\"@\" before the source prefix"),
            Expected::Prefix => f.write_str("address/length"),
            Expected::PrefixLength => f.write_str("a length of at most 32 (IPv6: 128) bits"),
            Expected::SameVersion => f.write_str("the source's IP version"),
            Expected::Port => f.write_str("a port, 0 to 65535"),
            Expected::Colon => f.write_str("\":\" between first and last port"),
            Expected::RangeEnd => f.write_str("a last port not below the first"),
            Expected::Protocol => f.write_str("protocol/mask, such as 0x06/0xFF"),
            Expected::ProtocolMask => f.write_str("mask 0xFF (this protocol) or 0x00 (any)"),
            Expected::EndOfLine => f.write_str("the end of the line"),
            Expected::Utf8 => f.write_str("text in UTF-8"),
            Expected::EndOfRules => write!(f, "at most {MAX_RULES} rules"),
            Expected::AddressNumber => f.write_str("an IPv4 address as a decimal number"),
            Expected::ProtocolNumber => f.write_str("a protocol, 0 to 255"),
            Expected::Number => f.write_str("a decimal number"),
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_deref().unwrap_or("nothing"))
    }
}

#[cfg(test)]
mod tests;
