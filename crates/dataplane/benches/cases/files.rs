//! Input files of functions: rules, and sessions with their users.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use tailwater_net::FlowKey;

/// Interval at which ET Open's active rules are sampled to get about a thousand.
const OF_A_THOUSAND: usize = 24;
/// First user address: shared address space (RFC 6598).
const USERS: u32 = 0x6440_0000;

/// Writes a file atomically, because another process may be reading it.
pub fn write(name: &str, text: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join(name);
    let part = folder.join(format!("{name}-{}.part", std::process::id()));
    std::fs::write(&part, text)
        .and_then(|()| std::fs::rename(&part, &file))
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    file
}

/// ET Open's rules, or a thousand of them. `None` without the test data, or without a tar that reads Zstandard.
pub fn rules(thousand: bool) -> Option<PathBuf> {
    let data = std::env::var_os("TAILWATER_TEST_DATA")?;
    let archive = Path::new(&data).join("rules/et_open_2025.tar.zst");
    let mut command = Command::new("tar");
    command.arg("--zstd").arg("-xOf").arg(archive);
    let output = command.args(["--wildcards", "*.rules"]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let used = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (name, rules): (_, Vec<&str>) = match thousand {
        true => ("ids-1000.rules", used.step_by(OF_A_THOUSAND).take(1_000).collect()),
        false => ("ids.rules", used.collect()),
    };
    (!rules.is_empty()).then(|| write(name, &rules.join("\n")))
}

/// A session for each of `users` users, on sixteen base stations, numbered from `first`.
pub fn sessions(users: u32, first: u32) -> PathBuf {
    let mut text = String::with_capacity(96 * users as usize);
    for user in 0..users {
        let (address, station) = (Ipv4Addr::from_bits(USERS + user), first + user % 16);
        let number = user + 1;
        let _ = writeln!(
            text,
            "{number} ue {address} teid {number} peer 192.0.2.{station} peerTeid {number} profile all"
        );
    }
    write(&format!("{users}-{first}.sessions"), &text)
}

/// Destination user of a flow of uniform traffic, a different one per flow, derived from the client's address and port.
pub fn user(key: &FlowKey) -> IpAddr {
    let IpAddr::V4(client) = key.source() else {
        unreachable!("uniform traffic is of IPv4")
    };
    let [_, high, low, host] = client.octets().map(u32::from);
    let client = (high << 8 | low) * 254 + host - 1;
    let flow = client * 16 + (u32::from(key.source_port()) - 1_024) / 4_000;
    Ipv4Addr::from_bits(USERS + flow).into()
}
