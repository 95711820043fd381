//! A real API server, with etcd, on loopback.

use super::api_server::{ADMIN, READY};
use kube::{Client, Config};
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Version that `tools/kubernetes` builds.
const PROGRAM: &str = "kube-apiserver-v1.35.4";
/// Program of etcd, of the Debian package `etcd-server`.
const ETCD: &str = "/usr/bin/etcd";

/// Running API server. Ends when it is dropped.
pub struct RealApiServer {
    _etcd: Process,
    api: Option<Process>,
    arguments: Vec<String>,
    program: PathBuf,
    port: u16,
    directory: PathBuf,
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Path of the program, or why it cannot be run here.
///
/// # Errors
/// Missing part.
pub fn program() -> Result<PathBuf, String> {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or(home)
        .unwrap_or_default();
    let path = cache.join("tailwater").join(PROGRAM);
    if !path.is_file() {
        return Err(format!("no {PROGRAM} in the cache: `make test-cluster` builds it"));
    }
    if !Path::new(ETCD).is_file() {
        return Err(format!("no {ETCD}: `make test-cluster` installs it"));
    }
    let openssl = Command::new("openssl").arg("version").stdout(Stdio::null()).status();
    match openssl.is_ok_and(|status| status.success()) {
        true => Ok(path),
        false => Err("openssl, which makes its keys, does not run".to_owned()),
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn spawn(directory: &Path, program: &Path, arguments: &[String]) -> Process {
    let name = program.file_name().unwrap().to_string_lossy().into_owned();
    let log = File::create(directory.join(format!("{name}.log"))).unwrap();
    let child = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn();
    Process(child.unwrap_or_else(|error| panic!("{name} cannot be started: {error}")))
}

impl RealApiServer {
    /// Starts the program.
    ///
    /// # Panics
    /// It does not start.
    pub async fn start(name: &str, program: PathBuf) -> RealApiServer {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("api-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        let (client, peer, port) = (free_port(), free_port(), free_port());
        let etcd = [
            format!("--listen-client-urls=http://127.0.0.1:{client}"),
            format!("--advertise-client-urls=http://127.0.0.1:{client}"),
            format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
            "--data-dir=etcd".to_owned(),
            "--unsafe-no-fsync".to_owned(),
        ];
        let etcd = spawn(&directory, Path::new(ETCD), &etcd);
        let key = Command::new("openssl")
            .args(["genrsa", "-out", "accounts.key", "2048"])
            .current_dir(&directory)
            .stderr(Stdio::null())
            .status();
        assert!(key.is_ok_and(|status| status.success()), "openssl cannot make a key");
        fs::write(directory.join("tokens"), format!("{ADMIN},admin,1,system:masters\n")).unwrap();
        let arguments = [
            format!("--etcd-servers=http://127.0.0.1:{client}"),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--cert-dir=certificates".to_owned(),
            "--authorization-mode=RBAC".to_owned(),
            "--token-auth-file=tokens".to_owned(),
            "--service-account-issuer=https://tailwater.test".to_owned(),
            "--service-account-key-file=accounts.key".to_owned(),
            "--service-account-signing-key-file=accounts.key".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
        ];
        let mut server = RealApiServer {
            _etcd: etcd,
            api: None,
            arguments: arguments.into(),
            program,
            port,
            directory,
        };
        server.resume().await.unwrap();
        server
    }

    /// Stops the API server; etcd goes on.
    pub fn pause(&mut self) {
        self.api = None;
    }

    /// Starts it again, and waits until it is ready.
    ///
    /// # Errors
    /// It does not become ready.
    pub async fn resume(&mut self) -> Result<(), String> {
        self.api = Some(spawn(&self.directory, &self.program, &self.arguments));
        let mut config = self.config();
        config.auth_info.token = Some(ADMIN.to_owned().into());
        let client = Client::try_from(config).unwrap();
        let ready = async {
            loop {
                let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
                if client.request_text(request).await.is_ok_and(|text| text == "ok") {
                    return;
                }
                sleep(Duration::from_millis(100)).await;
            }
        };
        let waited = timeout(READY, ready).await;
        waited.map_err(|_| format!("the API server is not ready: see {}", self.directory.display()))
    }

    /// Configuration of a client.
    pub fn config(&self) -> Config {
        let mut config = Config::new(format!("https://127.0.0.1:{}", self.port).parse().unwrap());
        // The server made its certificate itself a moment ago.
        config.accept_invalid_certs = true;
        config
    }
}

impl Drop for RealApiServer {
    fn drop(&mut self) {
        self.api = None;
        let _ = fs::remove_dir_all(&self.directory);
    }
}
