//! Parser of rule headers: action, protocol, addresses and ports, with variables.

use super::problem::{Problem, nearest, quoted};
use crate::address::{AddressSet, PortSet, Set};
use crate::interval::Intervals;
use crate::rule::{Action, App, Header, Protocol};
use ipnet::IpNet;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Largest nesting depth of lists and variables.
const DEPTH: usize = 16;

/// Rule variables by name, without dollar sign. Values are address or port lists in rule syntax.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variables(BTreeMap<String, String>);

/// Default values, those of Suricata's configuration.
const DEFAULTS: [(&str, &str); 20] = [
    ("HOME_NET", "[192.168.0.0/16,10.0.0.0/8,172.16.0.0/12]"),
    ("EXTERNAL_NET", "!$HOME_NET"),
    ("HTTP_SERVERS", "$HOME_NET"),
    ("SMTP_SERVERS", "$HOME_NET"),
    ("SQL_SERVERS", "$HOME_NET"),
    ("DNS_SERVERS", "$HOME_NET"),
    ("TELNET_SERVERS", "$HOME_NET"),
    ("AIM_SERVERS", "$EXTERNAL_NET"),
    ("DC_SERVERS", "$HOME_NET"),
    ("DNP3_SERVER", "$HOME_NET"),
    ("MODBUS_SERVER", "$HOME_NET"),
    ("ENIP_SERVER", "$HOME_NET"),
    ("HTTP_PORTS", "80"),
    ("SHELLCODE_PORTS", "!80"),
    ("ORACLE_PORTS", "1521"),
    ("SSH_PORTS", "22"),
    ("DNP3_PORTS", "20000"),
    ("MODBUS_PORTS", "502"),
    ("FTP_PORTS", "21"),
    ("FILE_DATA_PORTS", "[$HTTP_PORTS,110,143]"),
];

impl Default for Variables {
    fn default() -> Variables {
        let pairs = DEFAULTS.iter();
        Variables(
            pairs
                .map(|&(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        )
    }
}

impl Variables {
    /// Sets a variable.
    pub fn set(&mut self, name: &str, value: &str) {
        self.0.insert(name.to_owned(), value.to_owned());
    }
}

/// Variable that is neither an address list nor a port list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongVariable {
    /// Name of the variable.
    pub name: String,
    /// Error message.
    pub message: String,
}

impl fmt::Display for WrongVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.message)
    }
}

/// Cache of parsed sets, so that each exists once.
#[derive(Debug)]
pub(super) struct Sets {
    variables: Variables,
    addresses: HashMap<String, Arc<AddressSet>>,
    ports: HashMap<String, Arc<PortSet>>,
}

impl Sets {
    pub(super) fn new(variables: &Variables) -> Result<Sets, WrongVariable> {
        // Variables without references come first, since their errors recur in all variables that refer to them.
        let (naming, plain): (Vec<_>, Vec<_>) = variables.0.iter().partition(|(_, value)| value.contains('$'));
        for (name, value) in plain.into_iter().chain(naming) {
            let ports = list(value, &variables.0, &port, DEPTH);
            // The uses of a variable determine its kind.
            if let (Err(_), Err(message)) = (ports, list(value, &variables.0, &address, DEPTH)) {
                return Err(WrongVariable {
                    name: name.clone(),
                    message,
                });
            }
        }
        Ok(Sets {
            variables: variables.clone(),
            addresses: HashMap::new(),
            ports: HashMap::new(),
        })
    }

    fn addresses(&mut self, text: &str) -> Result<Arc<AddressSet>, String> {
        if let Some(known) = self.addresses.get(text) {
            return Ok(Arc::clone(known));
        }
        let set = Arc::new(list(text, &self.variables.0, &address, DEPTH)?);
        self.addresses.insert(text.to_owned(), Arc::clone(&set));
        Ok(set)
    }

    fn ports(&mut self, text: &str) -> Result<Arc<PortSet>, String> {
        if let Some(known) = self.ports.get(text) {
            return Ok(Arc::clone(known));
        }
        let set = Arc::new(list(text, &self.variables.0, &port, DEPTH)?);
        self.ports.insert(text.to_owned(), Arc::clone(&set));
        Ok(set)
    }
}

