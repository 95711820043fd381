//! The end that sends reports.

use super::generated::AgentReport;
use super::generated::reports_client::ReportsClient;
use super::tls::{self, Security};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxFuture;

/// Longest time to connect.
const CONNECT: Duration = Duration::from_secs(2);
/// Time without an answer of the other end's HTTP/2 after which the connection is closed.
const SILENCE: Duration = Duration::from_secs(3);

/// Sends the current report to one address at this interval, until the connection fails.
///
/// # Errors
/// The other end cannot be reached, or the connection has failed.
pub async fn send(
    address: &str,
    security: &Security,
    period: Duration,
    report: &watch::Receiver<AgentReport>,
) -> io::Result<()> {
    let stream = timeout(CONNECT, TcpStream::connect(address)).await??;
    stream.set_nodelay(true)?;
    let connection = match security {
        Security::None => open(stream).await?,
        Security::Mutual(folder) => {
            let (config, name) = tls::client(folder)?;
            let stream = timeout(CONNECT, TlsConnector::from(config).connect(name, stream)).await??;
            open(stream).await?
        }
    };
    let origin = http::Uri::from_static("http://tailwater");
    let mut client = ReportsClient::with_origin(connection, origin);
    let (messages, stream) = tokio::sync::mpsc::channel(1);
    let call = client.report(ReceiverStream::new(stream));
    let sending = async {
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = report.borrow().clone();
            if messages.send(now).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        ended = call => ended.map(drop).map_err(io::Error::other),
        () = sending => Ok(()),
    }
}

/// HTTP/2 connection.
#[derive(Clone, Debug)]
struct Connection(http2::SendRequest<tonic::body::Body>);

/// Opens a connection, and serves it in the current event loop.
async fn open(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> io::Result<Connection> {
    let handshake = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(SILENCE)
        .keep_alive_timeout(SILENCE)
        .handshake(TokioIo::new(stream))
        .await;
    let (sender, connection) = handshake.map_err(io::Error::other)?;
    tokio::spawn(connection);
    Ok(Connection(sender))
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
