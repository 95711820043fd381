//! The end that takes reports.

use super::generated::reports_server::{Reports, ReportsServer};
use super::generated::{AgentReport, ReportResponse};
use super::rare::Rare;
use super::tls::{self, Security};
use crate::notices::Notices;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tonic::codegen::Service as _;
use tonic::{Request, Response, Status, Streaming};

/// Largest size of a request's head in bytes.
const HEADER_BYTES: u32 = 8 << 10;
/// Wait after a connection could not be accepted.
const RETRY: Duration = Duration::from_millis(100);
/// Longest time of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Limits of the agents' connections.
#[derive(Clone, Copy, Debug)]
pub struct ReportLimits {
    /// Connections at a time; more have to wait.
    pub connections: usize,
    /// Bytes of a report.
    pub message_bytes: usize,
    /// Time without any sign of life after which a connection is closed, and time until the first report.
    pub idle: Duration,
}

impl Default for ReportLimits {
    fn default() -> ReportLimits {
        ReportLimits {
            connections: 4096,
            message_bytes: 1 << 20,
            idle: Duration::from_secs(10),
        }
    }
}

/// Takes reports until nobody wants them.
pub async fn serve(
    listener: TcpListener,
    security: Security,
    limits: ReportLimits,
    reports: mpsc::Sender<AgentReport>,
    notices: Notices,
) {
    let refusals = Arc::new(Rare::default());
    let room = Arc::new(Semaphore::new(limits.connections));
    while !reports.is_closed() {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // Possibly a temporary lack of file descriptors.
            Err(_) => {
                sleep(RETRY).await;
                continue;
            }
        };
        // Small messages at once.
        let _ = stream.set_nodelay(true);
        let taker = Taker {
            reports: reports.clone(),
            has_begun: Arc::default(),
        };
        let (security, notices, refusals) = (security.clone(), notices.clone(), Arc::clone(&refusals));
        tokio::spawn(async move {
            let _permit = permit;
            let refuse = |line: String| {
                // Anybody can cause these.
                if let Some(line) = refusals.line(Instant::now(), &line) {
                    notices.warn(&line);
                }
            };
            match security {
                Security::None => connection(stream, taker, limits).await,
                Security::Mutual(folder) => match tls::server(&folder) {
                    Err(error) => refuse(error.to_string()),
                    Ok(config) => {
                        let accepting = TlsAcceptor::from(config).accept(stream);
                        match timeout(HANDSHAKE, accepting).await {
                            Ok(Ok(stream)) => connection(stream, taker, limits).await,
                            Ok(Err(error)) => refuse(format!("an agent was refused: {error}")),
                            Err(_) => {}
                        }
                    }
                },
            }
        });
    }
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, taker: Taker, limits: ReportLimits) {
    let has_begun = Arc::clone(&taker.has_begun);
    let server = ReportsServer::new(taker).max_decoding_message_size(limits.message_bytes);
    let handle = service_fn(move |request: hyper::Request<Incoming>| server.clone().call(request));
    // A client that hangs or has vanished is found by the keep-alive.
    let serving = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(1)
        .max_header_list_size(HEADER_BYTES)
        .keep_alive_interval(limits.idle / 2)
        .keep_alive_timeout(limits.idle / 2)
        .serve_connection(TokioIo::new(stream), handle);
    // One that never sends anything is not: it has no protocol yet.
    let silent = async {
        sleep(limits.idle).await;
        if has_begun.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        _ = serving => {}
        () = silent => {}
    }
}

#[derive(Clone)]
struct Taker {
    reports: mpsc::Sender<AgentReport>,
    /// The connection has brought a report.
    has_begun: Arc<AtomicBool>,
}

#[tonic::async_trait]
impl Reports for Taker {
    async fn report(&self, request: Request<Streaming<AgentReport>>) -> Result<Response<ReportResponse>, Status> {
        let mut stream = request.into_inner();
        while let Some(report) = stream.message().await? {
            self.has_begun.store(true, Ordering::Relaxed);
            if self.reports.send(report).await.is_err() {
                return Err(Status::unavailable("the ingress ends"));
            }
        }
        Ok(Response::new(ReportResponse {}))
    }
}
