//! A Redis server of a test's own: in a folder of its own, on a unix socket and perhaps a TCP port, ended with the test.

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
    /// Starts one with these further arguments. `None`, having said so, where there is no `redis-server`.
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

    /// Starts it (again). Its data are gone, unless the arguments say otherwise.
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

    /// Kills it.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
            let _ = fs::remove_file(self.socket());
        }
    }

    /// Sends it a signal, such as `STOP` and `CONT`.
    pub fn signal(&self, name: &str) {
        let process = self.process.as_ref().expect("it runs").id().to_string();
        let status = Command::new("kill").args([&format!("-{name}"), &process]).status();
        assert!(status.unwrap().success());
    }

    /// What it answers to a command of the default user's.
    pub fn command(&self, arguments: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .arg("-s")
            .arg(self.socket())
            .args(arguments)
            .output();
        let output = output.expect("redis-cli is there with redis-server");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// How many keys there are.
    pub fn keys(&self) -> u64 {
        self.command(&["dbsize"]).parse().unwrap()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        if let Some(process) = &self.process {
            // One that was stopped does not hear of anything else.
            let _ = Command::new("kill").args(["-CONT", &process.id().to_string()]).status();
        }
        self.stop();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A TCP port that is free at the moment.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// An authority, and a certificate of its for `localhost` with its key: `ca.pem`, `server.pem` and `server.key` in a
/// folder. `false`, having said so, where there is no `openssl`.
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
