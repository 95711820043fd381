//! Root directory of a program: an empty directory into which its program and libraries are mounted, read-only.

#[cfg(test)]
mod tests;

use std::ffi::{CString, OsStr};
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown, symlink};
use std::path::{Component, Path, PathBuf};

use crate::confinement::Root;
use crate::error::Error;

/// Path of the program in its root directory.
pub(crate) const PROGRAM: &str = "/program";

/// Library directories of any Linux.
const LIBRARIES: [&str; 6] = [
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
];

/// Root directory prepared with mount points, and the list of paths to mount there.
#[derive(Debug)]
pub(crate) struct Skeleton {
    pub directory: PathBuf,
    /// Files and directories of the machine, each with its path in the root.
    pub seen: Vec<(PathBuf, PathBuf)>,
}

impl Skeleton {
    /// Creates the directory, with a mount point for everything that will be mounted. Files that `user`, the program's
    /// own user if it has one, could not read are copied for it.
    pub(crate) fn make(directory: &Path, program: &Path, root: &Root, user: Option<u32>) -> Result<Skeleton, Error> {
        let mut skeleton = Skeleton::begin(directory)?;
        skeleton.show(program, Path::new(PROGRAM))?;
        let libraries = match examine(program)?.wants_libraries {
            true => &LIBRARIES[..],
            false => &[],
        };
        for library in libraries {
            skeleton.show_as_it_is(Path::new(library))?;
        }
        for wanted in &root.files {
            // Adds the file under the path it was named by, through any links.
            let plain = plain(wanted);
            if libraries.iter().any(|library| plain.starts_with(library)) {
                continue;
            }
            skeleton.show_file(wanted, user)?;
        }
        Ok(skeleton)
    }

    fn begin(directory: &Path) -> Result<Skeleton, Error> {
        create_directory(directory).map_err(|error| file(directory, error))?;
        Ok(Skeleton {
            directory: directory.to_owned(),
            seen: Vec::new(),
        })
    }

    /// As [`Skeleton::make`], with everything in the machine's top-level directory.
    pub(crate) fn whole(directory: &Path, program: &Path) -> Result<Skeleton, Error> {
        let mut skeleton = Skeleton::begin(directory)?;
        skeleton.show(program, Path::new(PROGRAM))?;
        let top = Path::new("/");
        for entry in fs::read_dir(top).map_err(|error| file(top, error))? {
            let path = entry.map_err(|error| file(top, error))?.path();
            skeleton.show_as_it_is(&path)?;
        }
        Ok(skeleton)
    }

    /// Adds a path of the machine at the same path, and a link as a link. Skips paths that do not exist.
    fn show_as_it_is(&mut self, path: &Path) -> Result<(), Error> {
        let Ok(data) = fs::symlink_metadata(path) else {
            return Ok(());
        };
        // Skips a path that lies in a directory added already.
        if self.seen.iter().any(|(_, seen)| path.starts_with(seen)) {
            return Ok(());
        }
        if !data.file_type().is_symlink() {
            return self.show(path, path);
        }
        let target = fs::read_link(path).map_err(|error| file(path, error))?;
        let link = self.place(path)?;
        symlink(&target, &link).map_err(|error| file(&link, error))?;
        // Adds the link's target, too.
        match path.canonicalize() {
            Ok(real) => self.show_as_it_is(&real),
            Err(error) => Err(file(path, error)),
        }
    }

    /// Adds a file or directory that the program is to read, at the path it was named by, through any links.
    fn show_file(&mut self, path: &Path, user: Option<u32>) -> Result<(), Error> {
        let at = plain(path);
        let seen = |(_, seen): &(PathBuf, PathBuf)| at.starts_with(seen);
        let place = self.place(path)?;
        if self.seen.iter().any(seen) || place.is_file() {
            return Ok(());
        }
        let real = path.canonicalize().map_err(|error| file(path, error))?;
        let data = real.metadata().map_err(|error| file(path, error))?;
        const READ_BY_OTHERS: u32 = 0o004;
        let user = user.filter(|_| data.is_file() && data.mode() & READ_BY_OTHERS == 0);
        let Some(user) = user else {
            return self.show(&real, &at);
        };
        // A key, for example. The copy is in memory, and is removed with the program.
        let copied = File::open(&real).and_then(|mut from| {
            let mut new = File::options();
            let mut to = new.write(true).create_new(true).mode(0o400).open(&place)?;
            io::copy(&mut from, &mut to)?;
            fchown(&to, Some(user), Some(user))
        });
        copied.map_err(|error| file(path, error))
    }

    fn show(&mut self, source: &Path, at: &Path) -> Result<(), Error> {
        let place = self.place(at)?;
        let made = match source.is_dir() {
            true => fs::create_dir_all(&place),
            false => File::options().write(true).create_new(true).open(&place).map(|_| ()),
        };
        made.map_err(|error| file(&place, error))?;
        self.seen.push((source.to_owned(), at.to_owned()));
        Ok(())
    }

