//! A real API server, with etcd, on loopback.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::{Api, Client, Config};
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tailwater_api::schema::FunctionSchema;
use tailwater_cluster::resources::definitions;
use tokio::time::{sleep, timeout};

/// Version that `tools/kubernetes` builds.
const PROGRAM: &str = "kube-apiserver-v1.35.4";
/// Longest time until it is ready.
const READY: Duration = Duration::from_secs(60);
/// Token of the administrator.
pub const ADMIN: &str = "administrator";

/// Running API server. Ends when it is dropped.
pub struct ApiServer {
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

/// Path of the program, or why there is none.
fn program() -> Result<PathBuf, String> {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or(home)
        .unwrap_or_default();
    let path = cache.join("tailwater").join(PROGRAM);
    match path.is_file() {
        true => Ok(path),
        false => Err(format!(
            "no {PROGRAM} in {}: make test-cluster builds it",
            path.display()
        )),
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn spawn(directory: &Path, program: &Path, arguments: &[String]) -> Result<Process, String> {
    let name = program.file_name().unwrap().to_string_lossy().into_owned();
    let log = File::create(directory.join(format!("{name}.log"))).unwrap();
    let child = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn();
    child
        .map(Process)
        .map_err(|error| format!("{name} cannot be started: {error}"))
}

impl ApiServer {
    /// Starts it.
    ///
    /// # Errors
    /// The reason why a test that needs it is skipped.
    pub async fn start(name: &str) -> Result<ApiServer, String> {
        let program = program()?;
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
        let etcd = spawn(&directory, Path::new("/usr/bin/etcd"), &etcd)?;
        let key = Command::new("openssl")
            .args(["genrsa", "-out", "accounts.key", "2048"])
            .current_dir(&directory)
            .stderr(Stdio::null())
            .status();
        if !key.is_ok_and(|status| status.success()) {
            return Err("openssl cannot make a key".to_owned());
        }
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
        let mut server = ApiServer {
            _etcd: etcd,
            api: None,
            arguments: arguments.into(),
            program,
            port,
            directory,
        };
        server.resume().await?;
        Ok(server)
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
        self.api = Some(spawn(&self.directory, &self.program, &self.arguments)?);
        let ready = async {
            loop {
                let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
                if self
                    .client(ADMIN)
                    .request_text(request)
                    .await
                    .is_ok_and(|text| text == "ok")
                {
                    return;
                }
                sleep(Duration::from_millis(100)).await;
            }
        };
        let waited = timeout(READY, ready).await;
        waited.map_err(|_| format!("the API server is not ready: see {}", self.directory.display()))
    }

    /// Client with a token.
    pub fn client(&self, token: &str) -> Client {
        self.client_with(token, &[])
    }

    /// Client of a service account of the rack, on a node if it is given.
    pub fn account(&self, account: &str, node: Option<&str>) -> Client {
        let user = format!("system:serviceaccount:tailwater:{account}");
        let mut headers = vec![("impersonate-user", user.as_str())];
        headers.extend(node.map(|node| ("impersonate-extra-authentication.kubernetes.io%2fnode-name", node)));
        self.client_with(ADMIN, &headers)
    }

    fn client_with(&self, token: &str, headers: &[(&'static str, &str)]) -> Client {
        let mut config = Config::new(format!("https://127.0.0.1:{}", self.port).parse().unwrap());
        // The server made its certificate itself a moment ago.
        config.accept_invalid_certs = true;
        config.auth_info.token = Some(token.to_owned().into());
        for (name, value) in headers {
            config
                .headers
                .push((http::HeaderName::from_static(name), value.parse().unwrap()));
        }
        Client::try_from(config).unwrap()
    }

    /// Creates the definitions of all kinds, and waits until they can be used. Functions are not checked.
    pub async fn define(&self) {
        self.define_with(&[]).await;
    }

    /// Same, with these functions.
    pub async fn define_with(&self, functions: &[FunctionSchema]) {
        let client = self.client(ADMIN);
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        for definition in definitions(functions) {
            api.create(&PostParams::default(), &definition).await.unwrap();
        }
        for definition in definitions(functions) {
            let name = definition.metadata.name.unwrap();
            let established = kube::runtime::wait::conditions::is_crd_established();
            let wait = kube::runtime::wait::await_condition(api.clone(), &name, established);
            timeout(READY, wait).await.expect("established in time").unwrap();
        }
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.api = None;
        let _ = fs::remove_dir_all(&self.directory);
    }
}
