//! How packets are inspected.

/// How packets are inspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of each direction of a connection that are kept at a time.
    pub window: usize,
    /// Bytes of each direction that are looked at in all.
    pub depth: u64,
    /// Bytes of a body without content coding that are looked at.
    pub decoded: usize,
    /// Whether rules may drop packets, rather than only tell.
    pub drops: bool,
    /// Whether packets are dropped, too, that cannot be looked into. Only with `drops`.
    pub strict: bool,
    /// Whether packets with a wrong checksum are passed over, as their receivers do.
    pub checksums: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            window: 8192,
            depth: 1 << 20,
            decoded: 1 << 15,
            drops: false,
            strict: false,
            checksums: true,
        }
    }
}
