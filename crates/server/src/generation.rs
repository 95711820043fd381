//! Generations on disk: the applied configuration, written whole to a temporary file and renamed.
//!
//! After a process is killed at any time, the file holds the old generation or the new one. Its first line has the
//! length and a checksum of the rest, so that a damaged file is found, not loaded.

use crate::chain::{AppliedChain, Manifest, Origin};
use crate::configuration::Configuration;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Deserializer, Serialize};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Name of the file.
const FILE: &str = "generation";
/// Start of the names of temporary files.
const TEMPORARY: &str = ".generation.";
/// Start of the names of files with chains, for the processes of their functions.
const CHAIN_FILES: &str = ".chain.";

/// Name of this process's file of this number with a chain, for the processes of its functions.
pub fn chain_file(chain: &str, number: u64) -> String {
    format!("{CHAIN_FILES}{chain}-{}{number:020}", std::process::id())
}

/// Returns `true` if a name is that of a file of this process.
#[cfg(feature = "control")]
fn is_own_chain_file(name: &str) -> bool {
    let numbers = name.rsplit_once('-').map_or("", |(_, numbers)| numbers);
    let process = numbers.len().checked_sub(20).and_then(|end| numbers.get(..end));
    name.starts_with(CHAIN_FILES) && process == Some(&std::process::id().to_string())
}
/// Start of the first line, with the version of the format.
const MAGIC: &str = "tailwater-generation-1";
/// Largest file in bytes: a thousand chains of 1 MiB would be more than a server runs.
const MOST: u64 = 1 << 30;
/// Bytes that are written at a time.
const CHUNK: usize = 64 << 10;

/// Generation as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredGeneration {
    /// Number of the generation.
    pub number: u64,
    /// Chains, sorted by name.
    pub chains: Vec<StoredChain>,
}

/// Chain of a stored generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredChain {
    /// Name of the chain.
    pub name: String,
    /// Text of the chain.
    pub manifest: Manifest,
    /// Runs without a promise.
    pub forced: bool,
    /// Drained on request.
    pub drained: bool,
    /// Source of the chain.
    pub origin: Origin,
    /// Cores that it ran on; in older files one, `null` or absent.
    #[serde(default, alias = "core", deserialize_with = "cores")]
    pub cores: Vec<u32>,
}

/// Reads a list of cores, or the one core of an older file.
fn cores<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u32>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Cores {
        List(Vec<u32>),
        Older(Option<u32>),
    }
    Ok(match Cores::deserialize(deserializer)? {
        Cores::List(cores) => cores,
        Cores::Older(core) => core.into_iter().collect(),
    })
}

impl From<&AppliedChain> for StoredChain {
    fn from(chain: &AppliedChain) -> StoredChain {
        StoredChain {
            name: chain.name.clone(),
            manifest: chain.manifest.clone(),
            forced: chain.forced,
            drained: chain.drained,
            origin: chain.origin,
            cores: chain.placement.cores.clone(),
        }
    }
}

impl From<&Configuration> for StoredGeneration {
    fn from(configuration: &Configuration) -> StoredGeneration {
        StoredGeneration {
            number: configuration.generation,
            chains: configuration
                .chains
                .values()
                .map(|chain| StoredChain::from(&**chain))
                .collect(),
        }
    }
}

/// Store of generations.
pub trait Store {
    /// Writes a generation, then calls `carry_out`, and puts the generation in place of the one before if that returns
    /// `true`. So a full disk is found before anything is carried out.
    ///
    /// # Errors
    /// It cannot be stored; the one before stays. If `carry_out` was called, only the last step failed.
    fn store_after(&mut self, generation: &StoredGeneration, carry_out: &mut dyn FnMut() -> bool) -> io::Result<()>;

    /// Stores a generation in place of the one before.
    ///
    /// # Errors
    /// It cannot be stored; the one before stays.
    fn store(&mut self, generation: &StoredGeneration) -> io::Result<()> {
        self.store_after(generation, &mut || true)
    }
}

/// Folder with the current generation of one server, locked against other processes.
#[derive(Debug)]
pub struct StateFolder {
    folder: PathBuf,
    /// The folder itself, which the lock is on.
    handle: File,
    written: u64,
}

/// Step of writing a generation, for tests that interrupt it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteStep {
    /// The temporary file is created.
    Create,
    /// A chunk is written.
    Write,
    /// The file reaches the disk.
    Sync,
    /// The file takes its name.
    Rename,
    /// The name reaches the disk.
    SyncFolder,
}

impl StateFolder {
    /// Opens the folder, which is created if it does not exist, locks it, and removes temporary files of killed
    /// processes. Returns it with the names of those files.
    ///
    /// # Errors
    /// The folder cannot be used ([`ErrorKind::WouldBlock`]: another server uses it).
    pub fn open(folder: &Path) -> io::Result<(StateFolder, Vec<String>)> {
        StateFolder::lock(folder, |_| false)
    }

    /// Same, once the server that used it has ended and this process has taken over: files with its chains stay.
    ///
    /// # Errors
    /// Same as [`open`](StateFolder::open).
    #[cfg(feature = "control")]
    pub(crate) fn open_after(folder: &Path) -> io::Result<(StateFolder, Vec<String>)> {
        StateFolder::lock(folder, is_own_chain_file)
    }

