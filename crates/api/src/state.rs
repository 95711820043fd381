//! `spec.state`: external store for flow state that outlives this server.

use crate::error::SpecError;
use crate::located::Located;
use crate::schema::{FILE, Field, HOST_AND_PORT, Map, Rule, Text, Type};
use crate::values::duration;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use tailwater_net::Nanos;

const WAIT: RangeInclusive<Nanos> = Nanos::from_micros(100)..=Nanos::from_secs(10);
const PACKETS: RangeInclusive<u64> = 256..=32_768;
/// Maximum length of an instance's name, the same as a host name's.
const INSTANCE: usize = 253;
const PORT: RangeInclusive<u64> = 1..=65_535;

static INSTANCE_NAME: Text = Text {
    what: "a name of letters, digits, dashes and dots",
    pattern: "^[-A-Za-z0-9.]+$",
    most: INSTANCE,
    example: "edge-1",
    whole: None,
};

/// Fields of `state`.
pub static STATE: Map = Map {
    fields: &[
        Field::new("redis", Type::Map(&REDIS), "Redis server that stores the state.")
            .required()
            .example("{socket: /run/redis.sock}"),
        Field::new(
            "instance",
            Type::Text(&INSTANCE_NAME),
            "Name of this instance of the chain. A later run with the same name takes over.",
        )
        .otherwise("the host's name"),
        Field::new(
            "chain",
            Type::Text(&INSTANCE_NAME),
            "Name of the chain in Redis. Instances with the same one share flow state.",
        )
        .otherwise("`metadata.name`"),
        Field::new(
            "whenUnavailable",
            Type::Words(&["hold", "pass", "drop"]),
            "Treatment of packets that wait too long.",
        )
        .or("hold"),
        Field::new(
            "packets",
            Type::whole(&PACKETS),
            "Maximum number of a worker's packets that wait at a time.",
        )
        .or("4096"),
        Field::new(
            "wait",
            Type::duration(&WAIT),
            "Maximum wait of a packet, for its flow's state and again for an acknowledgement.",
        )
        .or("50ms"),
    ],
    ..Map::PLAIN
};
static REDIS: Map = Map {
    fields: &[
        Field::new(
            "socket",
            Type::Text(&FILE),
            "Redis's Unix socket, relative to the spec's folder.",
        ),
        Field::new(
            "address",
            Type::Text(&HOST_AND_PORT),
            "Redis over TCP; port 6379 if none is given.",
        ),
        Field::new(
            "tls",
            Type::Map(&TLS),
            "TLS; the certificate must name the host of `address`.",
        )
        .otherwise("in the clear")
        .only_with("address"),
        Field::new("user", Type::Any(512), "User with `+acl +info`.").otherwise("Redis's default user"),
        Field::new(
            "passwordFile",
            Type::Text(&FILE),
            "File whose first line is the password.",
        )
        .otherwise("none"),
        Field::new("passwordEnv", Type::Any(512), "Environment variable with the password.").otherwise("none"),
    ],
    rules: &[
        Rule::ExactlyOne(&["socket", "address"]),
        Rule::AtMostOne(&["passwordFile", "passwordEnv"]),
    ],
    ..Map::PLAIN
};
static TLS: Map = Map {
    fields: &[Field::new("ca", Type::Text(&FILE), "CA certificates, PEM.").otherwise("the system's")],
    nullable: true,
    ..Map::PLAIN
};

/// External store of a chain's flow state, and the policy while it is unavailable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSpec {
    /// Redis server.
    pub redis: RedisSpec,
    /// Name of this instance of the chain, by default the host's name. A later run under the same name takes over from
    /// an earlier one.
    pub instance: Option<String>,
    /// Name of the chain in the store, by default that of the spec. Instances with the same one share flow state.
    pub chain: Option<String>,
    /// Policy for packets whose wait exceeds the limit.
    pub when_unavailable: WhenUnavailable,
    /// Maximum number of a worker's packets that wait at a time: 256 to 32,768.
    pub packets: u32,
    /// Maximum time a packet waits for the state of its flow, and again for its update: 100 us to 10 s.
    pub wait: Nanos,
}

/// Policy for packets that wait too long for the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenUnavailable {
    /// They wait up to the limit, and are then dropped.
    #[default]
    Hold,
    /// They wait up to the limit, or until the store is known to be unavailable, and pass then. Missed updates are
    /// written when the store is back.
    Pass,
    /// They wait up to the limit, or until the store is known to be unavailable, and are dropped then.
    Drop,
}

/// Redis server, and Tailwater's account there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisSpec {
    /// Address of the server.
    pub address: RedisAddress,
    /// User with the right to create users.
    pub user: Option<String>,
    /// Source of the user's password.
    pub password: Option<Secret>,
}

