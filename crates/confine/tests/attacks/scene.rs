//! Targets of the attacks: a neighbour with secrets, files, sockets.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

/// Length of the secret, and of each attack's read, in bytes.
const SECRET: usize = 32;

pub(crate) struct Scene {
    pub secret: String,
    pub victim: Child,
    /// Addresses in the victim: the secret, and a buffer full of dots.
    pub addresses: (usize, usize),
    pub memfd: usize,
    pub key: u32,
    pub directory: PathBuf,
    pub port: u16,
    pub abstract_name: String,
    /// Core on which attackers start; `other` is another one.
    pub core: usize,
    pub other_core: Option<usize>,
    /// Contains the secret, and is inherited by all started programs.
    _inherited: OwnedFd,
}

impl Scene {
    pub(crate) fn new() -> Scene {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let turn = NEXT.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        let name = format!("tailwater-attacks-{process}-{turn}");
        let mut secret = name.clone();
        secret.truncate(SECRET);
        let secret = format!("{secret:#<SECRET$}");
        let directory = std::env::temp_dir().join(&name);
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(directory.join("secret"), &secret).unwrap();
        let owner = fs::Permissions::from_mode(0o600);
        fs::set_permissions(directory.join("secret"), owner).unwrap();
        let set_user_id = directory.join("set-user-id");
        fs::copy(env!("CARGO_BIN_EXE_tailwater-hostile"), &set_user_id).unwrap();
        fs::set_permissions(&set_user_id, fs::Permissions::from_mode(0o4755)).unwrap();
        // Other programs on the machine use small or pseudo-random keys. A key in use fails loudly.
        let key = (process << 12) ^ turn ^ 0x5441_0000;
        let mut victim = Command::new(env!("CARGO_BIN_EXE_tailwater-hostile"))
            .args(["victim", &secret, &key.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(victim.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let numbers: Vec<usize> = line.split_whitespace().map(|n| n.parse().unwrap()).collect();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = tcp.local_addr().unwrap().port();
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let unix = UnixListener::bind_addr(&address).unwrap();
        tell_all(secret.clone(), move || tcp.accept().map(|(stream, _)| stream));
        tell_all(secret.clone(), move || unix.accept().map(|(stream, _)| stream));
        let cores = rustix::thread::sched_getaffinity(None).unwrap();
        let mut cores = (0..1024).filter(|core| cores.is_set(*core)).collect::<Vec<_>>();
        let core = cores.pop().unwrap();
        Scene {
            _inherited: inherited(&secret),
            secret,
            victim,
            addresses: (numbers[0], numbers[1]),
            memfd: numbers[2],
            key,
            directory,
            port,
            abstract_name: name,
            core,
            other_core: cores.pop(),
        }
    }

    /// Returns the victim's buffer, which held dots.
    pub(crate) fn overwritten(&self) -> String {
        let memory = File::open(format!("/proc/{}/mem", self.victim.id())).unwrap();
        let mut bytes = [0u8; SECRET];
        memory.read_exact_at(&mut bytes, self.addresses.1 as u64).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns `true` if the victim was killed.
    pub(crate) fn victim_is_dead(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.victim.id())).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('Z')
    }

    /// Returns a network interface other than the loopback.
    pub(crate) fn interface() -> Option<String> {
        let all = fs::read_dir("/sys/class/net").ok()?;
        let names = all.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let known = |name: &String| name != "lo" && !name.starts_with("bonding");
        names.filter(known).min()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // Wakes listeners that got no connection. Where one came, the listener is gone.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Ok(address) = SocketAddr::from_abstract_name(&self.abstract_name) {
            let _ = UnixStream::connect_addr(&address);
        }
        // The victim removes its shared memory when its input ends.
        drop(self.victim.stdin.take());
        let ended = self.victim.wait().unwrap();
        if !ended.success() {
            // If an attack killed the victim, its segment is still there.
            let key = self.key.to_string();
            let _ = Command::new("ipcrm").args(["--shmem-key", &key]).status();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Sends the secret to the first client. The thread ends afterwards, or with the tests.
fn tell_all<S: Write>(secret: String, accept: impl FnOnce() -> std::io::Result<S> + Send + 'static) {
    thread::spawn(move || {
        if let Ok(mut stream) = accept() {
            let _ = stream.write_all(secret.as_bytes());
        }
    });
}

/// Creates a file with the secret whose descriptor programs inherit.
fn inherited(secret: &str) -> OwnedFd {
    let file = rustix::fs::memfd_create("inherited", rustix::fs::MemfdFlags::empty()).unwrap();
    rustix::io::write(&file, secret.as_bytes()).unwrap();
    assert!(file.as_raw_fd() < 64, "attackers try the first 64");
    file
}
