//! System calls that functions may not make.

use crate::{Neighbour, PACKETS, Rig, core, frame, program, ways};
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;
use tailwater_confine::{Confinement, ContainerRuntime};
use tailwater_isolation::server::{FunctionReport, PRIORITY};

/// Sends one batch through a good function, the hostile one and another good one. Returns the number of forwarded
/// packets, and the reports on the three.
fn one_batch(
    attack: &str,
    confinement: &Confinement,
    container: &Option<ContainerRuntime>,
) -> (usize, Vec<FunctionReport>) {
    let good = program("nothing", &Confinement::full(), container);
    let hostile = program(attack, confinement, container);
    let deadline = match attack {
        "spin" => Duration::from_millis(50),
        _ => Duration::from_secs(10),
    };
    let mut rig = Rig::new(vec![good.clone(), hostile, good], deadline);
    let through = rig.send(&vec![frame(); PACKETS]).len();
    (through, rig.finish())
}

/// Targets of the attacks: a process to kill, a file of root's, a listening socket, another core.
struct Scene {
    neighbour: Neighbour,
    secret: PathBuf,
    listener: TcpListener,
    other_core: Option<usize>,
}

impl Scene {
    fn new() -> Scene {
        let name = format!("tailwater-calls-{}", std::process::id());
        let secret = std::env::temp_dir().join(name);
        fs::write(&secret, "a secret").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        Scene {
            neighbour: Neighbour::new(),
            secret,
            listener: TcpListener::bind("127.0.0.1:0").unwrap(),
            other_core: core(1),
        }
    }

    fn attacks(&self) -> Vec<Attack> {
        let mut attacks = vec![
            Attack {
                what: format!("open {}", self.secret.display()),
                told: "forbidden system call openat",
                switch_off: |it| {
                    it.filter = false;
                    it.root = None;
                    it.own_user = false;
                    it.limits.processes = None;
                },
            },
            Attack {
                what: "fork /bin/true".into(),
                told: "forbidden system call",
                switch_off: |it| {
                    it.filter = false;
                    it.root = None;
                    it.limits.processes = None;
                    it.groups.processes = None;
                },
            },
            Attack {
                what: "thread".into(),
                told: "forbidden system call",
                switch_off: |it| {
                    it.filter = false;
                    it.limits.processes = None;
                    it.groups.processes = None;
                },
            },
            Attack {
                what: format!("socket {}", self.listener.local_addr().unwrap()),
                told: "forbidden system call socket",
                switch_off: |it| {
                    it.filter = false;
                    it.namespaces.network = false;
                },
            },
            Attack {
                what: format!("kill {}", self.neighbour.0.id()),
                told: "forbidden system call kill",
                switch_off: |it| {
                    it.filter = false;
                    it.namespaces.processes = false;
                    it.own_user = false;
                    it.limits.processes = None;
                },
            },
            Attack {
                what: format!("raise-priority {}", PRIORITY + 1),
                told: "forbidden system call sched_setscheduler",
                switch_off: |it| {
                    it.filter = false;
                    it.own_user = false;
                    it.limits.processes = None;
                    it.drop_capabilities = false;
                    it.namespaces.users = false;
                },
            },
            Attack {
                what: format!("allocate {}", 96 << 20),
                told: "memory limit exceeded",
                switch_off: |it| it.groups.memory = None,
            },
        ];
        if let Some(core) = self.other_core {
            attacks.push(Attack {
                what: format!("leave-core {core}"),
                told: "forbidden system call sched_setaffinity",
                switch_off: |it| {
                    it.filter = false;
                    it.groups.cores = false;
                },
            });
        }
        attacks
    }

    /// Returns `true` if the neighbour was killed, and starts a new one.
    fn has_lost_its_neighbour(&mut self) -> bool {
        let dead = self.neighbour.0.try_wait().unwrap().is_some();
        if dead {
            self.neighbour = Neighbour::new();
        }
        dead
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.secret);
    }
}

/// A system call that a function may not make.
struct Attack {
    /// Its name and argument.
    what: String,
    /// Exit in the report.
    told: &'static str,
    /// Disables the defences that prevent it.
    switch_off: fn(&mut Confinement),
}

#[test]
fn what_a_hostile_function_tries_ends_it_and_nobody_else() {
    for container in ways() {
        let mut scene = Scene::new();
        for attack in 0..scene.attacks().len() {
            // A neighbour that was killed is replaced by one with another process id.
            let Attack { what, told, switch_off } = scene.attacks().swap_remove(attack);
            let mut confinement = Confinement::full();
            confinement.groups.memory = Some(48 << 20);
            let (through, reports) = one_batch(&what, &confinement, &container);
            assert_eq!(through, 0, "{what}");
            let ends = &reports[1].ends;
            assert!(ends.iter().any(|how| how.contains(told)), "{what}: {:?}", reports[1]);
            for good in [&reports[0], &reports[2]] {
                assert_eq!(good.restarts.total(), 0, "{what}: {:?}", good.ends);
            }
            assert!(!scene.has_lost_its_neighbour(), "{what}");

            switch_off(&mut confinement);
            let (through, reports) = one_batch(&what, &confinement, &container);
            assert_eq!(reports[1].restarts.total(), 0, "{what}: {:?}", reports[1].ends);
            // Packets are forwarded only if the attack succeeded.
            assert_eq!(through, PACKETS, "{what} without its defence");
            assert_eq!(
                scene.has_lost_its_neighbour(),
                what.starts_with("kill"),
                "{what} without its defence"
            );
        }
    }
}

#[test]
fn one_that_never_yields_is_overdue_however_it_is_confined() {
    for container in ways() {
        let (through, reports) = one_batch("spin", &Confinement::full(), &container);
        assert_eq!(through, 0);
        assert_eq!(reports[1].restarts.overdue, 1, "{:?}", reports[1]);
    }
}
