//! Removal of the groups of killed processes, at whatever point they were killed. Groups of living processes stay. Also
//! mounting and unmounting.

mod model;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use model::fuse::{Fault, Mounted, own_mounts};
use model::kernel::Machine;
use tailwater_resctrl::{Error, PartitionRequest, Resctrl, Settings, WayChoice};

/// Environment variable that makes a copy of this program act as the [`holder`] in a folder.
const FOLDER: &str = "TAILWATER_RESCTRL_HOLDER";

/// Environment variable with the holder's core.
const CORE: &str = "TAILWATER_RESCTRL_CORE";

fn settings(folder: PathBuf) -> Settings {
    Settings {
        mount_point: folder.join("resctrl"),
        mount: false,
        file_system: "fuse".to_owned(),
        state: folder.join("state"),
        ..Settings::default()
    }
}

/// Not a test: body of another process, which takes ways, changes them, and stays until its input ends.
#[test]
fn holder() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let resctrl = Resctrl::open(settings(folder.into())).unwrap();
    let task = std::process::id() as i32;
    let core = std::env::var(CORE).unwrap().parse().unwrap();
    let ask = PartitionRequest {
        tasks: vec![task],
        cores: vec![core],
        ..PartitionRequest::exclusive(4)
    };
    let partition = resctrl.partition(&ask).unwrap();
    let watch = partition.watch(&[task]).unwrap();
    partition.resize(WayChoice::Ways(6)).unwrap();
    println!("\nholds");
    let _ = std::io::stdin().lines().next();
    drop(watch);
    drop(partition);
    drop(resctrl);
    println!("\nends");
}

struct Holder(Child);

impl Holder {
    fn new(mounted: &Mounted, core: u32) -> Holder {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "holder", "--nocapture", "--test-threads=1"]);
        program
            .env(FOLDER, &mounted.folder)
            .env(CORE, core.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        Holder(program.spawn().unwrap())
    }

    /// Returns `true` if the process prints the word before it ends.
    fn says(&mut self, word: &str) -> bool {
        let output = self.0.stdout.as_mut().unwrap();
        BufReader::with_capacity(1, output)
            .lines()
            .map_while(Result::ok)
            .any(|line| line == word)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_a_killed_process_left_is_removed_and_what_a_living_one_has_stays() {
    let Some(mounted) = Mounted::new(Machine::xeon(), false) else {
        return;
    };
    let before = mounted.snapshot();
    let mut dead = Holder::new(&mounted, 1);
    assert!(dead.says("holds"));
    let mut alive = Holder::new(&mounted, 2);
    assert!(alive.says("holds"));
    let both = mounted.snapshot();
    let resctrl = Resctrl::open(settings(mounted.folder.clone())).unwrap();
    assert!(resctrl.sweep().unwrap().is_empty());
    assert_eq!(mounted.snapshot(), both);
    dead.kill();
    assert_eq!(resctrl.sweep().unwrap().len(), 1);
    assert_eq!(mounted.kernel(|kernel| kernel.groups.len()), 2);
    // A process that ends normally removes its groups.
    drop(alive.0.stdin.take());
    assert!(alive.says("ends"));
    assert_eq!(mounted.snapshot(), before);
    assert!(resctrl.sweep().unwrap().is_empty());
}

#[test]
fn killed_at_any_command_it_leaves_nothing_that_a_start_does_not_remove() {
    let Some(mounted) = Mounted::new(Machine::xeon(), false) else {
        return;
    };
    let before = mounted.snapshot();
    let mut at = 0;
    loop {
        mounted.fault(at, Fault::Kill);
        let mut holder = Holder::new(&mounted, 1);
        let held = holder.says("holds");
        mounted.no_faults();
        holder.kill();
        drop(Resctrl::open(settings(mounted.folder.clone())).unwrap());
        assert_eq!(mounted.snapshot(), before, "command {at}");
        assert!(!mounted.folder.join("state/default").exists());
        if held {
            break;
        }
        at += 1;
        assert!(at < 50);
    }
    // The commands: create the group, change the default group, set its ways, add a task, add cores; create the
    // monitoring group, add its task; change the default group, set the ways.
    assert_eq!(at, 9);
}

#[test]
fn what_was_mounted_is_unmounted_by_the_last() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: mounting needs root");
    }
    if let Err(why) = own_mounts() {
        return println!("skipped: {why}");
    }
    let folder = std::env::temp_dir().join(format!("tailwater-resctrl-mount-{}", std::process::id()));
    fs::create_dir_all(folder.join("at")).unwrap();
    // Mounting works the same for any of the kernel's file systems. This one is used by no other test.
    let own = Settings {
        mount_point: folder.join("at"),
        file_system: "ramfs".to_owned(),
        state: folder.join("state"),
        ..Settings::default()
    };
    let list = "/proc/thread-self/mountinfo";
    let ours = |at: &PathBuf| {
        let mounts = fs::read_to_string(list).unwrap();
        mounts
            .lines()
            .filter(|line| line.contains(&format!(" {} ", at.display())))
            .count()
    };
    if fs::read_to_string(list).unwrap().contains(" - ramfs ") {
        let _ = fs::remove_dir_all(&folder);
        return println!("skipped: there is a ramfs on this machine");
    }
    let first = Resctrl::open(own.clone()).unwrap();
    let second = Resctrl::open(own.clone()).unwrap();
    assert_eq!((ours(&own.mount_point), first.info().l3.is_none()), (1, true));
    drop(first);
    assert_eq!(ours(&own.mount_point), 1);
    // Groups of other programs stay, and so does the mount.
    fs::create_dir(own.mount_point.join("theirs")).unwrap();
    drop(second);
    assert_eq!(ours(&own.mount_point), 1);
    fs::remove_dir(own.mount_point.join("theirs")).unwrap();
    drop(Resctrl::open(own.clone()).unwrap());
    assert_eq!(ours(&own.mount_point), 0);
    assert!(!own.state.join("mounted").exists());
    let _ = fs::remove_dir_all(&folder);
}

#[test]
fn where_there_is_none_that_is_told() {
    let folder = std::env::temp_dir().join(format!("tailwater-resctrl-none-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let settings = Settings {
        mount_point: folder.join("at"),
        file_system: "no-such-file-system".to_owned(),
        state: folder.join("state"),
        mount: false,
        ..Settings::default()
    };
    let error = Resctrl::open(settings.clone()).unwrap_err().to_string();
    assert!(
        error.starts_with("no resctrl on this machine: not mounted: mount -t"),
        "{error}"
    );
    if rustix::process::geteuid().is_root() {
        fs::create_dir_all(folder.join("at")).unwrap();
        let settings = Settings {
            mount: true,
            state: folder.join("another"),
            ..settings
        };
        let error = Resctrl::open(settings.clone()).unwrap_err();
        assert!(matches!(error, Error::Absent { .. } | Error::Denied { .. }), "{error}");
        // Nothing was attempted and no state was written.
        assert!(!settings.state.exists());
    }
    let _ = fs::remove_dir_all(&folder);
}