/// Parses a prefix, an address or an address range.
fn address(text: &str) -> Result<AddressSet, String> {
    let wrong = || {
        format!(
            "expected an address, a prefix, a range of addresses or a variable, found {}",
            quoted(text)
        )
    };
    let (first, last): (IpAddr, IpAddr) = if let Ok(address) = text.parse::<IpAddr>() {
        (address, address)
    } else if let Ok(prefix) = text.parse::<IpNet>() {
        (prefix.network(), prefix.broadcast())
    } else {
        let (first, last) = text.split_once('-').ok_or_else(wrong)?;
        let address = |text: &str| text.trim().parse().map_err(|_| wrong());
        (address(first)?, address(last)?)
    };
    let mut set = AddressSet::none();
    match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) if first <= last => {
            set.v4 = Intervals::from_to(first.to_bits(), last.to_bits());
        }
        (IpAddr::V6(first), IpAddr::V6(last)) if first <= last => {
            set.v6 = Intervals::from_to(first.to_bits(), last.to_bits());
        }
        _ => return Err(wrong()),
    }
    Ok(set)
}

/// Parses a port or a port range.
fn port(text: &str) -> Result<PortSet, String> {
    let wrong = || {
        format!(
            "expected a port, a range of ports (1024:2048, 1024:, :1023) or a variable, found {}",
            quoted(text)
        )
    };
    let port = |text: &str, default| match text.trim() {
        "" => Ok(default),
        text => text.parse::<u16>().map_err(|_| wrong()),
    };
    let (first, last) = match text.split_once(':') {
        Some((first, last)) => (port(first, 0)?, port(last, u16::MAX)?),
        None if text.is_empty() => return Err(wrong()),
        None => {
            let one = port(text, 0)?;
            (one, one)
        }
    };
    match first <= last {
        true => Ok(Intervals::from_to(first, last)),
        false => Err(wrong()),
    }
}

/// Parses a list: comma-separated items in brackets, each optionally negated, or one item. If all items are negated,
/// the result is everything except those.
fn list<S: Set>(
    text: &str,
    variables: &BTreeMap<String, String>,
    item: &impl Fn(&str) -> Result<S, String>,
    depth: usize,
) -> Result<S, String> {
    let text = text.trim();
    let Some(deeper) = depth.checked_sub(1) else {
        return Err(format!(
            "expected at most {DEPTH} levels of lists and variables, found more, or a variable that refers to itself"
        ));
    };
    if let Some(rest) = text.strip_prefix('!') {
        let mut set = S::all();
        set.remove(&list(rest, variables, item, deeper)?);
        return Ok(set);
    }
    if text.eq_ignore_ascii_case("any") {
        return Ok(S::all());
    }
    if let Some(name) = text.strip_prefix('$') {
        let Some(value) = variables.get(name) else {
            let near = nearest(name, variables.keys().map(String::as_str));
            let near = near.map_or(String::new(), |near| format!("; did you mean \"${near}\"?"));
            return Err(format!("unknown variable {}{near}", quoted(text)));
        };
        return list(value, variables, item, deeper);
    }
    let Some(inside) = text.strip_prefix('[') else {
        return item(text);
    };
    let Some(inside) = inside.strip_suffix(']') else {
        return Err(format!("expected a list in brackets, found {}", quoted(text)));
    };
    let (mut with, mut without) = (None::<S>, S::none());
    for part in parts(inside) {
        match part.trim().strip_prefix('!') {
            Some(part) => without.add(&list(part, variables, item, deeper)?),
            None => {
                let set = list(part, variables, item, deeper)?;
                with.get_or_insert_with(S::none).add(&set);
            }
        }
    }
    let mut set = with.unwrap_or_else(S::all);
    set.remove(&without);
    Ok(set)
}

