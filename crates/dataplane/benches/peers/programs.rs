//! Programs that are measured, with the tuning that suits each best.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Descriptors of each queue.
const RING: &str = "1024";
/// Device whose packets `device.c` fills.
pub const DEVICE: &str = "net_null0,size=60";

/// Program that does the work of a chain.
#[derive(Clone, Copy, Debug)]
pub enum Peer {
    /// DPDK's `testpmd` in a forwarding mode, with bursts of some packets.
    Testpmd { mode: &'static str, burst: &'static str },
    /// DPDK's example `l3fwd` with a look-up method.
    L3fwd { lookup: &'static str },
    /// FastClick with a configuration beside this file.
    FastClick { configuration: &'static str },
}

impl Peer {
    /// Name in figures.
    pub fn name(self) -> String {
        match self {
            Peer::Testpmd { mode, burst } => format!("testpmd-{mode}-{burst}"),
            Peer::L3fwd { lookup } => format!("l3fwd-{lookup}"),
            Peer::FastClick { configuration } => format!("fastclick-{configuration}"),
        }
    }

    /// Work of the chain that the peer does not do.
    pub fn does_not(self) -> &'static str {
        match self {
            Peer::Testpmd { mode: "io", .. } => "read packets; record latency; count reasons",
            Peer::Testpmd { .. } => "parse beyond Ethernet; record latency; count reasons",
            Peer::L3fwd { lookup: "acl" } => {
                "check lengths or TCP and UDP headers; read VLAN tags; record latency; count matches by rule"
            }
            Peer::L3fwd { .. } => {
                "check lengths; read VLAN tags; choose among next hops on one port; record latency; count reasons"
            }
            Peer::FastClick {
                configuration: "forward",
            } => "parse beyond Ethernet; record latency; count reasons",
            Peer::FastClick { .. } => "record latency; count reasons",
        }
    }

    /// Returns `true` if the peer forwards traffic of this name as the chain does.
    pub fn takes(self, size: &str) -> bool {
        match self {
            Peer::Testpmd { .. }
            | Peer::FastClick {
                configuration: "forward",
            } => true,
            // Neither VLAN tags nor ICMP errors.
            Peer::L3fwd { .. } | Peer::FastClick { .. } => !size.starts_with("mixed"),
        }
    }

    /// Program's path, or the reason why there is none.
    pub fn find(self) -> Result<PathBuf, String> {
        let given = |name: &str| {
            let path = std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_file());
            path.ok_or_else(|| format!("{name} is not the path of a program"))
        };
        match self {
            Peer::Testpmd { .. } => given("TESTPMD"),
            Peer::L3fwd { .. } => given("L3FWD"),
            Peer::FastClick { .. } => given("FASTCLICK"),
        }
    }

    /// Command on a core. `rules` is the folder with the files of `l3fwd`.
    pub fn command(self, core: usize, other_core: usize, rules: &Path) -> Result<Command, String> {
        let mut command = Command::new(self.find()?);
        let lcores = match self {
            // Its first lcore only waits.
            Peer::Testpmd { .. } => format!("--lcores=0@{other_core},1@{core}"),
            _ => format!("--lcores=0@{core}"),
        };
        match self {
            Peer::FastClick { .. } => command.arg("--dpdk"),
            _ => &mut command,
        };
        let eal = ["--no-huge", "--no-shconf", "--no-telemetry", "--no-pci", "-m", "1024"];
        command.arg(lcores).args(eal).args(["--vdev", DEVICE]);
        command.arg("--force-max-simd-bitwidth=512").arg("--");
        match self {
            Peer::Testpmd { mode, burst } => {
                command.args([
                    "--nb-cores=1",
                    "--auto-start",
                    "--total-num-mbufs=8192",
                    "--no-lsc-interrupt",
                ]);
                command.args([format!("--forward-mode={mode}"), format!("--burst={burst}")]);
                command.args([format!("--rxd={RING}"), format!("--txd={RING}")]);
            }
            Peer::L3fwd { lookup } => {
                let rules = |version: u8| rules_file(rules, lookup, version);
                command.args(["-p", "1", "-P", "--config=(0,0,0)", "--parse-ptype", "--no-numa"]);
                command.args(["--rx-queue-size", RING, "--tx-queue-size", RING]);
                command
                    .arg(option("--rule_ipv4=", &rules(4)))
                    .arg(option("--rule_ipv6=", &rules(6)));
                command.arg(format!("--lookup={lookup}"));
            }
            Peer::FastClick { configuration } => {
                let given = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers/fastclick");
                // That of the router has the routes in it.
                let folder = if configuration == "router" { rules } else { &given };
                command.arg(folder.join(format!("{configuration}.click")));
            }
        }
        Ok(command)
    }
}

/// File with the rules of `l3fwd` for an IP version.
pub fn rules_file(folder: &Path, lookup: &str, version: u8) -> PathBuf {
    let kind = if lookup == "acl" { "acl" } else { "routes" };
    folder.join(format!("l3fwd-{kind}-{version}"))
}

fn option(name: &str, path: &Path) -> OsString {
    let mut text = OsString::from(name);
    text.push(path);
    text
}

/// Tailwater itself with a chain, on the same device.
pub fn tailwater(program: &Path, chain: &Path, core: usize) -> Command {
    let mut command = Command::new(program);
    command
        .arg("run")
        .arg(chain)
        .args(["--port", DEVICE, "--ring", RING, "--duration", "60s"]);
    command.args(["--cores", &core.to_string()]);
    command
}
