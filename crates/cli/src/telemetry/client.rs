//! HTTP requests to a collector.

use super::endpoint::{Endpoint, ExportConfig};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Largest body of a response that is read, in bytes.
const RESPONSE_BYTES: usize = 64 << 10;
/// Longest text of a collector that is printed.
const MESSAGE: usize = 200;

/// Answer of a collector, or the lack of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It has accepted all records but so many; the text says why.
    Accepted { rejected: u64, message: String },
    /// It refuses the request, and would again.
    Refused(String),
    /// It cannot be reached, or is too busy; it may say how long to wait.
    Unavailable(String, Option<Duration>),
}

/// Sends a request's body.
pub(super) async fn post(endpoint: &Endpoint, config: &ExportConfig, body: String) -> Answer {
    match timeout(config.timeout, exchange(endpoint, config, body)).await {
        Ok(answer) => answer,
        Err(_) => Answer::Unavailable(format!("no answer within {} ms", config.timeout.as_millis()), None),
    }
}

async fn exchange(endpoint: &Endpoint, config: &ExportConfig, body: String) -> Answer {
    let unavailable = |error: &dyn std::fmt::Display| Answer::Unavailable(error.to_string(), None);
    let (name, port) = &endpoint.host;
    let stream = match TcpStream::connect((name.as_str(), *port)).await {
        Ok(stream) => stream,
        Err(error) => return unavailable(&error),
    };
    let Some(tls) = config.tls.as_ref().filter(|_| endpoint.is_tls) else {
        return exchange_over(stream, endpoint, config, body).await;
    };
    let Ok(server) = ServerName::try_from(name.clone()) else {
        return Answer::Refused(format!("a certificate cannot be for {name}"));
    };
    match TlsConnector::from(Arc::clone(tls)).connect(server, stream).await {
        Ok(stream) => exchange_over(stream, endpoint, config, body).await,
        Err(error) => unavailable(&error),
    }
}

/// Sends a request's body over a connection.
async fn exchange_over(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    endpoint: &Endpoint,
    config: &ExportConfig,
    body: String,
) -> Answer {
    let unavailable = |error: &dyn std::fmt::Display| Answer::Unavailable(error.to_string(), None);
    let (mut sender, connection) = match http1::handshake(TokioIo::new(stream)).await {
        Ok(connected) => connected,
        Err(error) => return unavailable(&error),
    };
    let connection = tokio::spawn(connection);
    let mut request = Request::new(Full::new(Bytes::from(body)));
    *request.method_mut() = hyper::Method::POST;
    match endpoint.path.parse() {
        Ok(path) => *request.uri_mut() = path,
        Err(_) => return Answer::Refused("its path cannot be requested".to_owned()),
    }
    let headers = request.headers_mut();
    if let Ok(authority) = HeaderValue::from_str(&endpoint.authority) {
        headers.insert(HOST, authority);
    }
    let agent = concat!("OTel-OTLP-Exporter-Tailwater/", env!("CARGO_PKG_VERSION"));
    headers.insert(USER_AGENT, HeaderValue::from_static(agent));
    headers.extend(config.headers.iter().cloned());
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let response = sender.send_request(request).await;
    let answer = match response {
        Err(error) if endpoint.host.1 == 4317 => unavailable(&format!(
            "{error}: port 4317 is usually gRPC, OTLP over HTTP is at 4318"
        )),
        Err(error) => unavailable(&error),
        Ok(response) => {
            let status = response.status();
            let seconds = response
                .headers()
                .get(RETRY_AFTER)
                .and_then(|value| value.to_str().ok()?.trim().parse().ok());
            let body = Limited::new(response.into_body(), RESPONSE_BYTES).collect().await;
            let body = body.map(|body| body.to_bytes()).unwrap_or_default();
            of_response(status, seconds.map(Duration::from_secs), &body)
        }
    };
    connection.abort();
    answer
}

fn of_response(status: StatusCode, wait: Option<Duration>, body: &[u8]) -> Answer {
    match status.as_u16() {
        200..=299 => {
            let body: Value = serde_json::from_slice(body).unwrap_or_default();
            let partial = &body["partialSuccess"];
            // Numbers of 64 bits are texts in this encoding; some write numbers.
            let count = |value: &Value| value.as_u64().or_else(|| value.as_str()?.parse().ok());
            let rejected = ["rejectedLogRecords", "rejectedSpans"].map(|name| count(&partial[name]).unwrap_or(0));
            Answer::Accepted {
                rejected: rejected[0].max(rejected[1]),
                message: cut(partial["errorMessage"].as_str().unwrap_or_default()),
            }
        }
        429 | 502 | 503 | 504 => Answer::Unavailable(format!("it answers {status}"), wait),
        _ => {
            let text = String::from_utf8_lossy(body);
            let message = serde_json::from_str(&text).ok();
            let message = message.and_then(|status: Value| Some(cut(status["message"].as_str()?)));
            Answer::Refused(match message {
                Some(message) => format!("it answers {status}: {message}"),
                None => format!("it answers {status}"),
            })
        }
    }
}