    /// Returns the path on the machine of a path of the root. Creates the directories on the way, those that `..`
    /// leaves again among them.
    fn place(&self, at: &Path) -> Result<PathBuf, Error> {
        let mut place = self.directory.clone();
        let mut depth = 0;
        let mut parts = at.components().peekable();
        while let Some(part) = parts.next() {
            match part {
                Component::Normal(name) => {
                    place.push(name);
                    depth += 1;
                }
                // `..` of the root is the root.
                Component::ParentDir if depth > 0 => {
                    place.pop();
                    depth -= 1;
                }
                _ => continue,
            }
            if parts.peek().is_some() {
                make_directory(&place).map_err(|error| file(&place, error))?;
            }
        }
        Ok(place)
    }
}

/// Resolves `.` and `..` of an absolute path as text, which is right where there are no links.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => plain.push(name),
            Component::ParentDir => drop(plain.pop()),
            _ => {}
        }
    }
    plain
}

/// Creates a directory of a root if it does not exist. A link is an error, because it might lead out of the root.
fn make_directory(directory: &Path) -> io::Result<()> {
    match fs::symlink_metadata(directory) {
        Ok(data) if data.is_dir() => Ok(()),
        Ok(_) => Err(io::ErrorKind::NotADirectory.into()),
        Err(_) => create_directory(directory),
    }
}

/// Creates a directory that every user can pass through, whatever the agent's `umask`.
fn create_directory(directory: &Path) -> io::Result<()> {
    fs::create_dir(directory)?;
    fs::set_permissions(directory, Permissions::from_mode(0o755))
}

/// Joins an absolute path to another directory.
pub(crate) fn inside(directory: &Path, path: &Path) -> PathBuf {
    directory.join(path.strip_prefix("/").unwrap_or(path))
}

pub(crate) fn c_path(path: &Path) -> Result<CString, Error> {
    c_text(path.as_os_str(), "a path")
}

pub(crate) fn c_text(text: &OsStr, what: &'static str) -> Result<CString, Error> {
    CString::new(text.as_bytes()).map_err(|_| Error::ZeroByte { what })
}

fn file(path: &Path, error: io::Error) -> Error {
    Error::File {
        path: path.to_owned(),
        error,
    }
}

/// Facts about a program's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgramFile {
    /// `true` if it has an interpreter that loads libraries (`PT_INTERP`).
    pub wants_libraries: bool,
    /// `true` if the kernel would map a segment, or the stack (`PT_GNU_STACK`), writable and executable.
    pub has_writable_code: bool,
}

/// Examines a program, an ELF file.
///
/// The file is untrusted. This reads its header and its program headers, at most as many bytes as its headers state.
pub(crate) fn examine(program: &Path) -> Result<ProgramFile, Error> {
    let bad = |reason: String| Error::Program {
        path: program.to_owned(),
        reason,
    };
    // Before it is opened: a named pipe would wait for a writer.
    if program.metadata().is_ok_and(|data| !data.is_file()) {
        return Err(bad("it is not a file".into()));
    }
    let mut file = File::open(program).map_err(|error| bad(error.to_string()))?;
    let mut header = [0u8; 64];
    file.read_exact(&mut header)
        .map_err(|_| bad("it is no program: an ELF file for x86-64 was expected".into()))?;
    // ELF class 64, little-endian; machine x86-64.
    if header[..6] != *b"\x7fELF\x02\x01" || header[18..20] != [62, 0] {
        return Err(bad("it is no program: an ELF file for x86-64 was expected".into()));
    }
    let number = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let mut offset = [0u8; 8];
    offset.copy_from_slice(&header[32..40]);
    let (size, count) = (number(54), number(56));
    if size != 56 {
        return Err(bad(format!("its program headers have {size} bytes, not 56")));
    }
    const LOAD: u32 = 1;
    const INTERPRETER: u32 = 3;
    const STACK: u32 = 0x6474_e551;
    const EXECUTABLE: u32 = 1;
    const WRITABLE: u32 = 2;
    let mut found = ProgramFile::default();
    file.seek(SeekFrom::Start(u64::from_le_bytes(offset)))
        .map_err(|error| bad(error.to_string()))?;
    for _ in 0..count {
        let mut entry = [0u8; 56];
        file.read_exact(&mut entry)
            .map_err(|_| bad("its program headers are cut off".into()))?;
        let word = |at: usize| u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]);
        let (kind, flags) = (word(0), word(4));
        let is_code = flags & EXECUTABLE != 0;
        match kind {
            INTERPRETER => found.wants_libraries = true,
            LOAD => found.has_writable_code |= is_code && flags & WRITABLE != 0,
            STACK => found.has_writable_code |= is_code,
            _ => {}
        }
    }
    Ok(found)
}
