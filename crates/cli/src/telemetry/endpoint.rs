//! Where records are sent, from an option, a spec or the variables that programs with OpenTelemetry read.

use super::tls;
use crate::error::CliError;
use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};
use rustls::ClientConfig;
use std::sync::Arc;
use std::time::Duration;

/// Longest time of a request, unless a variable says another.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest value of a variable that is read.
const LONGEST: usize = 16 << 10;

/// URL of a collector for one signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The URL, for messages.
    pub(super) url: String,
    /// Whether it is `https`.
    pub(super) is_tls: bool,
    /// Host and port to connect to.
    pub(super) host: (String, u16),
    /// Value of the header `host`.
    pub(super) authority: String,
    /// Path and query of requests.
    pub(super) path: String,
}

impl Endpoint {
    /// Endpoint of a URL, with `path` added to its own.
    ///
    /// # Errors
    /// The rest of a line that names the URL.
    pub(super) fn parse(url: &str, path: &str) -> Result<Endpoint, String> {
        let expected = || format!("expected a URL such as http://127.0.0.1:4318, found \"{}\"", url.trim());
        let uri: Uri = url.trim().parse().map_err(|_| expected())?;
        let (scheme, port) = match uri.scheme_str() {
            Some("http") => ("http", 80),
            Some("https") => ("https", 443),
            _ => return Err(expected()),
        };
        let authority = uri.authority().ok_or_else(expected)?;
        if authority.as_str().contains('@') {
            return Err("expected a URL without a password: OTEL_EXPORTER_OTLP_HEADERS can have one".to_owned());
        }
        let name = authority.host().trim_start_matches('[').trim_end_matches(']');
        let full = match path {
            "" => uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
            path => format!("{}{path}", uri.path().trim_end_matches('/')),
        };
        Ok(Endpoint {
            url: format!("{scheme}://{authority}{full}"),
            host: (name.to_owned(), authority.port_u16().unwrap_or(port)),
            is_tls: scheme == "https",
            authority: authority.as_str().to_owned(),
            path: full,
        })
    }
}

/// Configuration of the export.
#[derive(Clone, Debug)]
pub struct ExportConfig {
    logs: Option<Endpoint>,
    spans: Option<Endpoint>,
    /// Headers of each request.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    /// For endpoints with `https`, if there are any.
    pub(super) tls: Option<Arc<ClientConfig>>,
    /// Longest time of a request.
    pub(super) timeout: Duration,
    /// Attributes of the server, with its name.
    pub(super) attributes: Vec<(String, String)>,
}

impl ExportConfig {
    /// Endpoints of logs and of spans.
    pub(super) fn endpoints(&self) -> [Option<&Endpoint>; 2] {
        [self.logs.as_ref(), self.spans.as_ref()]
    }

