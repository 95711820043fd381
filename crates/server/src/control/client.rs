//! Client of the control API, for programs without an event loop.

use super::generated as message;
use super::generated::control_client::ControlClient;
use super::limits::Limits;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use std::io::{self, ErrorKind};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tonic::codegen::BoxFuture;
use tonic::{Code, Status, Streaming};

/// Longest time to connect and to read.
const READ: Duration = Duration::from_secs(10);
/// Longest time of a change, which may include measurements of a chain.
const CHANGE: Duration = Duration::from_secs(600);
/// Largest message of a server in bytes: a thousand chains with their statuses, or a long manifest.
const MESSAGE_BYTES: usize = 64 << 20;
/// Largest head of a response in bytes, which includes an error's text.
const HEADER_BYTES: u32 = 64 << 10;

/// Error of a client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no server.
    #[error("no server is running at {path}: {source}")]
    NoServer {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The server refuses this user.
    #[error("{0}")]
    Permission(String),
    /// The request is wrong.
    #[error("{0}")]
    Invalid(String),
    /// There is no such chain.
    #[error("{0}")]
    NotFound(String),
    /// The server refuses the request, or failed to carry it out and changed nothing.
    #[error("{0}")]
    Refused(String),
    /// The connection failed.
    #[error("{0}")]
    Connection(String),
}

impl From<Status> for ClientError {
    fn from(status: Status) -> ClientError {
        let message = status.message().to_owned();
        match status.code() {
            Code::InvalidArgument | Code::OutOfRange => ClientError::Invalid(message),
            Code::NotFound => ClientError::NotFound(message),
            Code::PermissionDenied | Code::Unauthenticated => ClientError::Permission(message),
            Code::FailedPrecondition | Code::Aborted => ClientError::Refused(message),
            // The server ended, or closed the connection.
            Code::Unknown | Code::Cancelled | Code::Internal => {
                ClientError::Connection(format!("the server closed the connection: {message}"))
            }
            _ => ClientError::Connection(message),
        }
    }
}

/// Reason for which a server with this limit would not read a request; it would not know the files' names.
fn too_large(request: &message::ApplyRequest, most: usize) -> Option<String> {
    let bytes = request.encoded_len();
    if bytes <= most {
        return None;
    }
    let largest = request.manifests.iter().max_by_key(|manifest| manifest.yaml.len())?;
    let others = match request.manifests.len() {
        1 => String::new(),
        chains => format!(", the largest of {chains} files"),
    };
    Some(format!(
        "{}{others}: expected at most {most} bytes in one apply, found {bytes}",
        largest.source
    ))
}

/// Runtime of a client's calls. Unlike others it may be dropped in a task of another runtime.
#[derive(Debug)]
struct Calls(Option<Runtime>);

impl Deref for Calls {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        match &self.0 {
            Some(runtime) => runtime,
            None => unreachable!("it is taken out when it is dropped"),
        }
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Client of a server.
#[derive(Debug)]
pub struct Client {
    runtime: Calls,
    inner: ControlClient<Connection>,
}

impl Client {
    /// Connects to the server at this socket.
    ///
    /// # Errors
    /// There is none, or this user may not connect.
    pub fn connect(path: &Path) -> Result<Client, ClientError> {
        let no_server = |source: io::Error| match source.kind() {
            ErrorKind::PermissionDenied => {
                ClientError::Permission(format!("this user may not connect to {}", path.display()))
            }
            _ => ClientError::NoServer {
                path: path.to_owned(),
                source,
            },
        };
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(no_server)?;
        let connected = runtime.block_on(async { timeout(READ, connect(path)).await });
        let connection = connected
            .map_err(|_| no_server(ErrorKind::TimedOut.into()))?
            .map_err(no_server)?;
        let origin = http::Uri::from_static("http://tailwater");
        let inner = ControlClient::with_origin(connection, origin).max_decoding_message_size(MESSAGE_BYTES);
        Ok(Client {
            runtime: Calls(Some(runtime)),
            inner,
        })
    }

