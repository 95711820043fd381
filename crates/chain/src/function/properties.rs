//! Fixed properties of a function.

/// Fixed properties of a function, by which its chain is laid out.
///
/// # Example
///
/// A function that reads and writes headers only, with one state for both directions of a connection:
///
/// ```
/// use tailwater_chain::function::FunctionProperties;
///
/// let properties = FunctionProperties {
///     tracks_connections: true,
///     ..FunctionProperties::HEADERS_ONLY
/// };
/// assert!(!properties.needs_payload && !properties.opens_companions && !properties.mixes_flows);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionProperties {
    /// `true` if the function reads, writes or moves any part of a frame other than its headers. In front of functions
    /// that do not, a frame may lack the end of its payload. It is copied before the first function that needs it.
    pub needs_payload: bool,
    /// `true` if both directions of a connection share one state. In a chain with such a function, a flow is a
    /// connection: the port hashes both directions alike, so one bucket and one core have both, and the table finds
    /// both under one key. The chain's other functions still have one state for each direction, and see no difference.
    pub tracks_connections: bool,
    /// `true` if [`new_flow`](super::NetworkFunction::new_flow) opens [companions](super::NewFlow::open_companion).
    /// That requires the flow table, so the core that holds the flow's bucket, or to which it is lent, processes its
    /// packets until the flow has been opened.
    pub opens_companions: bool,
    /// `true` if packets that arrive in one flow can leave in several, as packets out of a tunnel do. The chain looks
    /// flows up once, by the arriving packet, so no later function may have flow state.
    pub mixes_flows: bool,
    /// `true` if the function reads packets' RSS hashes without flow state of its own. Flow look-up needs the hashes in
    /// any case. If nothing in a chain on one core needs them, packets whose device reports none get none.
    pub reads_hash: bool,
}

impl FunctionProperties {
    /// Properties of a function that accesses headers only, and RSS hashes only with flow state.
    pub const HEADERS_ONLY: FunctionProperties = FunctionProperties {
        needs_payload: false,
        tracks_connections: false,
        opens_companions: false,
        mixes_flows: false,
        reads_hash: false,
    };
}

/// Properties of a function that may access whole frames and RSS hashes.
impl Default for FunctionProperties {
    fn default() -> FunctionProperties {
        FunctionProperties {
            needs_payload: true,
            reads_hash: true,
            ..FunctionProperties::HEADERS_ONLY
        }
    }
}