    /// Opens and locks the folder, and removes temporary files that need not `stay`.
    fn lock(folder: &Path, stays: impl Fn(&str) -> bool) -> io::Result<(StateFolder, Vec<String>)> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        // A user who can open a folder can lock it; chains may also contain keys.
        fs::set_permissions(folder, Permissions::from_mode(0o700))?;
        let handle = File::open(folder)?;
        flock(&handle, FlockOperation::NonBlockingLockExclusive)?;
        let mut removed = Vec::new();
        for entry in fs::read_dir(folder)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if (name.starts_with(TEMPORARY) || name.starts_with(CHAIN_FILES)) && !stays(&name) {
                fs::remove_file(entry.path())?;
                removed.push(name);
            }
        }
        let state = StateFolder {
            folder: folder.to_owned(),
            handle,
            written: 0,
        };
        Ok((state, removed))
    }

    /// Loads the current generation; an empty one if none was stored.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged ([`ErrorKind::InvalidData`]).
    pub fn load(&self) -> io::Result<StoredGeneration> {
        match tailwater_files::read(&self.folder.join(FILE), MOST) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(StoredGeneration::default()),
            read => decode(&read?),
        }
    }

    /// Same as [`Store::store`]; calls `before` each step. After an error of `before`, everything is left as it is, as
    /// if the process had been killed then.
    ///
    /// # Errors
    /// The generation cannot be written, or `before` fails.
    pub fn store_interruptibly(
        &mut self,
        generation: &StoredGeneration,
        mut before: impl FnMut(WriteStep) -> io::Result<()>,
    ) -> io::Result<()> {
        let temporary = self.write(generation, &mut before)?;
        self.put_in_place(&temporary, &mut before)
    }

    /// Writes a generation to the disk. Returns its temporary file.
    fn write(
        &mut self,
        generation: &StoredGeneration,
        before: &mut impl FnMut(WriteStep) -> io::Result<()>,
    ) -> io::Result<PathBuf> {
        let text = encode(generation)?;
        before(WriteStep::Create)?;
        self.written += 1;
        let temporary = self
            .folder
            .join(format!("{TEMPORARY}{}-{}", std::process::id(), self.written));
        let cleaning = |result: io::Result<()>| cleaning(&temporary, result);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)?;
        for chunk in text.chunks(CHUNK) {
            before(WriteStep::Write)?;
            cleaning(file.write_all(chunk))?;
        }
        before(WriteStep::Sync)?;
        cleaning(file.sync_all())?;
        Ok(temporary)
    }

    /// Gives a file that [was written](Self::write) its name.
    fn put_in_place(
        &mut self,
        temporary: &Path,
        before: &mut impl FnMut(WriteStep) -> io::Result<()>,
    ) -> io::Result<()> {
        before(WriteStep::Rename)?;
        cleaning(temporary, fs::rename(temporary, self.folder.join(FILE)))?;
        before(WriteStep::SyncFolder)?;
        // The new generation has taken its place: after an error now, a power failure may bring back the old one.
        let _ = self.handle.sync_all();
        Ok(())
    }
}

/// Removes a temporary file after an error.
fn cleaning(temporary: &Path, result: io::Result<()>) -> io::Result<()> {
    if result.is_err() {
        let _ = fs::remove_file(temporary);
    }
    result
}

impl<S: Store> Store for &mut S {
    fn store_after(&mut self, generation: &StoredGeneration, carry_out: &mut dyn FnMut() -> bool) -> io::Result<()> {
        S::store_after(self, generation, carry_out)
    }
}

impl Store for StateFolder {
    fn store_after(&mut self, generation: &StoredGeneration, carry_out: &mut dyn FnMut() -> bool) -> io::Result<()> {
        let temporary = self.write(generation, &mut |_| Ok(()))?;
        match carry_out() {
            true => self.put_in_place(&temporary, &mut |_| Ok(())),
            false => fs::remove_file(&temporary),
        }
    }
}

fn encode(generation: &StoredGeneration) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec_pretty(generation)?;
    let mut text = format!("{MAGIC} {} {:016x}\n", body.len(), checksum(&body)).into_bytes();
    text.extend(body);
    Ok(text)
}

/// Reads a generation's file.
///
/// # Errors
/// [`ErrorKind::InvalidData`]: it is not as it was written.
pub fn decode(bytes: &[u8]) -> io::Result<StoredGeneration> {
    let damaged = |what: &str| io::Error::new(ErrorKind::InvalidData, format!("the generation is damaged: {what}"));
    let end = bytes.iter().take(128).position(|&byte| byte == b'\n');
    let (head, body) = bytes.split_at(end.ok_or_else(|| damaged("no first line"))?);
    let body = &body[1..];
    let expected = format!("{MAGIC} {} {:016x}", body.len(), checksum(body));
    if head != expected.as_bytes() {
        let is_ours = head.starts_with(MAGIC.as_bytes());
        return Err(damaged(if is_ours {
            "wrong length or checksum"
        } else {
            "unknown format"
        }));
    }
    serde_json::from_slice(body).map_err(|error| damaged(&error.to_string()))
}

/// FNV-1a hash: finds damage, not forgery.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(all(test, feature = "control"))]
mod tests {
    use super::*;

    /// After a take-over, the new server's own files are there, and the old one's are remains.
    #[test]
    fn chain_files_of_this_process_are_known_by_their_names() {
        assert!(is_own_chain_file(&chain_file("edge-1", 0)) && is_own_chain_file(&chain_file("e", u64::MAX)));
        let other = format!("{CHAIN_FILES}edge-{}{:020}", u64::from(std::process::id()) * 10, 1);
        let short = format!("{CHAIN_FILES}edge-{}", std::process::id());
        for name in [&*other, &short, CHAIN_FILES, FILE, ".generation.1"] {
            assert!(!is_own_chain_file(name), "{name}");
        }
    }
}
