//! Prometheus endpoint of a run, server or ingress: `GET /metrics`, `/healthz` and `/readyz`.
//!
//! Runs on its own thread with a single-threaded event loop. Every scrape is rendered from the last progress of the
//! chains: nothing on the data path is read or waits. Bounds: 16 concurrent connections, of which a further one closes
//! the oldest without a request; one request each, 16 KiB of headers, two seconds for them, ten in all.

mod exemplars;
mod exposition;
#[cfg(feature = "cluster")]
mod ingress;
mod protobuf;
mod run;
mod server;

use crate::error::CliError;
use crate::output::complain;
pub use exemplars::LateExemplar;
pub use exposition::Chain;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
#[cfg(feature = "cluster")]
pub use ingress::IngressPage;
use protobuf::ChainLatency;
pub use run::RunPage;
pub use server::{ServerPage, ServerSources};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const CONNECTIONS: usize = 16;
const HEADER_BYTES: usize = 16 << 10;
const TIME_FOR_HEADERS: Duration = Duration::from_secs(2);
const TIME_FOR_ALL: Duration = Duration::from_secs(10);
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Content of an endpoint, rendered by its thread.
pub trait Page: Send + Sync + 'static {
    /// OpenMetrics text.
    ///
    /// # Errors
    /// The encoder fails.
    fn metrics(&self) -> Result<String, fmt::Error>;

    /// Latencies of the chains, in full resolution.
    fn latencies(&self) -> Vec<ChainLatency> {
        Vec::new()
    }

    /// Returns `true` once everything runs that should.
    fn is_ready(&self) -> bool;
}

/// Address that is bound, but not yet served.
#[derive(Debug)]
pub struct Endpoint(TcpListener);

/// Returns `true` if metrics of this program are served at an address. Takes at most a second.
fn is_served_by_tailwater(address: SocketAddr) -> bool {
    const LONGEST: Duration = Duration::from_millis(300);
    const MOST_BYTES: usize = 64 << 10;
    let page = || -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, LONGEST)?;
        stream.set_read_timeout(Some(LONGEST))?;
        stream.set_write_timeout(Some(LONGEST))?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        let (mut page, until) = (Vec::new(), Instant::now() + LONGEST);
        let mut part = [0; 4096];
        while page.len() < MOST_BYTES && Instant::now() < until {
            match stream.read(&mut part)? {
                0 => break,
                read => page.extend_from_slice(&part[..read]),
            }
        }
        Ok(String::from_utf8_lossy(&page).into_owned())
    };
    page().is_ok_and(|page| page.contains("\n# HELP tailwater_"))
}

impl Endpoint {
    /// Binds an address, which `option` names in messages.
    ///
    /// # Errors
    /// The address is in use or not available.
    pub fn bind(option: &str, address: SocketAddr) -> Result<Endpoint, CliError> {
        TcpListener::bind(address).map(Endpoint).map_err(|error| {
            let advice = match error.kind() {
                ErrorKind::AddrInUse => {
                    let user = match is_served_by_tailwater(address) {
                        true => "another Tailwater serves its metrics there",
                        false => "another program listens there",
                    };
                    format!("; {user}: set {option} to another port")
                }
                _ => String::new(),
            };
            CliError::Input(format!("{option}: cannot listen on {address}: {error}{advice}"))
        })
    }

