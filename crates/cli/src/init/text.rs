//! Texts of the specs that `tailwater init` writes.

use super::args::FirstFunction;
use std::fmt::Write as _;
use tailwater_net::Nanos;

/// Settings of the specs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Name of the chain, and of server and rack.
    pub name: String,
    /// Functions in order.
    pub functions: Vec<FirstFunction>,
    /// Latency objective.
    pub slo: Nanos,
    /// Capture or preset.
    pub traffic: String,
    /// Server, if requested.
    pub server: Option<ServerSettings>,
    /// A rack is requested.
    pub rack: bool,
}

/// Settings of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// Cores for chains, as a list.
    pub cores: String,
    /// Port; without one the traffic takes its place.
    pub port: Option<String>,
}

/// Returns a text as a YAML scalar: bare if that is safe.
fn scalar(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./=".contains(&byte);
    let starts_well = text
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'/');
    let word = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_word = word.contains(&text.to_ascii_lowercase().as_str());
    match starts_well && !is_word && text.bytes().all(is_plain) {
        true => text.to_owned(),
        // A JSON string is a YAML scalar.
        false => serde_json::Value::from(text).to_string(),
    }
}

/// Returns the chain.
pub fn chain(settings: &Settings) -> String {
    let name = scalar(&settings.name);
    let mut text = format!(
        "# A chain. Fields: `tailwater explain-spec chain`, or docs/reference/chain-spec.md (package: \
         /usr/share/doc/tailwater).\n\
         apiVersion: tailwater.dev/v1alpha1\n\
         kind: Chain\n\
         metadata:\n  name: {name}\n\
         spec:\n  # Packets pass the functions in this order.\n  functions:\n"
    );
    settings
        .functions
        .iter()
        .for_each(|function| text.push_str(part(*function)));
    // Writing into a string cannot fail.
    let _ = write!(
        text,
        "  slo:\n    # 99 of 100 packets leave within this time of their arrival. Lost packets count as late.\n    \
         latency: {}\n    percentile: 99\n",
        settings.slo
    );
    let has_flows = settings.functions.iter().any(|function| {
        matches!(
            function,
            FirstFunction::Nat | FirstFunction::LoadBalancer | FirstFunction::Accounting | FirstFunction::Policer
        )
    });
    if has_flows {
        text.push_str(
            "  flows:\n    # Flows that are remembered at a time. A translated connection is two flows.\n    \
             capacity: 262144\n",
        );
    }
    text
}

/// Returns the lines of a function.
fn part(function: FirstFunction) -> &'static str {
    match function {
        FirstFunction::Forward => "    # Every packet goes on.\n    - forward:\n",
        FirstFunction::Acl => {
            "    # Access list: the first rule that matches decides. Here mail (SMTP) is denied.\n    \
             - acl:\n        default: allow\n        rules:\n          \
             - {action: deny, protocol: tcp, destinationPorts: 25}\n"
        }
        FirstFunction::Nat => {
            "    # Address translation: clients in private address space share these external addresses. They are \
             of the\n    \
             # range for benchmarks (RFC 2544): replace them by yours.\n    \
             - nat:\n        external: [198.19.255.0/28]\n"
        }
        FirstFunction::LoadBalancer => {
            "    # Load balancer: TCP to any address goes to these two servers. Usually a service is one address.\n    \
             - loadBalancer:\n        services:\n          - address: 0.0.0.0/0\n            port: any\n            \
             protocol: tcp\n            backends:\n              - {address: 172.16.0.1}\n              \
             - {address: 172.16.0.2}\n"
        }
        FirstFunction::Policer => {
            "    # Rate limit for each flow; what exceeds it is dropped.\n    \
             - policer:\n        limits:\n          - {per: flow, rate: 50Mbps, burst: 64000}\n"
        }
        FirstFunction::Accounting => {
            "    # Counts packets and bytes by flow. `export: {file: flows.csv, format: csv}` writes them to a \
             file.\n    \
             - accounting:\n"
        }
    }
}

/// Returns the server, which serves the chain in `file`.
pub fn server(settings: &Settings, server: &ServerSettings, file: &str) -> String {
    let port = match &server.port {
        Some(port) => format!("    - name: main\n      port: {}\n", scalar(port)),
        None => format!(
            "    # Traffic in place of a device. A NIC is `port: 0000:3b:00.0`, an interface `port: \
             interface=eth1`.\n    \
             - name: main\n      traffic: {}\n      repeat: true\n",
            scalar(&settings.traffic)
        ),
    };
    format!(
        "# A server: one machine, many chains. Fields: `tailwater explain-spec server`, or\n\
         # docs/reference/server-spec.md (package: /usr/share/doc/tailwater).\n\
         apiVersion: tailwater.dev/v1alpha1\n\
         kind: Server\n\
         metadata:\n  name: {}\n\
         spec:\n  # Cores for chains. Leave at least one core for everything else.\n  cores: \"{}\"\n  ports:\n{port}  \
         # Files and folders of chains. Changes of these files are applied while the server runs.\n  \
         chains: [{}]\n  watch: true\n",
        scalar(&settings.name),
        server.cores,
        scalar(file)
    )
}

/// Returns a rack of two servers.
pub fn rack(settings: &Settings) -> String {
    format!(
        "# A rack in the simulator. Fields: `tailwater explain-spec rack`, or docs/reference/rack-spec.md\n\
         # (package: /usr/share/doc/tailwater).\n\
         apiVersion: tailwater.dev/v1alpha1\n\
         kind: Rack\n\
         metadata:\n  name: {name}\n\
         spec:\n  servers:\n    - {{count: 2, cores: 8}}\n  duration: 500ms\n  chains:\n    - name: {name}\n      slo: \
         {slo}\n      # Time of a core for each packet: measure yours with `tailwater profile latency`.\n      costs: \
         {{packetNanoseconds: 500}}\n      traffic: {{source: {traffic}}}\n",
        name = scalar(&settings.name),
        slo = settings.slo,
        traffic = scalar(&settings.traffic)
    )
}