    /// Configuration of `named`, an option or field and its URL, or else of the environment; `None` if nothing is
    /// exported. `warn` gets a line about each variable that cannot be used.
    ///
    /// # Errors
    /// The named URL, or the file of authorities for it, cannot be used.
    pub fn find(
        named: Option<(&str, &str)>,
        variable: impl Fn(&str) -> Option<String>,
        mut warn: impl FnMut(&str),
    ) -> Result<Option<ExportConfig>, CliError> {
        let variable = |name: &str| {
            let value = variable(name)?;
            (!value.trim().is_empty() && value.len() <= LONGEST).then_some(value)
        };
        if variable("OTEL_SDK_DISABLED").is_some_and(|value| value.trim().eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let (mut endpoints, mut refused) = ([None, None], None);
        for (endpoint, (signal, path)) in endpoints
            .iter_mut()
            .zip([("LOGS", "/v1/logs"), ("TRACES", "/v1/traces")])
        {
            if variable(&format!("OTEL_{signal}_EXPORTER")).is_some_and(|value| value.trim() == "none") {
                continue;
            }
            if let Some((option, url)) = named {
                let parsed = Endpoint::parse(url, path);
                *endpoint = Some(parsed.map_err(|error| CliError::Input(format!("{option}: {error}")))?);
                continue;
            }
            let own = format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT");
            let found = variable(&own).map(|url| (own, url, ""));
            let all = "OTEL_EXPORTER_OTLP_ENDPOINT".to_owned();
            let found = found.or_else(|| Some((all.clone(), variable(&all)?, path)));
            if let Some((name, url, path)) = found {
                // Set for all programs of a machine, perhaps: no reason not to start.
                match Endpoint::parse(&url, path) {
                    Ok(parsed) => *endpoint = Some(parsed),
                    Err(error) if refused.as_ref() != Some(&name) => {
                        warn(&format!("{name}: {error}; nothing is exported there"));
                        refused = Some(name);
                    }
                    // That of all signals again.
                    Err(_) => {}
                }
            }
        }
        let mut tls = None;
        if endpoints.iter().flatten().any(|endpoint| endpoint.is_tls) {
            let name = "OTEL_EXPORTER_OTLP_CERTIFICATE";
            match tls::client(variable(name).as_deref().map(str::trim)) {
                Ok(client) => tls = Some(client),
                Err(error) if named.is_some() => return Err(CliError::Input(format!("{name}: {error}"))),
                Err(error) => {
                    warn(&format!("{name}: {error}; nothing is exported by https"));
                    endpoints.iter_mut().for_each(|endpoint| {
                        endpoint.take_if(|endpoint| endpoint.is_tls);
                    });
                }
            }
        }
        let [logs, spans] = endpoints;
        if logs.is_none() && spans.is_none() {
            return Ok(None);
        }
        if let Some(protocol) = variable("OTEL_EXPORTER_OTLP_PROTOCOL").filter(|value| value.trim() != "http/json") {
            let protocol = protocol.trim();
            warn(&format!(
                "OTEL_EXPORTER_OTLP_PROTOCOL: {protocol} is not supported, http/json is sent"
            ));
        }
        let mut headers = Vec::new();
        for (name, value) in pairs(&variable("OTEL_EXPORTER_OTLP_HEADERS").unwrap_or_default()) {
            match (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
                (Ok(name), Ok(value)) => headers.push((name, value)),
                // Its value may be a secret.
                _ => warn(&format!("OTEL_EXPORTER_OTLP_HEADERS: header \"{name}\" cannot be sent")),
            }
        }
        let millis = variable("OTEL_EXPORTER_OTLP_TIMEOUT").and_then(|value| value.trim().parse().ok());
        let mut attributes = pairs(&variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default());
        if let Some(name) = variable("OTEL_SERVICE_NAME") {
            attributes.retain(|(key, _)| key != "service.name");
            attributes.push(("service.name".to_owned(), name.trim().to_owned()));
        }
        Ok(Some(ExportConfig {
            logs,
            spans,
            headers,
            tls,
            timeout: millis
                .filter(|millis| *millis > 0)
                .map_or(TIMEOUT, Duration::from_millis),
            attributes,
        }))
    }
}

/// Names and values of a list such as `a=1,b=x%20y`.
fn pairs(list: &str) -> Vec<(String, String)> {
    let parts = list.split(',').filter_map(|part| part.split_once('='));
    let parts = parts.map(|(name, value)| (decoded(name.trim()), decoded(value.trim())));
    parts.filter(|(name, _)| !name.is_empty()).collect()
}

/// Text with `%20` and the like as the bytes that they stand for.
fn decoded(text: &str) -> String {
    let (bytes, mut at) = (text.as_bytes(), 0);
    let mut found = Vec::with_capacity(bytes.len());
    while let Some(byte) = bytes.get(at) {
        let code = text.get(at + 1..at + 3).filter(|_| *byte == b'%');
        let code = code.filter(|code| code.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(code) => {
                found.push(code);
                at += 3;
            }
            None => {
                found.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&found).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(
        named: Option<(&str, &str)>,
        variables: &[(&str, &str)],
    ) -> (Result<Option<ExportConfig>, String>, Vec<String>) {
        let mut lines = Vec::new();
        let variable = |name: &str| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let found = ExportConfig::find(named, variable, |line| lines.push(line.to_owned()));
        (found.map_err(|error| error.to_string()), lines)
    }

    fn urls(config: &ExportConfig) -> [Option<&str>; 2] {
        config
            .endpoints()
            .map(|endpoint| endpoint.map(|endpoint| endpoint.url.as_str()))
    }

    #[test]
    fn urls_come_from_options_before_the_environment() {
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/base/");
        let (found, lines) = find(Some(("--otlp", "http://[::1]:4318")), &[all]);
        let found = found.unwrap().unwrap();
        assert_eq!(
            urls(&found),
            [Some("http://[::1]:4318/v1/logs"), Some("http://[::1]:4318/v1/traces")]
        );
        let endpoint = found.endpoints()[0].unwrap();
        assert_eq!(
            (endpoint.host.clone(), endpoint.path.as_str()),
            (("::1".into(), 4318), "/v1/logs")
        );
        assert_eq!(lines, [""; 0]);
        // One of a signal is used as it is, the one of all has a path added.
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://other/x?y=1");
        let found = find(None, &[all, traces]).0.unwrap().unwrap();
        assert_eq!(
            urls(&found),
            [Some("http://collector:4318/base/v1/logs"), Some("http://other/x?y=1")]
        );
        assert_eq!(found.endpoints()[1].unwrap().host.1, 80);
        let off = find(None, &[all, ("OTEL_TRACES_EXPORTER", "none")]).0.unwrap().unwrap();
        assert_eq!(urls(&off)[1], None);
        for off in [
            &[][..],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")],
            &[all, ("OTEL_SDK_DISABLED", "True")],
        ] {
            assert!(find(None, off).0.unwrap().is_none());
        }
    }

    #[test]
    fn wrong_urls_are_one_line() {
        let (found, _) = find(Some(("--otlp", "collector:4318")), &[]);
        let expected = "--otlp: expected a URL such as http://127.0.0.1:4318, found \"collector:4318\"";
        assert_eq!(found.unwrap_err(), expected);
        let (found, lines) = find(None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://collector")]);
        assert!(found.unwrap().is_none());
        let expected = "OTEL_EXPORTER_OTLP_ENDPOINT: expected a URL such as http://127.0.0.1:4318, found \
                        \"ftp://collector\"; nothing is exported there";
        assert_eq!(lines, [expected]);
        // Authorities that cannot be used.
        let (endpoint, file) = ("https://collector", ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/dev/null"));
        let found = find(Some(("--otlp", endpoint)), &[file]).0.unwrap_err();
        assert!(
            found.starts_with("OTEL_EXPORTER_OTLP_CERTIFICATE: /dev/null: "),
            "{found}"
        );
        let (found, lines) = find(None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint), file]);
        assert!(found.unwrap().is_none());
        assert!(lines[0].ends_with("; nothing is exported by https"), "{lines:?}");
        assert!(
            Endpoint::parse("http://user:secret@host", "")
                .unwrap_err()
                .contains("OTEL_EXPORTER_OTLP_HEADERS")
        );
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config::with_cases(64))]

        #[test]
        fn any_text_is_a_list_or_an_url(text in "(?s)[%=,a-f0-9é]{0,60}") {
            let _ = (pairs(&text), Endpoint::parse(&format!("http://{text}"), "/v1/logs"));
        }
    }

    #[test]
    fn headers_and_attributes_are_decoded() {
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"),
            (
                "OTEL_EXPORTER_OTLP_HEADERS",
                "authorization=Basic%20eA==, x-a=1,b ad=x,%",
            ),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            (
                "OTEL_RESOURCE_ATTRIBUTES",
                "service.name=a,deployment.environment=lab%zz",
            ),
            ("OTEL_SERVICE_NAME", "edge"),
        ];
        let (found, lines) = find(None, &variables);
        let found = found.unwrap().unwrap();
        let headers = found.headers.iter();
        let headers: Vec<_> = headers
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        assert_eq!(headers, [("authorization", "Basic eA=="), ("x-a", "1")]);
        assert_eq!(found.timeout, Duration::from_millis(2500));
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let attributes = [pair("deployment.environment", "lab%zz"), pair("service.name", "edge")];
        assert_eq!(found.attributes, attributes);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("grpc is not supported") && lines[1].contains("\"b ad\""));
    }
}
