//! `UrlFilter`: matches hosts and URLs of HTTP/1.x requests, and server names of TLS ClientHellos, against lists of
//! patterns.
//!
//! A packet goes through up to three stages; most packets leave early:
//!
//! 1. `function` checks that the flow is still of interest. Once a stream is known not to be HTTP or TLS, or its
//!    ClientHello seen, later packets only cost a read of the flow state.
//! 2. `reassembly` determines the segment's next bytes in the stream. Out-of-order bytes wait in a bounded buffer of a
//!    buffer pool (`stream_pool`) shared by all instances. The flow state names the buffer, so that any instance can
//!    continue with the flow.
//! 3. The parser of [`tailwater_streams`] detects the end of a request line, Host field or server name in these bytes.
//!    The result is normalised; `lookup` looks it up in the table.

mod function;
mod kind;
mod lookup;
pub mod pattern;
mod reassembly;
mod service;
mod spec;
mod table;
mod transfer;

pub use function::UrlFilter;
pub use kind::KIND;
pub use pattern::{Pattern, parse_list};
pub use service::{Action, FilterConfig, FilterTable, Ports, Rest};
pub use spec::UrlFilterConfig;
pub use table::{TableError, UrlTable};

#[cfg(test)]
mod tests;
