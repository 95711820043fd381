//! Model of an API server, in the test's process, for machines that have no real one.
//!
//! It has the resources that the rack's programs use, and the parts of the API that they use: versions and conflicts,
//! watches, patches, status apart from spec, generations, finalizers, pages of lists. It has no rights, no admission
//! policies, no CEL rules and no patterns: tests of those need the real one. It refuses all that it does not know.
//! `rules.rs` holds for both.

mod apply;
mod handling;
mod kinds;
mod query;
mod refusal;
mod schema;
mod store;
mod writes;

use handling::respond;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use store::Store;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{interval, sleep};

/// Longest time until its port is free again.
const REBIND: Duration = Duration::from_secs(10);
/// Open files that 200 agents need: both ends of their connections are in this process.
const FILES: u64 = 16_384;

/// Running model. Ends when it is dropped.
pub struct ApiModel {
    store: Arc<Mutex<Store>>,
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl ApiModel {
    /// Starts it, without definitions of custom resources.
    pub async fn start() -> ApiModel {
        let mut files = getrlimit(Resource::Nofile);
        let most = files.maximum.unwrap_or(FILES);
        files = Rlimit {
            current: Some(files.current.unwrap_or(most).max(FILES.min(most))),
            ..files
        };
        setrlimit(Resource::Nofile, files).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let store = Arc::new(Mutex::new(Store::new()));
        ApiModel {
            address: listener.local_addr().unwrap(),
            serving: tokio::spawn(serve(listener, Arc::clone(&store))),
            store,
        }
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes the listener and all connections. Objects stay.
    pub fn pause(&mut self) {
        self.serving.abort();
    }

    /// Listens again. Changes from before cannot be watched any more.
    pub async fn resume(&mut self) {
        self.pause();
        let _ = (&mut self.serving).await;
        self.store.lock().unwrap().restart();
        let began = Instant::now();
        let listener = loop {
            match TcpListener::bind(self.address).await {
                Ok(listener) => break listener,
                Err(error) => assert!(began.elapsed() < REBIND, "{}: {error}", self.address),
            }
            sleep(Duration::from_millis(10)).await;
        };
        self.serving = tokio::spawn(serve(listener, Arc::clone(&self.store)));
    }
}

impl Drop for ApiModel {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Accepts connections. They end with this future.
async fn serve(listener: TcpListener, store: Arc<Mutex<Store>>) {
    let mut connections = JoinSet::new();
    let mut second = interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted.expect("few enough connections");
                stream.set_nodelay(true).unwrap();
                connections.spawn(connection(stream, Arc::clone(&store)));
            }
            _ = second.tick() => {
                store.lock().unwrap().tick(Instant::now());
                while connections.try_join_next().is_some() {}
            }
        }
    }
}

async fn connection(stream: TcpStream, store: Arc<Mutex<Store>>) {
    let service = service_fn(|request| async { Ok::<_, Infallible>(respond(&store, request).await) });
    // An error means that the client has left.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