/// Address of a Redis server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisAddress {
    /// Path of a Unix socket.
    Socket(PathBuf),
    /// Host and TCP port, unencrypted.
    Tcp(String, u16),
    /// Host and TCP port, with TLS.
    Tls {
        /// Host name, as in the server's certificate.
        host: String,
        /// TCP port.
        port: u16,
        /// PEM file with certificates of authorities; by default, those of the system.
        authorities: Option<PathBuf>,
    },
}

/// Source of a secret, which is never in the spec itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Secret {
    /// First line of a file.
    File(PathBuf),
    /// Environment variable.
    Environment(String),
}

/// Reads `state`. Files it names are relative to `base_dir`.
///
/// # Errors
/// A field is missing, unknown or out of range, or a secret's file cannot be read.
pub fn state(node: &Located<'_>, base_dir: &Path) -> Result<StateSpec, SpecError> {
    let fields = node.fields_of(&STATE)?;
    Ok(StateSpec {
        redis: redis(&fields.required("redis", "a map with socket or address")?, base_dir)?,
        instance: match fields.optional("instance") {
            None => None,
            Some(node) => Some(instance(&node)?),
        },
        chain: match fields.optional("chain") {
            None => None,
            Some(node) => Some(instance(&node)?),
        },
        when_unavailable: match fields.optional("whenUnavailable") {
            None => WhenUnavailable::default(),
            Some(node) => node.word(&[
                ("hold", WhenUnavailable::Hold),
                ("pass", WhenUnavailable::Pass),
                ("drop", WhenUnavailable::Drop),
            ])?,
        },
        packets: match fields.optional("packets") {
            None => 4096,
            Some(node) => node.whole(PACKETS)? as u32,
        },
        wait: match fields.optional("wait") {
            None => Nanos::from_millis(50),
            Some(node) => duration(&node, WAIT)?,
        },
    })
}

/// Parses a name that can be part of a Redis user's name.
fn instance(node: &Located<'_>) -> Result<String, SpecError> {
    let name = node.string("a name of letters, digits, dashes and dots")?;
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    match !name.is_empty() && name.len() <= INSTANCE && name.chars().all(fits) {
        true => Ok(name.to_owned()),
        false => Err(node.error(format!(
            "expected a name of at most {INSTANCE} letters, digits, dashes and dots, found {name:?}"
        ))),
    }
}

fn redis(node: &Located<'_>, base_dir: &Path) -> Result<RedisSpec, SpecError> {
    let fields = node.fields_of(&REDIS)?;
    let path = |node: &Located<'_>| Ok::<_, SpecError>(base_dir.join(node.string("a path")?));
    let address = match (fields.optional("socket"), fields.optional("address")) {
        (Some(socket), None) => match fields.given("tls") {
            Some(tls) => {
                return Err(tls.error("expected tls with an address, found it with a socket"));
            }
            None => RedisAddress::Socket(path(&socket)?),
        },
        (None, Some(address)) => {
            let (host, port) = host_and_port(&address)?;
            match fields.given("tls") {
                None => RedisAddress::Tcp(host, port),
                Some(tls) => {
                    let fields = tls.fields_of(&TLS)?;
                    let authorities = fields.optional("ca").map(|ca| path(&ca)).transpose()?;
                    RedisAddress::Tls {
                        host,
                        port,
                        authorities,
                    }
                }
            }
        }
        (Some(_), Some(_)) => {
            return Err(fields.error("expected socket or address, found both"));
        }
        (None, None) => return Err(fields.error("expected socket or address, found neither")),
    };
    let file = fields.optional("passwordFile");
    let password = match (file, fields.optional("passwordEnv")) {
        (Some(_), Some(variable)) => {
            return Err(variable.error("expected passwordFile or passwordEnv, found both"));
        }
        (Some(file), None) => Some(Secret::File(path(&file)?)),
        (None, Some(variable)) => {
            let name = variable.string("the name of a variable")?;
            Some(Secret::Environment(name.to_owned()))
        }
        (None, None) => None,
    };
    let user = match fields.optional("user") {
        None => None,
        Some(user) => Some(user.string("the name of a Redis user")?.to_owned()),
    };
    Ok(RedisSpec {
        address,
        user,
        password,
    })
}

/// Parses `host:6379`, where an IPv6 address is in brackets. The port defaults to Redis's own.
fn host_and_port(node: &Located<'_>) -> Result<(String, u16), SpecError> {
    const WHAT: &str = "a host and a port, such as redis.example:6379";
    const REDIS: u16 = 6379;
    let text = node.text(WHAT)?;
    let (host, port) = match text.rsplit_once(':') {
        // An IPv6 address is not split at its last colon.
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let port = match port {
        None => REDIS,
        Some(port) => {
            let port = port.parse().ok().filter(|port| PORT.contains(port));
            port.ok_or_else(|| node.expected(WHAT))? as u16
        }
    };
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    let fits = |c: char| c.is_ascii_alphanumeric() || "-.:_".contains(c);
    match !host.is_empty() && host.len() <= 253 && host.chars().all(fits) {
        true => Ok((host.to_owned(), port)),
        false => Err(node.expected(WHAT)),
    }
}
