//! Redis access: addresses, credentials, users.

use crate::keys;
use ::redis::{
    Client, Connection, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisConnectionInfo, RedisError,
    RedisResult, TlsCertificates,
};
use std::fs;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tailwater_api::{RedisAddress, RedisSpec, Secret};
use tailwater_chain::chain::DurableFunction;

/// Maximum size of a certificate or a password file.
const MAX_FILE: u64 = 1 << 20;

/// Timeout after which Redis counts as unavailable.
const PATIENCE: Duration = Duration::from_secs(1);

/// Cause why Redis is unusable.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A file named in the spec is not readable.
    #[error("spec.state.redis: {file}: {source}")]
    File {
        /// Path of the file.
        file: String,
        /// Cause.
        source: io::Error,
    },
    /// The environment variable named in the spec is not set.
    #[error("spec.state.redis.passwordEnv: the variable {0} is not set")]
    Environment(String),
    /// Redis is unreachable, or refuses.
    #[error("spec.state.redis: {address}: {source}{}", advice(.source))]
    Redis {
        /// Address of the server.
        address: String,
        /// Error of Redis or the system.
        source: RedisError,
    },
    /// A later instance took over while this one started.
    #[error(transparent)]
    Fenced(Fenced),
    /// The system provides no random numbers.
    #[error("no random numbers available for passwords: {0}")]
    Random(io::Error),
}

/// Remedy, if known.
fn advice(source: &RedisError) -> &'static str {
    match source.kind() {
        ErrorKind::Io => "; expected a running Redis at this address: start it, or change the address",
        ErrorKind::AuthenticationFailed => "; expected another user, passwordFile or passwordEnv in the spec",
        _ => "",
    }
}

/// Cause why the users of an instance cannot be created.
#[derive(Debug)]
pub enum NoUsers {
    /// Error of Redis or the system.
    Redis(RedisError),
    /// A later run has taken over.
    Fenced(Fenced),
}

impl From<RedisError> for NoUsers {
    fn from(error: RedisError) -> NoUsers {
        NoUsers::Redis(error)
    }
}

/// A later run of the same instance has taken over: this one must not read or write any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a later run of chain {chain} has taken over as instance {instance}: this run no longer reads or writes state")]
pub struct Fenced {
    chain: String,
    instance: String,
}

/// Redis user of a function.
#[derive(Clone, Debug)]
pub struct FunctionAccess {
    /// Name of the user.
    pub user: String,
    /// Prefix of all keys of the function.
    pub space: String,
    /// Prefix of keys of the function's current version.
    pub prefix: String,
    /// Position of the function's state in a row.
    pub piece: Range<usize>,
}

/// Connection parameters, shared by all threads of a run.
pub struct Access {
    address: String,
    admin: Client,
    chain: String,
    instance: String,
    /// Start time of the run. Later runs of the instance have greater ones.
    stamp: u64,
    functions: Vec<FunctionAccess>,
    password: String,
    /// Random number of the run, by which its values are known.
    writer: u64,
    /// Policy by which Redis forgets flows when its memory is full, if it does.
    eviction: Option<String>,
    /// Redis run ids seen so far. Their index makes all threads of this run agree on incarnations.
    runs: Mutex<Vec<String>>,
    /// Held while users are created and while a thread logs in, so no thread uses a user before this run is known to be
    /// the latest. `Some` once there is a later run.
    users: Mutex<Option<Fenced>>,
}

impl Access {
    /// Connects once, takes over from earlier runs of the chain's instance, and creates the users. `instance` defaults
    /// to the host's name.
    ///
    /// # Errors
    /// If a secret cannot be read, Redis is unreachable or refuses, or a later run has taken over. The check happens
    /// here rather than with the first packet.
    pub fn open(
        spec: &RedisSpec,
        chain: &str,
        instance: Option<&str>,
        functions: &[DurableFunction],
    ) -> Result<Access, AccessError> {
        let mut settings = RedisConnectionInfo::default().set_skip_set_lib_name();
        if let Some(user) = &spec.user {
            settings = settings.set_username(user);
        }
        if let Some(secret) = &spec.password {
            settings = settings.set_password(read_secret(secret)?);
        }
        let (address, client) = client(&spec.address, settings)?;
        let refused = |source| AccessError::Redis {
            address: address.clone(),
            source,
        };
        let mut access = Access {
            admin: client.map_err(refused)?,
            address: address.clone(),
            chain: chain.to_owned(),
            instance: instance.map_or_else(host_name, str::to_owned),
            stamp: 0,
            functions: Vec::new(),
            password: random_password().map_err(AccessError::Random)?,
            writer: u64::from_ne_bytes(random().map_err(AccessError::Random)?).max(1),
            eviction: None,
            runs: Mutex::new(Vec::new()),
            users: Mutex::new(None),
        };
        // A query first: for a wrong credential its error is clear.
        access.run().map_err(refused)?;
        access.eviction = access.eviction_policy().map_err(refused)?;
        let others = access.admin().and_then(|mut admin| access.stamps(&mut admin));
        let others = others.map_err(refused)?;
        let latest = others.into_iter().map(|(stamp, _)| stamp).max();
        // Later than all others, even if the clock went back.
        access.stamp = now().max(latest.map_or(0, |latest| latest.saturating_add(1)));
        access.functions = functions
            .iter()
            .map(|function| {
                let space = keys::space(chain, &function.name);
                FunctionAccess {
                    user: access.user(&function.name),
                    prefix: format!("{space}{}-v{}:", function.kind, function.version),
                    space,
                    piece: function.row.clone(),
                }
            })
            .collect();
        let ready = access.make_users().and_then(|()| access.connect());
        match ready {
            Ok(_) => Ok(access),
            Err(NoUsers::Redis(source)) => Err(refused(source)),
            Err(NoUsers::Fenced(fenced)) => Err(AccessError::Fenced(fenced)),
        }
    }

