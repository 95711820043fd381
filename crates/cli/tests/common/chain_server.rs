//! A server with many chains, as a user runs it, in a folder of its own.

use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for something that happens soon.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Folder of one test, removed at its end.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tailwater-serve-{}-{number}", std::process::id()));
        fs::create_dir_all(path.join("chains")).unwrap();
        Folder(path)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }

    /// Core of the server: the last one.
    pub fn core(&self) -> usize {
        std::thread::available_parallelism().map_or(0, |cores| cores.get() - 1)
    }

    /// Server on the last core, with little traffic of a preset that repeats.
    pub fn server(&self, fields: &str) {
        let core = self.core();
        self.write(
            "server.yaml",
            &format!(
                "apiVersion: tailwater.dev/v1alpha1\nkind: Server\nmetadata: {{name: edge}}\nspec:\n  \
                 cores: \"{core}\"\n  ports: [{{name: north, traffic: small.pcap, rate: 5kpps, repeat: true}}]\n  \
                 chains: [chains]\n  \
                 control: {{socket: edge.sock}}\n  stateDirectory: state\n{fields}"
            ),
        );
    }

    pub fn chain(&self, name: &str, sources: &str, functions: &str) {
        self.write(&format!("chains/{name}.yaml"), &chain(name, sources, functions));
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
        command.args(arguments).current_dir(&self.0);
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Standard output of a client that succeeds.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(&[arguments, &["--socket", "edge.sock"]].concat());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn chains(&self) -> Value {
        serde_json::from_str(&self.ok(&["get", "chains", "-o", "json"])).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn chain(name: &str, sources: &str, functions: &str) -> String {
    format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: {name}}}\nspec:\n  \
         match: {{sources: [{sources}]}}\n  slo: {{latency: 100ms}}\n  functions: [{functions}]\n"
    )
}

/// Server that runs, killed at the end of a failed test.
pub struct Serving(pub Option<Child>);

impl Serving {
    /// Starts the folder's server, on a capture of a preset, and waits for its socket.
    pub fn start(folder: &Folder) -> Serving {
        let capture = ["trace", "synth", "backbone", "--duration", "100ms", "-o", "small.pcap"];
        let output = folder.run(&capture);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Serving::start_again(folder)
    }

    /// Same, on the capture that is there.
    pub fn start_again(folder: &Folder) -> Serving {
        let mut command = folder.command(&["serve", "server.yaml", "--output", "json"]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let serving = Serving(Some(child));
        wait("the socket", || {
            folder.run(&["get", "chains", "--socket", "edge.sock"]).status.success()
        });
        serving
    }

    /// Kills the server.
    pub fn kill(&mut self) {
        let mut child = self.0.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Ends the server by SIGINT. Returns its report.
    pub fn stop(mut self) -> Value {
        let child = self.0.take().unwrap();
        let began = Instant::now();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(0),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(began.elapsed() < PATIENCE);
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub fn wait(what: &str, mut until: impl FnMut() -> bool) {
    let began = Instant::now();
    while !until() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(30));
    }
}

pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}
