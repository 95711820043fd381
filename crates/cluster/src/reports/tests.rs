use super::*;
use crate::notices::Notices;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Makes an authority and a certificate of it, in a folder. Returns `false` without openssl.
fn certificates(folder: &Path) -> bool {
    std::fs::create_dir_all(folder).unwrap();
    let lines = [
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.crt -subj /CN=ca -days 2",
        "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout tls.key -out tls.csr -subj /CN=rack",
        "x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out tls.crt -days 2 -extfile names",
    ];
    std::fs::write(folder.join("names"), "subjectAltName=DNS:rack.tailwater\n").unwrap();
    lines.iter().all(|line| {
        let openssl = Command::new("openssl")
            .args(line.split(' '))
            .current_dir(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        openssl.is_ok_and(|status| status.success())
    })
}

fn folder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("tailwater-reports-{}-{name}", std::process::id()))
}

fn report(server: &str) -> watch::Receiver<AgentReport> {
    let report = AgentReport {
        server: server.to_owned(),
        instances: vec![InstanceReport {
            name: "default--web-0".to_owned(),
            offered: 7,
            ..InstanceReport::default()
        }],
    };
    watch::channel(report).1
}

/// Starts the end that takes reports. Returns its address, the reports, and its warnings.
async fn start(security: Security) -> (String, mpsc::Receiver<AgentReport>, Arc<Mutex<Vec<String>>>) {
    start_with(security, ReportLimits::default()).await
}

async fn start_with(
    security: Security,
    limits: ReportLimits,
) -> (String, mpsc::Receiver<AgentReport>, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (reports, taken) = mpsc::channel(16);
    let warnings = Arc::<Mutex<Vec<String>>>::default();
    let own = Arc::clone(&warnings);
    let notices = Notices::new(move |line| own.lock().unwrap().push(line.to_owned()));
    tokio::spawn(serve(listener, security, limits, reports, notices));
    (address, taken, warnings)
}

const PERIOD: Duration = Duration::from_millis(5);
const LONG: Duration = Duration::from_secs(20);

#[tokio::test]
async fn reports_arrive_at_intervals_and_stop_with_the_agent() {
    let (address, mut taken, _) = start(Security::None).await;
    let sender = tokio::spawn(async move { send(&address, &Security::None, PERIOD, &report("a")).await });
    let first = timeout(LONG, taken.recv()).await.unwrap().unwrap();
    assert_eq!((&*first.server, first.instances[0].offered), ("a", 7));
    for _ in 0..3 {
        // Nothing has been measured since: a sign of life.
        let report = timeout(LONG, taken.recv()).await.unwrap().unwrap();
        assert_eq!((&*report.server, report.instances.len()), ("a", 0));
    }
    sender.abort();
    let _ = sender.await;
    let mut rest = 0;
    while let Ok(Some(_)) = timeout(Duration::from_millis(300), taken.recv()).await {
        rest += 1;
        assert!(rest < 32, "it goes on");
    }
}

#[tokio::test]
async fn both_ends_show_a_certificate_of_the_racks_authority() {
    let (own, other) = (folder("own"), folder("other"));
    if !certificates(&own) || !certificates(&other) {
        println!("skipped: there is no openssl");
        return;
    }
    let (address, mut taken, warnings) = start(Security::Mutual(own.clone())).await;
    let right = Security::Mutual(own.clone());
    let to = address.clone();
    let sender = tokio::spawn(async move { send(&to, &right, PERIOD, &report("a")).await });
    let first = timeout(LONG, taken.recv()).await.unwrap().unwrap();
    assert_eq!(first.server, "a");
    sender.abort();
    let _ = sender.await;
    // Certificates of another authority, and none.
    for wrong in [Security::Mutual(other.clone()), Security::None] {
        let ended = timeout(LONG, send(&address, &wrong, PERIOD, &report("b")))
            .await
            .unwrap();
        assert!(ended.is_err());
    }
    while let Ok(Some(report)) = timeout(Duration::from_millis(300), taken.recv()).await {
        assert_eq!(report.server, "a");
    }
    assert!(
        warnings
            .lock()
            .unwrap()
            .iter()
            .any(|line| line.contains("an agent was refused"))
    );
    // Keys that are replaced are used by the next connection.
    assert!(certificates(&own));
    let right = Security::Mutual(own.clone());
    let to = address.clone();
    let sender = tokio::spawn(async move { send(&to, &right, PERIOD, &report("c")).await });
    let next = timeout(LONG, taken.recv()).await.unwrap().unwrap();
    assert_eq!(next.server, "c");
    sender.abort();
    for folder in [own, other] {
        let _ = std::fs::remove_dir_all(folder);
    }
}

#[tokio::test]
async fn missing_files_are_named() {
    let folder = folder("none");
    let (address, _taken, _) = start(Security::None).await;
    let error = send(&address, &Security::Mutual(folder), PERIOD, &report("a"))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("ca.crt"), "{error}");
}

#[test]
fn generated_code_is_that_of_the_proto() {
    let proto = include_bytes!("../../proto/tailwater/rack/v1alpha1/reports.proto");
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = proto.iter().fold(0xcbf2_9ce4_8422_2325, step);
    let first = include_str!("generated.rs").lines().next().unwrap();
    assert!(
        first.ends_with(&format!("{hash:016x}.")),
        "cargo run --manifest-path tools/control-proto/Cargo.toml"
    );
}

/// Waits until the other end closes a connection.
async fn closes(mut stream: impl AsyncRead + Unpin) {
    let mut bytes = [0; 256];
    let end = async { while stream.read(&mut bytes).await.is_ok_and(|count| count > 0) {} };
    timeout(LONG, end).await.expect("the connection is closed");
}

#[tokio::test]
async fn connections_without_a_report_are_closed() {
    let limits = ReportLimits {
        idle: Duration::from_millis(200),
        ..ReportLimits::default()
    };
    let (address, mut taken, _) = start_with(Security::None, limits).await;
    // One that reports stays beside the silent ones.
    let to = address.clone();
    let sender = tokio::spawn(async move { send(&to, &Security::None, PERIOD, &report("a")).await });
    assert!(timeout(LONG, taken.recv()).await.unwrap().is_some());
    let draining = tokio::spawn(async move { while taken.recv().await.is_some() {} });
    closes(TcpStream::connect(&address).await.unwrap()).await;
    closes(TcpStream::connect(&address).await.unwrap()).await;
    assert!(!sender.is_finished());
    sender.abort();
    draining.abort();
    let own = folder("silent");
    if !certificates(&own) {
        println!("skipped: there is no openssl");
        return;
    }
    // After the handshake, too.
    let (address, _taken, _) = start_with(Security::Mutual(own.clone()), limits).await;
    let (config, name) = tls::client(&own).unwrap();
    let stream = TcpStream::connect(&address).await.unwrap();
    closes(TlsConnector::from(config).connect(name, stream).await.unwrap()).await;
    let _ = std::fs::remove_dir_all(own);
}
