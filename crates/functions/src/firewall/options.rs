//! Options of a firewall.

use tailwater_net::Nanos;

/// Idle timeouts of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP, until both SYNs are acknowledged.
    pub handshake: Nanos,
    /// TCP, after the handshake.
    pub established: Nanos,
    /// TCP, after the first FIN.
    pub closing: Nanos,
    /// TCP, after both FINs are acknowledged.
    pub time_wait: Nanos,
    /// TCP, after a reset.
    pub closed: Nanos,
    /// UDP without an answer.
    pub udp: Nanos,
    /// UDP with an answer.
    pub udp_answered: Nanos,
    /// ICMP echo.
    pub icmp: Nanos,
    /// Other protocols without an answer.
    pub other: Nanos,
    /// Other protocols with an answer.
    pub other_answered: Nanos,
    /// Time for which a denial is cached.
    pub denied: Nanos,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        let seconds = Nanos::from_secs;
        Timeouts {
            handshake: seconds(30),
            // RFC 5382 REQ-5.
            established: seconds(7440),
            closing: seconds(120),
            time_wait: seconds(60),
            closed: seconds(10),
            udp: seconds(30),
            // RFC 4787 REQ-5: at least two minutes.
            udp_answered: seconds(180),
            icmp: seconds(30),
            other: seconds(60),
            other_answered: seconds(600),
            denied: seconds(10),
        }
    }
}

/// Treatment of fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragments {
    /// They are dropped.
    Drop,
    /// They pass, whatever the rules say.
    Pass,
    /// The rules decide on the first fragment, which has the ports. The datagram's other fragments follow it.
    FirstDecides,
}

/// Limits on half-open TCP connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfOpen {
    /// Maximum in total.
    pub total: u32,
    /// Maximum per destination address.
    pub per_destination: u32,
}

/// Options of a firewall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// `true` to pass and count TCP segments out of the window. Resets out of the window are always dropped.
    pub liberal: bool,
    /// `true` to pick up TCP connections in midstream.
    pub midstream: bool,
    /// Treatment of fragments.
    pub fragments: Fragments,
    /// `true` to pass IPv6 neighbour discovery and multicast listener messages without a rule.
    pub neighbour_discovery: bool,
    /// Limits on half-open connections. The default `None` limits the total to half of the flow table, and does not
    /// limit destinations.
    pub half_open: Option<HalfOpen>,
    /// Idle timeouts of connections.
    pub timeouts: Timeouts,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            liberal: false,
            midstream: false,
            fragments: Fragments::FirstDecides,
            neighbour_discovery: true,
            half_open: None,
            timeouts: Timeouts::default(),
        }
    }
}
