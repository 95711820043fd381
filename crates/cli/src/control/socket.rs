//! The control socket of the server to talk to.

use crate::error::CliError;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use tailwater_server::Paths;

/// Returns the socket that an option names, or the only one in the usual folders.
///
/// # Errors
/// There is none, or there are several.
pub fn find(given: Option<&Path>) -> Result<PathBuf, CliError> {
    if let Some(path) = given {
        return Ok(path.to_owned());
    }
    let environment = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let mut folders = vec![Paths::runtime(environment), Paths::runtime(|_| None)];
    folders.dedup();
    only(&folders)
}

/// Returns the only socket in these folders.
fn only(folders: &[PathBuf]) -> Result<PathBuf, CliError> {
    let mut sockets: Vec<PathBuf> = folders.iter().flat_map(|folder| sockets_in(folder)).collect();
    sockets.sort_unstable();
    let list = |paths: &[PathBuf]| {
        let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        names.join(", ")
    };
    match &sockets[..] {
        [socket] => Ok(socket.clone()),
        [] => Err(CliError::Server {
            message: format!(
                "no server is running: there is no control socket in {}; see --socket",
                list(folders)
            ),
            is_input: false,
        }),
        several => Err(CliError::Input(format!(
            "expected --socket, since there are several servers: {}",
            list(several)
        ))),
    }
}

/// Returns the sockets in a folder at which a server listens, or may: those of servers that were killed stay behind and
/// refuse connections.
fn sockets_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_socket = |entry: &fs::DirEntry| {
        entry.file_type().is_ok_and(|kind| kind.is_socket())
            && entry.path().extension().is_some_and(|name| name == "sock")
    };
    let sockets = entries.filter(is_socket).map(|entry| entry.path());
    sockets.filter(|socket| !is_left_behind(socket)).collect()
}

/// Returns `true` if nobody listens at this socket.
fn is_left_behind(socket: &Path) -> bool {
    UnixStream::connect(socket).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn the_only_socket_is_the_default() {
        let folder = std::env::temp_dir().join(format!("tailwater-sockets-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let folders = [folder.join("a"), folder.join("b")];
        let error = only(&folders).unwrap_err().to_string();
        assert!(
            error.starts_with("no server is running: there is no control socket in"),
            "{error}"
        );
        folders.iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
        fs::write(folders[0].join("file.sock"), "").unwrap();
        let one = folders[1].join("one.sock");
        let _one = UnixListener::bind(&one).unwrap();
        let _other = UnixListener::bind(folders[1].join("other")).unwrap();
        assert_eq!(only(&folders).unwrap(), one);
        // Left behind by a server that was killed.
        drop(UnixListener::bind(folders[0].join("two.sock")).unwrap());
        assert_eq!(only(&folders).unwrap(), one);
        fs::remove_file(folders[0].join("two.sock")).unwrap();
        let _two = UnixListener::bind(folders[0].join("two.sock")).unwrap();
        let error = only(&folders).unwrap_err().to_string();
        assert!(
            error.starts_with("expected --socket, since there are several servers: "),
            "{error}"
        );
        assert_eq!(find(Some(Path::new("x"))).unwrap(), Path::new("x"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
