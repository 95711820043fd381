//! Configuration of `upf`.

use super::fields::{BURST, CAPACITY, FIELDS, MAX_INLINE, PROFILE, RATES, RULE, TIME, USAGE};
use crate::accounting::{self, ExportConfig};
use crate::ipsec::DontFragment;
use crate::kind::{Context, allows_empty, check_not_empty};
use crate::policer::{Meter, Rate, code_point};
use crate::upf::language::{self, Names};
use crate::upf::{
    MAX_ADDRESSES, MAX_PROFILES, MAX_RATES, MAX_RULES, MAX_SESSIONS, Options, Profile, Role, Rule, Session, Treatment,
    parse_flows,
};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tailwater_api::document::is_label;
use tailwater_api::error::{SpecError, quoted};
use tailwater_api::files::read_text_up_to;
use tailwater_api::located::{Fields, Located};
use tailwater_api::values::{PacketAction, Throughput, duration, throughput};

const ADDRESS: &str = "an IP address such as 192.0.2.1 or 2001:db8::1";
/// Maximum size of a sessions file in bytes.
const MAX_FILE: usize = 1 << 30;

/// User plane of a mobile network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpfConfig {
    /// General options.
    pub options: Options,
    /// Treatment profiles of sessions.
    pub profiles: Arc<[Profile]>,
    /// Initial sessions.
    pub sessions: Arc<[Session]>,
    /// Output of usage reports, if any.
    pub usage: Option<ExportConfig>,
    /// Socket of the sessions API, if any. Relative to the folder that the program runs in.
    pub api: Option<PathBuf>,
}

impl UpfConfig {
    pub(super) fn parse(node: &Located<'_>, context: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_of(&FIELDS)?;
        let options = options(&fields)?;
        let usage = fields.optional("usage");
        let usage = usage.map(|node| accounting::export(&node)).transpose()?;
        let profiles = fields.required("profiles", "a map of profiles")?;
        let profiles = profiles_of(&profiles, usage.is_some())?;
        let names = Names {
            profiles: (0..)
                .zip(&profiles)
                .map(|(place, profile)| (profile.name.clone(), place))
                .collect(),
            versions: [true, false].map(|v4| options.addresses.iter().any(|a| a.is_ipv4() == v4)),
        };
        let allow_empty = allows_empty(&fields, "sessionsFile")?;
        let api = fields.optional("api");
        let api = api.map(|node| node.string("the name of a socket"));
        let api = api.transpose()?.map(PathBuf::from);
        let given = (fields.optional("sessions"), fields.optional("sessionsFile"));
        let sessions = match given {
            (Some(_), Some(file)) => {
                return Err(file.error("expected either sessions or sessionsFile, found both"));
            }
            (None, None) if api.is_none() => {
                let message = "expected sessions, sessionsFile or api, found none of them";
                return Err(fields.error(message));
            }
            (None, None) => Vec::new(),
            (Some(list), None) => inline(&list, &names, options.capacity)?,
            (None, Some(file)) => {
                let path = context.file(file.string("the name of a file")?);
                let sessions = read(&path, &names, options.capacity).map_err(|error| {
                    match error.path.is_empty() && error.line == 0 && error.next.is_none() {
                        // The file does not exist: the error is in the spec.
                        true => file.error(format!("{} {}", error.file, error.message)),
                        false => error,
                    }
                })?;
                if !allow_empty {
                    check_not_empty(&path.display().to_string(), "session", sessions.len())?;
                }
                sessions
            }
        };
        Ok(UpfConfig {
            options,
            profiles: profiles.into(),
            sessions: sessions.into(),
            usage,
            api,
        })
    }
}

fn options(fields: &Fields<'_>) -> Result<Options, SpecError> {
    let addresses = fields.required("addresses", "a list of local IP addresses")?;
    let addresses = addresses.list("IP addresses", MAX_ADDRESSES)?;
    let addresses: Vec<IpAddr> = addresses.iter().map(host).collect::<Result<_, _>>()?;
    let mut error_sources = [None; 2];
    if let Some(node) = fields.optional("errorSources") {
        for node in node.list("IP addresses, at most one of each version", 2)? {
            let address = host(&node)?;
            let source = &mut error_sources[usize::from(address.is_ipv6())];
            if source.replace(address).is_some() {
                return Err(node.error("expected one address of each IP version, found a second"));
            }
        }
    }
    let word = |name, usual, words: &[(&str, bool)]| match fields.optional(name) {
        None => Ok(usual),
        Some(node) => node.word(words),
    };
    let whole = |name, usual, range| match fields.optional(name) {
        None => Ok(usual),
        Some(node) => node.whole(range),
    };
    Ok(Options {
        role: match fields.optional("role") {
            None => Role::Core,
            Some(node) => node.word(&[("core", Role::Core), ("access", Role::Access)])?,
        },
        addresses,
        capacity: whole("capacity", CAPACITY as u64, 1..=MAX_SESSIONS as u64)? as usize,
        mtu: whole("mtu", 1500, 576..=65_535)? as u16,
        error_sources,
        others: match fields.optional("default") {
            None => PacketAction::Drop,
            Some(node) => PacketAction::parse(&node)?,
        },
        check_qfi: word("qfi", false, &[("check", true), ("ignore", false)])?,
        flow_ports: word("sourcePort", false, &[("flow", true), ("fixed", false)])?,
        checksums: word("udpChecksum", false, &[("true", true), ("false", false)])?,
        ttl: whole("ttl", 64, 1..=255)? as u8,
        dont_fragment: match fields.optional("df") {
            None => DontFragment::Copy,
            Some(node) => node.word(&[
                ("copy", DontFragment::Copy),
                ("set", DontFragment::Set),
                ("clear", DontFragment::Clear),
            ])?,
        },
        errors_per_second: whole("errorsPerSecond", 100, 0..=1_000_000)?,
        cached: word("cache", false, &[("flow", true), ("none", false)])?,
    })
}

