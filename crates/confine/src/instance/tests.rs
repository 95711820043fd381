use super::*;
use std::os::unix::fs::symlink;

/// Temporary directory of a test, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("tailwater-instance-{}-{name}", process::id()));
        fs::create_dir(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// A user who locked the owner file of a slot held up every start.
#[test]
fn a_lock_that_another_program_holds_ends_the_wait() {
    let folder = Folder::new("locked");
    let path = folder.0.join("owner");
    let ours = File::create(&path).unwrap();
    let others = File::open(&path).unwrap();
    others.lock().unwrap();
    let error = lock_within(&ours, &path, Duration::from_millis(20))
        .unwrap_err()
        .to_string();
    assert!(error.contains("locked by another program for 0.02 s"), "{error}");
    drop(others);
    lock_within(&ours, &path, Duration::from_secs(60)).unwrap();
}

/// A file of another user's, below a directory open to all, could be locked or replaced.
#[test]
fn only_the_agents_user_may_enter_the_slots() {
    let folder = Folder::new("private");
    let places = folder.0.join("tailwater/functions");
    let first = Instance::take_in(&places).unwrap();
    assert_eq!(mode(&places), 0o700);
    assert_eq!(mode(&first.directory.join("owner")), 0o600);
    // An earlier version created it open to all.
    fs::set_permissions(&places, Permissions::from_mode(0o755)).unwrap();
    let second = Instance::take_in(&places).unwrap();
    assert_eq!(mode(&places), 0o700);
    assert_ne!(first.number, second.number);
    let directory = first.directory.clone();
    drop(first);
    assert!(!directory.exists() && second.directory.exists());
}

#[test]
fn a_directory_that_is_a_link_is_refused() {
    let folder = Folder::new("link");
    fs::create_dir(folder.0.join("elsewhere")).unwrap();
    fs::create_dir(folder.0.join("tailwater")).unwrap();
    let places = folder.0.join("tailwater/functions");
    symlink("../elsewhere", &places).unwrap();
    let error = Instance::take_in(&places).unwrap_err().to_string();
    assert!(error.contains("expected a directory of root"), "{error}");
    assert!(fs::read_dir(folder.0.join("elsewhere")).unwrap().next().is_none());
}

/// An owner file replaced by a pipe would hold up the sweep when it is opened.
#[test]
fn an_owner_file_that_is_a_pipe_holds_nobody_up() {
    let folder = Folder::new("pipe");
    let places = folder.0.join("tailwater/functions");
    let slot = places.join("7");
    fs::create_dir_all(&slot).unwrap();
    let pipe = slot.join("owner");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    Instance::take_in(&places).unwrap();
}