    /// Starts serving a page, and prints the URL.
    ///
    /// # Errors
    /// The event loop or its thread cannot be created.
    pub fn serve<P: Page>(self, page: P) -> Result<Serving<P>, CliError> {
        let system = |source| CliError::System {
            what: "metrics cannot be served",
            source,
        };
        let Endpoint(listener) = self;
        let address = listener.local_addr().map_err(system)?;
        listener.set_nonblocking(true).map_err(system)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(system)?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener).map_err(system)?
        };
        let page = Arc::new(page);
        let (stop, stopped) = oneshot::channel::<()>();
        let shared = Arc::clone(&page);
        let thread = thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || {
                runtime.spawn(accept(listener, shared));
                // Returns when the sender is dropped; connections end with the event loop.
                let _ = runtime.block_on(stopped);
            })
            .map_err(system)?;
        complain("notice", &format!("metrics at http://{address}/metrics"));
        Ok(Serving {
            page,
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

/// Endpoint that is being served. Ends its thread when dropped.
#[derive(Debug)]
pub struct Serving<P> {
    page: Arc<P>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl<P> Serving<P> {
    /// The page that is served.
    pub fn page(&self) -> &P {
        &self.page
    }
}

impl<P> Drop for Serving<P> {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed, and affects the endpoint only.
            let _ = thread.join();
        }
    }
}

/// Connection that is being served.
struct Connection {
    task: JoinHandle<()>,
    /// Set once its request has arrived.
    is_answered: Arc<AtomicBool>,
}

async fn accept(listener: tokio::net::TcpListener, page: Arc<impl Page>) {
    // In the order of their arrival.
    let mut connections: VecDeque<Connection> = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Possibly a temporary lack of file descriptors.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        connections.retain(|connection| !connection.task.is_finished());
        if connections.len() >= CONNECTIONS {
            make_room(&mut connections);
        }
        let page = Arc::clone(&page);
        let is_answered = Arc::<AtomicBool>::default();
        let arrived = Arc::clone(&is_answered);
        let task = tokio::spawn(async move {
            let service = service_fn(|request| {
                arrived.store(true, Ordering::Relaxed);
                answer(request, &*page)
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(TIME_FOR_HEADERS)
                .max_buf_size(HEADER_BYTES)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            // Errors of a client's connection are ignored.
            let _ = tokio::time::timeout(TIME_FOR_ALL, connection).await;
        });
        connections.push_back(Connection { task, is_answered });
        // A request that is there already is answered before the next connection could take its place.
        tokio::task::yield_now().await;
    }
}

/// Closes the oldest connection without a request: clients that never finish their headers do not keep out others. If
/// all have sent one, the oldest.
fn make_room(connections: &mut VecDeque<Connection>) {
    let waits = |connection: &Connection| !connection.is_answered.load(Ordering::Relaxed);
    let oldest = connections.iter().position(waits).unwrap_or(0);
    if let Some(connection) = connections.remove(oldest) {
        connection.task.abort();
    }
}

async fn answer(request: Request<Incoming>, page: &impl Page) -> Result<Response<Full<Bytes>>, Infallible> {
    let text = |status, text: &str| {
        let mut response = Response::new(Full::from(text.to_owned()));
        *response.status_mut() = status;
        let kind = hyper::header::HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    };
    let accepted = request.headers().get_all(ACCEPT).iter();
    let accepted: Vec<&str> = accepted.filter_map(|value| value.to_str().ok()).collect();
    Ok(match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => match page.metrics() {
            Ok(metrics) => {
                let (body, kind) = match protobuf::is_preferred(&accepted.join(",")) {
                    true => (protobuf::encode(&metrics, &page.latencies()), protobuf::CONTENT),
                    false => (metrics.into_bytes(), OPENMETRICS),
                };
                let mut response = Response::new(Full::from(body));
                let kind = hyper::header::HeaderValue::from_static(kind);
                response.headers_mut().insert(CONTENT_TYPE, kind);
                response
            }
            Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "metrics cannot be written\n"),
        },
        (&Method::GET | &Method::HEAD, "/healthz") => text(StatusCode::OK, "ok\n"),
        (&Method::GET | &Method::HEAD, "/readyz") => match page.is_ready() {
            true => text(StatusCode::OK, "ok\n"),
            false => text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
        },
        (_, "/metrics" | "/healthz" | "/readyz") => {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "GET only\n");
            let methods = hyper::header::HeaderValue::from_static("GET, HEAD");
            response.headers_mut().insert(ALLOW, methods);
            response
        }
        _ => text(StatusCode::NOT_FOUND, "metrics are at /metrics\n"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_connection_without_a_request_is_closed_first() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _inside = runtime.enter();
        let connection = |is_answered: bool| Connection {
            task: runtime.spawn(std::future::pending()),
            is_answered: Arc::new(AtomicBool::new(is_answered)),
        };
        let mut connections: VecDeque<Connection> = [true, false, true, false].map(connection).into();
        let mut ids: Vec<_> = connections.iter().map(|connection| connection.task.id()).collect();
        for closed in [1, 2, 0, 0] {
            make_room(&mut connections);
            ids.remove(closed);
            let left: Vec<_> = connections.iter().map(|connection| connection.task.id()).collect();
            assert_eq!(left, ids);
        }
        make_room(&mut connections);
    }
}