    /// Applies manifests.
    ///
    /// # Errors
    /// The request is refused or too large, or the connection fails.
    pub fn apply(&mut self, request: message::ApplyRequest) -> Result<message::ApplyResponse, ClientError> {
        if let Some(reason) = too_large(&request, Limits::default().message_bytes) {
            return Err(ClientError::Invalid(reason));
        }
        let call = self.inner.apply(request);
        within(&self.runtime, CHANGE, call)
    }

    /// Returns a chain.
    ///
    /// # Errors
    /// There is none of this name, or the connection fails.
    pub fn get(&mut self, name: &str) -> Result<message::Chain, ClientError> {
        let call = self.inner.get(message::GetRequest { name: name.to_owned() });
        within(&self.runtime, READ, call)
    }

    /// Returns all chains.
    ///
    /// # Errors
    /// The connection fails.
    pub fn list(&mut self) -> Result<message::ListResponse, ClientError> {
        let call = self.inner.list(message::ListRequest {});
        within(&self.runtime, READ, call)
    }

    /// Returns the load of all chains that run.
    ///
    /// # Errors
    /// The connection fails.
    pub fn loads(&mut self) -> Result<message::LoadsResponse, ClientError> {
        let call = self.inner.loads(message::LoadsRequest {});
        within(&self.runtime, READ, call)
    }

    /// Returns what chains and cores do: all chains, or the one of this name.
    ///
    /// # Errors
    /// There is none of this name, or the connection fails.
    pub fn figures(&mut self, chain: &str) -> Result<message::FiguresResponse, ClientError> {
        let call = self.inner.figures(message::FiguresRequest {
            chain: chain.to_owned(),
        });
        within(&self.runtime, READ, call)
    }

    /// Passes what a trace finds to `on_update` until it is over, or it returns `false`. It is called with `None` at
    /// least once in `period`.
    ///
    /// # Errors
    /// There is no such chain, the filter is wrong, somebody else traces it, or the connection fails.
    pub fn trace_packets(
        &mut self,
        request: message::TracePacketsRequest,
        period: Duration,
        on_update: impl FnMut(Option<message::TraceUpdate>) -> bool,
    ) -> Result<(), ClientError> {
        let call = self.inner.trace_packets(request);
        let stream = within(&self.runtime, READ, call)?;
        follow(&self.runtime, stream, period, on_update)
    }

    /// Returns a chain with its manifest and its events.
    ///
    /// # Errors
    /// There is none of this name, or the connection fails.
    pub fn describe(&mut self, name: &str) -> Result<message::DescribeResponse, ClientError> {
        let call = self.inner.describe(message::DescribeRequest { name: name.to_owned() });
        within(&self.runtime, READ, call)
    }

    /// Deletes chains.
    ///
    /// # Errors
    /// The request is refused, or the connection fails.
    pub fn delete(&mut self, request: message::DeleteRequest) -> Result<message::DeleteResponse, ClientError> {
        let call = self.inner.delete(request);
        within(&self.runtime, CHANGE, call)
    }

    /// Drains a chain.
    ///
    /// # Errors
    /// The request is refused, or the connection fails.
    pub fn drain(&mut self, name: &str) -> Result<message::DrainResponse, ClientError> {
        let call = self.inner.drain(message::DrainRequest { name: name.to_owned() });
        within(&self.runtime, CHANGE, call)
    }

    /// Returns the state of the server.
    ///
    /// # Errors
    /// The connection fails.
    pub fn health(&mut self) -> Result<message::HealthResponse, ClientError> {
        let call = self.inner.health(message::HealthRequest {});
        within(&self.runtime, READ, call)
    }

