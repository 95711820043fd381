//! A server with a chain whose flow state is in a real Redis: killed, replaced, and resumed.
#![cfg(feature = "control")]

mod common;
#[path = "../../state/tests/server/mod.rs"]
mod redis_server;

use common::chain_server::*;
use redis_server::{RedisServer, piece_of};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Serialises tests: a server with isolated functions has real-time priority, and leaves the others nothing of the
/// core.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Chain with state in Redis, and further fields. Packets of more than a second may wait, in which a busy machine
/// starts isolated functions.
fn stored(server: &RedisServer, functions: &str, fields: &str) -> String {
    let socket = server.socket().display().to_string();
    chain("stored", "10.0.0.0/8", functions)
        + &format!("  state: {{redis: {{socket: {socket}}}, instance: edge, wait: 10s, packets: 8192}}\n{fields}")
}

/// Translations in Redis as bytes, without the numbers of their updates.
fn bindings(server: &RedisServer) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let client = redis::Client::open(format!("unix://{}", server.socket().display())).unwrap();
    let mut connection = client.get_connection().unwrap();
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS")
        .arg("tw:stored:nat:*")
        .query(&mut connection)
        .unwrap();
    let mut bindings = BTreeMap::new();
    for key in keys {
        // An expired one is not there any more.
        let value: Option<Vec<u8>> = redis::cmd("GET").arg(&key).query(&mut connection).unwrap();
        bindings.extend(value.map(|value| (key, piece_of(&value).to_vec())));
    }
    bindings
}

fn delivered(folder: &Folder) -> u64 {
    let chains = folder.chains();
    let mut chains = chains["chains"].as_array().unwrap().iter();
    let chain = chains.find(|chain| chain["name"] == "stored");
    chain.map_or(0, |chain| number(&chain["packets"]["delivered"]))
}

/// Waits until packets have passed, by which the translations of the repeated traffic are all known.
fn await_packets(folder: &Folder) {
    let before = delivered(folder);
    wait("packets", || delivered(folder) > before + 2_000);
}

/// Checks that each flow of `before` has the same translation.
fn assert_kept(before: &BTreeMap<Vec<u8>, Vec<u8>>, server: &RedisServer) {
    let after = bindings(server);
    let changed = before
        .iter()
        .filter(|(key, value)| after.get(*key) != Some(value))
        .count();
    assert_eq!(changed, 0, "of {}", before.len());
}

/// A process that takes over gets the store when the running one has processed and stored everything: no packet is lost
/// for want of it.
fn pass_the_store(fields: &str) {
    let _alone = alone();
    let Some(server) = RedisServer::start(&[]) else {
        return;
    };
    let folder = Folder::new();
    folder.server("");
    folder.write(
        "chains/stored.yaml",
        &stored(&server, "{nat: {external: [203.0.113.0/28]}}", fields),
    );
    let mut serving = Serving::start(&folder);
    await_packets(&folder);
    let known = bindings(&server);
    assert!(known.len() > 20, "{}", known.len());
    let mut command = folder.command(&["serve", "server.yaml", "--output", "json", "--take-over"]);
    let next = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let next = Serving(Some(next));
    let old = serving.0.take().unwrap().wait_with_output().unwrap();
    assert_eq!(old.status.code(), Some(0), "{}", String::from_utf8_lossy(&old.stderr));
    wait("the new server", || {
        folder.run(&["get", "chains", "--socket", "edge.sock"]).status.success()
    });
    await_packets(&folder);
    assert_kept(&known, &server);
    assert!(folder.ok(&["events"]).contains("TookOver"));
    let old: Value = serde_json::from_slice(&old.stdout).unwrap();
    for report in [&old, &next.stop()] {
        let chain = &report["chains"][0];
        assert_eq!(chain["failure"], Value::Null, "{chain:#}");
        let packets = &chain["report"]["packets"];
        // A busy machine may lose some while processes change: the subject of other tests.
        assert_eq!(packets["reasons"].get("state-unavailable"), None, "{packets:#}");
    }
}

#[test]
fn the_store_passes_to_a_process_that_takes_over() {
    pass_the_store("");
}

/// The new process starts its own once it has the store: what isolated functions know is there.
#[test]
fn isolated_functions_continue_from_the_store_in_a_process_that_takes_over() {
    match rustix::process::geteuid().is_root() {
        true => pass_the_store("  isolation: process\n"),
        false => println!("skipped: confining functions needs root"),
    }
}

