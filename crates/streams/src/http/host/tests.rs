//! Tests of hosts and ports.

use super::*;
use proptest::prelude::*;

#[test]
fn hosts() {
    for (given, name, port) in [
        ("Example.COM", "example.com", None),
        (" example.com.:8080\t", "example.com", Some(8080)),
        ("u:p@%65xample.com", "example.com", None),
        ("[2001:DB8::1]:443", "[2001:db8::1]", Some(443)),
        ("example.com:", "example.com", None),
        ("example.com:99999", "example.com", None),
        ("example.com:x", "example.com:x", None),
        ("...", "", None),
    ] {
        let host = Host::new(given.as_bytes()).unwrap();
        assert_eq!(std::str::from_utf8(host.name()).unwrap(), name, "{given}");
        assert_eq!(host.port, port, "{given}");
    }
    assert!(Host::new(&[b'a'; MAX_HOST + 1]).is_none());
}

#[test]
fn hosts_as_suricata_reads_them() {
    for (given, name) in [
        ("u:p@h.x:80", "h.x"),
        ("[::1]:80", "[::1]"),
        ("h.x:80:90", "h.x"),
        ("h.x:y", "h.x"),
        ("[::1", "[::1"),
        ("[::1]x", "[::1]"),
    ] {
        let (found, _) = split_authority(given.as_bytes(), Reading::Suricata);
        assert_eq!(std::str::from_utf8(found).unwrap(), name, "{given}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_host_or_none(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        prop_assert_eq!(Host::new(&bytes).is_none(), bytes.trim_ascii().len() > MAX_HOST);
    }
}