    /// Passes events to `on_event` until there are none, or it returns `false`. It is called with `None` at least once
    /// in `period`.
    ///
    /// # Errors
    /// The connection fails, or this client is too slow.
    pub fn events(
        &mut self,
        request: message::EventsRequest,
        period: Duration,
        on_event: impl FnMut(Option<message::Event>) -> bool,
    ) -> Result<(), ClientError> {
        let call = self.inner.events(request);
        let stream = within(&self.runtime, READ, call)?;
        follow(&self.runtime, stream, period, on_event)
    }

    /// Passes changes of chains to `on_change` until it returns `false`. It is called with `None` at least once in
    /// `period`.
    ///
    /// # Errors
    /// The connection fails.
    pub fn watch(
        &mut self,
        name: &str,
        period: Duration,
        on_change: impl FnMut(Option<message::ChainChange>) -> bool,
    ) -> Result<(), ClientError> {
        let call = self.inner.watch(message::WatchRequest { name: name.to_owned() });
        let stream = within(&self.runtime, READ, call)?;
        follow(&self.runtime, stream, period, on_change)
    }
}

/// Waits for a call's response.
fn within<T>(
    runtime: &Runtime,
    longest: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, ClientError> {
    let result = runtime.block_on(async { timeout(longest, call).await });
    let response = result.map_err(|_| ClientError::Connection("the server does not respond".to_owned()))?;
    Ok(response?.into_inner())
}

fn follow<T>(
    runtime: &Runtime,
    mut stream: Streaming<T>,
    period: Duration,
    mut on_message: impl FnMut(Option<T>) -> bool,
) -> Result<(), ClientError> {
    runtime.block_on(async {
        loop {
            let is_continued = match timeout(period, stream.message()).await {
                Err(_) => on_message(None),
                Ok(message) => match message? {
                    Some(message) => on_message(Some(message)) && on_message(None),
                    None => return Ok(()),
                },
            };
            if !is_continued {
                return Ok(());
            }
        }
    })
}

/// HTTP/2 connection, by which calls of gRPC are made.
#[derive(Clone, Debug)]
pub struct Connection(http2::SendRequest<tonic::body::Body>);

/// Opens a connection, and serves it in the current event loop.
async fn connect(path: &Path) -> io::Result<Connection> {
    let stream = UnixStream::connect(path).await?;
    Connection::open(stream, None).await
}

impl Connection {
    /// Opens a connection over a stream, and serves it in the current event loop. With `silence` it fails when the
    /// other end does not answer for as long.
    ///
    /// # Errors
    /// The stream fails.
    pub async fn open<S>(stream: S, silence: Option<Duration>) -> io::Result<Connection>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).max_header_list_size(HEADER_BYTES);
        if let Some(silence) = silence {
            builder.keep_alive_interval(silence).keep_alive_timeout(silence);
        }
        let (sender, connection) = builder
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        tokio::spawn(connection);
        Ok(Connection(sender))
    }
}

impl tonic::codegen::Service<http::Request<tonic::body::Body>> for Connection {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<Self::Response, hyper::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server's answer was "decoded message length too large", without a file.
    #[test]
    fn a_request_that_is_too_large_names_the_file() {
        let manifest = |source: &str, bytes: usize| message::Manifest {
            source: source.to_owned(),
            yaml: "x".repeat(bytes),
            ..message::Manifest::default()
        };
        let mut request = message::ApplyRequest {
            manifests: vec![manifest("small.yaml", 10), manifest("large.yaml", 100)],
            ..message::ApplyRequest::default()
        };
        let bytes = request.encoded_len();
        assert_eq!(too_large(&request, bytes), None);
        let expected =
            format!("large.yaml, the largest of 2 files: expected at most 50 bytes in one apply, found {bytes}");
        assert_eq!(too_large(&request, 50), Some(expected));
        request.manifests.remove(0);
        let reason = too_large(&request, 50).unwrap();
        assert!(reason.starts_with("large.yaml: expected at most 50 bytes"), "{reason}");
    }
}