fn host(node: &Located<'_>) -> Result<IpAddr, SpecError> {
    let address = node.text(ADDRESS)?.parse::<IpAddr>();
    let host = address
        .ok()
        .filter(|address| !address.is_unspecified() && !address.is_multicast());
    host.ok_or_else(|| node.expected(ADDRESS))
}

/// Reads the profiles. `reported` is `true` if there is a file for reports.
fn profiles_of(node: &Located<'_>, reported: bool) -> Result<Vec<Profile>, SpecError> {
    let entries = node.entries("profiles")?;
    if entries.is_empty() || entries.len() > MAX_PROFILES {
        let found = entries.len();
        let message = format!("expected 1 to {MAX_PROFILES} profiles, found {found}");
        return Err(node.error(message));
    }
    let entries = entries.into_iter();
    let profiles = entries.map(|(name, node)| profile(name, &node, reported));
    profiles.collect()
}

fn profile(name: &str, node: &Located<'_>, reported: bool) -> Result<Profile, SpecError> {
    if !is_label(name) {
        let what = "a name of lower-case letters, digits and inner dashes";
        return Err(node.error(format!("expected as a profile's name {what}, found {}", quoted(name))));
    }
    let fields = node.fields_of(&PROFILE)?;
    let (qfi, dscp) = (qfi(&fields)?, dscp(&fields)?);
    let mut rules = Vec::new();
    if let Some(node) = fields.optional("rules") {
        for node in node.list("rules", MAX_RULES)? {
            let treatment = Treatment {
                qfi,
                dscp,
                open: [true; 2],
                rates: [None; 2],
                in_session_rate: true,
                counted: true,
            };
            rules.push(rule(&node, treatment)?);
        }
        let limited = rules
            .iter()
            .filter(|rule| rule.treatment.rates.iter().any(Option::is_some));
        let limited = limited.count();
        if limited > MAX_RATES {
            let message = format!("expected at most {MAX_RATES} rules with rates, found {limited}");
            return Err(node.error(message));
        }
    }
    let rest = Treatment {
        qfi,
        dscp,
        open: [true; 2],
        rates: [None; 2],
        in_session_rate: true,
        counted: true,
    };
    let passes = match fields.optional("default") {
        None => true,
        Some(node) => PacketAction::parse(&node)? == PacketAction::Pass,
    };
    let (mut volume, mut time) = (None, None);
    if let Some(node) = fields.optional("usage") {
        let fields = node.fields_of(&USAGE)?;
        if let Some(node) = fields.optional("volume") {
            volume = Some(node.whole(1..=1 << 50)?);
        }
        if let Some(node) = fields.optional("time") {
            time = Some(duration(&node, TIME)?);
        }
        if volume.is_none() && time.is_none() {
            return Err(fields.error("expected volume, time or both, found neither"));
        }
        if !reported {
            let message = "expected usage: {file: NAME} in the function, for the reports, found none";
            return Err(node.error(message));
        }
    }
    Ok(Profile {
        name: name.to_owned(),
        rules,
        rest: passes.then_some(rest),
        session_rates: match fields.optional("sessionRates") {
            None => [None; 2],
            Some(node) => rates(&node)?,
        },
        volume,
        time,
    })
}

