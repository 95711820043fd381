//! Types of functions in a chain, each with its configuration.

use crate::library::ExecutionMode;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use tailwater_api::error::{SpecError, nearest, quoted};
use tailwater_api::located::Located;
use tailwater_api::values::label;

mod accounting;
mod acl;
mod bpf_filter;
mod classifier;
mod count;
mod dns_guard;
mod encrypt;
mod external;
mod firewall;
mod flow_stats;
mod forward;
mod idle;
mod ids;
mod ip_forward;
mod ipsec;
mod library;
mod load_balancer;
mod mirror;
mod nat;
mod own;
mod policer;
mod rules;
mod synthetic;
mod tunnel;
mod upf;
mod url_filter;
mod wan_optimizer;

pub(crate) use classifier::functions_of_branches;
pub use classifier::{BranchConfig, Target};
pub use external::{Changes, Missing};
pub use library::ForeignFunction;
pub use own::OwnFunction;

/// Context for reading a function's configuration, in addition to its YAML.
pub(crate) struct Context<'a> {
    /// Folder that file names in the spec are relative to.
    base_dir: &'a Path,
    /// Process in which third-party functions run.
    runs: ExecutionMode<'a>,
    /// Files named since this was last taken.
    named: RefCell<Vec<PathBuf>>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(base_dir: &'a Path, runs: ExecutionMode<'a>) -> Context<'a> {
        Context {
            base_dir,
            runs,
            named: RefCell::new(Vec::new()),
        }
    }

    /// Resolves the path of a file that a function names, and records it.
    fn file(&self, name: &str) -> PathBuf {
        let path = self.base_dir.join(name);
        self.named.borrow_mut().push(path.clone());
        path
    }

    /// Returns `true` if functions run in processes of their own.
    pub(crate) fn is_apart(&self) -> bool {
        matches!(self.runs, ExecutionMode::Isolated(_))
    }

    /// Takes the files named since the last call.
    pub(crate) fn take_named(&self) -> Vec<PathBuf> {
        self.named.take()
    }
}

