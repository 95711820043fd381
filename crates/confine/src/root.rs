//! A program's root directory: an empty one where its program and libraries appear, for reading only.

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

/// Where a program is in its root directory.
pub(crate) const PROGRAM: &str = "/program";

/// Where libraries are, on any Linux.
const LIBRARIES: [&str; 6] = [
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
];

/// What is seen of the machine, and where.
#[derive(Debug)]
pub(crate) struct Skeleton {
    pub directory: PathBuf,
    /// Files and directories, and where they are in the root.
    pub seen: Vec<(PathBuf, PathBuf)>,
}

impl Skeleton {
    /// Makes the directory, with places for what will be seen there.
    /// Files that `user`, if the program has one of its own, could not read are copied for it.
    pub(crate) fn make(directory: &Path, program: &Path, root: &Root, user: Option<u32>) -> Result<Skeleton, Error> {
        let mut skeleton = Skeleton::begin(directory)?;
        skeleton.show(program, Path::new(PROGRAM))?;
        let libraries = match wants_libraries(program)? {
            true => &LIBRARIES[..],
            false => &[],
        };
        for library in libraries {
            skeleton.show_as_it_is(Path::new(library))?;
        }
        for wanted in &root.files {
            // By whichever link that leads there.
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

    /// As [`Skeleton::make`] with everything that the machine has at the top.
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

    /// Shows a path of the machine at the same place; a link as a link. What is not there is not shown.
    fn show_as_it_is(&mut self, path: &Path) -> Result<(), Error> {
        let Ok(data) = fs::symlink_metadata(path) else {
            return Ok(());
        };
        // What is seen already, in a directory that is.
        if self.seen.iter().any(|(_, seen)| path.starts_with(seen)) {
            return Ok(());
        }
        if !data.file_type().is_symlink() {
            return self.show(path, path);
        }
        let target = fs::read_link(path).map_err(|error| file(path, error))?;
        let link = self.place(path)?;
        symlink(&target, &link).map_err(|error| file(&link, error))?;
        // What it leads to is seen, too.
        match path.canonicalize() {
            Ok(real) => self.show_as_it_is(&real),
            Err(error) => Err(file(path, error)),
        }
    }

    /// Shows a file or directory that a program is to read, at the path by which it was named, whatever links lead there.
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
        // A key, say: it is in memory, and gone with the program.
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

    /// Where a path of the root is on the machine, with the directories on the way there, those that `..` leaves again
    /// among them.
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
                // Above the root there is the root.
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

/// An absolute path with nothing to leave again in it, as it is where there are no links.
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

/// Makes a directory of a root, if it is not there. A link is none: it might lead out of the root.
fn make_directory(directory: &Path) -> io::Result<()> {
    match fs::symlink_metadata(directory) {
        Ok(data) if data.is_dir() => Ok(()),
        Ok(_) => Err(io::ErrorKind::NotADirectory.into()),
        Err(_) => create_directory(directory),
    }
}

/// Makes a directory that every user can pass, whatever the agent's `umask`.
fn create_directory(directory: &Path) -> io::Result<()> {
    fs::create_dir(directory)?;
    fs::set_permissions(directory, Permissions::from_mode(0o755))
}

/// An absolute path below another directory.
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

/// Whether a program has an interpreter, which loads libraries for it (`PT_INTERP` of an ELF file).
///
/// The file is a stranger's: whatever is in it, this reads a few hundred bytes and no more than its headers say.
pub(crate) fn wants_libraries(program: &Path) -> Result<bool, Error> {
    let bad = |reason: String| Error::Program {
        path: program.to_owned(),
        reason,
    };
    let mut file = File::open(program).map_err(|error| bad(error.to_string()))?;
    if !file.metadata().is_ok_and(|data| data.is_file()) {
        return Err(bad("it is not a file".into()));
    }
    let mut header = [0u8; 64];
    file.read_exact(&mut header)
        .map_err(|_| bad("it is no program: an ELF file for x86-64 was expected".into()))?;
    // Class 64, little-endian; the machine's number.
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
    const INTERPRETER: u32 = 3;
    file.seek(SeekFrom::Start(u64::from_le_bytes(offset)))
        .map_err(|error| bad(error.to_string()))?;
    for _ in 0..count {
        let mut entry = [0u8; 56];
        file.read_exact(&mut entry)
            .map_err(|_| bad("its program headers are cut off".into()))?;
        if u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]) == INTERPRETER {
            return Ok(true);
        }
    }
    Ok(false)
}
