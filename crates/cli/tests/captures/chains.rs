//! Chains for captures: as in `examples/`, but refusing as few packets as possible.

use super::common::Folder;
use std::path::{Path, PathBuf};

/// Encryption key of the tests.
const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// Access list that evaluates all rules and allows everything. Its rules are in the directory.
pub const ACL: &str = "{acl: {rulesFile: acl1.rules, matchAction: allow, default: allow}}";

/// Backends of both IP versions.
pub const BACKENDS: [&str; 8] = [
    "172.16.0.1",
    "172.16.0.2",
    "172.16.0.3",
    "172.16.0.4",
    "2001:db8:ffff::1",
    "2001:db8:ffff::2",
    "2001:db8:ffff::3",
    "2001:db8:ffff::4",
];

/// Next hops: name and Ethernet address.
pub const NEXT_HOPS: [(&str, [u8; 6]); 3] = [
    ("core", [2, 0, 0, 0, 1, 1]),
    ("east", [2, 0, 0, 0, 1, 2]),
    ("west", [2, 0, 0, 0, 1, 3]),
];

/// Next hop of packets without a route, an index of [`NEXT_HOPS`].
pub const DEFAULT_HOP: usize = 2;

/// The router's Ethernet address.
pub const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 1];

const FLOWS: &str = "  flows: {capacity: 131072}\n";

/// NAT of all IPv4 sources except those in 203.0.0.0/8, which contains the external addresses.
const NAT: &str = "{nat: {external: [203.0.113.0/28], otherProtocols: pass, inbound: pass, \
                   internal: [0.0.0.0/1, 128.0.0.0/2, 192.0.0.0/5, 200.0.0.0/7, 202.0.0.0/8, \
                   204.0.0.0/6, 208.0.0.0/4]}}";

/// [`NAT`] alone.
pub fn nat(folder: &Folder) -> PathBuf {
    folder.spec("nat.yaml", &format!("[{NAT}]"), FLOWS)
}

/// ACL, then [`NAT`].
pub fn acl_nat(folder: &Folder) -> PathBuf {
    folder.spec("acl-nat.yaml", &format!("[{ACL}, {NAT}]"), FLOWS)
}

/// ACL, load balancing of all TCP and UDP flows to [`BACKENDS`], and accounting, with records in a file if one is
/// named.
pub fn acl_lb_accounting(folder: &Folder, name: &str, records: Option<&Path>) -> PathBuf {
    let list = |addresses: &[&str]| {
        let backends: Vec<String> = addresses
            .iter()
            .map(|address| format!("{{address: \"{address}\"}}"))
            .collect();
        backends.join(", ")
    };
    let (v4, v6) = BACKENDS.split_at(4);
    let mut services = Vec::new();
    for (address, backends) in [("0.0.0.0/0", list(v4)), ("::/0", list(v6))] {
        for protocol in ["tcp", "udp"] {
            services.push(format!(
                "{{address: \"{address}\", port: any, protocol: {protocol}, \
                 backends: [{backends}]}}"
            ));
        }
    }
    let export = records.map_or(String::new(), |file| {
        format!("{{export: {{file: \"{}\"}}}}", file.display())
    });
    let functions = format!(
        "[{ACL}, {{loadBalancer: {{services: [{}]}}}}, {{accounting: {export}}}]",
        services.join(", ")
    );
    folder.spec(name, &functions, FLOWS)
}

/// ACL, a URL filter that only counts its matches, and encryption.
pub fn acl_url_encrypt(folder: &Folder) -> PathBuf {
    let functions = format!(
        "[{ACL}, {{urlFilter: {{action: alert, patterns: [reddit.com, /index, \"*exec*\"]}}}}, \
         {{encrypt: {{key: {KEY}, mtu: 65535, midstream: encrypt, otherProtocols: pass}}}}]"
    );
    folder.spec("acl-urlfilter-encrypt.yaml", &functions, FLOWS)
}

/// The other end of [`acl_url_encrypt`].
pub fn decrypt(folder: &Folder) -> PathBuf {
    let functions = format!(
        "[{{encrypt: {{key: {KEY}, direction: decrypt, mtu: 65535, midstream: encrypt, \
         otherProtocols: pass}}}}]"
    );
    folder.spec("decrypt.yaml", &functions, FLOWS)
}

/// Tags by destination (see [`super::routes::tag`]), then routes from a file, if one is named.
pub fn tunnel_ip_forward(folder: &Folder, name: &str, routes: Option<&Path>) -> PathBuf {
    let mac = |bytes: [u8; 6]| bytes.map(|byte| format!("{byte:02x}")).join(":");
    let hops: Vec<String> = NEXT_HOPS
        .iter()
        .map(|&(name, address)| format!("{{name: {name}, mac: \"{}\"}}", mac(address)))
        .collect();
    let file = routes.map_or(String::new(), |file| format!("routesFile: \"{}\", ", file.display()));
    let functions = format!(
        "[{{tunnel: {{rules: [{{match: {{destination: 128.0.0.0/1}}, \
         push: {{vlan: 200, priority: 5, tpid: 0x88a8}}}}, {{push: {{vlan: 100}}}}]}}}}, \
         {{ipForward: {{{file}default: {}, sourceMac: \"{}\", nextHops: [{}]}}}}]",
        NEXT_HOPS[DEFAULT_HOP].0,
        mac(ROUTER),
        hops.join(", ")
    );
    folder.spec(name, &functions, "")
}

/// Removes tags.
pub fn pop(folder: &Folder) -> PathBuf {
    folder.spec("pop.yaml", "[{tunnel: {rules: [{pop: true}]}}]", "")
}