    /// Name of a function's user. With an empty function, name of a disabled user that marks the run.
    fn user(&self, function: &str) -> String {
        let (chain, instance, stamp) = (&self.chain, &self.instance, self.stamp);
        format!("tw:{chain}:{function}@{instance}#{stamp:016x}")
    }

    /// Users of all runs of this instance, each with its run's stamp.
    fn stamps(&self, admin: &mut Connection) -> RedisResult<Vec<(u64, String)>> {
        let users: Vec<String> = ::redis::cmd("ACL").arg("USERS").query(admin)?;
        let space = format!("tw:{}:", self.chain);
        let stamp = |user: &String| {
            let (_, run) = user.strip_prefix(&space)?.rsplit_once('@')?;
            let (instance, stamp) = run.rsplit_once('#')?;
            let stamp = u64::from_str_radix(stamp, 16).ok()?;
            (instance == self.instance).then_some(stamp)
        };
        let users = users.into_iter();
        Ok(users.filter_map(|user| Some((stamp(&user)?, user))).collect())
    }

    /// Functions with external state, in the order of their rows.
    pub fn functions(&self) -> &[FunctionAccess] {
        &self.functions
    }

    /// Random number of this run, not 0: its values end with it.
    pub fn writer(&self) -> u64 {
        self.writer
    }

    /// Address of Redis, for messages.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Warning about Redis' settings at the start, if there is reason for one.
    pub fn warning(&self) -> Option<String> {
        let (policy, address) = (self.eviction.as_ref()?, self.address());
        Some(format!(
            "spec.state.redis: {address} forgets flows without notice when its memory is full (maxmemory-policy \
             {policy}): expected noeviction"
        ))
    }

    /// Policy by which Redis evicts keys; `None` if it evicts none, or does not state it.
    fn eviction_policy(&self) -> RedisResult<Option<String>> {
        // In place of `CONFIG GET`, which providers of Redis often forbid.
        let info: String = ::redis::cmd("INFO").arg("memory").query(&mut self.admin()?)?;
        let mut policies = info.lines().filter_map(|line| line.strip_prefix("maxmemory_policy:"));
        let policy = policies.next().map(str::trim).filter(|policy| *policy != "noeviction");
        Ok(policy.map(str::to_owned))
    }

