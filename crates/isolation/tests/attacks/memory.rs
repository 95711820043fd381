//! Access to memory that is not the function's: the NIC's buffers, other chains' packets, other functions' responses.

use crate::{PACKETS, Rig, frame, loot, program, raw, ways};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use tailwater_confine::{Confinement, ContainerRuntime};
use tailwater_isolation::server::FunctionReport;

const SECRET: &[u8; 8] = b"a secret";
const OVERWRITTEN: &[u8; 8] = b"overwrit";

/// Returns the bytes that the hostile function sent out, and the report on it.
fn attack(
    attack: &str,
    confinement: &Confinement,
    container: &Option<ContainerRuntime>,
) -> (Option<[u8; 8]>, FunctionReport) {
    let good = program("nothing", &Confinement::full(), container);
    let hostile = raw(attack, confinement, container);
    let mut rig = Rig::new(vec![good.clone(), hostile, good], Duration::from_secs(10));
    let sent = rig.send(&vec![frame(); PACKETS]);
    let loot = sent.first().map(|frame| loot(frame));
    let mut reports = rig.finish();
    for i in [0, 2] {
        assert_eq!(reports[i].restarts.total(), 0, "{attack}: {reports:?}");
    }
    (loot, reports.swap_remove(1))
}

/// Returns a confinement without the system-call filter, the root directory and the user, which would prevent the
/// attacks.
fn exposed(container: &Option<ContainerRuntime>) -> Confinement {
    let mut exposed = Confinement::none();
    if container.is_some() {
        // A container with a PID namespace has its own `/proc`. The attack needs the machine's, so that namespace is
        // off.
        exposed = Confinement::full();
        exposed.filter = false;
        exposed.root = None;
        exposed.own_user = false;
        exposed.limits.processes = None;
        exposed.drop_capabilities = false;
        exposed.namespaces.processes = false;
    }
    exposed
}

/// Buffers that stand for a NIC's and hold a secret, and a memory file that stands for another chain's packets, or
/// another function's flow state.
struct Others {
    nic: Vec<u8>,
    chain: File,
}

impl Others {
    fn new() -> Others {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let chain = File::from(rustix::fs::memfd_create("others", flags).unwrap());
        chain.write_all_at(SECRET, 64).unwrap();
        Others {
            nic: SECRET.to_vec(),
            chain,
        }
    }

    fn in_nic(&self) -> String {
        let server = std::process::id();
        format!("/proc/{server}/mem {}", self.nic.as_ptr().addr())
    }

    fn in_chain(&self) -> String {
        let server = std::process::id();
        format!("/proc/{server}/fd/{} 64", self.chain.as_raw_fd())
    }

    fn secret_of_chain(&self) -> [u8; 8] {
        let mut bytes = [0; 8];
        self.chain.read_exact_at(&mut bytes, 64).unwrap();
        bytes
    }
}

#[test]
fn buffers_of_the_nic_and_memory_of_other_chains_are_out_of_reach() {
    let others = Others::new();
    let nic = || -> [u8; 8] { std::hint::black_box(&others.nic)[..].try_into().unwrap() };
    for container in ways() {
        for what in [
            format!("read {}", others.in_nic()),
            format!("read {}", others.in_chain()),
            format!("write {}", others.in_nic()),
            format!("write {}", others.in_chain()),
        ] {
            let (loot, report) = attack(&what, &Confinement::full(), &container);
            assert_eq!(loot, None, "{what}");
            let told = "forbidden system call openat";
            assert!(report.ends.iter().any(|it| it.contains(told)), "{what}: {report:?}");
            assert_eq!([nic(), others.secret_of_chain()], [*SECRET; 2], "{what}");

            let (loot, report) = attack(&what, &exposed(&container), &container);
            assert_eq!(report.restarts.total(), 0, "{what}: {report:?}");
            if what.starts_with("read") {
                assert_eq!(loot, Some(*SECRET), "{what}");
                continue;
            }
            // The attack succeeded. Restore the overwritten bytes.
            let written = [nic(), others.secret_of_chain()];
            assert!(written.contains(OVERWRITTEN), "{what}");
            let address = others.nic.as_ptr().addr() as u64;
            let memory = File::options().write(true).open("/proc/self/mem").unwrap();
            memory.write_all_at(SECRET, address).unwrap();
            others.chain.write_all_at(SECRET, 64).unwrap();
        }
    }
}

