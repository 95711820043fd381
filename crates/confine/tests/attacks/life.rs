//! Life of a program: its start, its status as the kernel reports it, and its end.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tailwater_confine::{Confinement, FIRST_USER, Program, Root, Status, Stopped};
use tailwater_handover::priority::Priority;

use crate::scene::Scene;
use crate::start_mode::{Attacker, Outcome, hostile, schedule, start, status, ways};

#[test]
fn the_kernel_says_what_was_promised() {
    for way in ways() {
        let mut program = hostile("nothing");
        program.environment.push(("NAME".into(), "value".into()));
        let attacker = start(&way, &Confinement::full(), &program);
        let pid = attacker.child.pid();
        let user: Vec<u32> = status(pid, "Uid")
            .split_whitespace()
            .map(|id| id.parse().unwrap())
            .collect();
        assert!(user.iter().all(|id| *id == user[0] && *id >= FIRST_USER), "{user:?}");
        assert_eq!(status(pid, "Gid"), status(pid, "Uid"));
        assert_eq!(status(pid, "Groups"), "");
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(status(pid, set), "0".repeat(16), "{set} in {way}");
        }
        assert_eq!(status(pid, "NoNewPrivs"), "1");
        assert_eq!(status(pid, "Seccomp"), "2");
        assert_eq!(status(pid, "Threads"), "1");
        let environment = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
        // Runtimes add HOME on their own.
        assert_eq!(environment.replace("HOME=/\0", ""), "NAME=value\0");
        for space in ["pid", "net", "ipc", "uts", "mnt"] {
            let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{space}")).unwrap();
            assert_ne!(of(&pid.to_string()), of("self"), "{space} in {way}");
        }
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let descriptors: BTreeSet<_> = descriptors.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(descriptors, ["0", "1", "2", "3"].map(Into::into).into());
        let root: BTreeSet<String> = fs::read_dir(format!("/proc/{pid}/root"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let known = ["program", "lib", "lib64", "usr", "etc", "dev", "proc", "sys"];
        assert!(root.contains("program"));
        assert!(root.iter().all(|name| known.contains(&name.as_str())), "{root:?}");
    }
}

/// `SCHED_FIFO`.
const FIFO: u32 = 1;

#[test]
fn cores_and_priority_are_given_and_taken() {
    for way in ways() {
        let attacker = start(&way, &Confinement::full(), &hostile("nothing"));
        let child = &attacker.child;
        let pid = child.pid();
        assert_eq!(schedule(pid), (0, 0));
        child.grant_priority(7).unwrap();
        assert_eq!(schedule(pid), (FIFO, 7));
        child.grant_priority(0).unwrap();
        assert_eq!(schedule(pid).0, 0);
        let cores = rustix::thread::sched_getaffinity(None).unwrap();
        let cores: Vec<usize> = (0..1024).filter(|core| cores.is_set(*core)).collect();
        // Every core, up and down again.
        for core in cores.iter().chain(cores.iter().rev()) {
            child.pin(*core).unwrap();
            assert_eq!(status(pid, "Cpus_allowed_list"), core.to_string(), "{way}");
        }
        let error = child.pin(1_000_000).unwrap_err().to_string();
        assert!(error.contains("core 1000000"), "{error}");
        let error = child.grant_priority(100).unwrap_err().to_string();
        assert!(error.contains("expected 1 to 99"), "{error}");
    }
}

/// Returns the supervisor thread of a program, which is the parent of the program or of its container's runtime.
fn supervisor_of(pid: i32) -> i32 {
    let parent = status(pid, "PPid");
    let kept = [pid.to_string(), parent];
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let mut threads = threads.map(|thread| thread.unwrap().path());
    let supervisor = threads.find(|thread| {
        let children = fs::read_to_string(thread.join("children")).unwrap_or_default();
        let mut children = children.split_whitespace();
        children.any(|child| kept.iter().any(|kept| kept == child))
    });
    let number = supervisor.expect("a keeper");
    number.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// The thread that starts a program may have real-time priority. Neither a program that is still loading nor its
/// supervisor, which the program can keep busy, inherits it.
#[test]
fn whoever_starts_it_keeps_their_priority_for_themselves() {
    const OURS: u8 = 4;
    for way in ways() {
        let raised = Priority::fifo(OURS).unwrap();
        let attacker = start(&way, &Confinement::full(), &hostile("nothing"));
        let me = rustix::thread::gettid().as_raw_nonzero().get();
        assert_eq!(schedule(me), (FIFO, OURS.into()));
        drop(raised);
        let pid = attacker.child.pid();
        let supervisor = supervisor_of(pid);
        assert_eq!(schedule(pid).0, 0, "{way}");
        assert_eq!(schedule(supervisor).0, 0, "{way}");
        attacker.child.seal();
        attacker.child.grant_priority(7).unwrap();
        assert_eq!(schedule(supervisor), (FIFO, 8), "{way}");
    }
}

/// Loading calls are allowed until the program is sealed; other calls never.
#[test]
fn sealing_ends_the_loading() {
    for way in ways() {
        let scene = Scene::new();
        let readable = scene.directory.join("readable");
        fs::write(&readable, "rules").unwrap();
        let path = readable.to_str().unwrap();
        let mut confinement = Confinement::full();
        confinement.root = Some(Root {
            files: vec![readable.clone()],
        });
        let attempt = |attack: &str, argument: &str, sealed: bool| {
            let mut attacker = start(&way, &confinement, &hostile(attack).argument(argument));
            if sealed {
                attacker.child.seal();
            }
            attacker.let_go();
            attacker.outcome()
        };
        let outcome = attempt("read-file", path, false);
        assert!(matches!(&outcome, Outcome::Done(text) if text == "rules"), "{outcome}");
        let stopped_at = |outcome: Outcome, name: &str| match outcome {
            Outcome::Stopped(Stopped::Seccomp(call)) => assert_eq!(call.to_string(), name),
            other => panic!("{other}"),
        };
        stopped_at(attempt("read-file", path, true), "openat");
        stopped_at(attempt("write-file", path, false), "openat");
        stopped_at(attempt("set-user-id", path, false), "execve");
        stopped_at(attempt("write-code", "", false), "mmap");
        stopped_at(attempt("internet", "80", false), "socket");
    }
}

#[test]
fn an_agent_can_be_met_at_standard_input() {
    for way in ways() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut program = hostile("nothing");
        program.input = Some(theirs.as_fd());
        let child = way.spawn(&Confinement::full(), &program);
        drop(theirs);
        ours.read_exact(&mut [0u8; 1]).unwrap();
        child.seal();
        ours.write_all(b"g").unwrap();
        let mut said = String::new();
        ours.read_to_string(&mut said).unwrap();
        assert_eq!(said, "done: ");
        assert_eq!(child.wait().stopped, None);
    }
}

#[test]
fn ends_are_told_apart() {
    for way in ways() {
        let begin = |attack: &str| {
            let mut attacker = start(&way, &Confinement::full(), &hostile(attack));
            attacker.child.seal();
            attacker.let_go();
            attacker.child
        };
        let end = begin("nothing").wait();
        assert_eq!((end.status, end.stopped), (Status::Exited(0), None), "{way}");
        let end = begin("crash").wait();
        assert_eq!(end.status, Status::Signal(libc::SIGSEGV));
        assert_eq!(end.stopped, Some(Stopped::Crash(libc::SIGSEGV)));
        let spins = begin("spin");
        assert_eq!(spins.wait_for(Duration::from_millis(1)), None);
        spins.kill(Stopped::Agent);
        // The first reason is kept.
        spins.kill(Stopped::Scheduler);
        assert_eq!(spins.wait().stopped, Some(Stopped::Agent));
        // A program that has ended cannot be moved or given priority.
        spins.grant_priority(1).unwrap();
        spins.pin(0).unwrap();
    }
}

#[test]
fn what_cannot_be_started_is_told_in_one_line() {
    let error = |confinement: &Confinement, program: &Program| {
        let error = confinement.spawn(program).unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error}");
        error
    };
    let full = Confinement::full();
    let missing = error(&full, &Program::new("/nowhere/at-all"));
    assert!(missing.starts_with("/nowhere/at-all: "), "{missing}");
    let text = error(
        &full,
        &Program::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")),
    );
    assert!(text.contains("ELF"), "{text}");
    let directory = error(&full, &Program::new("/"));
    assert!(
        directory.contains("not a file") || directory.contains("directory"),
        "{directory}"
    );
    let mut shared = Confinement::full();
    shared.own_user = false;
    let limits = error(&shared, &hostile("nothing"));
    assert!(limits.contains("own_user"), "{limits}");
    if ways().is_empty() {
        return;
    }
    let mut absent = Confinement::full();
    absent.root = Some(Root {
        files: vec!["/nowhere/rules".into()],
    });
    let rules = error(&absent, &hostile("nothing"));
    assert!(rules.starts_with("/nowhere/rules: "), "{rules}");
    let mut core = hostile("nothing");
    core.core = Some(100_000);
    let core = error(&full, &core);
    assert!(core.contains("core 100000"), "{core}");
}

