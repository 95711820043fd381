//! Arguments of the commands for a rack on Kubernetes.

use crate::curves::MeasureArgs;
use crate::headings;
use crate::serve::ServeArgs;
use crate::values::{self, Cores};
use clap::{ArgGroup, Args};
use std::net::SocketAddr;
use std::path::PathBuf;
use tailwater_api::PortName;
use tailwater_cluster::ingress::Endpoint;
use tailwater_net::Nanos;

/// Help text of `tailwater controller`.
pub const CONTROLLER_EXAMPLES: &str = "\
The API server is that of the pod's service account, or of $KUBECONFIG. Several controllers may run:
one leads, by the lease tailwater-controller.

Examples:
  tailwater controller
  tailwater controller --namespace tailwater --lease 5s

Exit codes: 0 ended on request, 1 failed, 2 wrong input.";

/// Help text of `tailwater agent`.
pub const AGENT_EXAMPLES: &str = "\
A server as tailwater serve runs it; the chains that the rack's controller gives to this machine come
from the API server. When that is away, the server goes on with what it has.

Examples:
  tailwater agent server.yaml
  tailwater agent server.yaml --name node-7 --heartbeat 500ms

Exit codes: 0 ended on request, 1 failed, 2 wrong input.";

/// Help text of `tailwater ingress`.
pub const INGRESS_EXAMPLES: &str = "\
Steers the packets of a rack's chains to their instances, by the rules of an OpenFlow 1.3 switch such as
Open vSwitch. Rules of others stay. When this program ends, its rules stay in force. With --port it is the
switch itself, between kernel interfaces, as long as it runs.

Examples:
  tailwater ingress --switch unix:/run/openvswitch/br0.mgmt
  tailwater ingress --switch tcp:192.0.2.1:6653 --uplinks 1,2 --unmatched drop
  tailwater ingress --port interface=up0,interface=node-a,interface=node-b --uplinks 1 --state rows

Exit codes: 0 ended on request, 1 failed, 2 wrong input.";

/// Help text of `tailwater definitions`.
pub const DEFINITIONS_EXAMPLES: &str = "\
Example:
  tailwater definitions | kubectl apply --server-side -f -";

/// Help text of `tailwater profile publish`.
pub const PUBLISH_EXAMPLES: &str = "\
Measures as tailwater profile all does, and creates or replaces the Profile of the rack's API server. Jobs of the
controller run it.

Example:
  tailwater profile publish edge.yaml --profile default/edge

Exit codes: 0 measured and written; 1 failed or stopped; 2 wrong input.";

/// Namespace without the option.
const NAMESPACE: &str = "tailwater";

