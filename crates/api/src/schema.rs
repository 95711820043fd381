//! Schemas of the kinds: the fields of every map with type, default, range and documentation.
//!
//! A parser and the schema share one table, a [`Map`] beside the parser:
//! [`Located::fields_of`](crate::located::Located::fields_of) refuses every field that the table lacks. Three
//! renderings read the tables: [`json_schema`] for editors, [`structural_schema`] for Kubernetes' custom resources, and
//! [`find`] for the documentation of a field.

mod find;
mod json;
pub mod samples;
mod structural;
mod text;
mod types;
mod values;

pub use find::{Child, PathError, children, find};
pub use json::{document_schema, json_schema};
pub use structural::{Foreign, structural_schema};
pub use types::{Entries, Field, FunctionSchema, Kind, Map, Only, Rule, Text, Type};
pub use values::{
    ADDRESS, ADDRESS_AND_PORT, CORES, DEVICE, FILE, HOST_AND_PORT, KEY, LABEL, LATENCY_UNITS, LINE, MAC, METRICS,
    OTLP_URL, PORT_OR_ANY, PORTS, PREFIX, PREFIX_OR_ANY, PREFIX_V4, PROTOCOL, PROTOCOL_OR_ANY,
};

/// Version of all kinds, as in `apiVersion`.
pub const VERSION: &str = "v1alpha1";
