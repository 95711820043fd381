//! A function that tries to access another one's keys in Redis.

use crate::common::*;
use crate::failing::with_orders;
use crate::server::RedisServer;
use crate::{TRUSTED, alone, reason, run_isolated, ways};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use tailwater_dataplane::cores::available;

const PASSWORD: &str = "the operator's";

/// Runs the thief with this login. Returns the report, and `true` if the key that it forged exists.
fn attempt(server: &RedisServer, login: &str, way: &str) -> (Value, bool) {
    let folder = Folder::new();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built = Command::new("cc")
        .args([
            "-std=c11", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-I",
        ])
        .arg(sources.join("../sdk/include"))
        .arg("-o")
        .arg(folder.path("thief.so"))
        .arg(sources.join("tests/isolation/thief.c"))
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", text(&built.stderr));
    folder.write("password", PASSWORD);
    let socket = server.socket();
    let functions = format!(
        "[{{library: {{file: thief.so, config: {{socket: \"{}\", login: \"{login}\"}}}}}}, {{accounting: }}]",
        socket.display()
    );
    let state = format!(
        "  state: {{redis: {{socket: {}, passwordFile: password}}, wait: 10s, packets: 32768}}\n",
        socket.display()
    );
    let chain = folder.spec("thief.yaml", &functions, &state);
    let core = available().pop().unwrap().to_string();
    let (report, _) = run_isolated(&chain, &with_orders(&folder, 7100), way, &core);
    let forged = ask(server, &["exists", "tw:test:accounting:forged"]) == "1";
    ask(server, &["del", "tw:test:accounting:forged"]);
    (report, forged)
}

/// Repeats the attempt until Redis has responded before the last packet that asks.
fn told_attempt(server: &RedisServer, login: &str) -> (Value, bool) {
    for _ in 0..10 {
        let (report, forged) = attempt(server, login, TRUSTED);
        if ["refused", "stolen"].map(|name| told(&report, name)) != [0; 2] {
            return (report, forged);
        }
    }
    panic!("no answer of Redis' in time");
}

/// Returns the number of packets with this drop reason of the thief.
fn told(report: &Value, what: &str) -> u64 {
    reason(report, &format!("thief/{what}"))
}

/// Runs a Redis command as the operator.
fn ask(server: &RedisServer, command: &[&str]) -> String {
    server.command(&[&["-a", PASSWORD], command].concat())
}

#[test]
fn a_function_with_a_connection_of_its_own_gets_at_no_other_one_s_keys() {
    let _alone = alone();
    let Some(server) = RedisServer::start(&["--requirepass", PASSWORD]) else {
        return;
    };
    // The user that `tailwater` creates for a function of this name, with a password that the thief has.
    let user = ["acl", "setuser", "thief", "reset", "on", ">secret"];
    let own = ["~tw:test:thief:*", "-@all", "+mget", "+set", "+unlink", "+eval"];
    ask(&server, &[&user[..], &own].concat());
    // Without a login, and with its own.
    for login in ["", "AUTH thief secret"] {
        let (report, forged) = told_attempt(&server, login);
        assert_eq!(told(&report, "stolen"), 0, "{:#}", report["packets"]);
        assert!(!forged, "{login}");
    }
    // Without the user's restrictions it succeeds.
    ask(&server, &[&user[..], &["~*", "+@all"]].concat());
    let (report, forged) = told_attempt(&server, "AUTH thief secret");
    assert_eq!(told(&report, "refused"), 0, "{:#}", report["packets"]);
    assert!(forged);
    // Confined, it fails earlier, whatever Redis allows.
    for way in ways().into_iter().filter(|way| *way != TRUSTED) {
        let (report, forged) = attempt(&server, "AUTH thief secret", way);
        assert!(!forged);
        let thief = &report["isolation"]["functions"][0];
        let told = thief["ends"].to_string();
        assert!(told.contains("forbidden system call socket"), "{report:#}");
        assert!(reason(&report, "thief/process-failed") >= 1, "{report:#}");
    }
}