/// Memory that a program is passed could be mapped twice while it loads, for writing and as code.
#[test]
fn memory_that_is_passed_never_becomes_code() {
    for way in ways() {
        let attempt = |flags: &str, confinement: &Confinement, has_its_code: bool| {
            let memory = rustix::fs::memfd_create("passed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&memory, 4096).unwrap();
            // Another user's program maps what it is passed.
            rustix::fs::fchmod(&memory, rustix::fs::Mode::from_raw_mode(0o777)).unwrap();
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            let mut program = hostile("shared-code").argument(flags).descriptor(memory.as_fd());
            program.input = Some(theirs.as_fd());
            let child = way.spawn(confinement, &program);
            drop(theirs);
            ours.read_exact(&mut [0]).expect("it loads");
            if has_its_code {
                child.refuse_code();
            }
            let mut attacker = Attacker { child, socket: ours };
            attacker.let_go();
            attacker.outcome()
        };
        let full = Confinement::full();
        for (flags, has_its_code) in [("shared", false), ("private", true)] {
            let outcome = attempt(flags, &full, has_its_code);
            assert!(
                matches!(outcome, Outcome::Stopped(Stopped::Seccomp(call)) if call.to_string() == "mmap"),
                "{flags} in {way}: {outcome}"
            );
        }
        let mut open = full.clone();
        open.filter = false;
        for flags in ["shared", "private"] {
            let outcome = attempt(flags, &open, false);
            assert!(
                matches!(&outcome, Outcome::Done(loot) if loot == "42"),
                "{way}: {outcome}"
            );
        }
    }
}

/// A user who locked the owner file of a slot, or that of a slot in the making, held up every start.
#[test]
fn no_other_user_reaches_the_owner_file() {
    for way in ways() {
        let attacker = start(&way, &Confinement::full(), &hostile("nothing"));
        let users = status(attacker.child.pid(), "Uid");
        let user: u32 = users.split_whitespace().next().unwrap().parse().unwrap();
        let owner = format!("/run/tailwater/functions/{}/owner", user - FIRST_USER);
        assert!(Path::new(&owner).is_file());
        const NOBODY: u32 = 65534;
        let mut tried = Command::new("test");
        let tried = tried.args(["-r", &owner]).uid(NOBODY).gid(NOBODY).status().unwrap();
        assert!(!tried.success(), "{owner}");
    }
}
