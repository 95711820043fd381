//! Redis server of a test: in its own directory, on a Unix socket and optionally a TCP port, stopped with the test.

#![allow(dead_code, reason = "not every test uses everything")]

use std::fs;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub struct RedisServer {
    pub folder: PathBuf,
    arguments: Vec<String>,
    process: Option<Child>,
}

impl RedisServer {
    /// Starts a server with these additional arguments. Returns `None`, with a message, if `redis-server` is not
    /// installed.
    pub fn start(arguments: &[&str]) -> Option<RedisServer> {
        static SERVERS: AtomicU32 = AtomicU32::new(0);
        let there = Command::new("redis-server")
            .arg("--version")
            .stdout(Stdio::null())
            .status();
        if there.is_err() {
            println!("skipped: there is no redis-server");
            return None;
        }
        let number = SERVERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("tailwater-redis-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        let mut server = RedisServer {
            folder,
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            process: None,
        };
        server.start_again();
        Some(server)
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.join("redis.sock")
    }

    /// Starts the server again. Its data are lost, unless the arguments say otherwise.
    pub fn start_again(&mut self) {
        assert!(self.process.is_none());
        let log = fs::File::create(self.folder.join("log")).unwrap();
        let mut command = Command::new("redis-server");
        if !self.arguments.iter().any(|argument| argument == "--port") {
            command.args(["--port", "0"]);
        }
        command
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(&self.folder);
        command.arg("--unixsocket").arg(self.socket()).args(&self.arguments);
        let child = command.stdout(log).stdin(Stdio::null()).spawn().unwrap();
        self.process = Some(child);
        let until = Instant::now() + Duration::from_secs(20);
        while UnixStream::connect(self.socket()).is_err() {
            let log = || fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            assert!(Instant::now() < until, "redis-server does not start: {}", log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills the server.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
            let _ = fs::remove_file(self.socket());
        }
    }

    /// Sends a signal to the server, such as `STOP` and `CONT`.
    pub fn signal(&self, name: &str) {
        let process = self.process.as_ref().expect("it runs").id().to_string();
        let status = Command::new("kill").args([&format!("-{name}"), &process]).status();
        assert!(status.unwrap().success());
    }

    /// Reply to a command of the default user.
    pub fn command(&self, arguments: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .arg("-s")
            .arg(self.socket())
            .args(arguments)
            .output();
        let output = output.expect("redis-cli is there with redis-server");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Number of keys.
    pub fn keys(&self) -> u64 {
        self.command(&["dbsize"]).parse().unwrap()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        if let Some(process) = &self.process {
            // A stopped process handles no other signal.
            let _ = Command::new("kill").args(["-CONT", &process.id().to_string()]).status();
        }
        self.stop();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// TCP port that is currently free.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Creates an authority, and a certificate of it for `localhost` with its key, in `folder`: `ca.pem`, `server.pem` and
/// `server.key`. Returns `false`, with a message, if `openssl` is not installed.
pub fn certificates(folder: &Path) -> bool {
    let openssl = |arguments: &str| {
        let arguments = arguments.split(' ');
        let mut command = Command::new("openssl");
        command.args(arguments).current_dir(folder);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status()
    };
    if openssl("version").is_err() {
        println!("skipped: there is no openssl");
        return false;
    }
    fs::write(
        folder.join("names"),
        "subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n",
    )
    .unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for arguments in [
        format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=authority"),
        format!("req {key} -keyout server.key -out server.csr -subj /CN=localhost"),
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out server.pem -days 2 -extfile names"
            .to_owned(),
    ] {
        assert!(openssl(&arguments).unwrap().success(), "openssl {arguments}");
    }
    true
}

/// A function's state in a stored value: without the value's header, and the writer behind it.
#[allow(dead_code, reason = "not every test reads values")]
pub fn piece_of(value: &[u8]) -> &[u8] {
    let length = u32::from_be_bytes(value[4..8].try_into().unwrap());
    &value[16..][..length as usize]
}
