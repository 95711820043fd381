//! A server on the model of a machine, on a real socket.
#![allow(dead_code, reason = "each test uses a part")]

use crate::common::{ModelMachine, server};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tailwater_server::control::generated as message;
use tailwater_server::control::{Client, Limits};
use tailwater_server::{LockedState, Machine, Paths, ServeError, ServerConfig, serve};

/// Longest wait of a test for something that takes milliseconds.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a server until `stop` is set.
pub fn start(config: &ServerConfig, machine: impl Machine, stop: &AtomicBool) -> Result<(), ServeError> {
    let state = LockedState::lock(&config.paths)?;
    serve(config, state, machine, stop, || (), |_| ())
}

/// Folder that is removed in the end.
#[derive(Debug)]
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "tailwater-server-{}-{}",
            std::process::id(),
            MADE.fetch_add(1, Ordering::Relaxed)
        );
        let folder = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        Folder(folder)
    }

    pub fn config(&self, fields: &str, limits: Limits) -> ServerConfig {
        ServerConfig {
            spec: server(fields),
            paths: Paths {
                socket: self.0.join("run/edge-1.sock"),
                state: self.0.join("state"),
            },
            limits,
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.0.join("run/edge-1.sock")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Server that runs until it is dropped.
#[derive(Debug)]
pub struct Serving {
    pub machine: ModelMachine,
    pub socket: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

impl Serving {
    /// Starts a server, and waits until it has started its chains.
    pub fn start(config: ServerConfig) -> Serving {
        let machine = ModelMachine::default();
        let stop = Arc::new(AtomicBool::new(false));
        let socket = config.paths.socket.clone();
        let thread = {
            let (machine, stop) = (machine.clone(), Arc::clone(&stop));
            std::thread::spawn(move || start(&config, machine, &stop))
        };
        let serving = Serving {
            machine,
            socket,
            stop,
            thread: Some(thread),
        };
        wait(|| {
            assert!(!serving.thread.as_ref().unwrap().is_finished(), "the server ended");
            let health = Client::connect(&serving.socket).ok()?.health().ok()?;
            // Before, the last generation is being started.
            (!health.server.is_empty()).then_some(())
        });
        serving
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.socket).unwrap()
    }

    pub fn stream(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Stops the server as Ctrl-C does, and returns how long it takes.
    pub fn stop(mut self) -> Duration {
        self.end()
    }

    fn end(&mut self) -> Duration {
        let start = Instant::now();
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
        start.elapsed()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

/// Waits for a result.
pub fn wait<T>(mut f: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(result) = f() {
            return result;
        }
        assert!(Instant::now() < end, "waited too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Request to apply texts.
pub fn request(texts: &[String]) -> message::ApplyRequest {
    let manifest = |yaml: &String| message::Manifest {
        source: "standard input".to_owned(),
        path: String::new(),
        yaml: yaml.clone(),
    };
    message::ApplyRequest {
        manifests: texts.iter().map(manifest).collect(),
        dry_run: false,
        force: false,
    }
}

/// Waits until a chain is in a phase.
pub fn wait_for(client: &mut Client, name: &str, phase: message::Phase) -> message::Chain {
    wait(|| client.get(name).ok().filter(|chain| chain.phase() == phase))
}

/// Reads until the other end closes. Returns the number of bytes.
pub fn read_to_end(stream: &mut UnixStream) -> usize {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => bytes.len(),
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => bytes.len(),
        Err(error) => panic!("the connection is still open: {error}"),
    }
}

/// Begin of an HTTP/2 connection with this initial window.
pub fn preface(window: u32) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // SETTINGS_INITIAL_WINDOW_SIZE.
    let setting = [&4_u16.to_be_bytes()[..], &window.to_be_bytes()].concat();
    bytes.extend(frame(4, 0, 0, &setting));
    bytes
}

/// HTTP/2 frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Head of a call of this method on stream 1.
pub fn head(method: &str) -> Vec<u8> {
    let mut fields = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", &format!("/tailwater.control.v1alpha1.Control/{method}")),
        (":authority", "x"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        // Literal without indexing.
        fields.extend([0, name.len() as u8]);
        fields.extend(name.as_bytes());
        fields.push(value.len() as u8);
        fields.extend(value.as_bytes());
    }
    frame(1, 4, 1, &fields)
}

/// Writes all of it; the other end may have closed already.
pub fn write(stream: &mut UnixStream, bytes: &[u8]) {
    let _ = stream.write_all(bytes);
}

/// Returns `true` if there is a file.
pub fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}