#[test]
fn what_is_for_reading_is_for_reading() {
    for container in ways() {
        for what in ["write-board", "write-front", "read-beyond"] {
            let (loot, report) = attack(what, &Confinement::full(), &container);
            assert_eq!(loot, None, "{what}");
            let crashed = report.ends.iter().any(|it| it.contains("signal 11"));
            // The server does not wait for a container runtime that reports the exit late.
            let unknown = report.ends.iter().any(|it| it.contains("unknown status"));
            assert!(crashed || unknown && container.is_some(), "{what}: {report:?}");
        }
        // The kernel refuses: the descriptor is read-only.
        let (loot, _) = attack("protect-board", &Confinement::full(), &container);
        assert_eq!(loot, Some([0; 8]));
        for what in ["reopen-front", "reopen-board"] {
            let (loot, report) = attack(what, &Confinement::full(), &container);
            assert_eq!(loot, None, "{what}");
            let told = "forbidden system call openat";
            assert!(report.ends.iter().any(|it| it.contains(told)), "{what}: {report:?}");
            // Its user alone prevents it: the files belong to the server.
            let mut user = exposed(&container);
            user.own_user = true;
            user.drop_capabilities = true;
            let (loot, report) = attack(what, &user, &container);
            assert_eq!(loot, None, "{what}: {report:?}");
            assert_eq!(report.restarts.ended, 1, "{what}: {report:?}");
            let (loot, _) = attack(what, &exposed(&container), &container);
            assert_eq!(loot, Some(*OVERWRITTEN), "{what}");
        }
    }
}

/// Returns the shared memory that a process has mapped, by inode, with the access rights.
fn shared_mappings(process: u32) -> BTreeMap<String, (String, String)> {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let lines = maps.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (rights, inode) = (fields[1], fields[4]);
        let name = fields[5..].join(" ");
        let shared = rights.ends_with('s') || name.starts_with("/memfd") || name.starts_with("/dev");
        shared.then(|| (inode.to_owned(), (rights.to_owned(), name)))
    });
    lines.collect()
}

/// A function's process maps the memory of its chain, but none that another function writes, and not the NIC's.
#[test]
fn nothing_else_is_mapped() {
    for container in ways() {
        let programs = ["first", "second"].map(|argument| {
            let mut program = program("nothing", &Confinement::full(), &container);
            program.launch.arguments.push(argument.into());
            program
        });
        let mut rig = Rig::new(programs.to_vec(), Duration::from_secs(10));
        assert_eq!(rig.send(&vec![frame(); PACKETS]).len(), PACKETS);
        let seen = ["first", "second"].map(|argument| {
            let all = crate::turns::descendants_with(argument);
            let attached = all.into_iter().map(shared_mappings);
            let attached: Vec<_> = attached.filter(|maps| !maps.is_empty()).collect();
            assert_eq!(attached.len(), 1, "{argument}: {attached:?}");
            attached.into_iter().next().unwrap()
        });
        let named = |maps: &BTreeMap<String, (String, String)>| -> Vec<(String, String)> {
            let mut all: Vec<_> = maps.values().cloned().collect();
            all.sort();
            all
        };
        let of = |rights: &str, name: &str| (rights.to_owned(), format!("/memfd:tailwater-{name} (deleted)"));
        let own = [of("r--s", "board"), of("rw-s", "packets"), of("rw-s", "slate")];
        assert_eq!(named(&seen[0]), own);
        let in_front = of("r--s", "slate");
        let own = [own[0].clone(), in_front, own[1].clone(), own[2].clone()];
        assert_eq!(named(&seen[1]), own);
        // The first function's response area is mapped read-only.
        let slate = |maps: &BTreeMap<String, (String, String)>, rights: &str| {
            let found = maps.iter().find(|(_, it)| **it == of(rights, "slate"));
            found.map(|(inode, _)| inode.clone()).unwrap()
        };
        assert_eq!(slate(&seen[1], "r--s"), slate(&seen[0], "rw-s"));
        assert_ne!(slate(&seen[1], "rw-s"), slate(&seen[0], "rw-s"));
        rig.finish();
    }
}