/// Arguments of `tailwater controller`.
#[derive(Debug, Args)]
pub struct ControllerArgs {
    /// Namespace of the leases
    #[arg(help_heading = headings::ELECTION)]
    #[arg(long, value_name = "NAME", default_value = NAMESPACE)]
    pub namespace: String,
    /// Name of this controller in the election [default: the host's name]
    #[arg(help_heading = headings::ELECTION)]
    #[arg(long, value_name = "NAME")]
    pub identity: Option<String>,
    /// Time after which another controller takes the place of one that is silent; whole seconds
    #[arg(help_heading = headings::ELECTION)]
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::duration)]
    pub lease: Nanos,
    /// Time after which a server that is silent counts as lost
    #[arg(help_heading = headings::SERVERS)]
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = values::duration)]
    pub lost_after: Nanos,
    /// Longest time that an instance drains
    #[arg(help_heading = headings::SERVERS)]
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = values::duration)]
    pub drain: Nanos,
    /// Time whose highest load a chain without a throughput objective is given cores for
    #[arg(help_heading = headings::SERVERS)]
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = values::duration)]
    pub peak: Nanos,
    /// Time without need until a chain has fewer instances
    #[arg(help_heading = headings::SERVERS)]
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = values::duration)]
    pub hold: Nanos,
    /// Look for a plan with fewer servers at this interval, and move instances to it [default: never]
    #[arg(help_heading = headings::CONSOLIDATION)]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub consolidate: Option<Nanos>,
    /// Servers that such a plan has to save
    #[arg(help_heading = headings::CONSOLIDATION)]
    #[arg(long, value_name = "N", default_value = "1", requires = "consolidate")]
    pub saving: u16,
    /// Most instances that move at a time
    #[arg(help_heading = headings::CONSOLIDATION)]
    #[arg(long, value_name = "N", default_value = "16")]
    pub moves: u16,
    /// Measure missing profiles by Jobs with this image of the program [default: no Jobs]
    #[arg(help_heading = headings::JOBS)]
    #[arg(long, value_name = "IMAGE", requires = "profile_in")]
    pub profile_image: Option<String>,
    /// Namespaces whose chains are measured
    #[arg(help_heading = headings::JOBS)]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "profile_image")]
    pub profile_in: Vec<String>,
    /// Most Jobs at a time
    #[arg(help_heading = headings::JOBS)]
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub profile_jobs: u16,
    /// Time limit of a Job
    #[arg(help_heading = headings::JOBS)]
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = values::duration)]
    pub profile_time: Nanos,
    /// Processors of a Job: one for the chain, one for the pirate that occupies the cache
    #[arg(help_heading = headings::JOBS)]
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub profile_cpu: u16,
    /// Memory of a Job
    #[arg(help_heading = headings::JOBS)]
    #[arg(long, value_name = "SIZE", default_value = "2Gi")]
    pub profile_memory: String,
}

/// Arguments of `tailwater profile publish`.
#[derive(Debug, Args)]
pub struct PublishArgs {
    /// The Profile
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub profile: String,
    /// The measurement
    #[command(flatten)]
    pub measure: MeasureArgs,
}

/// Arguments of `tailwater agent`.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// Name of this server on the rack: that of its node [default: $NODE_NAME, or the host's name]
    #[arg(help_heading = headings::RACK)]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Namespace of the leases
    #[arg(help_heading = headings::RACK)]
    #[arg(long, value_name = "NAME", default_value = NAMESPACE)]
    pub namespace: String,
    /// Time between signs of life
    #[arg(help_heading = headings::RACK)]
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = values::duration)]
    pub heartbeat: Nanos,
    /// Addresses of the ingress, with ports, for signs of life
    #[arg(help_heading = headings::RACK)]
    #[arg(long, value_name = "ADDRESS:PORT", value_delimiter = ',')]
    pub report_to: Vec<String>,
    /// Time between signs of life for the ingress
    #[arg(help_heading = headings::RACK)]
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = values::duration)]
    pub report_every: Nanos,
    /// Security of the connection to the ingress
    #[command(flatten)]
    pub security: SecurityArgs,
    /// Name of the switch's port that leads to this server, for the ingress
    #[arg(help_heading = headings::RACK)]
    #[arg(long, value_name = "PORT", default_value = "")]
    pub switch_port: String,
    /// The server
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// Security of the rack's own connections.
#[derive(Debug, Args)]
pub struct SecurityArgs {
    /// Folder with ca.crt, tls.crt and tls.key: both ends show a certificate of that authority
    #[arg(help_heading = headings::SECURITY)]
    #[arg(long, value_name = "FOLDER")]
    pub tls: Option<PathBuf>,
    /// Connections of the rack without TLS, on networks that are secured otherwise
    #[arg(help_heading = headings::SECURITY)]
    #[arg(long, conflicts_with = "tls")]
    pub insecure: bool,
}