/// A store that answers, and turns the chain away at the moment at which the running server has let go: the take-over
/// is done, the other chain goes on, and the operator reads which chain has failed and why. Applied again, it runs.
#[test]
fn a_store_that_refuses_a_process_that_takes_over_fails_its_chain_alone() {
    let _alone = alone();
    let Some(server) = RedisServer::start(&[]) else {
        return;
    };
    let folder = Folder::new();
    folder.server("");
    folder.write(
        "chains/stored.yaml",
        &stored(&server, "{nat: {external: [203.0.113.0/28]}}", ""),
    );
    folder.chain("plain", "0.0.0.0/0", "{accounting: }");
    let mut serving = Serving::start(&folder);
    await_packets(&folder);
    let known = bindings(&server);
    let password = |password: &str, known: Option<&str>| {
        let known = known.map_or(String::new(), |known| format!("?pass={known}"));
        let client = redis::Client::open(format!("unix://{}{known}", server.socket().display())).unwrap();
        let mut connection = client.get_connection().unwrap();
        let mut set = redis::cmd("CONFIG");
        let set = set.arg("SET").arg("requirepass").arg(password);
        set.query::<()>(&mut connection).unwrap();
    };
    // Connections that are open stay so.
    password("new", None);
    let mut command = folder.command(&["serve", "server.yaml", "--output", "json", "--take-over"]);
    let next = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let next = Serving(Some(next));
    let old = serving.0.take().unwrap().wait_with_output().unwrap();
    assert_eq!(old.status.code(), Some(0), "{}", String::from_utf8_lossy(&old.stderr));
    wait("the failure", || {
        let listed = folder.run(&["get", "chains", "--socket", "edge.sock"]);
        String::from_utf8_lossy(&listed.stdout).contains("Failed")
    });
    let described = folder.ok(&["describe", "chain", "stored"]);
    assert!(described.contains("NOAUTH"), "{described}");
    let events = folder.ok(&["events", "--chain", "stored"]);
    let failed = events
        .lines()
        .any(|line| line.contains("Warning") && line.contains("NOAUTH"));
    assert!(failed, "{events}");
    let of_plain = || {
        let chains = folder.chains();
        let mut chains = chains["chains"].as_array().unwrap().iter();
        number(&chains.find(|chain| chain["name"] == "plain").unwrap()["packets"]["delivered"])
    };
    let before = of_plain();
    wait("packets of the other chain", || of_plain() > before);
    password("", Some("new"));
    folder.ok(&["apply", "-f", "chains/stored.yaml"]);
    await_packets(&folder);
    assert_kept(&known, &server);
    let report = next.stop();
    let mut chains = report["chains"].as_array().unwrap().iter();
    let chain = chains.find(|chain| chain["name"] == "stored").unwrap();
    assert_eq!(chain["failure"], Value::Null, "{chain:#}");
}

#[test]
fn bindings_outlive_a_killed_server_and_a_replaced_chain() {
    let _alone = alone();
    let Some(server) = RedisServer::start(&[]) else {
        return;
    };
    const NAT: &str = "{nat: {external: [203.0.113.0/28]}}";
    let folder = Folder::new();
    folder.server("");
    let mut serving = Serving::start(&folder);
    folder.write("stored.yaml", &stored(&server, NAT, ""));
    folder.ok(&["apply", "-f", "stored.yaml"]);
    await_packets(&folder);
    let known = bindings(&server);
    assert!(known.len() > 20, "{}", known.len());
    serving.kill();
    assert_kept(&known, &server);
    let serving = Serving::start_again(&folder);
    await_packets(&folder);
    assert_kept(&known, &server);
    // Another list of functions, which is another run of the same instance.
    folder.write("stored.yaml", &stored(&server, &format!("{NAT}, {{forward: }}"), ""));
    folder.ok(&["apply", "-f", "stored.yaml"]);
    await_packets(&folder);
    assert_kept(&known, &server);
    let mut replaced = 2;
    if rustix::process::geteuid().is_root() {
        // In processes of their own, they go on with what they find.
        folder.write("stored.yaml", &stored(&server, NAT, "  isolation: process\n"));
        folder.ok(&["apply", "-f", "stored.yaml"]);
        await_packets(&folder);
        assert_kept(&known, &server);
        replaced += 1;
    } else {
        println!("skipped in part: confining functions needs root");
    }
    let report = serving.stop();
    let chains = report["chains"].as_array().unwrap();
    assert_eq!(chains.len(), replaced);
    for chain in chains {
        let report = &chain["report"];
        let count = |name: &str| number(&report["packets"][name]);
        let ended = count("delivered") + count("dropped_by_nf") + count("lost");
        assert_eq!(count("offered"), ended, "{report:#}");
        // Each resumed the flows of the one before.
        assert_ne!(number(&report["state"]["hits"]), 0, "{report:#}");
        assert_eq!(chain["failure"], Value::Null);
    }
    // Each lost the store to the next one, but for the last.
    let last = chains.iter().max_by_key(|chain| number(&chain["report"]["began_us"]));
    assert_eq!(last.unwrap()["report"]["state"]["fenced"], false);
}