fn cut(text: &str) -> String {
    text.chars().take(MESSAGE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::ServerConfig;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use std::path::Path;
    use std::process::{Command, Stdio};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    /// Makes an authority and a certificate of it for `localhost`, in a folder. Returns `false` without openssl.
    fn certificates(folder: &Path) -> bool {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("names"), "subjectAltName=DNS:localhost\n").unwrap();
        let lines = [
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.crt -subj /CN=ca",
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout tls.key -out tls.csr -subj /CN=a",
            "x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out tls.crt -extfile names",
        ];
        lines.iter().all(|line| {
            let mut openssl = Command::new("openssl");
            let openssl = openssl.args(line.split(' ')).current_dir(folder).stderr(Stdio::null());
            openssl
                .stdout(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
        })
    }

    /// Answer of a collector with this certificate to a client with these authorities.
    async fn answer(folder: &Path, name: &str, authorities: Option<&str>) -> Answer {
        let chain = CertificateDer::from_pem_file(folder.join("tls.crt")).unwrap();
        let key = PrivateKeyDer::from_pem_file(folder.join("tls.key")).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let server = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let server = server.unwrap().with_no_client_auth().with_single_cert(vec![chain], key);
        let acceptor = TlsAcceptor::from(Arc::new(server.unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{name}:{}", listener.local_addr().unwrap().port());
        let variable = |name: &str| {
            (name == "OTEL_EXPORTER_OTLP_CERTIFICATE")
                .then_some(authorities)?
                .map(str::to_owned)
        };
        let config = ExportConfig::find(Some(("--otlp", &url)), variable, |_| {})
            .unwrap()
            .unwrap();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            // A client that does not trust it gives up.
            let Ok(mut stream) = acceptor.accept(stream).await else {
                return;
            };
            let mut request = Vec::new();
            while !request.ends_with(b"{}") && stream.read_buf(&mut request).await.unwrap() > 0 {}
            assert!(request.starts_with(b"POST /v1/logs HTTP/1.1\r\n"));
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                .await
                .unwrap();
            let _ = stream.shutdown().await;
        });
        post(config.endpoints()[0].unwrap(), &config, "{}".to_owned()).await
    }

    #[test]
    fn a_collector_with_a_trusted_certificate_gets_records() {
        let folder = std::env::temp_dir().join(format!("tailwater-otlp-{}", std::process::id()));
        if !certificates(&folder) {
            println!("skipped: there is no openssl");
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        assert!(certificates(&folder.join("other")));
        let (own, other) = (folder.join("ca.crt"), folder.join("other/ca.crt"));
        let [own, other] = [&own, &other].map(|path| path.to_str());
        let of = |name, authorities| runtime.block_on(answer(&folder, name, authorities));
        let accepted = Answer::Accepted {
            rejected: 0,
            message: String::new(),
        };
        assert_eq!(of("localhost", own), accepted);
        for (name, authorities) in [("localhost", other), ("127.0.0.1", own)] {
            let refused = of(name, authorities);
            assert!(
                matches!(&refused, Answer::Unavailable(text, _) if text.contains("certificate")),
                "{refused:?}"
            );
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn answers_are_told_apart() {
        let of = |status: u16, body: &str| of_response(StatusCode::from_u16(status).unwrap(), None, body.as_bytes());
        let accepted = |rejected, message: &str| Answer::Accepted {
            rejected,
            message: message.to_owned(),
        };
        assert_eq!(of(200, "{}"), accepted(0, ""));
        assert_eq!(of(200, ""), accepted(0, ""));
        let partial = r#"{"partialSuccess":{"rejectedSpans":"3","errorMessage":"too old"}}"#;
        assert_eq!(of(200, partial), accepted(3, "too old"));
        assert_eq!(
            of(202, r#"{"partialSuccess":{"rejectedLogRecords":2}}"#),
            accepted(2, "")
        );
        let refused = r#"{"code":3,"message":"bad"}"#;
        assert_eq!(
            of(400, refused),
            Answer::Refused("it answers 400 Bad Request: bad".to_owned())
        );
        assert_eq!(
            of(404, "<html>"),
            Answer::Refused("it answers 404 Not Found".to_owned())
        );
        assert!(matches!(of(503, ""), Answer::Unavailable(..)));
    }
}
