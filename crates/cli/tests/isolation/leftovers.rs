//! Nothing of a run is left behind, however it ends.

use crate::common::*;
use crate::processes::{family_of, is_there, places_of, processes_of, signal};
use crate::{TRUSTED, alone, ways};
use std::path::PathBuf;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Runs a chain, applies `end` to `tailwater`, and asserts that no process is left. Confined ones also leave no
/// directory and no control group; if `swept`, after the next run has begun.
fn assert_nothing_stays(way: &str, swept: bool, end: impl FnOnce(u32)) {
    let folder = Folder::new();
    let chain = folder.acl_nat();
    // Lasts longer than the test.
    let minute = [0, 60_000_000_000].map(|time| (time, udp(client(1), 2000, SERVER, 53)));
    let lasting = folder.capture("minute.pcap", &minute);
    let mut child = tailwater()
        .args(["run", "--isolation"])
        .args(way.split(' '))
        .arg(&chain)
        .arg("--traffic")
        .arg(&lasting)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    // Two functions, each with a standby process.
    while processes_of(child.id()).len() < 4 {
        assert!(Instant::now() < until, "{:?}", processes_of(child.id()));
        sleep(Duration::from_millis(20));
    }
    // Time until all of them are attached.
    sleep(Duration::from_millis(300));
    let mut processes = family_of(child.id());
    processes.retain(|process| *process != child.id());
    let places: Vec<PathBuf> = processes.iter().copied().flat_map(places_of).collect();
    assert_eq!(places.is_empty(), way == TRUSTED, "{way}: {places:?}");
    end(child.id());
    child.wait().unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while let Some(left) = processes.iter().find(|&&process| is_there(process)) {
        assert!(Instant::now() < until, "process {left} is still there");
        sleep(Duration::from_millis(20));
    }
    if swept && way != TRUSTED {
        let traffic = folder.capture("in.pcap", &mixture(10));
        report(&chain, &traffic, &["--isolation", way]);
    }
    let left: Vec<_> = places.iter().filter(|path| path.exists()).collect();
    assert!(left.is_empty(), "{way}: {left:?}");
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    let _alone = alone();
    for way in ways() {
        assert_nothing_stays(way, false, |tailwater| signal(tailwater, "-INT"));
    }
}

#[test]
fn a_killed_run_leaves_nothing() {
    let _alone = alone();
    for way in ways() {
        assert_nothing_stays(way, true, |tailwater| signal(tailwater, "-KILL"));
    }
}
