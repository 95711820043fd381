//! Source of a run's packets.

use crate::clock::Clock;
use crate::external::with_externals::Functions;
use crate::port::Port;
use crate::trace_nic::TraceNic;
use std::fmt;
use tailwater_traffic::Trace;

/// Source of a run's packets.
pub enum Packets<'p> {
    /// Trace, through the trace NIC.
    Trace(Trace),
    /// Trace, for a chain with external functions.
    TraceWithExternals {
        /// The trace.
        trace: Trace,
        /// Ports of the external functions.
        functions: Box<dyn Functions<TraceNic>>,
    },
    /// Port. It has the ports of external functions with it, if the chain has any.
    Port {
        /// The port.
        port: &'p mut dyn Port,
        /// Clock of the port's times.
        clock: Clock,
    },
}

impl From<Trace> for Packets<'_> {
    fn from(trace: Trace) -> Self {
        Packets::Trace(trace)
    }
}

impl fmt::Debug for Packets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, name) = match self {
            Packets::Trace(trace) => ("Trace", trace.name()),
            Packets::TraceWithExternals { trace, .. } => ("TraceWithExternals", trace.name()),
            Packets::Port { port, .. } => ("Port", port.traffic()),
        };
        f.debug_tuple(kind).field(&name).finish()
    }
}
