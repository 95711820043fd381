//! Prometheus endpoint of a run: `GET /metrics`.
//!
//! Runs on its own thread with a single-threaded event loop. Its only state is the last [`Progress`], from which every
//! scrape is rendered. Bounds: 16 concurrent connections, one request each, 16 KiB of headers, ten seconds.

mod exposition;

use crate::error::CliError;
use crate::output::complain;
pub use exposition::Chain;
use exposition::Exposition;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tailwater_dataplane::run::Progress;
use tokio::sync::{Semaphore, oneshot};

const CONNECTIONS: usize = 16;
const HEADER_BYTES: usize = 16 << 10;
const TIME_FOR_HEADERS: Duration = Duration::from_secs(5);
const TIME_FOR_ALL: Duration = Duration::from_secs(10);
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Address that is bound, but not yet served.
#[derive(Debug)]
pub struct Endpoint(TcpListener);

impl Endpoint {
    /// Binds an address.
    ///
    /// # Errors
    /// The address is in use or not available.
    pub fn bind(address: SocketAddr) -> Result<Endpoint, CliError> {
        TcpListener::bind(address)
            .map(Endpoint)
            .map_err(|error| CliError::Input(format!("--metrics: cannot listen on {address}: {error}")))
    }

    /// Starts serving a run's metrics, and prints the URL.
    ///
    /// # Errors
    /// The event loop or its thread cannot be created.
    pub fn serve(self, chain: Chain) -> Result<Serving, CliError> {
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
        let exposition = Arc::new(Exposition::new(chain));
        let (stop, stopped) = oneshot::channel::<()>();
        let shared = Arc::clone(&exposition);
        let thread = std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || {
                runtime.spawn(accept(listener, shared));
                // Returns when the sender is dropped; connections end with the event loop.
                let _ = runtime.block_on(stopped);
            })
            .map_err(system)?;
        complain("notice", &format!("metrics at http://{address}/metrics"));
        Ok(Serving {
            exposition,
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

/// Endpoint that is being served. Ends its thread when dropped.
#[derive(Debug)]
pub struct Serving {
    exposition: Arc<Exposition>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Updates the served figures.
    pub fn update(&self, progress: &Progress) {
        self.exposition.update(progress);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed, and affects the endpoint only.
            let _ = thread.join();
        }
    }
}

async fn accept(listener: tokio::net::TcpListener, exposition: Arc<Exposition>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    while let Ok(slot) = Arc::clone(&slots).acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            // Possibly a temporary lack of file descriptors.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let exposition = Arc::clone(&exposition);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(request, &exposition));
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(TIME_FOR_HEADERS)
                .max_buf_size(HEADER_BYTES)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            // Errors of a client's connection are ignored.
            let _ = tokio::time::timeout(TIME_FOR_ALL, connection).await;
            drop(slot);
        });
    }
}

async fn answer(request: Request<Incoming>, exposition: &Exposition) -> Result<Response<Full<Bytes>>, Infallible> {
    let text = |status, text: &str| {
        let mut response = Response::new(Full::from(text.to_owned()));
        *response.status_mut() = status;
        let kind = hyper::header::HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    };
    Ok(match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => match exposition.text() {
            Ok(metrics) => {
                let mut response = text(StatusCode::OK, &metrics);
                let kind = hyper::header::HeaderValue::from_static(OPENMETRICS);
                response.headers_mut().insert(CONTENT_TYPE, kind);
                response
            }
            Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "metrics cannot be written\n"),
        },
        (_, "/metrics") => {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "GET only\n");
            let methods = hyper::header::HeaderValue::from_static("GET, HEAD");
            response.headers_mut().insert(ALLOW, methods);
            response
        }
        _ => text(StatusCode::NOT_FOUND, "metrics are at /metrics\n"),
    })
}
