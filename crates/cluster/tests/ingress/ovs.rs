//! An Open vSwitch of the test's own: both daemons with sockets and database in a folder, ended with the test.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Returns `true` and prints the reason if a test cannot be run here.
pub fn skipped(programs: &[&str]) -> bool {
    let own = ["ovs-vswitchd", "ovsdb-server", "ovs-vsctl", "ovs-ofctl"];
    is_missing(&[&own[..], programs].concat())
}

/// Returns `true` and prints which if a program is missing.
pub fn is_missing(programs: &[&str]) -> bool {
    let is_missing = |program: &&&str| {
        let found = Command::new("sh")
            .args(["-c", &format!("PATH=$PATH:/usr/sbin:/sbin command -v {program}")])
            .output();
        !found.is_ok_and(|output| output.status.success())
    };
    let missing: Vec<&str> = programs.iter().filter(is_missing).copied().collect();
    if !missing.is_empty() {
        println!("skipped: there is no {} (tools/deps.sh test)", missing.join(", "));
    }
    !missing.is_empty()
}

/// Open vSwitch with the bridge `br0`.
pub struct Ovs {
    folder: PathBuf,
    /// Network namespace that it runs in, if not the test's.
    namespace: Option<String>,
    database: Child,
    switch: Child,
}

impl Ovs {
    /// Starts it with a bridge of this datapath type, and ports with these names, numbered from 1.
    pub fn new(datapath: &str, ports: &[&str], namespace: Option<&str>) -> Ovs {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tailwater-ovs-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let schema = "/usr/share/openvswitch/vswitch.ovsschema";
        let database = folder.join("conf.db");
        let mut made = Command::new("ovsdb-tool");
        let made = made.arg("create").arg(&database).arg(schema).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let socket = format!("punix:{}", folder.join("db.sock").display());
        let namespace = namespace.map(str::to_owned);
        let server = [
            "ovsdb-server",
            database.to_str().unwrap(),
            "--no-chdir",
            &format!("--remote={socket}"),
            &format!("--unixctl={}", folder.join("db.ctl").display()),
        ];
        let child = spawn(&folder, namespace.as_deref(), &server);
        wait_for(|| folder.join("db.sock").exists());
        let switch = start_switch(&folder, namespace.as_deref());
        let ovs = Ovs {
            folder,
            namespace,
            database: child,
            switch,
        };
        let mut line = format!(
            "--no-wait init -- add-br br0 -- set bridge br0 datapath_type={datapath} fail-mode=secure \
             protocols=OpenFlow13"
        );
        for (number, port) in ports.iter().enumerate() {
            let kind = if datapath == "dummy" { "dummy" } else { "system" };
            let number = number + 1;
            line += &format!(" -- add-port br0 {port} -- set interface {port} type={kind} ofport_request={number}");
        }
        ovs.vsctl(&line.replace("--no-wait init -- ", ""));
        wait_for(|| ovs.folder.join("br0.mgmt").exists());
        ovs
    }

    /// Returns the place of its OpenFlow channel.
    pub fn endpoint(&self) -> String {
        format!("unix:{}", self.folder.join("br0.mgmt").display())
    }

    /// Changes the configuration.
    pub fn vsctl(&self, line: &str) -> String {
        let database = format!("--db=unix:{}", self.folder.join("db.sock").display());
        self.must(&format!("ovs-vsctl --timeout=20 {database} {line}"))
    }

    /// Sends a command to the switch daemon.
    pub fn appctl(&self, line: &str) -> String {
        self.must(&format!(
            "ovs-appctl -t {} {line}",
            self.folder.join("switch.ctl").display()
        ))
    }

    /// Changes rules as another owner.
    pub fn ofctl(&self, command: &str, more: &str) -> String {
        self.must(&format!("ovs-ofctl -O OpenFlow13 {command} {} {more}", self.endpoint()))
    }

    /// Returns the rules of the first table with actions, sorted.
    pub fn rules(&self) -> Vec<String> {
        let printed = self.ofctl("dump-flows --no-stats", "");
        let rules = printed.lines().filter(|line| line.contains("actions="));
        let mut rules: Vec<String> = rules.map(|line| line.trim().to_owned()).collect();
        rules.sort();
        rules
    }

    /// Ends the switch daemon, and starts another, which has no rules.
    pub fn restart(&mut self) {
        self.stop();
        self.switch = start_switch(&self.folder, self.namespace.as_deref());
    }

    /// Ends the switch daemon.
    pub fn stop(&mut self) {
        self.switch.kill().unwrap();
        self.switch.wait().unwrap();
        let _ = std::fs::remove_file(self.folder.join("br0.mgmt"));
    }

    fn must(&self, line: &str) -> String {
        let output = Command::new("sh").args(["-c", line]).output().unwrap();
        let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(output.status.success(), "{line}: {stderr}");
        stdout
    }
}

impl Drop for Ovs {
    fn drop(&mut self) {
        for child in [&mut self.switch, &mut self.database] {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn start_switch(folder: &Path, namespace: Option<&str>) -> Child {
    let line = [
        "ovs-vswitchd",
        &format!("unix:{}", folder.join("db.sock").display()),
        "--no-chdir",
        "--enable-dummy",
        "--disable-system",
        &format!("--unixctl={}", folder.join("switch.ctl").display()),
    ];
    spawn(folder, namespace, &line)
}

/// Starts a daemon in the foreground.
fn spawn(folder: &Path, namespace: Option<&str>, line: &[&str]) -> Child {
    let mut command = match namespace {
        None => Command::new(line[0]),
        Some(name) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", name, line[0]]);
            command
        }
    };
    let path = std::env::var("PATH").unwrap_or_default();
    command.args(&line[1..]).env("PATH", format!("{path}:/usr/sbin:/sbin"));
    for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"] {
        command.env(variable, folder);
    }
    let log = File::create(folder.join(format!("{}.log", line[0]))).unwrap();
    command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
}

/// Waits for a condition with a timeout that suits a busy machine.
pub fn wait_for(mut there: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !there() {
        assert!(Instant::now() < deadline, "it never came");
        std::thread::sleep(Duration::from_millis(5));
    }
}
