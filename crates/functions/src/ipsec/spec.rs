//! Configuration of `ipsec`.

use crate::acl::rule_list::conditions;
use crate::acl::{Action, Rule};
use crate::ipsec::fields::{ALLOWED, FIELDS, INBOUND, OUTBOUND, POLICY, UDP_PORTS};
use crate::ipsec::{
    Association, Cipher, DontFragment, Inbound, IpsecRules, Keying, MAX_ASSOCIATIONS, MAX_POLICIES, MAX_WINDOW,
    Outbound, Policy, PolicyAction, UdpPorts, WINDOW,
};
use crate::kind::Context;
use crate::policer::code_point;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::Path;
use tailwater_api::error::{SpecError, nearest, quoted};
use tailwater_api::files::read_text;
use tailwater_api::located::{Fields, Located, digits};
use tailwater_api::values::{PacketAction, label};

const ADDRESS: &str = "an IP address such as 192.0.2.1 or 2001:db8::1";
const SPI: &str = "an index from 256 to 4294967295, such as 4097 or 0x1001";
/// UDP port of encapsulated ESP (RFC 3948).
const PORT: u16 = 4500;
/// Words that a policy can use instead of the name of an association.
const FATES: [(&str, PolicyAction); 2] = [("pass", PolicyAction::Pass), ("drop", PolicyAction::Drop)];

/// ESP tunnels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpsecConfig {
    /// Complete configuration.
    pub rules: IpsecRules,
    /// Warnings about dangerous but valid settings.
    pub warnings: Vec<String>,
}

impl IpsecConfig {
    pub(super) fn parse(node: &Located<'_>, context: &Context<'_>) -> Result<Self, SpecError> {
        if cfg!(not(feature = "ipsec")) {
            let without = "this program was built without the feature `ipsec`; `make build` builds one with it";
            return Err(node.error(without));
        }
        let fields = node.fields_of(&FIELDS)?;
        let mut parsing = Parsing {
            context,
            names: HashMap::new(),
            keys: HashMap::new(),
            warnings: Vec::new(),
        };
        let list = |name, what, most| match fields.optional(name) {
            None => Ok(Vec::new()),
            Some(node) => node.list(what, most),
        };
        let outbound = list("outbound", "associations", MAX_ASSOCIATIONS)?;
        let outbound: Vec<Outbound> = parsing.each(&outbound, Parsing::outbound)?;
        let nodes = list("inbound", "associations", MAX_ASSOCIATIONS)?;
        let inbound: Vec<Inbound> = parsing.each(&nodes, Parsing::inbound)?;
        if outbound.is_empty() && inbound.is_empty() {
            return Err(fields.error("expected outbound or inbound associations, found neither"));
        }
        let mut indices = HashMap::new();
        for (node, inbound) in nodes.iter().zip(&inbound) {
            if let Some(other) = indices.insert(inbound.association.spi, &inbound.association.name) {
                let message = format!("expected a unique spi for each inbound association, found the one of {other}");
                return Err(node.error(message));
            }
        }
        let places: HashMap<&str, u32> = (0..)
            .zip(&outbound)
            .map(|(place, outbound)| (&*outbound.association.name, place))
            .collect();
        let nodes = list("policies", "policies", MAX_POLICIES)?;
        let policies = nodes
            .iter()
            .map(|node| policy(node, &places))
            .collect::<Result<Vec<_>, _>>()?;
        let named: HashSet<PolicyAction> = policies.iter().map(|policy| policy.action).collect();
        let mut numbered = (0..).zip(&outbound);
        if let Some((_, idle)) = numbered.find(|(place, _)| !named.contains(&PolicyAction::Protect(*place))) {
            let message = format!("expected a policy with protect: {}, found none", idle.association.name);
            return Err(fields.error(message));
        }
        let fate = |name, default| {
            let node = fields.optional(name);
            node.map_or(Ok(default), |node| PacketAction::parse(&node))
        };
        let rules = IpsecRules {
            default: match fate("default", PacketAction::Drop)? {
                PacketAction::Drop => PolicyAction::Drop,
                PacketAction::Pass => PolicyAction::Pass,
            },
            mtu: match fields.optional("mtu") {
                None => 1500,
                Some(node) => node.whole(576..=65_535)? as u16,
            },
            pass_ike: fate("ike", PacketAction::Pass)? == PacketAction::Pass,
            pass_keep_alives: fate("keepAlives", PacketAction::Drop)? == PacketAction::Pass,
            outbound,
            inbound,
            policies,
        };
        Ok(IpsecConfig {
            rules,
            warnings: parsing.warnings,
        })
    }
}

/// State while associations are read.
struct Parsing<'a> {
    context: &'a Context<'a>,
    /// Names so far, with their field paths.
    names: HashMap<String, String>,
    /// Keys so far, with the names of their associations.
    keys: HashMap<Vec<u8>, String>,
    warnings: Vec<String>,
}

