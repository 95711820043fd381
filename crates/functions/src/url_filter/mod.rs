//! `UrlFilter`: hosts and URLs of HTTP/1.x requests, and server names of TLS ClientHellos, against
//! lists of patterns.
//!
//! A packet goes through three stages, each of which ends for most packets:
//!
//! 1. `function`: is the flow still of interest? Once a stream is known not to be HTTP or TLS,
//!    or its ClientHello was seen, later packets cost a look at the flow's state.
//! 2. `reassembly`: which bytes of the segment come next in the stream? Those that come too
//!    early wait in a buffer of bounded size, of a `stock` that all instances share: a flow's state
//!    names its buffer, so that any instance can go on with the flow.
//! 3. `parser` with `http` and `tls`: does a request line, Host field or server name end in these
//!    bytes? If so it is normalised and looked up in the table.

mod function;
mod http;
mod normalize;
mod parser;
pub mod pattern;
mod reassembly;
mod service;
mod table;
mod tls;

pub use function::UrlFilter;
pub use pattern::{Pattern, parse_list};
pub use service::{Action, FilterConfig, FilterTable, Ports, Rest};
pub use table::{TableError, UrlTable};

#[cfg(test)]
mod tests;
