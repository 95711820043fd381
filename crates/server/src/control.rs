//! Control API: gRPC over a Unix socket, on a thread of its own.
//!
//! Reads are answered from the last published [snapshot](crate::Snapshot) and never wait for the manager. Changes are
//! requests to the manager's thread, which carries out one after the other. The peer's credentials, as the kernel
//! reports them, decide what a client may do; [`Limits`] bound what it can use.

mod access;
mod bodies;
pub mod client;
mod clients;
mod connection;
#[allow(missing_docs, clippy::all, reason = "generated")]
#[rustfmt::skip]
pub mod generated;
mod group;
mod limits;
mod messages;
mod peer;
mod service;
mod socket;
mod streams;
mod traces;

pub use client::{Client, ClientError};
pub use limits::Limits;
pub(crate) use socket::SocketFile;

use crate::error::ServeError;
use crate::request::Command;
use crate::status::Snapshot;
use access::Access;
use clients::Clients;
use connection::Connections;
use service::Service;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use tokio::sync::{oneshot, watch};

/// Control API that is being served. Ends its thread and removes the socket when dropped.
#[derive(Debug)]
pub struct ControlServer {
    snapshots: watch::Sender<Arc<Snapshot>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    socket: Option<SocketFile>,
}

impl ControlServer {
    /// Starts to serve on this socket. Members of the group `readers` may read.
    ///
    /// # Errors
    /// Another server uses the socket, the group does not exist, or the system refuses.
    pub(crate) fn start(
        path: &Path,
        readers: Option<&str>,
        limits: Limits,
        commands: SyncSender<Command>,
    ) -> Result<ControlServer, ServeError> {
        let group = readers.map(group::number).transpose()?;
        let (socket, listener) = SocketFile::bind(path, group)?;
        let system = |source: io::Error| ServeError::Socket {
            path: path.to_owned(),
            source,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(system)?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::UnixListener::from_std(listener).map_err(system)?
        };
        let (snapshots, snapshot) = watch::channel(Arc::default());
        let connections = Connections {
            access: Access::new(group),
            clients: Clients::new(limits.clients),
            service: Service::new(snapshot, commands, &limits),
            limits,
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || {
                runtime.spawn(connections.accept(listener));
                // Returns when the sender is dropped; connections end with the event loop.
                let _ = runtime.block_on(stopped);
            })
            .map_err(system)?;
        Ok(ControlServer {
            snapshots,
            stop: Some(stop),
            thread: Some(thread),
            socket: Some(socket),
        })
    }

    /// Returns the function that publishes the server's state.
    pub(crate) fn publisher(&self) -> impl FnMut(Snapshot) + Send + 'static {
        let snapshots = self.snapshots.clone();
        move |snapshot| drop(snapshots.send_replace(Arc::new(snapshot)))
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        drop(self.socket.take());
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed, and affects the control API only.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    /// The generated code is of the published proto. Regenerate it with
    /// `cargo run --manifest-path tools/control-proto/Cargo.toml`.
    #[test]
    fn generated_code_is_of_the_published_proto() {
        let proto = include_bytes!("../proto/tailwater/control/v1alpha1/control.proto");
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        let hash = proto.iter().fold(0xcbf2_9ce4_8422_2325, step);
        let generated = include_str!("control/generated.rs");
        let first = generated.lines().next().unwrap();
        assert!(
            first.ends_with(&format!("{hash:016x}.")),
            "run tools/control-proto: {first}"
        );
    }
}
