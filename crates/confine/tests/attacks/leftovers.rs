//! Clean-up: nothing remains of a program, nor of an agent that is killed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tailwater_confine::{Confinement, FIRST_USER, Stopped, sweep};

use crate::start_mode::{StartMode, hostile, start, status, ways};

/// Returns the directories created for a program, identified by its user.
fn made_for(user: u32) -> Vec<PathBuf> {
    let number = (user - FIRST_USER).to_string();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let groups = mounts
        .lines()
        .filter(|line| line.contains(" - cgroup"))
        .map(|line| Path::new(line.split(' ').nth(4).unwrap()).join("tailwater"));
    groups
        .chain([PathBuf::from("/run/tailwater/functions")])
        .map(|directory| directory.join(&number))
        .filter(|directory| directory.exists())
        .collect()
}

fn user_of(pid: i32) -> u32 {
    let users = status(pid, "Uid");
    users.split_whitespace().next().unwrap().parse().unwrap()
}

/// Returns the processes of that user, except zombies.
fn processes_of(user: u32) -> Vec<String> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| fs::read_to_string(entry.path().join("status")).ok())
        .filter(|status| status.contains(&format!("Uid:\t{user}\t")) && !status.contains("State:\tZ"))
        .collect()
}

/// Waits until everything of that user is gone.
fn gone(user: u32) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let (made, running) = (made_for(user), processes_of(user));
        if made.is_empty() && running.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "left: {made:?} {running:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Full confinement, except for the limits that prevent children.
fn fertile() -> Confinement {
    let mut confinement = Confinement::full();
    confinement.filter = false;
    confinement.limits.processes = None;
    confinement.groups.processes = None;
    confinement
}

#[test]
fn an_end_takes_everything_along() {
    for way in ways() {
        // A program that is killed while its child would survive, and the child of a program that ends by itself.
        for attack in ["spin", "outlive"] {
            let mut attacker = start(&way, &fertile(), &hostile(attack));
            let user = user_of(attacker.child.pid());
            assert!(!made_for(user).is_empty());
            assert!(attacker.child.processes().contains(&attacker.child.pid()));
            attacker.let_go();
            if attack == "spin" {
                attacker.child.kill(Stopped::Agent);
            }
            attacker.child.wait();
            // Removal is complete on return, so a start that follows is not disturbed.
            assert_eq!(made_for(user), [] as [PathBuf; 0], "{attack} in {way}");
            gone(user);
        }
        // A program dropped while it runs.
        let attacker = start(&way, &Confinement::full(), &hostile("nothing"));
        let user = user_of(attacker.child.pid());
        drop(attacker);
        gone(user);
    }
}

/// Environment variable that makes a copy of this test act as an agent.
const AGENT: &str = "TAILWATER_TEST_AGENT";

#[test]
fn an_agent_that_is_killed_leaves_nothing_after_the_next_start() {
    if let Ok(kind) = std::env::var(AGENT) {
        be_an_agent(&kind);
    }
    for way in ways() {
        let kind = match way {
            StartMode::Process => "process",
            StartMode::Container(_) => "container",
        };
        let name = "leftovers::an_agent_that_is_killed_leaves_nothing_after_the_next_start";
        let mut agent = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(AGENT, kind)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(agent.stdout.take().unwrap()).lines();
        let line = lines.map_while(Result::ok).find_map(|line| {
            let (_, pid) = line.split_once("started ")?;
            pid.parse::<i32>().ok()
        });
        let pid = line.expect("the agent starts its function");
        let user = user_of(pid);
        assert!(!processes_of(user).is_empty());
        assert!(!made_for(user).is_empty());
        agent.kill().unwrap();
        agent.wait().unwrap();
        // Its programs end without any clean-up, those that spin too.
        let deadline = Instant::now() + Duration::from_secs(60);
        while !processes_of(user).is_empty() {
            assert!(Instant::now() < deadline, "it outlives its agent in {way}");
            thread::sleep(Duration::from_millis(10));
        }
        // The next start, possibly of another test, removes the remains of the dead agent, and does not touch those of
        // a living one.
        let mut lives = start(&way, &Confinement::full(), &hostile("nothing"));
        sweep().unwrap();
        gone(user);
        lives.child.seal();
        lives.let_go();
        assert_eq!(lives.child.wait().stopped, None);
    }
}

/// Starts a function that spins, reports it, and waits to be killed.
fn be_an_agent(kind: &str) -> ! {
    let way = match kind {
        "process" => StartMode::Process,
        _ => StartMode::container().unwrap(),
    };
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let child = way.spawn(&Confinement::full(), &hostile("spin").descriptor(theirs.as_fd()));
    std::io::Read::read_exact(&mut ours, &mut [0u8; 1]).unwrap();
    child.seal();
    std::io::Write::write_all(&mut ours, b"g").unwrap();
    println!("started {}", child.pid());
    loop {
        thread::sleep(Duration::from_secs(3600));
    }
}
