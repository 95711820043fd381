//! Settings of packet inspection.

/// Settings of packet inspection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of the reassembly window, per direction of a connection.
    pub window: usize,
    /// Bytes inspected in total, per direction of a connection.
    pub depth: u64,
    /// Bytes inspected of a body after removing its content coding.
    pub decoded: usize,
    /// If `true`, rules may drop packets; otherwise they only alert.
    pub drops: bool,
    /// If `true`, packets that cannot be inspected are dropped as well. Requires `drops`.
    pub strict: bool,
    /// If `true`, packets with a wrong checksum are ignored, as by their receivers.
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