impl Parsing<'_> {
    fn each<T>(
        &mut self,
        nodes: &[Located<'_>],
        parse: impl Fn(&mut Self, &Located<'_>) -> Result<T, SpecError>,
    ) -> Result<Vec<T>, SpecError> {
        nodes.iter().map(|node| parse(self, node)).collect()
    }

    fn outbound(&mut self, node: &Located<'_>) -> Result<Outbound, SpecError> {
        let fields = node.fields_of(&OUTBOUND)?;
        let association = self.association(&fields)?;
        let source = address(&fields.required("source", ADDRESS)?)?;
        let node = fields.required("destination", ADDRESS)?;
        let destination = address(&node)?;
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(node.error("expected source and destination of one IP version, found both versions"));
        }
        let first = first_sequence(&fields, association.extended)?;
        Ok(Outbound {
            source,
            destination,
            udp: match fields.optional("udp") {
                None => None,
                Some(node) => udp_ports(&node)?,
            },
            ttl: match fields.optional("ttl") {
                None => 64,
                Some(node) => node.whole(1..=255)? as u8,
            },
            dscp: match fields.optional("dscp") {
                Some(node) if node.text("")? != "copy" => Some(code_point(&node)?),
                _ => None,
            },
            dont_fragment: match fields.optional("df") {
                None => DontFragment::Copy,
                Some(node) => node.word(&[
                    ("copy", DontFragment::Copy),
                    ("set", DontFragment::Set),
                    ("clear", DontFragment::Clear),
                ])?,
            },
            first,
            association,
        })
    }

    fn inbound(&mut self, node: &Located<'_>) -> Result<Inbound, SpecError> {
        let fields = node.fields_of(&INBOUND)?;
        let association = self.association(&fields)?;
        let first = first_sequence(&fields, association.extended)?;
        let window = match fields.optional("replayWindow") {
            None => Some(WINDOW),
            Some(node) if node.text("").is_ok_and(|text| text == "none") => {
                if association.extended {
                    return Err(node.error(
                        "expected a window with esn: true, found none: the window supplies the upper half of the \
                         sequence number",
                    ));
                }
                None
            }
            Some(node) => match node.whole(32..=MAX_WINDOW.into()) {
                Ok(size) => Some(size as u32),
                Err(_) => {
                    return Err(node.expected(&format!("a whole number from 32 to {MAX_WINDOW}, or none")));
                }
            },
        };
        let allow = match fields.optional("allow") {
            None => Vec::new(),
            Some(node) => node.list("prefixes", MAX_POLICIES)?,
        };
        Ok(Inbound {
            association,
            destination: address(&fields.required("destination", ADDRESS)?)?,
            udp: match fields.optional("udp") {
                None => None,
                Some(node) => udp_port(&node)?,
            },
            window,
            first,
            allow: allow.iter().map(allowed).collect::<Result<_, _>>()?,
        })
    }

    fn association(&mut self, fields: &Fields<'_>) -> Result<Association, SpecError> {
        let node = fields.required("name", "a name of lower-case letters, digits and inner dashes")?;
        let name = label(&node)?;
        if let Some(place) = self.names.insert(name.clone(), node.path()) {
            return Err(node.error(format!(
                "expected a unique name for each association, found {name} as in {place}"
            )));
        }
        let spi = spi(&fields.required("spi", SPI)?)?;
        let cipher = fields.required("cipher", "a cipher such as aes-128-gcm")?.word(&[
            ("aes-128-gcm", Cipher::Aes128Gcm),
            ("aes-256-gcm", Cipher::Aes256Gcm),
            ("chacha20-poly1305", Cipher::ChaCha20Poly1305),
        ])?;
        let (keying, node) = self.keying(fields, cipher)?;
        // With one key for two senders or for both directions, a nonce would be used twice.
        if let Some(other) = self.keys.insert(keying.secret().to_vec(), name.clone()) {
            return Err(node.error(format!(
                "expected a unique key for each association, found that of {other}"
            )));
        }
        let extended = match fields.optional("esn") {
            None => false,
            Some(node) => node.word(&[("true", true), ("false", false)])?,
        };
        Ok(Association {
            name,
            spi,
            keying,
            extended,
        })
    }

    /// Reads a key, and returns its node. No error quotes the invalid text, which may resemble the key.
    fn keying<'b>(&mut self, fields: &Fields<'b>, cipher: Cipher) -> Result<(Keying, Located<'b>), SpecError> {
        let digits = 2 * cipher.keying_bytes();
        let what = format!("{digits} hexadecimal digits (the key, then 4 bytes of salt)");
        let key = |text: &str| hexadecimal(text).and_then(|bytes| Keying::new(cipher, bytes));
        match (fields.optional("key"), fields.optional("keyFile")) {
            (Some(_), Some(file)) => Err(file.error("expected either key or keyFile, found both")),
            (None, None) => Err(fields.error("expected either key or keyFile, found neither")),
            (Some(node), None) => {
                let text = node.text(&what)?;
                match key(text) {
                    Some(keying) => Ok((keying, node)),
                    None => {
                        let found = text.chars().count();
                        Err(node.error(format!("expected {what}, found {found} characters")))
                    }
                }
            }
            (None, Some(node)) => {
                let path = self.context.file(node.string("the name of a file")?);
                let name = path.display().to_string();
                let text = read_text(&path, &name).map_err(|error| node.error(format!("{name} {}", error.message)))?;
                let keying = key(text.trim());
                let keying =
                    keying.ok_or_else(|| node.error(format!("{name}: expected {what}, found other content")))?;
                self.warnings.extend(readable_by_all(&path));
                Ok((keying, node))
            }
        }
    }
}

