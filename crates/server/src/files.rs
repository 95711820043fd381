//! Files and folders of chains, and changes in folders.

use crate::chain::Manifest;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf, absolute};
use tailwater_api::SpecError;
use tailwater_api::files::read_text;

/// Maximum number of files in a folder.
const MOST: usize = 1024;

/// Identity of a file's content, as far as the file system tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    path: PathBuf,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

/// Reads the chain of a file.
///
/// # Errors
/// The file cannot be read or is too large.
pub fn read_manifest(path: &Path) -> Result<Manifest, SpecError> {
    let source = path.display().to_string();
    Ok(Manifest {
        yaml: read_text(path, &source)?,
        path: Some(absolute(path).map_err(|error| unreadable(&source, &error))?),
        source,
    })
}

/// Reads the chains of files and folders: of a folder, all files `*.yaml` and `*.yml` whose names do not begin with a
/// dot, in the order of their names. What has such a name and is no file, or cannot be looked at, is an error: it must
/// not pass for a chain that was removed.
///
/// # Errors
/// A file or folder cannot be read: all of those.
pub fn read_all(paths: &[PathBuf]) -> Result<Vec<Manifest>, SpecError> {
    let (mut manifests, mut errors) = (Vec::new(), Vec::new());
    for path in paths {
        let files = match path.is_dir() {
            true => files_of(path),
            false => Ok(vec![path.clone()]),
        };
        match files {
            Ok(files) => files
                .iter()
                .for_each(|file| match tailwater_files::regular_only(|| read_manifest(file)) {
                    Ok(manifest) => manifests.push(manifest),
                    Err(error) => errors.push(error),
                }),
            Err(error) => errors.push(error),
        }
    }
    match SpecError::all(errors) {
        None => Ok(manifests),
        Some(errors) => Err(errors),
    }
}

/// Files of chains in a folder.
fn files_of(folder: &Path) -> Result<Vec<PathBuf>, SpecError> {
    let name = folder.display().to_string();
    let entries = fs::read_dir(folder).map_err(|error| unreadable(&name, &error))?;
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| is_chain(path))
        .collect();
    if files.len() > MOST {
        let message = format!("expected at most {MOST} files of chains, found {}", files.len());
        return Err(SpecError::whole_file(&name, message));
    }
    files.sort_unstable();
    Ok(files)
}

fn is_chain(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    !name.starts_with('.') && [".yaml", ".yml"].iter().any(|extension| name.ends_with(extension))
}

fn unreadable(name: &str, error: &std::io::Error) -> SpecError {
    SpecError::whole_file(name, format!("cannot be read: {error}"))
}

/// Watcher of the files and folders of chains. It compares names, sizes, inodes and times. No file is read before it
/// has been the same for one period, so that a file that is being written is not read in part.
#[derive(Debug)]
pub struct FolderWatcher {
    paths: Vec<PathBuf>,
    seen: Vec<Stamp>,
    applied: Vec<Stamp>,
}

impl FolderWatcher {
    /// Watcher of paths whose current content is about to be applied.
    pub fn new(paths: Vec<PathBuf>) -> FolderWatcher {
        let seen = stamps(&paths);
        FolderWatcher {
            paths,
            applied: seen.clone(),
            seen,
        }
    }

    /// Returns `true` if something has changed since it last returned `true`, and not since the last call.
    pub fn poll(&mut self) -> bool {
        let now = stamps(&self.paths);
        let is_settled = now == self.seen;
        self.seen = now;
        if is_settled && self.seen != self.applied {
            self.applied.clone_from(&self.seen);
            return true;
        }
        false
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Stamp> {
    let files = paths.iter().flat_map(|path| match path.is_dir() {
        true => files_of(path).unwrap_or_default(),
        false => vec![path.clone()],
    });
    let stamp = |path: PathBuf| {
        let metadata = fs::metadata(&path).ok()?;
        Some(Stamp {
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            path,
        })
    };
    files.filter_map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Empty folder of a test.
    fn empty(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("tailwater-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        folder
    }

    #[test]
    fn a_change_is_seen_once_it_has_settled() {
        let folder = empty("watcher");
        let file = folder.join("a.yaml");
        fs::write(&file, "a").unwrap();
        let mut watcher = FolderWatcher::new(vec![folder.clone()]);
        assert_eq!([watcher.poll(), watcher.poll()], [false, false]);
        fs::write(&file, "ab").unwrap();
        assert_eq!([watcher.poll(), watcher.poll(), watcher.poll()], [false, true, false]);
        // Written on and on.
        for length in 3..6 {
            fs::write(&file, "x".repeat(length)).unwrap();
            assert!(!watcher.poll());
        }
        assert_eq!([watcher.poll(), watcher.poll()], [true, false]);
        fs::write(folder.join("b.txt"), "no chain").unwrap();
        assert_eq!([watcher.poll(), watcher.poll()], [false, false]);
        fs::remove_file(&file).unwrap();
        assert_eq!([watcher.poll(), watcher.poll(), watcher.poll()], [false, true, false]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_took_the_place_of_a_file_is_an_error_and_no_removed_chain() {
        let folder = empty("places");
        let file = folder.join("a.yaml");
        let places: [fn(&Path); 3] = [
            |file| fs::create_dir(file).unwrap(),
            |file| std::os::unix::fs::symlink("nowhere", file).unwrap(),
            |file| std::os::unix::fs::symlink("a.yaml", file).unwrap(),
        ];
        for take in places {
            take(&file);
            let error = read_all(std::slice::from_ref(&folder)).unwrap_err().to_string();
            assert!(error.contains("a.yaml"), "{error}");
            let _ = fs::remove_file(&file).or_else(|_| fs::remove_dir(&file));
        }
        assert!(read_all(std::slice::from_ref(&folder)).unwrap().is_empty());
        fs::remove_dir_all(&folder).unwrap();
    }
}
