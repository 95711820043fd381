//! Who Tailwater is to Redis: addresses, secrets, users.

use crate::keys;
use ::redis::{
    Client, Connection, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo,
    RedisError, RedisResult, TlsCertificates,
};
use std::fs;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;
use tailwater_nf::chain::KeptFunction;
use tailwater_nf::spec::{RedisAddress, RedisSpec, Secret};

/// How long Redis may take to answer before it is taken to be away.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why Redis cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A file that the spec names cannot be read.
    #[error("spec.state.redis: {file}: {source}")]
    File {
        /// The file.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// The variable that the spec names is not set.
    #[error("spec.state.redis.passwordEnv: the variable {0} is not set")]
    Environment(String),
    /// Redis is not there, or refuses.
    #[error("spec.state.redis: {address}: {source}")]
    Redis {
        /// Where Redis is to be.
        address: String,
        /// What it or the system says.
        source: RedisError,
    },
    /// There are no random numbers.
    #[error("no random numbers for passwords: {0}")]
    Random(io::Error),
}

/// A function's user.
#[derive(Clone, Debug)]
pub struct FunctionAccess {
    /// The user's name.
    pub user: String,
    /// What all keys of the function begin with.
    pub space: String,
    /// What keys of the function's present version begin with.
    pub prefix: String,
    /// Where in a row the function's piece is.
    pub piece: Range<usize>,
}

/// What is needed to connect, for all threads of a run.
pub struct Access {
    address: String,
    admin: Client,
    functions: Vec<FunctionAccess>,
    password: String,
}

impl Access {
    /// Connects once, and makes the users.
    ///
    /// # Errors
    /// If that does not work: better now than with the first packet.
    pub fn open(
        spec: &RedisSpec,
        chain: &str,
        functions: &[KeptFunction],
    ) -> Result<Access, AccessError> {
        let mut settings = RedisConnectionInfo::default().set_skip_set_lib_name();
        if let Some(user) = &spec.user {
            settings = settings.set_username(user);
        }
        if let Some(secret) = &spec.password {
            settings = settings.set_password(read_secret(secret)?);
        }
        let (address, client) = client(&spec.address, settings)?;
        let host = host_name();
        let functions = functions.iter().map(|function| {
            let space = keys::space(chain, &function.name);
            FunctionAccess {
                user: format!("tw:{chain}:{}@{host}", function.name),
                prefix: format!("{space}{}-v{}:", function.kind, function.version),
                space,
                piece: function.row.clone(),
            }
        });
        let access = Access {
            admin: client.map_err(|source| AccessError::Redis {
                address: address.clone(),
                source,
            })?,
            address,
            functions: functions.collect(),
            password: random_password().map_err(AccessError::Random)?,
        };
        // A question first, which is answered with a plain word where the credential is wrong.
        let ready = access.run().and_then(|_| access.make_users());
        let ready = ready.and_then(|()| access.connect());
        match ready {
            Ok(_) => Ok(access),
            Err(source) => Err(AccessError::Redis {
                address: access.address,
                source,
            }),
        }
    }

    /// The functions, in the order of their pieces.
    pub fn functions(&self) -> &[FunctionAccess] {
        &self.functions
    }

    /// Where Redis is, for a person.
    pub fn address(&self) -> &str {
        &self.address
    }

