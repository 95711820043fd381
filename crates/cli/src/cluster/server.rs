//! A server to which an agent brings profiles, too.

use std::path::{Path, PathBuf};
use tailwater_cluster::agent::{ControlSocket, LocalChain, LocalError, LocalLoad, LocalServer};
use tailwater_profile::profiles::Profiles;

/// Server behind its control socket, and its folder of profiles, if it admits chains by them.
pub struct ProfiledServer {
    socket: ControlSocket,
    folder: Option<PathBuf>,
}

impl ProfiledServer {
    /// The server of a socket.
    pub fn new(socket: ControlSocket, folder: Option<PathBuf>) -> ProfiledServer {
        ProfiledServer { socket, folder }
    }

    /// Writes the profiles of a chain, under its name on this server.
    fn write(&self, folder: &Path, chain: &str, files: &[String]) -> Result<(), String> {
        for (number, text) in files.iter().enumerate() {
            let mut profiles = Profiles::parse(text, "profile").map_err(|error| error.to_string())?;
            for profile in &mut profiles.list {
                profile.key.chain = chain.to_owned();
            }
            let path = folder.join(format!("{chain}.{number}.curves.yaml"));
            let shown = |error: std::io::Error| format!("profile {}: {error}", path.display());
            tailwater_files::write_whole(&path, profiles.to_string().as_bytes()).map_err(shown)?;
        }
        Ok(())
    }
}

impl LocalServer for ProfiledServer {
    fn apply(&mut self, name: &str, manifest: &str, profiles: &[String], force: bool) -> Result<(), LocalError> {
        if let Some(folder) = self.folder.as_ref().filter(|folder| folder.is_dir()) {
            self.write(folder, name, profiles).map_err(LocalError::Refused)?;
        }
        self.socket.apply(name, manifest, profiles, force)
    }

    fn delete(&mut self, name: &str) -> Result<(), LocalError> {
        self.socket.delete(name)
    }

    fn loads(&mut self) -> Result<Vec<LocalLoad>, LocalError> {
        self.socket.loads()
    }

    fn list(&mut self) -> Result<Vec<LocalChain>, LocalError> {
        self.socket.list()
    }
}
