//! Generations on disk: a process that is killed at any step leaves the old one or the new one.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use tailwater_server::generation::{StateFolder, Store, StoredChain, StoredGeneration, WriteStep, decode};
use tailwater_server::{Manifest, Origin};

/// Folder that is removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("tailwater-generations-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        Folder(folder.join("state"))
    }

    fn open(&self) -> (StateFolder, Vec<String>) {
        StateFolder::open(&self.0).unwrap()
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0.parent().unwrap());
    }
}

fn generation(number: u64, bytes: usize) -> StoredGeneration {
    let chain = |name: &str| StoredChain {
        name: name.to_owned(),
        manifest: Manifest {
            source: "a.yaml".to_owned(),
            path: Some("/etc/a.yaml".into()),
            yaml: "# \u{e9}\n".repeat(bytes / 5),
        },
        forced: number.is_multiple_of(2),
        drained: false,
        origin: Origin::Applied,
        cores: Vec::new(),
    };
    StoredGeneration {
        number,
        chains: vec![chain("a"), chain("b")],
    }
}

#[test]
fn a_kill_at_any_step_leaves_the_old_generation_or_the_new_one() {
    let folder = Folder::new("kill");
    let (mut state, removed) = folder.open();
    assert!(removed.is_empty());
    assert_eq!(state.load().unwrap(), StoredGeneration::default());
    let mut current = generation(1, 10);
    state.store(&current).unwrap();
    let mut kills = Vec::new();
    for kill_at in 0.. {
        let next = generation(2 + kill_at, 150_000);
        let (mut steps, mut killed) = (0, None);
        let result = state.store_interruptibly(&next, |step| {
            steps += 1;
            if steps > kill_at {
                killed = Some(step);
                return Err(io::Error::other("killed"));
            }
            Ok(())
        });
        // The process ends, and with it its lock.
        drop(state);
        let before = folder.files().len();
        let (restarted, removed) = folder.open();
        state = restarted;
        let found = state.load().unwrap();
        let is_new = matches!(killed, None | Some(WriteStep::SyncFolder));
        assert_eq!(found, if is_new { next.clone() } else { current.clone() }, "{killed:?}");
        assert_eq!(removed.len(), before - 1, "{killed:?}");
        assert_eq!(folder.files(), ["generation"]);
        current = found;
        match killed {
            Some(step) => kills.push(step),
            None => {
                result.unwrap();
                break;
            }
        }
    }
    assert_eq!(kills.first(), Some(&WriteStep::Create));
    assert!(kills.iter().filter(|step| **step == WriteStep::Write).count() > 3);
    assert_eq!(
        kills[kills.len() - 3..],
        [WriteStep::Sync, WriteStep::Rename, WriteStep::SyncFolder]
    );
}

/// The file is complete before the steps, and has its name after them.
#[test]
fn steps_that_fail_leave_the_generation_of_before() {
    let folder = Folder::new("steps");
    let (mut state, _) = folder.open();
    state.store(&generation(1, 10)).unwrap();
    let mut seen = Vec::new();
    for (number, succeeds) in [(2, false), (3, true)] {
        let mut carry_out = || {
            seen.push((folder.files().len(), fs::read(folder.0.join("generation")).unwrap()));
            succeeds
        };
        state.store_after(&generation(number, 10), &mut carry_out).unwrap();
        assert_eq!(folder.files(), ["generation"]);
        let expected = if succeeds { 3 } else { 1 };
        assert_eq!(state.load().unwrap(), generation(expected, 10));
    }
    let whole: Vec<_> = seen
        .iter()
        .map(|(files, old)| (*files, decode(old).unwrap().number))
        .collect();
    assert_eq!(whole, [(2, 1), (2, 1)]);
}

#[test]
fn a_damaged_file_is_found() {
    let folder = Folder::new("damage");
    let (mut state, _) = folder.open();
    state.store(&generation(3, 20)).unwrap();
    let file = folder.0.join("generation");
    let whole = fs::read(&file).unwrap();
    assert_eq!(decode(&whole).unwrap(), generation(3, 20));
    for length in 0..whole.len() {
        assert_eq!(decode(&whole[..length]).unwrap_err().kind(), ErrorKind::InvalidData);
    }
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        assert!(decode(&damaged).is_err(), "byte {at}");
    }
    fs::write(&file, "{}\n{}").unwrap();
    let error = state.load().unwrap_err().to_string();
    assert_eq!(error, "the generation is damaged: unknown format");
}

#[test]
fn a_folder_has_one_server() {
    let folder = Folder::new("lock");
    let first = folder.open();
    assert_eq!(StateFolder::open(&folder.0).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(first);
    folder.open();
}

/// A file of an earlier version names one core of a chain, or none.
#[test]
fn cores_of_older_files_are_read() {
    let chain = |core: &str| {
        let text = format!(
            r#"{{"name":"a","manifest":{{"source":"a","path":null,"yaml":""}},"forced":false,"drained":false,
            "origin":"Applied"{core}}}"#
        );
        serde_json::from_str::<StoredChain>(&text).unwrap().cores
    };
    assert_eq!(chain(""), [0_u32; 0]);
    assert_eq!(chain(r#","core":null"#), [0_u32; 0]);
    assert_eq!(chain(r#","core":3"#), [3]);
    assert_eq!(chain(r#","cores":[3,1]"#), [3, 1]);
}
