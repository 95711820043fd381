//! Checked configuration of a function.

use super::factory::{BuildContext, FunctionError, FunctionFactory, IsolationContext};
use super::host::HostPart;
use super::state_format::StateTransfer;
use crate::library::{Code, ForeignFunction};
use std::any::Any;
use std::fmt::{self, Debug};
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use tailwater_chain::function::Lifetimes;

/// Checked configuration of one function of a chain. A function overrides the provided methods that apply to it.
pub trait FunctionConfig: ConfigObject {
    /// Name of the [kind](super::FunctionKind::name).
    fn kind(&self) -> &'static str;

    /// Prepares the state that the instances of all workers share.
    ///
    /// # Errors
    /// If the configuration is valid but cannot run: a limit is exceeded, memory is missing, or a file cannot be
    /// written.
    fn build(&self, context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError>;

    /// Same as [`build`](FunctionConfig::build), for one process of an isolated function.
    ///
    /// # Errors
    /// Same as [`build`](FunctionConfig::build).
    ///
    /// # Panics
    /// If the shared counters have too little room.
    fn build_isolated(
        &self,
        context: &BuildContext<'_>,
        _isolation: &IsolationContext,
    ) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        self.build(context)
    }

    /// Name of a function to which the spec gives none.
    fn default_name(&self) -> &str {
        self.kind()
    }

    /// Returns `true` if it [tracks connections](tailwater_chain::function::FunctionProperties::tracks_connections).
    fn tracks_connections(&self) -> bool {
        false
    }

    /// Returns `true` if it [decides](tailwater_chain::function::NetworkFunction::lifetimes) on the idle timeouts of
    /// flows.
    fn decides_lifetimes(&self) -> bool {
        false
    }

    /// Returns `true` if it translates addresses, so that the two directions of a connection differ behind it.
    fn translates_addresses(&self) -> bool {
        false
    }

    /// Returns `true` if packets may skip it while its process is replaced, if its spec says so (`onFailure: bypass`):
    /// it neither stops nor translates packets. All other functions lose them.
    fn can_be_bypassed(&self) -> bool {
        false
    }

    /// Returns `true` if it changes no byte of a frame. Isolated, it gets the packets' memory for reading only, so it
    /// cannot.
    fn reads_only(&self) -> bool {
        false
    }

    /// Returns the way in which its flow state can pass to another process of the server, while it is in a process of
    /// its own.
    fn state_transfer(&self) -> StateTransfer {
        StateTransfer::None
    }

    /// Returns its requirements in a process of its own, for a chain with this flow table capacity.
    fn requirements(&self, _capacity: usize) -> Requirements {
        Requirements {
            tracks_connections: self.tracks_connections(),
            reads_only: self.reads_only(),
            transfer: match self.third_party() {
                Some(_) => StateTransfer::ThirdParty,
                None => self.state_transfer(),
            },
            ..Requirements::default()
        }
    }

    /// Reason why its instances cannot run in processes of their own: the data that they share.
    fn in_process_only_reason(&self) -> Option<&'static str> {
        None
    }

    /// Reason why packets of a flow cannot move between cores, if they cannot: state other than that of flows, which
    /// belongs to a core. Such a chain has no auxiliary cores, and its RSS buckets stay.
    fn bound_to_core_reason(&self) -> Option<&'static str> {
        None
    }

    /// Returns `true` if a single process of its own can run it despite the
    /// [reason](FunctionConfig::in_process_only_reason).
    fn can_run_in_one_process(&self) -> bool {
        false
    }

    /// Returns `true` if a user may keep it in the host's process although it can be isolated.
    fn may_stay(&self) -> bool {
        self.in_process_only_reason().is_some() || self.exports()
    }

    /// Returns the files that it writes or renames files to, and a socket that it creates, each with the field that
    /// names it.
    fn outputs(&self) -> Vec<(&'static str, PathBuf)> {
        Vec::new()
    }

    /// Returns `true` if it exports data by files or connections of its own. An isolated function may have no such
    /// access, and each of several processes would write its own output, unless its [part in the
    /// host](Requirements::host) does.
    fn exports(&self) -> bool {
        !self.outputs().is_empty()
    }

    /// Removes everything that it would write or send, for measurements.
    fn remove_exports(&mut self) {}

    /// Removes the paths of the files that it was read from, for comparison by content.
    fn remove_sources(&mut self) {}

    /// Warnings about dangerous settings of a valid configuration, one line each.
    fn warnings(&self) -> &[String] {
        &[]
    }

    /// Returns notices about useless settings of a valid configuration, one line each.
    fn notices(&self) -> Vec<String> {
        Vec::new()
    }

    /// Third-party code that it runs, if any, with its configuration.
    fn third_party(&self) -> Option<(Code<'_>, &ForeignFunction)> {
        None
    }
}

/// Operations of a [`FunctionConfig`] that follow from its type, implemented for all suitable ones.
pub trait ConfigObject: Any + Debug + Send + Sync {
    /// Returns `true` if the other one has the same type and is equal.
    fn is_equal(&self, other: &dyn Any) -> bool;

