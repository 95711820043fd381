//! Hierarchies as real machines mount them.

use super::*;

/// Mounts of a current machine: version 2 alone.
const UNIFIED: &str = "\
24 1 0:22 / /proc rw,nosuid - proc proc rw
30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
";

/// Mounts of a hybrid machine, systemd's default for years: both versions.
const HYBRID: &str = "\
30 23 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:5 - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/systemd rw,nosuid shared:6 - cgroup cgroup rw,xattr,name=systemd
33 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:7 - cgroup cgroup rw,cpu,cpuacct
34 30 0:30 / /sys/fs/cgroup/memory rw,nosuid shared:8 - cgroup cgroup rw,memory
";

#[test]
fn version_2_alone() {
    let found = Hierarchies::parse(UNIFIED);
    assert_eq!(found.second.as_deref(), Some(Path::new("/sys/fs/cgroup")));
    assert!(found.first.is_empty());
    assert_eq!(found.hybrid(), None);
}

#[test]
fn both_versions() {
    let found = Hierarchies::parse(HYBRID);
    assert_eq!(found.hybrid(), Some(Path::new("/sys/fs/cgroup/unified")));
    let at = |controller: &str| found.first.get(controller).map(|path| path.to_str().unwrap());
    assert_eq!(at("cpu"), Some("/sys/fs/cgroup/cpu,cpuacct"));
    assert_eq!(at("cpuacct"), Some("/sys/fs/cgroup/cpu,cpuacct"));
    assert_eq!(at("memory"), Some("/sys/fs/cgroup/memory"));
    assert_eq!(at("name=systemd"), Some("/sys/fs/cgroup/systemd"));
    assert_eq!(at("pids"), None);
}

/// Directory with the files of a version 2 root, without a kernel behind it.
struct Fake(PathBuf);

impl Fake {
    fn new(name: &str, controllers: &str) -> Fake {
        let root = std::env::temp_dir().join(format!("tailwater-{name}-{}", std::process::id()));
        // Creates the files the kernel would create, in future groups too.
        for directory in ["", "tailwater", "tailwater/7"] {
            let directory = root.join(directory);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("cgroup.controllers"), controllers).unwrap();
            fs::write(directory.join("memory.max"), "max\n").unwrap();
        }
        Fake(root)
    }

    fn hierarchies(&self) -> Hierarchies {
        Hierarchies {
            second: Some(self.0.clone()),
            ..Hierarchies::default()
        }
    }

    fn text(&self, file: &str) -> String {
        fs::read_to_string(self.0.join(file)).unwrap()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_group_of_version_2_has_its_limits_in_one_directory() {
    let fake = Fake::new("limits", "cpuset cpu memory pids\n");
    let limits = Groups {
        memory: Some(1 << 20),
        processes: Some(1),
        cores: true,
    };
    let group = Group::make(fake.hierarchies(), "tailwater/7".into(), &limits, Some(3)).unwrap();
    assert_eq!(group.directories, [fake.0.join("tailwater/7")]);
    assert_eq!(fake.text("tailwater/7/memory.max"), "1048576");
    assert_eq!(fake.text("tailwater/7/pids.max"), "1");
    assert_eq!(fake.text("tailwater/7/cpuset.cpus"), "3");
    // Controllers are enabled from the top down. The fake file holds the last one written.
    assert_eq!(fake.text("cgroup.subtree_control"), "+cpuset");
    assert_eq!(fake.text("tailwater/cgroup.subtree_control"), "+cpuset");
    group.pin(5).unwrap();
    assert_eq!(fake.text("tailwater/7/cpuset.cpus"), "5");
    assert!(!group.ran_out_of_memory());
    let events = fake.0.join("tailwater/7/memory.events");
    fs::write(events, "low 0\noom 1\noom_kill 1\n").unwrap();
    assert!(group.ran_out_of_memory());
    // In a real group the files disappear with the directory. `Drop` would wait for that.
    fs::remove_dir_all(fake.0.join("tailwater/7")).unwrap();
}

#[test]
fn a_controller_that_is_missing_is_named() {
    let fake = Fake::new("missing", "cpu memory\n");
    let limits = Groups {
        processes: Some(1),
        ..Groups::default()
    };
    fs::remove_dir_all(fake.0.join("tailwater/7")).unwrap();
    let error = Group::make(fake.hierarchies(), "tailwater/7".into(), &limits, None).unwrap_err();
    assert!(error.to_string().contains("`pids`"), "{error}");
}
