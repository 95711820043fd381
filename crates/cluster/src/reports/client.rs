//! The end that sends reports.

use super::generated::AgentReport;
use super::generated::reports_client::ReportsClient;
use super::tls::{self, Security};
use std::io;
use std::time::Duration;
use tailwater_server::control::client::Connection;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::ReceiverStream;

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
        Security::None => Connection::open(stream, Some(SILENCE)).await?,
        Security::Mutual(folder) => {
            let (config, name) = tls::client(folder)?;
            let stream = timeout(CONNECT, TlsConnector::from(config).connect(name, stream)).await??;
            Connection::open(stream, Some(SILENCE)).await?
        }
    };
    let origin = http::Uri::from_static("http://tailwater");
    let mut client = ReportsClient::with_origin(connection, origin);
    let (messages, stream) = tokio::sync::mpsc::channel(1);
    let call = client.report(ReceiverStream::new(stream));
    let sending = async {
        let (mut report, mut is_first) = (report.clone(), true);
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let is_new = report.has_changed().unwrap_or(false) || is_first;
            is_first = false;
            // A sign of life says nothing of instances if nothing has been measured since the last one.
            let now = match is_new {
                true => report.borrow_and_update().clone(),
                false => AgentReport {
                    server: report.borrow().server.clone(),
                    instances: Vec::new(),
                },
            };
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