    /// Copies it.
    fn copy(&self) -> AnyConfig;
}

impl<T: FunctionConfig + Clone + PartialEq> ConfigObject for T {
    fn is_equal(&self, other: &dyn Any) -> bool {
        other.downcast_ref::<T>().is_some_and(|other| self == other)
    }

    fn copy(&self) -> AnyConfig {
        AnyConfig::from(self.clone())
    }
}

/// Configuration of a function of any kind. Clones share it.
#[derive(Clone)]
pub struct AnyConfig(Arc<dyn FunctionConfig>);

impl AnyConfig {
    /// Returns the configuration as `T`, if it has that type.
    pub fn get<T: FunctionConfig>(&self) -> Option<&T> {
        self.as_any().downcast_ref()
    }

    /// Returns the configuration without its interface, for a comparison of types.
    pub fn as_any(&self) -> &dyn Any {
        &*self.0
    }

    /// Same as [`get`](AnyConfig::get), for changes. Clones keep the old configuration.
    pub fn get_mut<T: FunctionConfig>(&mut self) -> Option<&mut T> {
        let config: &mut dyn Any = self.make_mut();
        config.downcast_mut()
    }

    /// Returns `true` if the configuration has type `T`.
    pub fn is<T: FunctionConfig>(&self) -> bool {
        self.get::<T>().is_some()
    }

    /// Returns the configuration for changes. Clones keep the old one.
    ///
    /// # Panics
    /// Never: a new copy has no other owner.
    pub fn make_mut(&mut self) -> &mut dyn FunctionConfig {
        if Arc::get_mut(&mut self.0).is_none() {
            *self = self.0.copy();
        }
        Arc::get_mut(&mut self.0).expect("an unshared copy")
    }
}

impl<T: FunctionConfig> From<T> for AnyConfig {
    fn from(config: T) -> AnyConfig {
        AnyConfig(Arc::new(config))
    }
}

impl Deref for AnyConfig {
    type Target = dyn FunctionConfig;

    fn deref(&self) -> &dyn FunctionConfig {
        &*self.0
    }
}

impl PartialEq for AnyConfig {
    fn eq(&self, other: &AnyConfig) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.is_equal(&*other.0)
    }
}

impl Eq for AnyConfig {}

/// Formats the configuration in the name of its kind, with a capital letter.
impl Debug for AnyConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut letters = self.kind().chars();
        let first = letters.next().map(|first| first.to_ascii_uppercase());
        let name: String = first.into_iter().chain(letters).collect();
        f.debug_tuple(&name).field(&self.0).finish()
    }
}

/// Requirements of a function in a process of its own, taken from its spec without querying that process.
#[derive(Clone, Debug, Default)]
pub struct Requirements {
    /// Size of the [`SharedCounters`](tailwater_chain::shared_counters::SharedCounters) of its processes, in bytes.
    pub shared_bytes: usize,
    /// Size of the counters that each of its processes adds to these, in bytes.
    pub shared_bytes_of_process: usize,
    /// Memory of each of its processes that its configuration asks for, beyond that of rules and tables, in bytes.
    pub private_bytes: u64,
    /// Its part in the host, if it has one.
    pub host: Option<Arc<dyn HostPart>>,
    /// `true` if it inspects [packets that are not IP](tailwater_chain::function::NetworkFunction::inspect_non_ip).
    pub inspects_non_ip: bool,
    /// `true` if [packets of one flow can leave in
    /// several](tailwater_chain::function::FunctionProperties::mixes_flows).
    pub mixes_flows: bool,
    /// `true` if [flows are connections](tailwater_chain::function::FunctionProperties::tracks_connections).
    pub tracks_connections: bool,
    /// `true` if it gets the packets' memory for reading only.
    pub reads_only: bool,
    /// Source of idle timeouts, if the function decides on them, and the number of state bytes it receives.
    pub lifetimes: Option<(Arc<dyn Lifetimes>, usize)>,
    /// Way in which its flow state can pass to another process of the server.
    pub transfer: StateTransfer,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::ForwardConfig;
    use crate::policer::PolicerConfig;

    #[test]
    fn clones_share_a_configuration_until_one_is_changed() {
        let first = AnyConfig::from(ForwardConfig::default());
        let mut second = first.clone();
        assert!(Arc::ptr_eq(&first.0, &second.0));
        second.get_mut::<ForwardConfig>().unwrap().source_mac = Some([2; 6]);
        assert_ne!(first, second);
        assert_eq!(first.get::<ForwardConfig>().unwrap().source_mac, None);
        assert!(!first.is::<PolicerConfig>() && second.get_mut::<PolicerConfig>().is_none());
        second.get_mut::<ForwardConfig>().unwrap().source_mac = None;
        assert_eq!(first, second);
    }

    /// Profiles are recognised by this text.
    #[test]
    fn configurations_are_formatted_in_the_name_of_their_kind() {
        let config = AnyConfig::from(ForwardConfig::default());
        let expected = "Forward(ForwardConfig { source_mac: None, destination_mac: None })";
        assert_eq!(format!("{config:?}"), expected);
    }
}
