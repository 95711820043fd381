//! Objects that users write in YAML, shaped as Kubernetes shapes them: text to a tree of located nodes, and the nodes
//! to checked types.
//!
//! Text becomes a tree of nodes (`yaml`) that know their line and column. [`Located`](document::Located) adds file and
//! field path, and reads scalars, lists and maps with an error that names all of them. On these stand the parts that
//! several kinds share: [`Slo`], [`PortName`], [`FlowsSpec`], [`StateSpec`]; and on these the kinds: [`Chain`](chain).
//! No code of a network function is needed to read any of it. [`schema`] describes the fields of all kinds.

pub mod chain;
pub mod document;
pub mod error;
pub mod external;
pub mod files;
pub mod flows;
pub mod isolation;
pub mod located;
pub mod port_name;
pub mod ports;
pub mod schema;
pub mod server;
pub mod slo;
pub mod state;
pub mod values;
pub mod yaml;

pub use document::Metadata;
pub use error::SpecError;
pub use flows::{FlowsSpec, IdleTimeouts, PacketsSpec, WhenFull};
pub use isolation::{Defence, IsolationMode, IsolationSpec};
pub use port_name::{PortName, PortNameError};
pub use ports::{DdioSpec, PortSetup, PortsSpec, two_kinds};
pub use server::{ControlSpec, ServerPort, ServerSpec, Unmatched};
pub use slo::{Slo, WhenOverloaded};
pub use state::{RedisAddress, RedisSpec, Secret, StateSpec, WhenUnavailable};
pub use values::{PacketAction, Throughput};