/// Warning about a key file that is readable by all users of this machine.
fn readable_by_all(path: &Path) -> Option<String> {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(path).ok()?.permissions().mode() & 0o777;
    let name = path.display();
    (mode & 0o004 != 0).then(|| format!("all users can read the key in {name} (mode {mode:03o}): chmod 600 {name}"))
}

fn policy(node: &Located<'_>, places: &HashMap<&str, u32>) -> Result<Policy, SpecError> {
    let fields = node.fields_of(&POLICY)?;
    let action = match (fields.optional("protect"), fields.optional("action")) {
        (Some(_), Some(action)) => {
            return Err(action.error("expected either protect or action, found both"));
        }
        (None, None) => {
            return Err(fields.error("expected either protect or action, found neither"));
        }
        (None, Some(node)) => node.word(&FATES)?,
        (Some(node), None) => {
            let name = node.text("the name of an outbound association")?;
            let place = places.get(name).ok_or_else(|| {
                let message = format!("expected the name of an outbound association, found {}", quoted(name));
                node.error(message).suggest(nearest(name, places.keys().copied()))
            })?;
            PolicyAction::Protect(*place)
        }
    };
    Ok(Policy {
        rule: conditions(node, &fields, Action::Allow)?,
        action,
    })
}

fn allowed(node: &Located<'_>) -> Result<Rule, SpecError> {
    let fields = node.fields_of(&ALLOWED)?;
    conditions(node, &fields, Action::Allow)
}

fn address(node: &Located<'_>) -> Result<IpAddr, SpecError> {
    let text = node.text(ADDRESS)?;
    text.parse().map_err(|_| node.expected(ADDRESS))
}

/// Parses an SPI, decimal or hexadecimal with `0x`. Values 1 to 255 are reserved, and 0 has another meaning.
fn spi(node: &Located<'_>) -> Result<u32, SpecError> {
    let text = node.text(SPI)?;
    let number = match text.strip_prefix("0x") {
        Some(text) if text.bytes().all(|digit| digit.is_ascii_hexdigit()) => u64::from_str_radix(text, 16).ok(),
        Some(_) => None,
        None => digits(text),
    };
    let number = number.and_then(|number| u32::try_from(number).ok());
    number.filter(|number| *number >= 256).ok_or_else(|| node.expected(SPI))
}

/// Parses the first packet's sequence number. Extended numbers start far enough from the end of 64 bits never to wrap.
fn first_sequence(fields: &Fields<'_>, extended: bool) -> Result<u64, SpecError> {
    let last = if extended { u64::MAX >> 1 } else { u32::MAX.into() };
    fields
        .optional("firstSequence")
        .map_or(Ok(1), |node| node.whole(1..=last))
}

/// Parses `true` for the standard ports, `false`, or a map of both.
fn udp_ports(node: &Located<'_>) -> Result<Option<UdpPorts>, SpecError> {
    if !node.is_map() {
        let usual = UdpPorts {
            source: PORT,
            destination: PORT,
        };
        return node.word(&[("true", Some(usual)), ("false", None)]);
    }
    let fields = node.fields_of(&UDP_PORTS)?;
    let port = |name| match fields.optional(name) {
        None => Ok(PORT),
        Some(node) => node.whole(1..=65_535).map(|port| port as u16),
    };
    Ok(Some(UdpPorts {
        source: port("source")?,
        destination: port("destination")?,
    }))
}

/// Parses `true` for the standard port, `false`, or a port.
fn udp_port(node: &Located<'_>) -> Result<Option<u16>, SpecError> {
    if let Ok(usual) = node.word(&[("true", Some(PORT)), ("false", None)]) {
        return Ok(usual);
    }
    match node.whole(1..=65_535) {
        Ok(port) => Ok(Some(port as u16)),
        Err(_) => Err(node.expected("true, false or a port from 1 to 65535")),
    }
}

/// Parses hexadecimal digits into bytes, with an optional `0x` prefix.
fn hexadecimal(text: &str) -> Option<Vec<u8>> {
    let text = text.strip_prefix("0x").unwrap_or(text);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let bytes = pairs
        .iter()
        .map(|[high, low]| Some((digit(*high)? * 16 + digit(*low)?) as u8));
    if rest.is_empty() { bytes.collect() } else { None }
}