/// Arguments of `tailwater ingress`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("data plane").required(true).args(["switch", "port"])))]
pub struct IngressArgs {
    /// Address for agents' signs of life [default: only leases and the switch's ports tell that servers live]
    #[arg(help_heading = headings::SERVERS)]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// Time without a sign of life after which a server has no packets any more
    #[arg(help_heading = headings::SERVERS)]
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = values::duration)]
    pub lost_after: Nanos,
    /// Security of the agents' connections
    #[command(flatten)]
    pub security: SecurityArgs,
    /// OpenFlow connection of the switch: `unix:PATH` or `tcp:ADDRESS:PORT`
    #[arg(help_heading = headings::SWITCH)]
    #[arg(long, value_name = "ENDPOINT")]
    pub switch: Option<Endpoint>,
    /// The software data plane in place of a switch
    #[command(flatten)]
    pub software: SoftwareArgs,
    /// Number of this ingress among those of the switch, in the cookies of its rules
    #[arg(help_heading = headings::SWITCH)]
    #[arg(long, value_name = "N", default_value = "0")]
    pub owner: u8,
    /// Numbers of the ports that packets from servers go to [default: the switch's normal processing]
    #[arg(help_heading = headings::ROWS)]
    #[arg(long, value_name = "PORTS", value_delimiter = ',')]
    pub uplinks: Vec<u32>,
    /// Packets that no chain matches: dropped, left to the switch's normal processing, or to rules of others
    #[arg(help_heading = headings::ROWS)]
    #[arg(long, value_name = "drop|normal|leave", default_value = "normal")]
    pub unmatched: UnmatchedPackets,
    /// Most rules in the switch
    #[arg(help_heading = headings::SWITCH)]
    #[arg(long, value_name = "N", default_value = "65536")]
    pub table: usize,
    /// Share of its cores, in percent, to which an instance is filled before flows go to others
    #[arg(help_heading = headings::ROWS)]
    #[arg(long, value_name = "PERCENT", default_value = "97", value_parser = clap::value_parser!(u8).range(1..=97))]
    pub fill: u8,
    /// Longest IPv4 prefix of a row
    #[arg(help_heading = headings::ROWS)]
    #[arg(long, value_name = "BITS", default_value = "24", value_parser = clap::value_parser!(u8).range(0..=32))]
    pub prefix_v4: u8,
    /// Longest IPv6 prefix of a row
    #[arg(help_heading = headings::ROWS)]
    #[arg(long, value_name = "BITS", default_value = "48", value_parser = clap::value_parser!(u8).range(0..=128))]
    pub prefix_v6: u8,
}

/// Software data plane of an ingress.
#[derive(Debug, Args)]
pub struct SoftwareArgs {
    /// Kernel interfaces between which packets are forwarded, in place of a switch: uplinks and the links to servers.
    /// The first is port 1; its name is that of the interface
    #[arg(help_heading = headings::SOFTWARE)]
    #[arg(long, value_name = "interface=NAME", value_delimiter = ',', value_parser = values::port)]
    pub port: Vec<PortName>,
    /// With --port: file of the rules in force, with which a new process goes on at once
    #[arg(help_heading = headings::SOFTWARE)]
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// With --port: cores that forward, such as 1 or 0,2-3 [default: the last]
    #[arg(help_heading = headings::SOFTWARE)]
    #[arg(long, value_name = "LIST", value_parser = values::cores)]
    pub cores: Option<Cores>,
    /// With --port: idle time after which a core sleeps, and the time it sleeps [default: never]
    #[arg(help_heading = headings::SOFTWARE)]
    #[arg(long, value_name = "TIME", value_parser = values::nap)]
    pub nap: Option<Nanos>,
    /// With --port: serve Prometheus metrics; a port alone means 127.0.0.1
    #[arg(help_heading = headings::SOFTWARE)]
    #[arg(long, value_name = "PORT|ADDR:PORT", value_parser = values::metrics_address)]
    pub metrics: Option<SocketAddr>,
}

/// Treatment of packets that no chain matches.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum UnmatchedPackets {
    /// They are dropped.
    Drop,
    /// The switch's normal processing.
    Normal,
    /// Rules of others.
    Leave,
}
