//! Forms of texts that several kinds share. [`values`](crate::values) parses most of them.

use super::types::Text;

/// Number with a unit of time.
pub(super) const DURATION: &str = "^[0-9]+(\\.[0-9]+)? ?(ns|us|\u{b5}s|\u{3bc}s|ms|s)$";
/// Number with a unit of packets per second.
pub(super) const PACKET_RATE: &str = "^[0-9]+(\\.[0-9]+)? ?(pps|kpps|Mpps)$";
/// Number with a unit of bits per second.
pub(super) const BIT_RATE: &str = "^[0-9]+(\\.[0-9]+)? ?(bps|kbps|Mbps|Gbps)$";
/// Number with a unit of packets or bits per second.
pub(super) const RATE: &str = "^[0-9]+(\\.[0-9]+)? ?(pps|kpps|Mpps|bps|kbps|Mbps|Gbps)$";
/// Number with a unit of bytes.
pub(super) const SIZE: &str = "^[0-9]+(\\.[0-9]+)? ?(KiB|MiB|GiB)$";
/// Maximum length of a number with a unit.
pub(super) const UNIT_LENGTH: usize = 40;
/// Units of durations, for docs.
pub const LATENCY_UNITS: &str = "ns, us, ms, s";

/// Declares forms of texts.
macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident: $what:literal, $pattern:expr, $most:literal, $example:literal, $whole:expr;)*) => {
        $($(#[$doc])* pub static $name: Text = Text {
            what: $what,
            pattern: $pattern,
            most: $most,
            example: $example,
            whole: $whole,
        };)*
    };
}

texts! {
    /// RFC 1123 label.
    LABEL: "a label of lower-case letters, digits and inner dashes",
        "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", 63, "edge", None;
    /// Line of text.
    LINE: "a text on one line", "^[^\\n\\r]*$", 4096, "text", None;
    /// Path of a file.
    FILE: "the name of a file", "^[^\\n\\r]+$", 4096, "file.txt", None;
    /// IP prefix or address.
    PREFIX: "an IP prefix or address", "^[0-9a-fA-F:.]+(/[0-9]{1,3})?$", 64, "10.0.0.0/8", None;
    /// IP prefix, address or `any`.
    PREFIX_OR_ANY: "an IP prefix or address, or any", "^(any|[0-9a-fA-F:.]+(/[0-9]{1,3})?)$", 64, "10.0.0.0/8", None;
    /// IPv4 prefix or address.
    PREFIX_V4: "an IPv4 prefix or address", "^[0-9]{1,3}(\\.[0-9]{1,3}){3}(/[0-9]{1,2})?$", 18, "198.51.100.0/28", None;
    /// IP address.
    ADDRESS: "an IP address", "^[0-9a-fA-F:.]+$", 64, "192.0.2.1", None;
    /// IP address and port.
    ADDRESS_AND_PORT: "an IP address and a port", "^([0-9.]+|\\[[0-9a-fA-F:.]+\\]):[0-9]{1,5}$", 64, "192.0.2.9:4739",
        None;
    /// Host and optional port.
    HOST_AND_PORT: "a host, or a host and a port", "^[-A-Za-z0-9._:\\[\\]]+$", 262, "redis.example:6379", None;
    /// Port, or IP address and port.
    METRICS: "a port, or an IP address and a port", "^([0-9]{1,5}|([0-9.]+|\\[[0-9a-fA-F:.]+\\]):[0-9]{1,5})$", 64,
        "127.0.0.1:9100", Some((0, 65_535));
    /// URL of a collector of OpenTelemetry.
    OTLP_URL: "an http or https URL", "^https?://[^ /?#:][^ ]*$", 512, "http://127.0.0.1:4318", None;
    /// Port, range of ports or `any`.
    PORTS: "a port, a range of ports, or any", "^(any|[0-9]{1,5}( *- *[0-9]{1,5})?)$", 32, "80-443", Some((0, 65_535));
    /// Port from 1 on, or `any`.
    PORT_OR_ANY: "a port, or any", "^any$", 3, "any", Some((1, 65_535));
    /// IP protocol.
    PROTOCOL: "an IP protocol by name or number",
        "^(icmp|igmp|tcp|udp|gre|esp|ah|icmpv6|ospf|sctp|[0-9]{1,3})$", 6, "tcp",
        Some((0, 255));
    /// IP protocol or `any`.
    PROTOCOL_OR_ANY: "an IP protocol by name or number, or any",
        "^(any|icmp|igmp|tcp|udp|gre|esp|ah|icmpv6|ospf|sctp|[0-9]{1,3})$", 6, "tcp", Some((0, 255));
    /// Ethernet address.
    MAC: "a MAC address", "^[0-9a-fA-F]{2}([-:][0-9a-fA-F]{2}){5}$", 17, "02:00:00:00:00:01", None;
    /// Device.
    DEVICE: "a PCI address, a DPDK virtual device, or interface=NAME",
        "^(net_[A-Za-z0-9_]{2,}|([0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\\.[0-7]|interface=)[^\\n\\r\\t ]*$",
        4096, "net_af_packet0,iface=veth0", None;
    /// List of cores.
    CORES: "a list of cores", "^ *[0-9]{1,5} *(- *[0-9]{1,5} *)?(, *[0-9]{1,5} *(- *[0-9]{1,5} *)?)*$", 4096, "0,2-3",
        Some((0, 65_535));
    /// Key in hexadecimal digits.
    KEY: "hexadecimal digits", "^(0x)?[0-9a-fA-F]+$", 256, "00112233445566778899aabbccddeeff00112233",
        None;
}