    fn admin(&self) -> RedisResult<Connection> {
        let connection = self.admin.get_connection_with_timeout(PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        connection.set_write_timeout(Some(PATIENCE))?;
        Ok(connection)
    }

    /// What Redis calls its present run.
    ///
    /// # Errors
    /// What Redis or the system says.
    pub fn run(&self) -> RedisResult<String> {
        let info: String = ::redis::cmd("INFO")
            .arg("server")
            .query(&mut self.admin()?)?;
        let lines = info.lines();
        let run = lines.filter_map(|line| line.strip_prefix("run_id:")).next();
        Ok(run.unwrap_or_default().trim().to_owned())
    }

    /// Makes the functions' users, or makes them what they should be.
    ///
    /// # Errors
    /// What Redis or the system says; that the credential may not do it, for one.
    pub fn make_users(&self) -> RedisResult<()> {
        let mut admin = self.admin()?;
        for function in &self.functions {
            let mut cmd = ::redis::cmd("ACL");
            cmd.arg("SETUSER").arg(&function.user);
            cmd.arg("reset")
                .arg("on")
                .arg(format!(">{}", self.password));
            cmd.arg(format!("~{}*", escaped(&function.space)));
            cmd.arg(&["-@all", "+mget", "+set", "+unlink"]);
            cmd.exec(&mut admin)?;
        }
        Ok(())
    }

    /// Removes the functions' users, at the end of a run. Another run of the chain on this host makes its own anew.
    ///
    /// # Errors
    /// What Redis or the system says.
    pub fn remove_users(&self) -> RedisResult<()> {
        let mut admin = self.admin()?;
        let mut cmd = ::redis::cmd("ACL");
        cmd.arg("DELUSER");
        for function in &self.functions {
            cmd.arg(&function.user);
        }
        cmd.exec(&mut admin)
    }

    /// A connection for each function, as its user.
    ///
    /// # Errors
    /// What Redis or the system says.
    pub fn connect(&self) -> RedisResult<Vec<Connection>> {
        let functions = self.functions.iter();
        functions
            .map(|function| self.connect_as(function))
            .collect()
    }

    /// A connection as a function's user.
    ///
    /// # Errors
    /// What Redis or the system says.
    pub fn connect_as(&self, function: &FunctionAccess) -> RedisResult<Connection> {
        let settings = RedisConnectionInfo::default()
            .set_username(&function.user)
            .set_password(&self.password)
            .set_skip_set_lib_name();
        let info = self.admin.get_connection_info().clone();
        let client = Client::open(info.set_redis_settings(settings))?;
        let connection = client.get_connection_with_timeout(PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        connection.set_write_timeout(Some(PATIENCE))?;
        Ok(connection)
    }
}

type Named<T> = (String, T);

fn client(
    address: &RedisAddress,
    settings: RedisConnectionInfo,
) -> Result<Named<RedisResult<Client>>, AccessError> {
    let info = |address: ConnectionAddr| -> RedisResult<ConnectionInfo> {
        Ok(address.into_connection_info()?.set_redis_settings(settings))
    };
    Ok(match address {
        RedisAddress::Socket(path) => {
            let address = ConnectionAddr::Unix(path.clone());
            (
                path.display().to_string(),
                info(address).and_then(Client::open),
            )
        }
        RedisAddress::Tcp(host, port) => {
            let address = ConnectionAddr::Tcp(host.clone(), *port);
            (
                format!("{host}:{port}"),
                info(address).and_then(Client::open),
            )
        }
        RedisAddress::Tls {
            host,
            port,
            authorities,
        } => {
            // A process may have one already; then that one serves.
            let _ = rustls::crypto::ring::default_provider().install_default();
            let certificates = TlsCertificates {
                client_tls: None,
                root_cert: authorities.as_deref().map(read_file).transpose()?,
            };
            let address = ConnectionAddr::TcpTls {
                host: host.clone(),
                port: *port,
                insecure: false,
                tls_params: None,
            };
            let client = info(address).and_then(|info| Client::build_with_tls(info, certificates));
            (format!("{host}:{port} (TLS)"), client)
        }
    })
}

fn read_file(path: &Path) -> Result<Vec<u8>, AccessError> {
    fs::read(path).map_err(|source| AccessError::File {
        file: path.display().to_string(),
        source,
    })
}

fn read_secret(secret: &Secret) -> Result<String, AccessError> {
    match secret {
        Secret::Environment(name) => {
            std::env::var(name).map_err(|_| AccessError::Environment(name.clone()))
        }
        Secret::File(path) => {
            let text = read_file(path)?;
            let text = String::from_utf8_lossy(&text);
            Ok(text.lines().next().unwrap_or_default().to_owned())
        }
    }
}

/// A key space as a pattern of Redis's: letters that mean something there stand for themselves.
fn escaped(space: &str) -> String {
    let mut pattern = String::with_capacity(space.len());
    for letter in space.chars() {
        if "*?[]\\".contains(letter) {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}

/// The host's name, as far as a Redis user can have it.
fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let fits = |c: &char| c.is_ascii_alphanumeric() || *c == '-' || *c == '.';
    name.trim().chars().filter(fits).collect()
}

fn random_password() -> io::Result<String> {
    let mut bytes = [0; 32];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
