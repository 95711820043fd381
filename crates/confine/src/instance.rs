//! The place of one confined program on the machine: a number, a user, a directory, and what is found
//! of it by a later agent if this one dies.
//!
//! `/run/tailwater/functions/NUMBER/` holds the file `owner`, which the agent keeps locked (`flock`) while the
//! program is there. Whoever finds it unlocked may remove everything with that number.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cgroup::Hierarchies;
use crate::error::Error;

/// Where places are.
pub(crate) const DIRECTORY: &str = "/run/tailwater/functions";

/// How many programs can be confined on one machine at a time.
const PLACES: u32 = 4096;

/// The first user and group identity; each place has its own. Above those of people, services and systemd's
/// dynamic users, and below containers' usual ranges.
pub const FIRST_USER: u32 = 0x4f00_0000;

/// A place that is ours until dropped.
#[derive(Debug)]
pub(crate) struct Instance {
    pub number: u32,
    pub directory: PathBuf,
    /// Locked while this lives.
    _owner: File,
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
    |error| Error::File {
        path: path.to_owned(),
        error,
    }
}

impl Instance {
    /// Takes a free place, after removing what dead agents left.
    pub(crate) fn take() -> Result<Instance, Error> {
        /// Tells apart places that this process is about to take.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let places = Path::new(DIRECTORY);
        fs::create_dir_all(places).map_err(at(places))?;
        sweep_in(places)?;
        let (new, file, turn) = loop {
            let turn = NEXT.fetch_add(1, Ordering::Relaxed);
            let new = places.join(format!("new-{}-{turn}", process::id()));
            match fs::create_dir(&new) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(at(&new)(error)),
            }
            let owner = new.join("owner");
            let file = File::create(&owner).map_err(at(&owner))?;
            file.lock().map_err(at(&owner))?;
            // A sweep may have come between the two.
            if same_file(&file, &owner) {
                break (new, file, turn);
            }
        };
        // It appears under its number with its lock held: a sweep never sees one without an owner.
        // Numbers are used in turn: what is left of a user's processes may be counted for a moment after its end.
        let first = process::id().wrapping_add(turn) % PLACES;
        for step in 0..PLACES {
            let number = (first + step) % PLACES;
            let directory = places.join(number.to_string());
            match fs::rename(&new, &directory) {
                Ok(()) => {
                    return Ok(Instance {
                        number,
                        directory,
                        _owner: file,
                    });
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists
                    ) => {}
                Err(error) => return Err(at(&directory)(error)),
            }
        }
        let _ = fs::remove_dir_all(&new);
        Err(Error::NoPlace { count: PLACES })
    }

    /// The user and group of this place.
    pub(crate) fn user(&self) -> u32 {
        FIRST_USER + self.number
    }

    /// The name of its control groups, below Tailwater's.
    pub(crate) fn group(&self) -> String {
        group_name(&self.number.to_string())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // The owner's file goes last, with the directory: what is left by a crash in between is still found.
        let _ = remove(&self.directory);
    }
}

fn group_name(number: &str) -> String {
    format!("tailwater/{number}")
}

/// Removes the directory, its owner's file last.
fn remove(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name() == "owner" {
            continue;
        }
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    fs::remove_dir_all(directory)
}

/// Removes what dead agents left: processes, control groups, directories. Tells how many programs' that was.
///
/// Every start does that, too.
///
/// # Errors
/// If the directory of places cannot be read, or something in it cannot be removed.
pub fn sweep() -> Result<usize, Error> {
    let places = Path::new(DIRECTORY);
    match places.exists() {
        true => sweep_in(places),
        false => Ok(0),
    }
}

fn sweep_in(places: &Path) -> Result<usize, Error> {
    let mut swept = 0;
    for entry in fs::read_dir(places).map_err(at(places))? {
        let directory = entry.map_err(at(places))?.path();
        let owner = directory.join("owner");
        let Ok(file) = File::open(&owner) else {
            // Ended by its own meanwhile, or not yet begun; or its agent died in between, and nothing is in it.
            if begun_by_the_dead(&directory) {
                let _ = fs::remove_dir(&directory);
            }
            continue;
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => continue,
            Err(TryLockError::Error(error)) => return Err(at(&owner)(error)),
        }
        // Between opening and locking its own may have removed it, and another may have come in its place.
        if !same_file(&file, &owner) {
            continue;
        }
        if let Some(number) = directory.file_name().and_then(|name| name.to_str()) {
            Hierarchies::find()?.remove(&group_name(number));
        }
        remove(&directory).map_err(at(&directory))?;
        swept += 1;
    }
    Ok(swept)
}

fn same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |data: fs::Metadata| (data.dev(), data.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(named)) => identity(open) == identity(named),
        _ => false,
    }
}

/// Whether the directory is one that [`Instance::take`] of a process that is no more had just made.
fn begun_by_the_dead(directory: &Path) -> bool {
    let name = directory.file_name().and_then(|name| name.to_str());
    name.and_then(|name| name.strip_prefix("new-")?.split_once('-'))
        .is_some_and(|(process, _)| !Path::new("/proc").join(process).exists())
}
