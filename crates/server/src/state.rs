//! Paths of a server, and its state folder.

use crate::error::ServeError;
use crate::generation::StateFolder;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tailwater_api::server::ServerSpec;
use tailwater_net::Nanos;

/// Paths that a server uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Control socket.
    pub socket: PathBuf,
    /// Folder of the applied configuration.
    pub state: PathBuf,
}

impl Paths {
    /// Paths of a server: those of its specification, or `NAME.sock` in the [runtime folder](Self::runtime) and
    /// `tailwater/NAME` in `$XDG_STATE_HOME`, or in `/var/lib` if that is not set.
    pub fn of(spec: &ServerSpec, environment: impl Fn(&str) -> Option<PathBuf>) -> Paths {
        let name = &spec.metadata.name;
        let state = || {
            environment("XDG_STATE_HOME")
                .unwrap_or("/var/lib".into())
                .join("tailwater")
                .join(name)
        };
        let socket = || Paths::runtime(&environment).join(format!("{name}.sock"));
        Paths {
            socket: spec.control.socket.clone().unwrap_or_else(socket),
            state: spec.state_directory.clone().unwrap_or_else(state),
        }
    }

    /// Folder of the control sockets: `tailwater` in `$XDG_RUNTIME_DIR`, or in `/run` if that is not set.
    pub fn runtime(environment: impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
        environment("XDG_RUNTIME_DIR")
            .unwrap_or("/run".into())
            .join("tailwater")
    }
}

/// State folder of a server, which no other server can use at the same time.
#[derive(Debug)]
pub struct LockedState {
    pub(crate) store: StateFolder,
    /// Files removed that a server which was killed has left.
    pub(crate) removed: Vec<String>,
}

impl LockedState {
    /// Locks the state folder: the first step of a server, before it takes cores or memory.
    ///
    /// # Errors
    /// The folder cannot be used, or another server uses it.
    pub fn lock(paths: &Paths) -> Result<LockedState, ServeError> {
        let (store, removed) = StateFolder::open(&paths.state).map_err(|source| state_error(&paths.state, source))?;
        Ok(LockedState { store, removed })
    }

    /// Same, after a take-over: this process has chains already, whose files stay.
    #[cfg(feature = "control")]
    pub(crate) fn lock_after(paths: &Paths) -> Result<LockedState, ServeError> {
        let opened = StateFolder::open_after(&paths.state);
        let (store, removed) = opened.map_err(|source| state_error(&paths.state, source))?;
        Ok(LockedState { store, removed })
    }
}

/// Error of a state folder.
pub(crate) fn state_error(path: &Path, source: io::Error) -> ServeError {
    match source.kind() {
        ErrorKind::WouldBlock => ServeError::Running(path.to_owned()),
        _ => ServeError::State {
            path: path.to_owned(),
            source,
        },
    }
}

/// Time since the Unix epoch.
pub(crate) fn now() -> Nanos {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    Nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_api::document::Document;
    use tailwater_api::server::DESCRIPTION;

    fn spec(fields: &str) -> ServerSpec {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Server\nmetadata: {{name: edge-1}}\nspec:\n  cores: 1\n  \
             ports: [{{name: a, traffic: bursty}}]\n{fields}"
        );
        let document = Document::parse(&text, "s.yaml", DESCRIPTION).unwrap();
        ServerSpec::new(&document, Path::new("/etc")).unwrap()
    }

    #[test]
    fn paths_are_given_or_of_the_system() {
        let paths = Paths::of(&spec(""), |_| None);
        assert_eq!(paths.socket, Path::new("/run/tailwater/edge-1.sock"));
        assert_eq!(paths.state, Path::new("/var/lib/tailwater/edge-1"));
        let user = |name: &str| Some(PathBuf::from(format!("/home/{name}")));
        let paths = Paths::of(&spec(""), user);
        assert_eq!(paths.socket, Path::new("/home/XDG_RUNTIME_DIR/tailwater/edge-1.sock"));
        assert_eq!(paths.state, Path::new("/home/XDG_STATE_HOME/tailwater/edge-1"));
        let paths = Paths::of(&spec("  control: c.sock\n  stateDirectory: s\n"), user);
        assert_eq!((paths.socket, paths.state), ("/etc/c.sock".into(), "/etc/s".into()));
    }
}