fn rule(node: &Located<'_>, usual: Treatment) -> Result<Rule, SpecError> {
    let fields = node.fields_of(&RULE)?;
    const WHAT: &str = "a flow description such as \"permit out udp from 198.51.100.0/24 53 to assigned\"";
    let text = fields.required("flows", WHAT)?;
    let flows = parse_flows(text.string(WHAT)?).map_err(|wrong| text.error(wrong.message).suggest(wrong.suggestion))?;
    let bool = |name, usual| match fields.optional(name) {
        None => Ok(usual),
        Some(node) => node.word(&[("true", true), ("false", false)]),
    };
    Ok(Rule {
        flows,
        treatment: Treatment {
            qfi: match fields.optional("qfi") {
                None => usual.qfi,
                Some(_) => qfi(&fields)?,
            },
            dscp: match fields.optional("dscp") {
                None => usual.dscp,
                Some(_) => dscp(&fields)?,
            },
            open: match fields.optional("gate") {
                None => [true; 2],
                Some(node) => node.word(&[
                    ("open", [true; 2]),
                    ("closed", [false; 2]),
                    ("up", [true, false]),
                    ("down", [false, true]),
                ])?,
            },
            rates: match fields.optional("rates") {
                None => [None; 2],
                Some(node) => rates(&node)?,
            },
            in_session_rate: bool("sessionRates", true)?,
            counted: bool("counted", true)?,
        },
    })
}

fn qfi(fields: &Fields<'_>) -> Result<Option<u8>, SpecError> {
    match fields.optional("qfi") {
        None => Ok(None),
        Some(node) => Ok(Some(node.whole(0..=63)? as u8)),
    }
}

fn dscp(fields: &Fields<'_>) -> Result<Option<u8>, SpecError> {
    match fields.optional("dscp") {
        Some(node) if node.text("")? != "copy" => code_point(&node).map(Some),
        _ => Ok(None),
    }
}

/// Parses rates for uplink and downlink, or one of them.
fn rates(node: &Located<'_>) -> Result<[Option<Meter>; 2], SpecError> {
    let fields = node.fields_of(&RATES)?;
    let burst = fields.optional("burst");
    let burst = burst.map(|node| node.whole(BURST)).transpose()?;
    let rate = |name| {
        let Some(node) = fields.optional(name) else {
            return Ok(None);
        };
        let Throughput::BitsPerSecond(bits) = throughput(&node)? else {
            return Err(node.expected("a rate in bits such as 10Mbps"));
        };
        // Traffic of 0.1 s, and at least ten full packets.
        let burst = burst.unwrap_or((bits / 80).max(15_000));
        Ok(Some(Meter::new(Rate::Bits(bits), burst)))
    };
    let rates = [rate("up")?, rate("down")?];
    match rates {
        [None, None] => Err(fields.error("expected up, down or both, found neither")),
        rates => Ok(rates),
    }
}

/// Reads the sessions in the spec itself, and reports all errors.
fn inline(list: &Located<'_>, names: &Names, most: usize) -> Result<Vec<Session>, SpecError> {
    const WHAT: &str = "a session such as \"1 ue 10.60.0.1 teid 0x1001 profile internet\"";
    let items = list.list("sessions", MAX_INLINE)?;
    let lines = items
        .iter()
        .map(|item| Ok(item.string(WHAT)?.replace(['\n', '\r'], " ")));
    let text = lines.collect::<Result<Vec<_>, SpecError>>()?.join("\n");
    language::parse(&text, names, most).map_err(|(mistakes, more)| {
        let mut errors: Vec<_> = mistakes
            .into_iter()
            .filter_map(|mistake| {
                let item = items.get(mistake.line - 1)?;
                let message = item_of(&mistake.message);
                Some(item.error(message).suggest(mistake.suggestion))
            })
            .collect();
        if more > 0 {
            errors.push(list.error(format!("{more} more invalid sessions")));
        }
        SpecError::all(errors).unwrap_or_else(|| list.expected("sessions"))
    })
}

/// Converts line numbers in an error to items of a spec, which count from 0.
fn item_of(message: &str) -> String {
    match message.rsplit_once("that of line ") {
        Some((before, line)) => {
            let item = line.parse::<usize>().map_or(0, |line| line - 1);
            format!("{before}that of item {item}")
        }
        None => message.to_owned(),
    }
}

/// Reads the sessions of a file.
///
/// # Errors
/// If the file is invalid: all problems.
fn read(path: &Path, names: &Names, most: usize) -> Result<Vec<Session>, SpecError> {
    let name = path.display().to_string();
    let text = read_text_up_to(path, &name, MAX_FILE)?;
    language::parse(&text, names, most).map_err(|(mistakes, more)| {
        let of_mistake = |mistake: crate::firewall::language::Mistake| {
            SpecError::whole_file(&name, mistake.message)
                .at(mistake.line, mistake.column)
                .suggest(mistake.suggestion)
        };
        let mut errors: Vec<_> = mistakes.into_iter().map(of_mistake).collect();
        if more > 0 {
            let message = format!("{more} more invalid lines");
            errors.push(SpecError::whole_file(&name, message));
        }
        let nothing = || SpecError::whole_file(&name, "expected sessions");
        SpecError::all(errors).unwrap_or_else(nothing)
    })
}
