//! `spec.state`: where flow state is kept that is to outlive this server.

use crate::error::SpecError;
use crate::located::Located;
use crate::values::duration;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use tailwater_net::Nanos;

const WAIT: RangeInclusive<Nanos> = Nanos::from_micros(100)..=Nanos::from_secs(10);
const PACKETS: RangeInclusive<u64> = 256..=32_768;
/// The most letters of an instance's name: as of a host's.
const INSTANCE: usize = 253;
const PORT: RangeInclusive<u64> = 1..=65_535;

/// Where a chain's flow state is kept outside of this process, and what happens while that cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSpec {
    /// The store.
    pub redis: RedisSpec,
    /// Who this is among the chain's instances: a later run under the same name takes over from an earlier one. Without,
    /// the host's name.
    pub instance: Option<String>,
    /// What becomes of packets that wait for it for too long.
    pub when_unavailable: WhenUnavailable,
    /// Most packets of a worker that wait at a time: 256 to 32,768.
    pub packets: u32,
    /// How long a packet waits at the most, for the state of its flow and again for its update: 100 us to 10 s.
    pub wait: Nanos,
}

/// What becomes of packets that wait for the store for too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenUnavailable {
    /// They wait as long as they may, and are then dropped.
    #[default]
    Hold,
    /// They wait as long as they may, or until the store is known not to be there, and pass then. What it
    /// missed is written when it is back.
    Pass,
    /// They wait as long as they may, or until the store is known not to be there, and are dropped then.
    Drop,
}

/// A Redis server and who Tailwater is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisSpec {
    /// Where it listens.
    pub address: RedisAddress,
    /// The user that may make users.
    pub user: Option<String>,
    /// Where its password is.
    pub password: Option<Secret>,
}

/// Where a Redis server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisAddress {
    /// A unix socket.
    Socket(PathBuf),
    /// A host and a TCP port, in the clear.
    Tcp(String, u16),
    /// A host and a TCP port, with TLS.
    Tls {
        /// The host's name, as its certificate says.
        host: String,
        /// The port.
        port: u16,
        /// Certificates of authorities, PEM; without, those of the system.
        authorities: Option<PathBuf>,
    },
}

/// Where a secret is; never in a spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Secret {
    /// The first line of a file.
    File(PathBuf),
    /// A variable of the environment.
    Environment(String),
}

/// Reads `state`. Files it names are relative to `base_dir`.
///
/// # Errors
/// A field is missing, unknown or out of range, or a secret's file cannot be read.
pub fn state(node: &Located<'_>, base_dir: &Path) -> Result<StateSpec, SpecError> {
    let fields = node.fields(&["redis", "instance", "whenUnavailable", "packets", "wait"])?;
    Ok(StateSpec {
        redis: redis(&fields.required("redis", "a map with socket or address")?, base_dir)?,
        instance: match fields.optional("instance") {
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

/// A name that can stand in one of a Redis user.
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
    let fields = node.fields(&["socket", "address", "tls", "user", "passwordFile", "passwordEnv"])?;
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
                    let fields = tls.fields_or_none(&["ca"])?;
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

/// `host:6379`, or with an IPv6 address in brackets; without a port, Redis's own.
fn host_and_port(node: &Located<'_>) -> Result<(String, u16), SpecError> {
    const WHAT: &str = "a host and a port, such as redis.example:6379";
    const REDIS: u16 = 6379;
    let text = node.text(WHAT)?;
    let (host, port) = match text.rsplit_once(':') {
        // An IPv6 address is not cut at its last colon.
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
