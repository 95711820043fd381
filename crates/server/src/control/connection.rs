//! Connections of clients.

use super::access::Access;
use super::bodies::{Call, TimedBody, TrackedBody};
use super::clients::{Clients, Registered};
use super::generated::control_server::ControlServer;
use super::limits::Limits;
use super::peer;
use super::service::Service;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};
use tonic::codegen::Service as _;

/// Largest size of a request's head in bytes.
const HEADER_BYTES: u32 = 16 << 10;
/// Bytes that a client may send ahead in a call, and in all of its calls.
const WINDOWS: [u32; 2] = [64 << 10, 256 << 10];
/// Bytes of a response that wait for their client.
const SEND_BYTES: usize = 64 << 10;
/// Wait after a connection could not be accepted.
const RETRY: Duration = Duration::from_millis(100);
/// Fraction of the shortest time limit after which limits are checked.
const CHECKS: u32 = 4;

/// Accepts the connections of clients.
#[derive(Clone)]
pub(super) struct Connections {
    pub(super) access: Access,
    pub(super) clients: Clients,
    pub(super) service: Service,
    pub(super) limits: Limits,
}

impl Connections {
    /// Accepts connections until it is dropped.
    pub(super) async fn accept(self, listener: UnixListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => self.admit(stream),
                // Possibly a temporary lack of file descriptors.
                Err(_) => sleep(RETRY).await,
            }
        }
    }

    /// Serves a client that has rights, if there is room for it. Others are disconnected.
    fn admit(&self, stream: UnixStream) {
        let role = peer::of(&stream).ok().and_then(|peer| self.access.role(&peer));
        let Some(role) = role else {
            return;
        };
        if let Some(client) = self.clients.register(Instant::now()) {
            tokio::spawn(self.clone().serve(stream, role, client));
        }
    }

    async fn serve(self, stream: UnixStream, role: super::access::Role, mut client: Registered) {
        let limits = self.limits;
        let server = ControlServer::new(self.service).max_decoding_message_size(limits.message_bytes);
        let activity = client.activity.clone();
        let handle = service_fn(move |request: hyper::Request<Incoming>| {
            let call = Call::new(&activity);
            let mut request = request.map(|body| TimedBody::new(body, limits.request));
            request.extensions_mut().insert(role);
            let response = server.clone().call(request);
            async move {
                response
                    .await
                    .map(|response| response.map(|body| TrackedBody::new(body, call)))
            }
        });
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits.calls)
            .max_header_list_size(HEADER_BYTES)
            .initial_stream_window_size(WINDOWS[0])
            .initial_connection_window_size(WINDOWS[1])
            .max_send_buf_size(SEND_BYTES)
            // Finds clients whose system has vanished from a shared file system's socket, or that hang.
            .keep_alive_interval(limits.idle)
            .keep_alive_timeout(limits.stalled)
            .serve_connection(TokioIo::new(stream), handle);
        let mut connection = pin!(connection);
        let mut checks = checks(&limits);
        // Dropping the connection cuts it.
        std::future::poll_fn(|cx| {
            if connection.as_mut().poll(cx).is_ready() || Pin::new(&mut client.closed).poll(cx).is_ready() {
                return Poll::Ready(());
            }
            poll_overdue(&client, &limits, &mut checks, cx)
        })
        .await;
    }
}

/// Resolves when a client exceeds a time limit.
fn poll_overdue(client: &Registered, limits: &Limits, checks: &mut Interval, cx: &mut Context<'_>) -> Poll<()> {
    while checks.poll_tick(cx).is_ready() {
        if client.activity.is_overdue(Instant::now(), limits.idle, limits.stalled) {
            return Poll::Ready(());
        }
    }
    Poll::Pending
}

fn checks(limits: &Limits) -> Interval {
    let shortest = limits.idle.min(limits.stalled) / CHECKS;
    let mut checks = interval(shortest.clamp(Duration::from_millis(10), Duration::from_secs(1)));
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    checks
}
