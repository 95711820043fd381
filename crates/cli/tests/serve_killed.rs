//! A server that is killed while it applies: the next one runs the old generation or the new one, whole, and nothing is
//! left of the old process.
//!
//! `cargo test` kills a few; KILLS sets their number, for `make soak`.

mod common;

use common::chain_server::{Folder, Serving, chain, wait};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tailwater_server::control::Client;
use tailwater_server::control::generated::{ApplyRequest, Manifest};
use tailwater_server::generation::{StoredGeneration, decode};

/// Chains of one apply.
const CHAINS: [(&str, &str); 2] = [("first", "10.0.0.0/17"), ("second", "10.0.128.0/17")];

/// Request to apply a version of all chains. Versions differ in their objectives, and every third in its functions.
fn request(version: u64) -> ApplyRequest {
    let functions = if version.is_multiple_of(3) {
        "{accounting: }, {forward: }"
    } else {
        "{forward: }"
    };
    let manifest = |(name, sources): &(&str, &str)| Manifest {
        source: "standard input".to_owned(),
        path: String::new(),
        yaml: chain(name, sources, functions).replace("100ms", &format!("{}us", 100_000 + version)),
    };
    ApplyRequest {
        manifests: CHAINS.iter().map(manifest).collect(),
        dry_run: false,
        force: false,
    }
}

/// Version of a stored generation, whose chains are all of it.
fn version(stored: &StoredGeneration) -> u64 {
    let of = |yaml: &str| {
        let (_, rest) = yaml.split_once("latency: 1").unwrap();
        let (digits, _) = rest.split_once("us").unwrap();
        digits.parse().unwrap()
    };
    let mut versions: Vec<u64> = stored.chains.iter().map(|chain| of(&chain.manifest.yaml)).collect();
    assert_eq!(versions.len(), CHAINS.len());
    versions.dedup();
    assert_eq!(versions.len(), 1, "parts of two generations: {stored:?}");
    versions[0]
}

fn stored(folder: &Folder) -> StoredGeneration {
    decode(&fs::read(folder.0.join("state/generation")).unwrap()).unwrap()
}

/// Names of the files in a folder.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Applies version after version until the server is gone. `begun` and `done` are the last versions.
fn apply_on(socket: &Path, (begun, done): (&AtomicU64, &AtomicU64)) {
    let Ok(mut client) = Client::connect(socket) else {
        return;
    };
    loop {
        let version = begun.fetch_add(1, Ordering::SeqCst) + 1;
        if client.apply(request(version)).is_err() {
            return;
        }
        done.store(version, Ordering::SeqCst);
    }
}

#[test]
fn a_server_that_is_killed_leaves_the_old_generation_or_the_new_one() {
    let kills: u64 = std::env::var("KILLS")
        .ok()
        .and_then(|kills| kills.parse().ok())
        .unwrap_or(6);
    let folder = Folder::new();
    folder.server("");
    let (begun, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut serving = Serving::start(&folder);
    let mut random: u64 = 0x2545_f491_4f6c_dd1d;
    for kill in 0..kills {
        let socket = folder.0.join("edge.sock");
        let first = done.load(Ordering::SeqCst);
        let applying = {
            let (begun, done) = (Arc::clone(&begun), Arc::clone(&done));
            std::thread::spawn(move || apply_on(&socket, (&begun, &done)))
        };
        wait("the first apply", || done.load(Ordering::SeqCst) > first);
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        std::thread::sleep(Duration::from_micros(random >> 33 & 0xffff));
        serving.kill();
        applying.join().unwrap();
        let (begun, acknowledged) = (begun.load(Ordering::SeqCst), done.load(Ordering::SeqCst));
        let before = stored(&folder);
        let found = version(&before);
        println!(
            "kill {kill}: {found} stored, {acknowledged} acknowledged, {begun} begun, {:?}",
            names(&folder.0.join("state"))
        );
        assert!(
            found == acknowledged || found == begun,
            "{found}, {acknowledged} to {begun}"
        );
        serving = Serving::start_again(&folder);
        // The lock and the socket are free, and a file that was being written is removed.
        assert_eq!(names(&folder.0.join("state")), ["generation"]);
        assert_eq!(stored(&folder), before);
        let chains = folder.chains();
        let chains = chains["chains"].as_array().unwrap();
        assert_eq!(chains.len(), CHAINS.len());
        wait("both chains", || {
            let chains = folder.chains();
            chains["chains"]
                .as_array()
                .unwrap()
                .iter()
                .all(|chain| chain["phase"] == "Running")
        });
    }
    serving.stop();
    assert_eq!(names(&folder.0.join("state")), ["generation"]);
    assert!(!folder.0.join("edge.sock").exists());
}