/// Splits a list at the commas outside inner lists.
fn parts(inside: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0usize;
    inside.split(move |character| {
        match character {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == ',' && depth == 0
    })
}

/// Splits a header into words with their offsets. Bracketed lists may contain spaces.
fn words(text: &str) -> Vec<(usize, &str)> {
    let (mut words, mut start, mut depth) = (Vec::new(), None, 0usize);
    for (i, byte) in text.bytes().enumerate() {
        match byte {
            b'[' => depth += 1,
            b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if byte.is_ascii_whitespace() && depth == 0 {
            if let Some(start) = start.take() {
                words.push((start, &text[start..i]));
            }
        } else if start.is_none() {
            start = Some(i);
        }
    }
    words.extend(start.map(|start| (start, &text[start..])));
    words
}

const ACTIONS: [(&str, Action); 6] = [
    ("alert", Action::Alert),
    ("drop", Action::Drop),
    ("reject", Action::Reject),
    ("rejectsrc", Action::Reject),
    ("rejectdst", Action::Reject),
    ("pass", Action::Pass),
];

const PROTOCOLS: [(&str, Protocol); 8] = [
    ("ip", Protocol::Ip),
    ("tcp", Protocol::Tcp),
    ("tcp-pkt", Protocol::TcpPacket),
    ("udp", Protocol::Udp),
    ("icmp", Protocol::Icmp),
    ("pkthdr", Protocol::Ip),
    ("dns", Protocol::App(App::Dns)),
    ("http", Protocol::App(App::Http)),
];

/// Parses the header.
pub(super) fn parse(text: &str, sets: &mut Sets) -> Result<Header, Problem> {
    let words = words(text);
    let [
        action,
        protocol,
        source,
        source_ports,
        arrow,
        destination,
        destination_ports,
    ] = words[..]
    else {
        return Err(Problem::wrong(format!(
            "expected action, protocol, addresses, ports, -> or <>, addresses and ports, found {} words",
            words.len()
        )));
    };
    let name = |(at, word): (usize, &str), names: &mut dyn Iterator<Item = &'static str>| {
        let names: Vec<_> = names.collect();
        Problem::Wrong {
            at,
            message: format!("expected one of {}, found {}", names.join(", "), quoted(word)),
            suggestion: nearest(word, names.into_iter()),
        }
    };
    let known = ACTIONS.iter().find(|(name, _)| *name == action.1);
    let Some((_, action)) = known else {
        return Err(name(action, &mut ACTIONS.iter().map(|(name, _)| *name)));
    };
    let known = PROTOCOLS.iter().find(|(name, _)| *name == protocol.1);
    let app = App::NAMES.iter().find(|(name, _)| *name == protocol.1);
    let protocol = match (known, app) {
        (Some((_, protocol)), _) => *protocol,
        (None, Some((_, app))) => Protocol::App(*app),
        (None, None) if UNSUPPORTED.contains(&protocol.1) => {
            return Err(Problem::unsupported(format!("protocol {}", protocol.1)));
        }
        (None, None) => {
            let names = PROTOCOLS.iter().map(|(name, _)| *name);
            let apps = App::NAMES.iter().map(|(name, _)| *name);
            return Err(name(
                protocol,
                &mut names.chain(apps.filter(|n| !["dns", "http"].contains(n))),
            ));
        }
    };
    let both_ways = match arrow.1 {
        "->" => false,
        "<>" => true,
        _ => {
            return Err(Problem::at(
                arrow.0,
                format!("expected -> or <>, found {}", quoted(arrow.1)),
            ));
        }
    };
    let mut addresses = |(at, word): (usize, &str)| {
        let set = sets.addresses(word).map_err(|message| Problem::at(at, message))?;
        match set.v4.is_none() && set.v6.is_none() {
            true => Err(Problem::at(at, format!("{} matches no address", quoted(word)))),
            false => Ok(set),
        }
    };
    let (source, destination) = (addresses(source)?, addresses(destination)?);
    let mut ports = |(at, word): (usize, &str)| {
        let set = sets.ports(word).map_err(|message| Problem::at(at, message))?;
        match set.is_none() {
            true => Err(Problem::at(at, format!("{} matches no port", quoted(word)))),
            false => Ok(set),
        }
    };
    Ok(Header {
        action: *action,
        protocol,
        source,
        source_ports: ports(source_ports)?,
        both_ways,
        destination,
        destination_ports: ports(destination_ports)?,
    })
}

/// Protocols supported by Suricata but not here.
const UNSUPPORTED: [&str; 21] = [
    "ftp-data",
    "nfs",
    "tftp",
    "ntp",
    "dhcp",
    "krb5",
    "ikev2",
    "ike",
    "snmp",
    "sip",
    "rfb",
    "mqtt",
    "rdp",
    "modbus",
    "dnp3",
    "enip",
    "quic",
    "telnet",
    "pgsql",
    "tcp-stream",
    "sctp",
];
