//! The kinds of functions a chain can hold, each with its configuration.

use super::error::{SpecError, nearest, quoted};
use super::located::Located;
use super::values::label;
use std::cell::RefCell;
use std::path::{Path, PathBuf};

mod own;
pub use external::{Changes, Missing};
pub use own::OwnFunction;

/// What reading a function's configuration may need beside its YAML.
pub(crate) struct Context<'a> {
    /// The folder that file names in the spec are relative to.
    base_dir: &'a Path,
    /// Whether libraries have been tried out by another process, which need not be done again.
    tried: bool,
    /// The files that were named since this was last taken.
    named: RefCell<Vec<PathBuf>>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(base_dir: &'a Path, tried: bool) -> Context<'a> {
        Context {
            base_dir,
            tried,
            named: RefCell::new(Vec::new()),
        }
    }

    /// Where a file is that a function names.
    fn file(&self, name: &str) -> PathBuf {
        let path = self.base_dir.join(name);
        self.named.borrow_mut().push(path.clone());
        path
    }

    /// The files that were named since the last time.
    pub(crate) fn take_named(&self) -> Vec<PathBuf> {
        self.named.take()
    }
}

/// Declares the function kinds: the key in YAML, and the module and type of the configuration.
/// The type has a `parse(&Located, &Context) -> Result<Self, SpecError>`.
macro_rules! registry {
    ($($(#[$doc:meta])* $key:literal => $module:ident::$config:ident as $variant:ident,)+) => {
        $(mod $module; pub use $module::$config;)+

        /// The configuration of one function of a chain.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum FunctionConfig {
            $($(#[$doc])* $variant($config),)+
            /// A function that the program brings along.
            Own(OwnFunction),
        }

        impl FunctionConfig {
            /// The keys of all kinds, as written in YAML.
            pub const KINDS: &'static [&'static str] = &[$($key),+];

            /// The key of this kind, as written in YAML, if it can be.
            pub fn kind(&self) -> &'static str {
                match self {
                    $(FunctionConfig::$variant(_) => $key,)+
                    FunctionConfig::Own(own) => own.kind(),
                }
            }

            /// Reads the configuration of a function; `None` if there is no such kind.
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
    /// Encryption of payloads.
    "encrypt" => encrypt::EncryptConfig as Encrypt,
    /// Forwarding, with Ethernet addresses set on the way.
    "forward" => forward::ForwardConfig as Forward,
    /// Forwarding by longest-prefix match.
    "ipForward" => ip_forward::IpForwardConfig as IpForward,
    /// VLAN tags pushed and popped by rule.
    "tunnel" => tunnel::TunnelConfig as Tunnel,
    /// Rates that packets may have.
    "policer" => policer::PolicerConfig as Policer,
    /// ESP tunnels.
    "ipsec" => ipsec::IpsecConfig as Ipsec,
    /// Connections allowed or not, by rules from zone to zone.
    "firewall" => firewall::FirewallConfig as Firewall,
    /// A function from a shared library.
    "library" => library::LibraryConfig as Library,
    /// A program of somebody else's, beyond a port.
    "external" => external::ExternalConfig as External,
}

pub(crate) use firewall::{describe as describe_shadowed, parse_rules as parse_firewall_rules};

impl FunctionConfig {
    /// Whether it [tracks connections](crate::function::NetworkFunction::tracks_connections).
    pub(crate) fn tracks_connections(&self) -> bool {
        match self {
            FunctionConfig::Firewall(_) => true,
            FunctionConfig::Own(own) => own.instance().tracks_connections(),
            _ => false,
        }
    }

    /// What a function is called where the spec does not say.
    pub(crate) fn default_name(&self) -> &str {
        match self {
            FunctionConfig::Library(library) => library.function.name(),
            other => other.kind(),
        }
    }
}

/// Reads one item of `functions`: its kind's key with the configuration, and perhaps a name.
pub(crate) fn parse(
    item: &Located<'_>,
    context: &Context<'_>,
) -> Result<(Option<String>, FunctionConfig), SpecError> {
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
    // All keys before any configuration: a configuration that was not indented far enough shows
    // as keys beside its function.
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