    fn admin(&self) -> RedisResult<Connection> {
        let connection = self.admin.get_connection_with_timeout(PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        connection.set_write_timeout(Some(PATIENCE))?;
        Ok(connection)
    }

    /// Redis' current run id.
    ///
    /// # Errors
    /// Error of Redis or the system.
    pub fn run(&self) -> RedisResult<String> {
        let info: String = ::redis::cmd("INFO").arg("server").query(&mut self.admin()?)?;
        let lines = info.lines();
        let run = lines.filter_map(|line| line.strip_prefix("run_id:")).next();
        Ok(run.unwrap_or_default().trim().to_owned())
    }

    /// Number of Redis' current run, never 0. It changes when Redis restarts.
    ///
    /// # Errors
    /// Error of Redis or the system.
    pub fn incarnation(&self) -> RedisResult<u32> {
        let run = self.run()?;
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let known = runs.iter().position(|known| *known == run);
        let place = known.unwrap_or_else(|| {
            runs.push(run);
            runs.len() - 1
        });
        Ok(place as u32 + 1)
    }

    /// Creates or resets the functions' users, and deletes those of earlier runs of the instance. Deleting a user
    /// closes its connections.
    ///
    /// Two concurrent runs cannot both succeed. Each creates its own users first and lists the others' afterwards.
    /// Either the earlier run finds the later one's users and gives up. Or it created its own before the later one
    /// listed them, and the later one deletes them.
    ///
    /// # Errors
    /// If there is a later run, Redis or the system fails, or the credential lacks the permission.
    pub fn make_users(&self) -> Result<(), NoUsers> {
        let mut later = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fenced) = &*later {
            return Err(NoUsers::Fenced(fenced.clone()));
        }
        let mut admin = self.admin()?;
        // It outlives the run, so an earlier run that comes back finds it.
        let mut nobody = ::redis::cmd("ACL");
        nobody.arg("SETUSER").arg(self.user("")).arg("reset");
        nobody.exec(&mut admin)?;
        for function in &self.functions {
            let mut cmd = ::redis::cmd("ACL");
            cmd.arg("SETUSER").arg(&function.user);
            cmd.arg("reset").arg("on").arg(format!(">{}", self.password));
            cmd.arg(format!("~{}*", escaped(&function.space)));
            cmd.arg(&["-@all", "+mget", "+set", "+unlink", "+eval"]);
            cmd.exec(&mut admin)?;
        }
        let users = self.stamps(&mut admin)?;
        let is_fenced = users.iter().any(|(stamp, _)| *stamp > self.stamp);
        let (own, earlier): (Vec<_>, Vec<_>) = users
            .into_iter()
            .filter(|(stamp, _)| *stamp <= self.stamp)
            .partition(|(stamp, _)| *stamp == self.stamp);
        if is_fenced {
            let fenced = Fenced {
                chain: self.chain.clone(),
                instance: self.instance.clone(),
            };
            *later = Some(fenced.clone());
            remove(&mut admin, own)?;
            return Err(NoUsers::Fenced(fenced));
        }
        remove(&mut admin, earlier)?;
        Ok(())
    }

    /// Deletes the functions' users, at the end of a run.
    ///
    /// # Errors
    /// Error of Redis or the system.
    pub fn remove_users(&self) -> RedisResult<()> {
        let functions = self.functions.iter();
        let users = functions.map(|function| (self.stamp, function.user.clone()));
        remove(&mut self.admin()?, users)
    }

    /// Opens a connection per function, as its user.
    ///
    /// # Errors
    /// If there was a later run, or Redis or the system fails.
    pub fn connect(&self) -> Result<Vec<Connection>, NoUsers> {
        let later = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fenced) = &*later {
            return Err(NoUsers::Fenced(fenced.clone()));
        }
        let functions = self.functions.iter();
        let connections = functions.map(|function| self.connect_as(function));
        Ok(connections.collect::<RedisResult<_>>()?)
    }

    /// Opens a connection as a function's user.
    ///
    /// # Errors
    /// Error of Redis or the system.
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

/// Deletes users.
fn remove(admin: &mut Connection, users: impl IntoIterator<Item = (u64, String)>) -> RedisResult<()> {
    let mut cmd = ::redis::cmd("ACL");
    cmd.arg("DELUSER");
    let mut any = false;
    for (_, user) in users {
        cmd.arg(user);
        any = true;
    }
    match any {
        true => cmd.exec(admin),
        false => Ok(()),
    }
}

type Named<T> = (String, T);

fn client(address: &RedisAddress, settings: RedisConnectionInfo) -> Result<Named<RedisResult<Client>>, AccessError> {
    let info = |address: ConnectionAddr| -> RedisResult<ConnectionInfo> {
        Ok(address.into_connection_info()?.set_redis_settings(settings))
    };
    Ok(match address {
        RedisAddress::Socket(path) => {
            let address = ConnectionAddr::Unix(path.clone());
            (path.display().to_string(), info(address).and_then(Client::open))
        }
        RedisAddress::Tcp(host, port) => {
            let address = ConnectionAddr::Tcp(host.clone(), *port);
            (format!("{host}:{port}"), info(address).and_then(Client::open))
        }
        RedisAddress::Tls {
            host,
            port,
            authorities,
        } => {
            // The process may have a provider already. That one is used then.
            let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
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
    tailwater_files::read(path, MAX_FILE).map_err(|source| AccessError::File {
        file: path.display().to_string(),
        source,
    })
}

fn read_secret(secret: &Secret) -> Result<String, AccessError> {
    match secret {
        Secret::Environment(name) => std::env::var(name).map_err(|_| AccessError::Environment(name.clone())),
        Secret::File(path) => {
            let text = read_file(path)?;
            let text = String::from_utf8_lossy(&text);
            Ok(text.lines().next().unwrap_or_default().to_owned())
        }
    }
}

/// Escapes a key space for use in a Redis glob pattern.
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

/// Host name, limited to characters allowed in Redis user names.
fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let fits = |c: &char| c.is_ascii_alphanumeric() || *c == '-' || *c == '.';
    name.trim().chars().filter(fits).collect()
}

/// Nanoseconds since 1970, by the system clock.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn random_password() -> io::Result<String> {
    let bytes: [u8; 32] = random()?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