/// Declares the function types: the key in YAML, and the module and type of the configuration. The type has a
/// `parse(&Located, &Context) -> Result<Self, SpecError>`.
macro_rules! registry {
    ($($(#[$doc:meta])* $key:literal => $module:ident::$config:ident as $variant:ident,)+) => {
        $(pub use $module::$config;)+

        /// Configuration of one function of a chain.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum FunctionConfig {
            $($(#[$doc])* $variant($config),)+
            /// Function that the program provides.
            Own(OwnFunction),
        }

        impl FunctionConfig {
            /// Keys of all types, as written in YAML.
            pub const KINDS: &'static [&'static str] = &[$($key),+];

            /// Key of this type, as written in YAML, if it has one.
            pub fn kind(&self) -> &'static str {
                match self {
                    $(FunctionConfig::$variant(_) => $key,)+
                    FunctionConfig::Own(own) => own.kind(),
                }
            }

            /// Reads the configuration of a function; `None` if there is no such type.
            fn parse(
                kind: &str,
                node: &Located<'_>,
                context: &Context<'_>,
            ) -> Option<Result<Self, SpecError>> {
                match kind {
                    $($key => Some($config::parse(node, context).map(FunctionConfig::$variant)),)+
                    _ => None,
                }
            }
        }
    };
}

registry! {
    /// Access control by ordered 5-tuple rules.
    "acl" => acl::AclConfig as Acl,
    /// Network address and port translation.
    "nat" => nat::NatConfig as Nat,
    /// Load balancing over backends by consistent hashing.
    "loadBalancer" => load_balancer::LoadBalancerConfig as LoadBalancer,
    /// Packets and bytes of each flow.
    "accounting" => accounting::AccountingConfig as Accounting,
    /// Filtering by host, URL and TLS server name.
    "urlFilter" => url_filter::UrlFilterConfig as UrlFilter,
    /// Packets and bytes of each flow, exported to collectors.
    "flowStats" => flow_stats::FlowStatsConfig as FlowStats,
    /// Copies of packets to a capture file or an interface.
    "mirror" => mirror::MirrorConfig as Mirror,
    /// Packets and bytes by rule.
    "count" => count::CountConfig as Count,
    /// Encryption of payloads.
    "encrypt" => encrypt::EncryptConfig as Encrypt,
    /// Forwarding, optionally with other Ethernet addresses.
    "forward" => forward::ForwardConfig as Forward,
    /// Forwarding by longest-prefix match.
    "ipForward" => ip_forward::IpForwardConfig as IpForward,
    /// VLAN tags pushed and popped by rule.
    "tunnel" => tunnel::TunnelConfig as Tunnel,
    /// Rate limits of packets.
    "policer" => policer::PolicerConfig as Policer,
    /// Packet filter by `tcpdump` expressions or classic BPF programs.
    "bpfFilter" => bpf_filter::BpfFilterConfig as BpfFilter,
    /// Rate limits of DNS responses, and removal of unsolicited ones.
    "dnsGuard" => dns_guard::DnsGuardConfig as DnsGuard,
    /// ESP tunnels.
    "ipsec" => ipsec::IpsecConfig as Ipsec,
    /// Stateful connection filter, by rules from zone to zone.
    "firewall" => firewall::FirewallConfig as Firewall,
    /// User plane of a mobile network.
    "upf" => upf::UpfConfig as Upf,
    /// Branches by rule.
    "classifier" => classifier::ClassifierConfig as Classifier,
    /// Configurable synthetic load.
    "synthetic" => synthetic::SyntheticConfig as Synthetic,
    /// Detection rules on packets, streams and messages.
    "ids" => ids::IdsConfig as Ids,
    /// Redundancy elimination over a slow link.
    "wanOptimizer" => wan_optimizer::WanOptimizerConfig as WanOptimizer,
    /// Function from a shared library.
    "library" => library::LibraryConfig as Library,
    /// Function that is a program of its own.
    "program" => library::ProgramConfig as Program,
    /// Third-party program behind a port.
    "external" => external::ExternalConfig as External,
}

#[cfg(test)]
pub(crate) use ids::load_rules as load_ids_rules;

impl FunctionConfig {
    /// Returns `true` if it [tracks connections](crate::function::NetworkFunction::tracks_connections).
    pub fn tracks_connections(&self) -> bool {
        match self {
            FunctionConfig::Firewall(_) | FunctionConfig::Ids(_) => true,
            FunctionConfig::Own(own) => own.instance().tracks_connections(),
            _ => false,
        }
    }

    /// Returns `true` if it [decides](crate::function::NetworkFunction::lifetimes) on the idle timeouts of flows.
    pub(crate) fn decides_lifetimes(&self) -> bool {
        match self {
            FunctionConfig::Firewall(_) => true,
            FunctionConfig::Own(own) => own.instance().lifetimes().is_some(),
            _ => false,
        }
    }

    /// Reason why its instances cannot run in processes of their own: the data that they share.
    pub fn shares(&self) -> Option<&'static str> {
        match self {
            FunctionConfig::Upf(_) => Some("its sessions have rates and counters that all its instances share"),
            FunctionConfig::WanOptimizer(_) => Some("what it restores refers to caches that all its instances share"),
            FunctionConfig::Ids(_) => {
                Some("what it puts together of streams is in memory of one process, and its alerts go to a file")
            }
            FunctionConfig::Mirror(_) => {
                Some("its copies leave by one file or interface, which all its instances share")
            }
            FunctionConfig::DnsGuard(_) => Some("the responses and queries of all cores are counted together"),
            _ => None,
        }
    }

    /// Returns the files that it writes or renames files to, and a socket that it creates, each with the field that
    /// names it.
    pub fn writes(&self) -> Vec<(&'static str, PathBuf)> {
        let named = |field, files: &mut dyn Iterator<Item = &PathBuf>| {
            files.map(|file| (field, file.clone())).collect::<Vec<_>>()
        };
        match self {
            FunctionConfig::Accounting(accounting) => {
                let mut export = accounting.export.iter().map(|export| &export.file);
                named("export.file", &mut export)
            }
            FunctionConfig::FlowStats(stats) => named("export.file", &mut stats.files()),
            FunctionConfig::Mirror(mirror) => named("to.file", &mut mirror.files().iter()),
            FunctionConfig::Ids(ids) => named("eve", &mut ids.options.eve.iter()),
            FunctionConfig::Upf(upf) => {
                let usage = named("usage.file", &mut upf.usage.iter().map(|usage| &usage.file));
                [usage, named("api", &mut upf.api.iter())].concat()
            }
            _ => Vec::new(),
        }
    }

    /// Returns `true` if it exports data by files or connections of its own. An isolated function may have no such
    /// access, and each of several processes would write its own output.
    pub fn exports(&self) -> bool {
        match self {
            FunctionConfig::FlowStats(stats) => !stats.options.outlets.is_empty(),
            FunctionConfig::Mirror(mirror) => mirror.options.to.is_some(),
            other => !other.writes().is_empty(),
        }
    }

    /// Removes everything that it would write or send, for measurements.
    pub fn forget_exports(&mut self) {
        match self {
            FunctionConfig::Accounting(accounting) => accounting.export = None,
            FunctionConfig::FlowStats(stats) => stats.options.outlets.clear(),
            FunctionConfig::Mirror(mirror) => mirror.options.to = None,
            FunctionConfig::Ids(ids) => ids.options.eve = None,
            FunctionConfig::Upf(upf) => (upf.usage, upf.api) = (None, None),
            _ => {}
        }
    }

    /// Returns warnings about dangerous or useless settings of a valid configuration, one line each.
    pub fn warnings(&self) -> Vec<String> {
        match self {
            FunctionConfig::Ipsec(ipsec) => ipsec.warnings.clone(),
            FunctionConfig::Firewall(firewall) => firewall.warnings(),
            FunctionConfig::Acl(acl) => acl.warnings(),
            FunctionConfig::Classifier(classifier) => classifier.warnings(),
            FunctionConfig::Ids(ids) => ids.loaded.notices(),
            _ => Vec::new(),
        }
    }

    /// Name of a function to which the spec gives none.
    pub(crate) fn default_name(&self) -> &str {
        match self {
            FunctionConfig::Library(library) => &library.foreign().name,
            FunctionConfig::Program(program) => &program.foreign().name,
            other => other.kind(),
        }
    }
}

