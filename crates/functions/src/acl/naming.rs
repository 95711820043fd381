//! Rules as explanations name them: number, line of the file, and text.

use super::Rule;
use ipnet::IpNet;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;
use tailwater_chain::function::Explanation;
use tailwater_net::protocol;

/// Conditions of a 5-tuple rule as text, such as `tcp 10.0.0.0/8 > any port 443`.
pub(crate) struct Conditions<'r>(pub(crate) &'r Rule);

impl fmt::Display for Conditions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.protocol {
            None => f.write_str("any")?,
            Some(protocol::ICMP) => f.write_str("icmp")?,
            Some(protocol::TCP) => f.write_str("tcp")?,
            Some(protocol::UDP) => f.write_str("udp")?,
            Some(protocol::ICMPV6) => f.write_str("icmp6")?,
            Some(other) => write!(f, "protocol {other}")?,
        }
        let end = |f: &mut fmt::Formatter<'_>, prefix: &Option<IpNet>, ports: &RangeInclusive<u16>| {
            match prefix {
                None => f.write_str("any")?,
                Some(prefix) => write!(f, "{prefix}")?,
            }
            match (*ports.start(), *ports.end()) {
                (0, u16::MAX) => Ok(()),
                (first, last) if first == last => write!(f, " port {first}"),
                (first, last) => write!(f, " ports {first}-{last}"),
            }
        };
        f.write_str(" ")?;
        end(f, &self.0.source, &self.0.source_ports)?;
        f.write_str(" > ")?;
        end(f, &self.0.destination, &self.0.destination_ports)
    }
}

/// Origin of a list of rules: the file, if they come from one, and each rule's line in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleOrigin {
    file: Option<Box<str>>,
    lines: Box<[u32]>,
}

/// Name of a rules file in explanations, without its directories: they are short.
pub(crate) fn file_name(file: &Path) -> Box<str> {
    let name = file.file_name().unwrap_or(file.as_os_str());
    name.to_string_lossy().into()
}

impl RuleOrigin {
    /// Origin of rules from `file`, each with its line, or from the spec if there is no file.
    pub(crate) fn new(file: Option<&Path>, lines: impl IntoIterator<Item = u32>) -> RuleOrigin {
        let file = file.map(file_name);
        RuleOrigin {
            lines: match &file {
                Some(_) => lines.into_iter().collect(),
                None => Box::default(),
            },
            file,
        }
    }

    /// Appends `rule N`, and the line and file of the rule at this index.
    pub(crate) fn name(&self, rule: u32, text: &mut Explanation) {
        text.add_part(format_args!("rule {}", rule + 1));
        if let (Some(file), Some(line)) = (&self.file, self.lines.get(rule as usize)) {
            text.add(format_args!(" ({file}:{line})"));
        }
    }
}