/// Reads one item of `functions`: its type's key with the configuration, and an optional name.
pub(crate) fn parse(item: &Located<'_>, context: &Context<'_>) -> Result<(Option<String>, FunctionConfig), SpecError> {
    let kinds = FunctionConfig::KINDS;
    let what = format!("one function ({})", kinds.join(", "));
    if !item.is_map() {
        // `- forward` instead of `- forward:`.
        let text = item.text("").unwrap_or_default();
        let suggestion = nearest(text, kinds.iter().copied()).map(|kind| format!("{kind}: {{}}"));
        let what = format!("a map with {what}");
        return Err(item.expected(&what).suggest(suggestion));
    }
    let entries = item.entries(&what)?;
    let is_kind = |key: &str| kinds.contains(&key);
    // Checks all keys before any configuration: the fields of a configuration that is not indented far enough appear as
    // keys next to its function.
    let mut function = None;
    for (key, value) in &entries {
        match function {
            _ if *key == "name" => {}
            None if is_kind(key) => function = Some((*key, value)),
            Some((first, _)) if is_kind(key) => {
                let message = format!(
                    "expected {what} in each item, found {} beside {}",
                    quoted(key),
                    quoted(first)
                );
                return Err(item.error_at_key(key, message));
            }
            _ => {
                let beside = entries.iter().find(|(key, _)| is_kind(key));
                let error = match beside {
                    None => format!("expected {what}, found {}", quoted(key)),
                    Some((kind, _)) => format!(
                        "expected only a name beside {kind}, found {}, which must be indented \
                         further if it belongs to {kind}",
                        quoted(key)
                    ),
                };
                let candidates = kinds.iter().copied().filter(|_| beside.is_none());
                let suggestion = nearest(key, candidates.chain(["name"]));
                return Err(item.error_at_key(key, error).suggest(suggestion));
            }
        }
    }
    let name = entries.iter().find(|(key, _)| *key == "name");
    let name = name.map(|(_, value)| label(value)).transpose()?;
    let config = function.and_then(|(key, value)| FunctionConfig::parse(key, value, context));
    match config {
        Some(config) => Ok((name, config?)),
        None if entries.is_empty() => Err(item.error(format!("expected {what}, found none"))),
        None => Err(item.error(format!("expected {what}, found only a name"))),
    }
}
